"""Hostile compiled files: small real ones, mutated by a seeded generator, and what must hold for each of them.

Used by ``test_fuzz_binaries.py`` (a few thousand) and by ``benchmarks/fuzz_binaries.py`` (20,000 and more).
"""

from __future__ import annotations

import json
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from binary_builders import LZ4, ZSTD, A, F, add_section, codes_of, entry, fatbin
from builders import compile_c, library, versioned

from kerncheck.catalog import load
from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.model.binaries import Binaries, BinaryFile, Package
from kerncheck.model.environment import Environment, Gpus, TorchBuild
from kerncheck.model.job import Job, Target
from kerncheck.model.snapshot import Snapshot
from kerncheck.probes import fatbin as reader
from kerncheck.probes import static_binaries as probe

CATALOG, CHECKS = load(), all_checks()
SLOWEST = 5.0  # seconds that one file may take on a busy machine; the usual is 2 milliseconds
WORDS = (0, 1, 2, 7, 8, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def seeds(folder: Path) -> list[bytes]:
    """Build small shared objects of every shape that the reader knows."""
    calls = (
        "extern int other(void); extern int _ZN3c104cuda9SetDeviceEi(int);"
        "int f(void) { return other() + _ZN3c104cuda9SetDeviceEi(1); }"
    )
    code = codes_of("sm_80", "sm_90a", "compute_90", "compute_100f")
    packed = fatbin(entry(2, 90, flags=ZSTD | A), entry(1, 100, flags=LZ4 | F, isa=(9, 0)), entry(8, 75, flags=ZSTD))
    paths = [
        compile_c(folder / "plain.so", calls, "-Wl,-rpath,$ORIGIN:$ORIGIN/lib"),
        compile_c(folder / "old.so", calls, "-Wl,--hash-style=sysv"),
        compile_c(
            folder / "cxx.so",
            '#include <stdio.h>\nint main_(void) { return puts(""); }',
            "-Wl,--disable-new-dtags,-rpath,/nowhere",
        ),
        versioned(folder / "versions.so", "kc", "KC_1.0", "libkc.so.1"),
        add_section(library(folder / "code.so", "f"), code + bytes(24) + packed),
        add_section(library(folder / "relocatable.so", "f"), code, "__nv_relfatbin"),
    ]
    return [path.read_bytes() for path in paths]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Change one to six things about a file: bits, words, blocks, its length, or a field that readers trust."""
    image = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        chance.choice((flip, word, word, header, header, block, shorten))(image, chance)
    return bytes(image)


def flip(image: bytearray, chance: random.Random) -> None:
    if image:
        image[chance.randrange(len(image))] ^= 1 << chance.randrange(8)


def word(image: bytearray, chance: random.Random) -> None:
    """Write an interesting number of 2, 4 or 8 bytes at any aligned place."""
    put(image, chance.randrange(max(1, len(image) // 4)) * 4, chance)


def header(image: bytearray, chance: random.Random) -> None:
    """Write one into the ELF header, the program headers, the dynamic section, a section header or a fat binary."""
    places = [*range(16, 64, 2), *range(64, 64 + 56 * 9, 8), *found(image, b"\x50\xed\x55\xba", 96), *tables(image)]
    put(image, chance.choice(places), chance)


def found(image: bytearray, magic: bytes, length: int) -> list[int]:
    at = image.find(magic)
    return list(range(at, at + length, 4)) if at >= 0 else []


def tables(image: bytearray) -> list[int]:
    """Return places in the dynamic section and in the section table, as the header of the file tells them."""
    if len(image) < 64:
        return []
    sections = struct.unpack_from("<Q", image, 0x28)[0]
    dynamic = [
        struct.unpack_from("<Q", image, at + 8)[0]
        for at in range(64, min(len(image) - 16, 64 + 56 * 9), 56)
        if image[at] == 2
    ]
    starts = [(start, 400) for start in dynamic] + [(sections, 64 * 28)]
    return [place for start, length in starts for place in range(start, start + length, 8) if place < len(image)]


def put(image: bytearray, at: int, chance: random.Random) -> None:
    size = chance.choice((2, 4, 8))
    number = chance.choice((*WORDS, len(image), len(image) - 1, chance.randrange(1 << 16)))
    if at + size <= len(image):
        image[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def block(image: bytearray, chance: random.Random) -> None:
    """Copy, erase, insert or remove a piece."""
    start = chance.randrange(max(1, len(image)))
    length = chance.choice((1, 8, 64, 512))
    piece = chance.choice((b"", bytes(length), b"\xff" * length, bytes(image[start : start + length]) * 2))
    image[start : start + length] = piece


def shorten(image: bytearray, chance: random.Random) -> None:
    del image[chance.randrange(len(image) + 1) :]


def state_for(folder: Path) -> probe.State:
    """Return what the probe knows of an interpreter without torch, whose only folder is this one."""
    found_here = {
        "executable": "",
        "path": [str(folder)],
        "suffixes": [".so"],
        "modules": {},
        "watch": (),
        "libraries": ("lib",),
    }
    return probe.State(found_here)


def examine(path: Path) -> dict:
    """Do with one file all that the probe does; return its facts, which are plain data."""
    state = state_for(path.parent)
    try:
        answers = probe.look(str(path), "mutated", "extension", "mutated", [], state)
    finally:
        state.loader.close()
    assert answers
    assert json.loads(json.dumps(answers, allow_nan=False)) is not None
    return {"package": "mutated", "extensions": ["mutated"], "installed": [], "files": answers}


def judged(answer: dict) -> None:
    """Judge one answer as part of an image: no check may raise, and nothing unread may be silent."""
    package = msgspec.convert(answer, Package)
    job = Job(profile="image", targets=(Target(text="sm_90", cc="9.0"),))
    section = Binaries(header="64-bit x86-64", packages=(package,))
    seen = Snapshot(
        binaries=section, environment=Environment(torch=TorchBuild(version="2.14.1", cuda="13.0")), gpus=Gpus()
    )
    case = Case(job, seen, CATALOG)
    outcomes, crashes = judge(case, [check for check in CHECKS if check.code.startswith("KC23")])
    assert crashes == (), crashes
    told = {outcome.code for outcome in outcomes if outcome.status == "failed"}
    for file in package.files:
        assert not unread(file) or "KC238" in told, file


def unread(file: BinaryFile) -> bool:
    """Tell whether a file could not be read."""
    return bool(file.problem)


def hostile(folder: Path, count: int, seed: int) -> Iterator[tuple[Path, float]]:
    """Write and examine mutated files, one after the other at one path; yield it with the seconds that it took."""
    chance, whole = random.Random(seed), seeds(folder / "seeds")
    path = folder / "mutated.so"
    for number in range(count):
        path.write_bytes(mutated(whole[number % len(whole)], chance))
        started = time.perf_counter()
        answer = examine(path)
        if number % 10 == 0:
            judged(answer)
        yield path, time.perf_counter() - started


def hostile_fatbins(count: int, seed: int) -> Counter[str]:
    """Read mutated fat binaries from memory; return how they ended."""
    chance, ends = random.Random(seed), Counter()
    whole = (
        codes_of("sm_75", "sm_80", "compute_80")
        + bytes(16)
        + fatbin(entry(2, 90, flags=ZSTD | A, size=40), entry(1, 90, isa=(9, 0)))
    )
    for _ in range(count):
        image = mutated(whole, chance)
        try:
            reader.summary(reader.containers(image, 0, len(image)))
            ends["read"] += 1
        except reader.BadFatbinError as error:
            ends[str(error).partition(" at ")[0].partition(" (")[0][:40]] += 1
    return ends
