"""The outer layout of an ELF file: header, segments, sections, dynamic section. Standard library only.

Nothing a file says about itself is believed: every place is checked against its size, every count against a limit, so
that a truncated or hostile file ends as a ``BadFileError`` with the reason, after little time and memory. Layouts are
those of the System V ABI (gABI), chapters 4 and 5.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<QQQIHHHHHH")  # from byte 24: entry, phoff, shoff, flags, ehsize, and sizes and counts
SEGMENT = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
DYNAMIC = struct.Struct("<qQ")
LOAD, DYNAMIC_SEGMENT = 1, 2  # PT_LOAD, PT_DYNAMIC
NO_BITS = 8  # SHT_NOBITS: the section takes no place in the file
EXTENDED = 0xFFFF  # SHN_XINDEX: the real value stands in the first section header
LONGEST_STRING = 1 << 16  # the longest C++ names of libtorch have about 4,000 letters
MOST_TEXT = 1 << 28  # bytes of text read from one file; a look at libtorch_cpu reads about 3 MB
MOST_SEGMENTS, MOST_SECTIONS, MOST_TAGS = 4096, 65536, 65536
MACHINES = {
    3: "x86", 21: "PowerPC64", 22: "S/390", 40: "ARM", 62: "x86-64", 183: "AArch64", 190: "CUDA", 243: "RISC-V",
    258: "LoongArch",
}  # fmt: skip
"""e_machine of the processors that Python runs on, and of GPU code (EM_CUDA)."""


class BadFileError(Exception):
    """A file that cannot be read as a shared object; the text says why."""


@dataclass(frozen=True)
class Header:
    """What the first bytes say: word size, byte order, processor, and whether it is a shared object."""

    bits: int
    little: bool
    machine: int
    shared: bool

    @property
    def text(self) -> str:
        """The header in words, such as ``64-bit x86-64``."""
        order = "" if self.little else " big-endian"
        return f"{self.bits}-bit{order} {MACHINES.get(self.machine, f'machine {self.machine}')}"


class Image:
    """One file, mapped into memory; 64-bit little-endian files can be read further than their header."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._text_left = MOST_TEXT
        self.size, self.data = mapped(path)
        try:
            self.header = read_header(self.data, self.size)
            self.full = self.header.bits == 64 and self.header.little
            self.segments = list(self._segments()) if self.full else []
        except BadFileError:
            self.close()
            raise

    def close(self) -> None:
        """Free the map."""
        self.data.close()

    def unpack(self, layout: struct.Struct, at: int) -> tuple[Any, ...]:
        """Read one structure.

        Raises:
            BadFileError: it would lie outside of the file.

        """
        if not 0 <= at <= self.size - layout.size:
            raise BadFileError(f"damaged: it refers to byte {at}, the file has {self.size}")
        return layout.unpack_from(self.data, at)

    def string(self, at: int, end: int) -> str:
        """Return the text at a place, which ends with a zero byte before ``end``."""
        stop = self.data.find(b"\0", at, min(end, at + LONGEST_STRING, self.size)) if 0 <= at < self.size else -1
        if stop < 0:
            raise BadFileError(f"damaged: no text ends after byte {at}")
        self._text_left -= stop - at
        if self._text_left < 0:  # names that overlap can add up to far more than the file
            raise BadFileError(f"damaged: its names add up to more than {MOST_TEXT} bytes")
        return bytes(self.data[at:stop]).decode(errors="replace")

    def _fields(self) -> tuple[Any, ...]:
        return self.unpack(HEADER, 24)

    def _segments(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (type, offset, address, size in the file) of each segment."""
        _, start, _, _, _, size, count, _, _, _ = self._fields()
        if count and (size < SEGMENT.size or count > MOST_SEGMENTS):
            raise BadFileError(f"damaged: {count} segments of {size} bytes")
        for index in range(count):
            kind, _, offset, address, _, in_file, _, _ = self.unpack(SEGMENT, start + index * size)
            if kind == LOAD and offset + in_file > self.size:
                raise BadFileError(f"truncated: {self.size} bytes, its program header wants {offset + in_file}")
            yield kind, offset, address, in_file

    def offset(self, address: int) -> int:
        """Return where in the file an address of the loaded image comes from.

        Raises:
            BadFileError: no segment holds it.

        """
        for kind, offset, start, size in self.segments:
            if kind == LOAD and start <= address < start + size:
                return offset + address - start
        raise BadFileError(f"damaged: no segment holds address {address:#x}")

    def dynamic(self) -> Iterator[tuple[int, int]]:
        """Yield (tag, value) of the dynamic section, which the loader finds by its segment."""
        segment = next((item for item in self.segments if item[0] == DYNAMIC_SEGMENT), None)
        if segment is None:
            raise BadFileError("no dynamic section: not a shared object")
        _, start, _, size = segment
        for at in range(start, start + min(size, MOST_TAGS * DYNAMIC.size) - DYNAMIC.size + 1, DYNAMIC.size):
            tag, value = self.unpack(DYNAMIC, at)
            if tag == 0:
                return
            yield tag, value

    def sections(self) -> Iterator[tuple[str, int, int]]:
        """Yield (name, offset, size) of each section that has a place in the file; nothing without a table."""
        rows = list(self._section_rows())
        if not rows:
            return
        names = self._fields()[9]
        names = rows[0][6] if names == EXTENDED else names
        if names >= len(rows):
            raise BadFileError("damaged: there is no section with the names")
        _, _, _, _, strings, length, *_ = rows[names]
        for name, kind, _, _, offset, size, *_ in rows[1:]:
            if kind != NO_BITS:
                yield self.string(strings + name, strings + length), offset, size

    def _section_rows(self) -> Iterator[tuple[Any, ...]]:
        _, _, start, _, _, _, _, size, count, _ = self._fields()
        if not start:
            return
        count = count or self.unpack(SECTION, start)[5]  # more than 65,279 sections: gABI chapter 4, "ELF Header"
        if size < SECTION.size or count > MOST_SECTIONS:
            raise BadFileError(f"damaged: {count} sections of {size} bytes")
        for index in range(count):
            yield self.unpack(SECTION, start + index * size)


def mapped(path: str) -> tuple[int, mmap.mmap]:
    """Return size and map of a regular file with content (a pipe or device would block or never end)."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadFileError("not a regular file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise BadFileError("an empty file")
            return size, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path, or emptied after we asked
        raise BadFileError(f"cannot be opened: {getattr(error, 'strerror', None) or error}") from error


def read_header(data: mmap.mmap, size: int) -> Header:
    """Return what the first bytes of a file say.

    Raises:
        BadFileError: this is no ELF file, or its first bytes are damaged.

    """
    if data[:4] != b"\x7fELF":
        raise BadFileError(f"not an ELF file ({content(data[:64])}, {size} bytes)")
    bits, order = {1: 32, 2: 64}.get(data[4] if size > 5 else 0), data[5] if size > 5 else 0
    if bits is None or order not in (1, 2) or size < (52 if bits == 32 else 64):
        raise BadFileError(f"damaged: no whole ELF header ({size} bytes)")
    kind, machine = struct.unpack_from("<HH" if order == 1 else ">HH", data, 16)
    return Header(bits=bits, little=order == 1, machine=machine, shared=kind == 3)


def content(start: bytes) -> str:
    """Say in words what a file that is no ELF file begins like."""
    known: tuple[tuple[bytes, str], ...]
    known = ((b"version https://git-lfs", "a pointer of Git LFS"), (b"<", "a web page or XML"), (b"#!", "a script"))
    known += ((b"!<arch>", "a static library"), (b"MZ", "a Windows library"), (b"PK", "a zip archive"))
    known += ((b"/* GNU ld", "a linker script"), (b"INPUT", "a linker script"))
    if not any(start):
        return "zeros"
    return next((words for beginning, words in known if start.startswith(beginning)), f"it begins with {start[:4]!r}")
