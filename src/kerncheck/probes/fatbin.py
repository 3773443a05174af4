"""Read which GPU architectures a binary holds code for, from the fat binaries inside it. Standard library only.

nvcc puts one container ("fat binary") for each translation unit into a section. A container is a header, then entries:
machine code (a cubin), PTX text or an intermediate form for link-time optimisation, each for one architecture, each
perhaps compressed. Only headers are read, so nothing is decompressed and nothing loaded.

The layout is not documented by NVIDIA. It was learned from files made by nvcc 13.0.88 with known options and from
public readers of it, and is checked against cuobjdump (docs/binaries.md).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

MAGIC = 0xBA55ED50
MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of all entries
ENTRY = struct.Struct("<HHIQIIHHIIIQ")  # kind, version, header, payload, compressed, options, minor, major, arch, ...
LEAST_ENTRY = 64
KINDS = {1: "ptx", 2: "cubin", 8: "lto"}
ACCELERATED, FAMILY = 0x100000, 0x200000  # sm_90a and compute_100f, in an entry's flags
COMPRESSED = 0x2000 | 0x8000  # LZ4 (CUDA up to 12) and Zstandard
ALIGNMENT = 8
MOST_ENTRIES = 1_000_000  # libcublasLt.so.13 has about 5,400
ODDEST_ARCH = 9999

Entry = tuple[str, int, str, bool, str]
"""(kind, architecture such as 90, suffix ``a``, ``f`` or "", compressed, ISA version of a PTX entry such as 9.0)."""


class BadFatbinError(Exception):
    """Device code that cannot be read to its end; the text says what is wrong where."""


def containers(image: Any, start: int, size: int) -> Iterator[list[Entry]]:
    """Yield the entries of each container between two places of an image (bytes or a memory map).

    Raises:
        BadFatbinError: something between the containers is neither one nor padding, or one is damaged.

    """
    at, end, budget = start, start + size, MOST_ENTRIES
    if end > len(image):
        raise BadFatbinError(f"the section ends at byte {end}, the file at {len(image)}")
    while at < end:
        following = after_padding(image, at, start, end)
        if following == end:
            return
        found, at = container(image, following, end, budget)
        budget -= len(found) + 1
        if budget <= 0:
            raise BadFatbinError(f"more than {MOST_ENTRIES} entries")
        yield found


def after_padding(image: Any, at: int, start: int, end: int) -> int:
    """Return where the next container starts; zeros up to it are padding, and anything else is damage."""
    following = image.find(MAGIC_BYTES, at, end)
    while following >= 0 and (following - start) % ALIGNMENT:
        following = image.find(MAGIC_BYTES, following + 1, end)
    following = end if following < 0 else following
    if following != at and not only_zeros(image, at, following):
        raise BadFatbinError(f"bytes {at} to {following} are neither a fat binary nor padding")
    return following


def only_zeros(image: Any, start: int, end: int, block: int = 1 << 20) -> bool:
    """Tell whether a range holds zeros alone, without a copy of all of it."""
    return not any(any(image[at : min(at + block, end)]) for at in range(start, end, block))


def container(image: Any, at: int, end: int, most: int) -> tuple[list[Entry], int]:
    """Return the entries of the container at one place, and where it ends."""
    if at + HEADER.size > end:
        raise BadFatbinError(f"the section ends inside the header at byte {at}")
    _, version, header, length = HEADER.unpack_from(image, at)
    stop = at + header + length
    if version != 1 or header < HEADER.size or stop > end:
        raise BadFatbinError(f"damaged header at byte {at} (version {version}, {header} + {length} bytes)")
    found: list[Entry] = []
    place = at + header
    while place < stop:
        one, place = entry(image, place, stop)
        found.append(one)
        if len(found) > most:
            raise BadFatbinError(f"more than {MOST_ENTRIES} entries")
    return found, stop


def entry(image: Any, at: int, stop: int) -> tuple[Entry, int]:
    """Return one entry and where the next one starts."""
    if at + LEAST_ENTRY > stop:
        raise BadFatbinError(f"the fat binary ends inside the entry at byte {at}")
    kind, _, header, size, _, _, minor, major, arch, _, _, flags = ENTRY.unpack_from(image, at)
    following = at + header + size
    if header < LEAST_ENTRY or following > stop or not 0 < arch <= ODDEST_ARCH:
        raise BadFatbinError(f"damaged entry at byte {at} (kind {kind}, sm_{arch}, {header} + {size} bytes)")
    suffix = "a" if flags & ACCELERATED else "f" if flags & FAMILY else ""
    isa = f"{major}.{minor}" if kind == 1 and major else ""
    return (KINDS.get(kind, f"kind {kind}"), arch, suffix, bool(flags & COMPRESSED), isa), following


def summary(found: Iterator[list[Entry]]) -> dict[str, Any]:
    """Return what a binary's containers hold: each kind of code with how often, and the sets that occur together.

    ``codes`` are ``{"kind", "arch", "suffix", "count", "compressed", "isa"}``, in order; ``images`` the number of
    containers that hold any code; ``sets`` one ``{"codes": ["sm_80", "compute_90"], "count"}`` for each kind of image.
    """
    counts: Counter[Entry] = Counter()
    together: Counter[frozenset[Entry]] = Counter()
    for entries in found:
        counts.update(entries)
        together[frozenset(entries)] += bool(entries)
    codes: dict[tuple[str, int, str], dict[str, Any]] = {}
    for (kind, arch, suffix, packed, isa), count in sorted(counts.items()):
        code: dict[str, Any] = {"kind": kind, "arch": arch, "suffix": suffix, "count": 0, "compressed": 0, "isa": ""}
        code = codes.setdefault((kind, arch, suffix), code)
        code["count"] += count
        code["compressed"] += count if packed else 0
        code["isa"] = max(code["isa"], isa, key=numbers)
    sets: Counter[tuple[str, ...]] = Counter()
    for group, count in together.items():
        sets[tuple(sorted({name(*item[:3]) for item in group}))] += count
    shown = [{"codes": list(group), "count": count} for group, count in sets.most_common(MOST_SETS) if count]
    return {"codes": list(codes.values()), "images": sum(sets.values()), "sets": shown}


MOST_SETS = 64


def name(kind: str, arch: int, suffix: str) -> str:
    """Return an entry's name as nvcc and torch write it: ``sm_90a`` for machine code, ``compute_90`` for PTX."""
    prefix = {"cubin": "sm", "ptx": "compute"}.get(kind, kind.replace(" ", ""))
    return f"{prefix}_{arch}{suffix}"


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, so that 8.10 comes after 8.9."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())
