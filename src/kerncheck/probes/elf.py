"""Read what a shared object asks of the loader and offers to others, without loading it. Standard library only.

Whatever is wrong with a file is a ``BadFileError`` with the reason, so that a truncated or hostile one is an
observation. Everything is found as the loader finds it, by the dynamic section: a file without a section table is
as good as any. Symbols are looked up by GNU hash, not by a scan.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator

from kerncheck.probes.elf_format import BadFileError, Image

__all__ = ["BadFileError", "SharedObject", "gnu_hash", "without_parameters"]

SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section, value, size (System V ABI, chapter 4)
WORD, LONG, HALF, FOUR_WORDS = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<H"), struct.Struct("<4I")
NEED = struct.Struct("<HHIII")  # Elf64_Verneed: version, count, file, first auxiliary entry, next
NEED_VERSION = struct.Struct("<IHHII")  # Elf64_Vernaux: hash, flags, index, name, next
DEFINITION = struct.Struct("<HHHHIII")  # Elf64_Verdef: version, flags, index, count, hash, auxiliary entry, next
NEEDED, HASH, STRINGS, SYMBOLS, STRINGS_SIZE, SONAME, RPATH, RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
GNU_HASH, VERSIONS, DEFINED, DEFINED_COUNT, WANTED, WANTED_COUNT = (
    0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF,
)  # fmt: skip
GLOBAL = 1  # STB_GLOBAL; weak ones (STB_WEAK) may stay undefined
SECTION_UNDEFINED = 0  # SHN_UNDEF
MOST_SYMBOLS = 2_000_000  # libtorch_cpu 2.13 has about 190,000; more than this is no library
MOST_VERSIONS = 4096  # glibc 2.36 defines 44, libstdc++ 61
MOST_NEEDED = 1024
IDENTIFIER = re.compile(r"\d+")


class SharedObject:
    """One open shared object: 64-bit and little-endian, like everything that CUDA builds of torch run on."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.image = Image(path)
        try:
            self._read()
        except BadFileError:
            self.image.close()
            raise

    def close(self) -> None:
        """Free the file."""
        self.image.close()

    def _read(self) -> None:
        if not self.image.full:
            raise BadFileError(f"not a 64-bit little-endian ELF file but {self.image.header.text}")
        self.size, self.machine = self.image.size, self.image.header.text.partition(" ")[2]
        tags = list(self.image.dynamic())
        self._tags = dict(reversed(tags))  # where a tag stands twice, the first one counts
        self._strings, self._strings_size = self._table(STRINGS), min(self._tags.get(STRINGS_SIZE, 0), self.size)
        self._symbols, self._gnu_hash = self._table(SYMBOLS), self._table(GNU_HASH)
        self._versions = self._table(VERSIONS)
        self.needed = [self._text(value) for tag, value in tags if tag == NEEDED][:MOST_NEEDED]
        self.soname = self._text(self._tags[SONAME]) if SONAME in self._tags else ""
        self.rpath, self.runpath = self._folders(RPATH), self._folders(RUNPATH)
        self.versions_needed = dict(self._versions_needed())
        self.versions_defined = list(self._versions_defined())

    def _table(self, tag: int) -> int:
        """Return where a table of the dynamic section starts in the file, 0 without it."""
        return self.image.offset(self._tags[tag]) if tag in self._tags else 0

    def _text(self, at: int) -> str:
        """Return a text of the dynamic string table."""
        return self.image.string(self._strings + at, self._strings + self._strings_size)

    def _folders(self, tag: int) -> list[str]:
        return self._text(self._tags[tag]).split(":") if tag in self._tags else []

    def _versions_needed(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield (index, (library, version)) of the symbol versions that this file demands (LSB, "Symbol Versions")."""
        at = self._table(WANTED)
        for _ in range(min(self._tags.get(WANTED_COUNT, 0), MOST_VERSIONS) if at else 0):
            _, count, file, first, following = self.image.unpack(NEED, at)
            place, library = at + first, self._text(file)
            for _ in range(min(count, MOST_VERSIONS)):
                _, _, index, name, after = self.image.unpack(NEED_VERSION, place)
                yield index, (library, self._text(name))
                place += after
                if not after:
                    break
            at += following
            if not following:
                return

    def _versions_defined(self) -> Iterator[str]:
        """Yield the names of the symbol versions that this file defines."""
        at = self._table(DEFINED)
        for _ in range(min(self._tags.get(DEFINED_COUNT, 0), MOST_VERSIONS) if at else 0):
            _, _, _, _, _, first, following = self.image.unpack(DEFINITION, at)
            yield self._text(self.image.unpack(WORD, at + first)[0])
            at += following
            if not following:
                return

    def _symbol(self, index: int) -> tuple[str, int, bool]:
        """Return (name, binding, defined) of a dynamic symbol."""
        name, info, _, section, _, _ = self.image.unpack(SYMBOL, self._symbols + index * SYMBOL.size)
        return self._text(name), info >> 4, section != SECTION_UNDEFINED

    def undefined(self) -> Iterator[tuple[str, int]]:
        """Yield (symbol, index) of what others must define; weak ones may stay undefined and are left out."""
        first_hashed = self.image.unpack(FOUR_WORDS, self._gnu_hash)[1] if self._gnu_hash else 0
        end = first_hashed if first_hashed > 1 else self._count()  # undefined symbols stand before the hashed ones
        for index in range(1, min(end, MOST_SYMBOLS)):
            name, binding, defined = self._symbol(index)
            if name and binding == GLOBAL and not defined:
                yield name, index

    def _count(self) -> int:
        """Return how many dynamic symbols there are: by the old hash table, by the section, else by what follows."""
        if HASH in self._tags:
            return int(self.image.unpack(FOUR_WORDS, self._table(HASH))[1])
        sizes = [size for name, _, size in self.image.sections() if name == ".dynsym"]
        return (sizes[0] if sizes else max(0, self._strings - self._symbols)) // SYMBOL.size

    def version_of(self, index: int) -> str:
        """Return the version that a symbol is wanted in, empty for none."""
        if not self._versions:
            return ""
        number = self.image.unpack(HALF, self._versions + 2 * index)[0] & 0x7FFF
        return self.versions_needed.get(number, ("", ""))[1]

    def exports(self, symbol: str) -> bool:
        """Tell whether this object defines a symbol for others."""
        if not self._gnu_hash:
            return symbol in self._scanned()
        buckets, first, bloom_words, shift = self.image.unpack(FOUR_WORDS, self._gnu_hash)
        if not buckets or not bloom_words or shift > 63:
            raise BadFileError("damaged: an impossible hash table")
        wanted = gnu_hash(symbol)
        bloom = self._gnu_hash + FOUR_WORDS.size
        word = self.image.unpack(LONG, bloom + 8 * ((wanted // 64) % bloom_words))[0]
        if not (word >> (wanted % 64)) & (word >> ((wanted >> shift) % 64)) & 1:
            return False
        table_at = bloom + 8 * bloom_words
        index = self.image.unpack(WORD, table_at + 4 * (wanted % buckets))[0]
        return index >= first and self._in_chain(symbol, wanted, index, table_at + 4 * buckets - 4 * first)

    def _in_chain(self, symbol: str, wanted: int, index: int, chains: int) -> bool:
        for at in range(index, index + LONGEST_CHAIN):
            stored = self.image.unpack(WORD, chains + 4 * at)[0]
            if stored | 1 == wanted | 1:
                name, _, defined = self._symbol(at)
                if defined and name == symbol:
                    return True
            if stored & 1:
                return False
        raise BadFileError("damaged: a chain of the hash table does not end")

    def _scanned(self) -> frozenset[str]:
        """Return every defined name, for the rare file without a GNU hash table."""
        if not hasattr(self, "_defined"):
            found = (self._symbol(index) for index in range(1, min(self._count(), MOST_SYMBOLS)))
            self._defined = frozenset(name for name, _, defined in found if defined)
        return self._defined

    def starting_with(self, prefix: str, most: int = 8) -> list[str]:
        """Return exported symbols with this prefix, found by a search in the string table."""
        found: list[str] = []
        text, end = b"\0" + prefix.encode(), self._strings + self._strings_size
        at = self.image.data.find(text, self._strings, end)
        while at >= 0 and len(found) < most:
            name = self.image.string(at + 1, end)
            if self.exports(name):
                found.append(name)
            at = self.image.data.find(text, at + 1 + len(name.encode()), end)
        return found


LONGEST_CHAIN = 4096  # linkers aim at less than four symbols a bucket


@functools.lru_cache(maxsize=1 << 16)  # one symbol is looked for in dozens of libraries
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
