"""What a compiled kernel takes of the GPU, read from its cubin without any of NVIDIA's tools.

A cubin is an ELF file. Its section ``.nv.info`` is a list of attributes: a format byte, an attribute byte, then two
bytes that hold a value or the size of what follows. Those read here come as pairs (symbol, value) of 32-bit words.
Their numbers were checked against ``cuobjdump -res-usage`` and ``ptxas -v`` of CUDA 12.9 and 13.4 on 2026-11-29.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = b"\x7fELF"
HEADER = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr (System V ABI, chapter 4)
SIZED = 4  # the format of an attribute that is followed by as many bytes as it says
REGISTERS = 0x2F  # EIATTR_REGCOUNT: 32-bit registers of a thread
FRAME = 0x11  # EIATTR_FRAME_SIZE: bytes of local memory of a thread


def usage(cubin: bytes) -> tuple[int | None, int | None]:
    """Return (registers, bytes of local memory) of one thread, the most of any function; None where not told.

    Triton's kernels hold no arrays of their own, so that local memory means registers that were spilled. Triton
    counts spills likewise, as the local memory that the driver reports (``n_spills``).
    """
    found: dict[int, list[int]] = {REGISTERS: [], FRAME: []}
    for attribute, value in attributes(section(cubin, ".nv.info")):
        if attribute in found:
            found[attribute].append(value)
    return max(found[REGISTERS], default=None), max(found[FRAME], default=None)


def attributes(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield (attribute, value) of every attribute that is a pair of a symbol and a value."""
    place = 0
    while place + 4 <= len(body):
        form, attribute, size = struct.unpack_from("<BBH", body, place)
        place += 4
        if form != SIZED:
            continue
        if size >= 8 and place + 8 <= len(body):
            yield attribute, struct.unpack_from("<II", body, place)[1]
        place += size


def section(cubin: bytes, wanted: str) -> bytes:
    """Return a section of a 64-bit little-endian ELF file; empty when it has none, or is no such file."""
    if cubin[:4] != MAGIC or len(cubin) < 64:
        return b""
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    if size != HEADER.size or names >= count or start + size * count > len(cubin):
        return b""
    headers = [HEADER.unpack_from(cubin, start + size * index) for index in range(count)]
    table = headers[names][4]
    for header in headers:
        begin = table + header[0]
        end = cubin.find(b"\0", begin)
        if begin <= end and cubin[begin:end].decode("ascii", "replace") == wanted:
            return cubin[header[4] : header[4] + header[5]]
    return b""
