"""Read what a shared object asks of the loader and offers to others, without loading it. Uses pyelftools.

Runs under kerncheck's own interpreter. Whatever is wrong with a file is a ``BadFileError`` with the reason, so that a
truncated or hostile one is an observation. Symbols are looked up by GNU hash, not by a scan.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from typing import Any

SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section, value, size (System V ABI, chapter 4)
GLOBAL = 1  # STB_GLOBAL; weak ones (STB_WEAK) may stay undefined
SECTION_UNDEFINED = 0  # SHN_UNDEF
MOST_SYMBOLS = 2_000_000  # libtorch_cpu 2.13 has about 190,000; more than this is no library
IDENTIFIER = re.compile(r"\d+")


class BadFileError(Exception):
    """A file that is no readable 64-bit little-endian ELF shared object; the text says why."""


class SharedObject:
    """One open shared object."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - closed in close()
        except OSError as error:
            raise BadFileError(f"cannot be opened: {error.strerror}") from error
        try:
            self._read()
        except BadFileError:
            self._file.close()
            raise
        except Exception as error:  # pyelftools answers a broken file with whatever exception comes first
            self._file.close()
            raise BadFileError(f"damaged: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Free the file."""
        self._image.close()
        self._file.close()

    def _read(self) -> None:
        from elftools.elf.elffile import ELFFile

        self.size = os.fstat(self._file.fileno()).st_size
        if self._file.read(4) != b"\x7fELF":
            raise BadFileError(f"not an ELF file ({self.size} bytes)")
        elf = ELFFile(self._file)
        if elf.elfclass != 64 or not elf.little_endian:
            raise BadFileError("not a 64-bit little-endian ELF file")
        self.machine = str(elf.get_machine_arch())
        self.versions_needed = needed_versions(elf)
        self.versions_defined = defined_versions(elf)
        self._dynamic(elf)
        self._image = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def _dynamic(self, elf: Any) -> None:
        segment = next((item for item in elf.iter_segments("PT_DYNAMIC")), None)
        if segment is None:
            raise BadFileError("no dynamic section: not a shared object")
        end = max((item["p_offset"] + item["p_filesz"] for item in elf.iter_segments("PT_LOAD")), default=0)
        if end > self.size:
            raise BadFileError(f"truncated: {self.size} bytes, its program header wants {end}")
        tags = list(segment.iter_tags())
        self.needed = [str(tag.needed) for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
        self.soname = next((str(tag.soname) for tag in tags if tag.entry.d_tag == "DT_SONAME"), "")
        self.rpath = [part for tag in tags if tag.entry.d_tag == "DT_RPATH" for part in tag.rpath.split(":")]
        self.runpath = [part for tag in tags if tag.entry.d_tag == "DT_RUNPATH" for part in tag.runpath.split(":")]
        self._symbols = table(segment, "DT_SYMTAB")
        self._strings = table(segment, "DT_STRTAB")
        self._strings_size = next((tag.entry.d_val for tag in tags if tag.entry.d_tag == "DT_STRSZ"), 0)
        self._gnu_hash = table(segment, "DT_GNU_HASH")
        self._versions = table(segment, "DT_VERSYM")
        self._count = symbol_count(elf, self._symbols, self._strings)

    def _symbol(self, index: int) -> tuple[str, int, bool]:
        """Return (name, binding, defined) of a dynamic symbol."""
        name, info, _, section, _, _ = SYMBOL.unpack_from(self._image, self._symbols + index * SYMBOL.size)
        start = self._strings + name
        end = self._image.find(b"\0", start, self._strings + self._strings_size)
        return self._image[start:end].decode(errors="replace"), info >> 4, section != SECTION_UNDEFINED

    def undefined(self) -> Iterator[tuple[str, str]]:
        """Yield (symbol, version) of what others must define; weak ones may stay undefined and are left out."""
        end = self._count
        if self._gnu_hash:
            first_hashed = struct.unpack_from("<I", self._image, self._gnu_hash + 4)[0]
            end = first_hashed if first_hashed > 1 else end  # undefined symbols stand before the hashed ones
        for index in range(1, min(end, MOST_SYMBOLS)):
            name, binding, defined = self._symbol(index)
            if name and binding == GLOBAL and not defined:
                yield name, self._version_of(index)

    def _version_of(self, index: int) -> str:
        if not self._versions:
            return ""
        number = struct.unpack_from("<H", self._image, self._versions + 2 * index)[0] & 0x7FFF
        return self.versions_needed.get(number, ("", ""))[1]

    def exports(self, symbol: str) -> bool:
        """Tell whether this object defines a symbol for others."""
        if not self._gnu_hash:
            return symbol in self._scanned()
        buckets, first, bloom_words, shift = struct.unpack_from("<4I", self._image, self._gnu_hash)
        wanted = gnu_hash(symbol)
        bloom = self._gnu_hash + 16
        word = struct.unpack_from("<Q", self._image, bloom + 8 * ((wanted // 64) % bloom_words))[0]
        if not (word >> (wanted % 64)) & (word >> ((wanted >> shift) % 64)) & 1:
            return False
        table_at = bloom + 8 * bloom_words
        index = struct.unpack_from("<I", self._image, table_at + 4 * (wanted % buckets))[0]
        return index >= first and self._in_chain(symbol, wanted, index, table_at + 4 * buckets - 4 * first)

    def _in_chain(self, symbol: str, wanted: int, index: int, chains: int) -> bool:
        for at in range(index, index + MOST_SYMBOLS):
            stored = struct.unpack_from("<I", self._image, chains + 4 * at)[0]
            if stored | 1 == wanted | 1:
                name, _, defined = self._symbol(at)
                if defined and name == symbol:
                    return True
            if stored & 1:
                break
        return False

    def _scanned(self) -> frozenset[str]:
        """Return every defined name, for the rare file without a GNU hash table."""
        if not hasattr(self, "_defined"):
            found = (self._symbol(index) for index in range(1, min(self._count, MOST_SYMBOLS)))
            self._defined = frozenset(name for name, _, defined in found if defined)
        return self._defined

    def starting_with(self, prefix: str, most: int = 8) -> list[str]:
        """Return exported symbols with this prefix, found by a search in the string table."""
        found: list[str] = []
        text, end = b"\0" + prefix.encode(), self._strings + self._strings_size
        at = self._image.find(text, self._strings, end)
        while at >= 0 and len(found) < most:
            stop = self._image.find(b"\0", at + 1, end)
            name = self._image[at + 1 : stop].decode(errors="replace")
            if self.exports(name):
                found.append(name)
            at = self._image.find(text, stop, end)
        return found


def table(segment: Any, tag: str) -> int:
    """Return where a table of the dynamic section starts in the file, 0 without it."""
    _, offset = segment.get_table_offset(tag)
    return int(offset or 0)


def symbol_count(elf: Any, symbols: int, strings: int) -> int:
    """Return how many dynamic symbols there are: by the section, else from where the string table starts."""
    section = elf.get_section_by_name(".dynsym")
    if section is not None:
        return int(section.num_symbols())
    return max(0, (strings - symbols) // SYMBOL.size)


def needed_versions(elf: Any) -> dict[int, tuple[str, str]]:
    """Return {index: (library, version)} of the symbol versions that a file demands."""
    section = elf.get_section_by_name(".gnu.version_r")
    found: dict[int, tuple[str, str]] = {}
    for need, versions in section.iter_versions() if section is not None else ():
        for version in versions:
            found[version["vna_other"]] = (str(need.name), str(version.name))
    return found


def defined_versions(elf: Any) -> list[str]:
    """Return the names of the symbol versions that a file defines; empty for one without versions."""
    section = elf.get_section_by_name(".gnu.version_d")
    found = []
    for _, names in section.iter_versions() if section is not None else ():
        found += [str(name.name) for name in names][:1]
    return found


def gnu_hash(symbol: str) -> int:
    """Return the hash of a symbol as .gnu.hash stores it (Bernstein's, 32 bits)."""
    value = 5381
    for byte in symbol.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def without_parameters(symbol: str) -> str:
    """Return a mangled C++ function name up to its parameters, "" for what this short reader does not know.

    ``_ZN3c104cuda9SetDeviceEi`` gives ``_ZN3c104cuda9SetDeviceE``. Itanium C++ ABI, 5.1: nested names are length and
    identifier pairs; templates and substitutions are left to no guess.
    """
    nested = re.match(r"_ZN[rVK]*[RO]?", symbol)
    at = nested.end() if nested else 2
    while symbol.startswith("_Z"):
        part = IDENTIFIER.match(symbol, at)
        if part:
            at = part.end() + int(part[0])
        elif symbol[at : at + 2] in ("C1", "C2", "C3", "D0", "D1", "D2", "St"):
            at += 2
        else:
            break
        if not nested:
            return symbol[:at]
    return symbol[: at + 1] if nested and symbol[at : at + 1] == "E" else ""
