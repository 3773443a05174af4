"""Where the dynamic loader would find a library, by its own rules (ld.so(8)), without loading anything.

Runs on files of the judged interpreter, in the user's environment (LD_LIBRARY_PATH, LD_PRELOAD). Standard library only.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator

from kerncheck.probes.elf import BadFileError, SharedObject
from kerncheck.probes.elf_format import read_header

DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu")
CACHE = "/etc/ld.so.cache"
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
CACHE_HEADER = struct.Struct("<20sIIB3xI12x")  # magic, entries, bytes of strings, flags, extensions
CACHE_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, OS version, hardware capabilities (glibc dl-cache.h)
CACHE_X86_64, CACHE_AARCH64 = 0x0303, 0x0A03  # 64-bit libraries of libc6 (glibc sysdeps/generic/ldconfig.h)
MOST_LIBRARIES = 120


class Loader:
    """Resolves names to files as one process would: a name that is loaded already is taken again, wherever it lies.

    ``extra`` are folders that are searched last, for a program that loads libraries by their paths when the loader
    finds none (torch does so with ``nvidia/*/lib``).
    """

    def __init__(self, program: str = "", extra: Iterable[str] = ()) -> None:
        self.loaded: dict[str, SharedObject] = {}
        self.problems: dict[str, str] = {}
        self.extra = list(extra)
        self._how: dict[str, str] = {}
        self._opened: list[SharedObject] = []
        self._cache: dict[str, str] | None = None
        self._parents: dict[str, SharedObject] = {}
        self._fitting: dict[str, bool] = {}
        self._program = self.open(program) if program else None
        for path in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
            if "/" in path and os.path.isfile(path):
                self._how |= {item.soname: "LD_PRELOAD" for item in self.load(path)[:1]}

    @property
    def program(self) -> SharedObject | None:
        """The interpreter itself, None where it cannot be read."""
        return self._program

    def open(self, path: str) -> SharedObject | None:
        """Open a file, or note why it cannot be read."""
        try:
            self._opened.append(SharedObject(path))
        except BadFileError as error:
            self.problems[path] = str(error)
            return None
        return self._opened[-1]

    def close(self) -> None:
        """Free all files."""
        for item in self._opened:
            item.close()

    def find(self, name: str, wanted_by: SharedObject) -> tuple[str, str]:
        """Return (path, how it was found) of a needed library, both empty where there is none.

        DT_RPATH of the requester, of those that it was loaded for and of the program comes before LD_LIBRARY_PATH,
        and counts only for a requester without a DT_RUNPATH; DT_RUNPATH comes after it. A library for another
        processor or word size is passed over.
        """
        if name in self.loaded:
            return self.loaded[name].path, self._how.get(name, "already loaded")
        if "/" in name:
            return (name, "by its path") if os.path.exists(name) else ("", "")
        return next(self.candidates(name, wanted_by), ("", ""))

    def candidates(self, name: str, wanted_by: SharedObject) -> Iterator[tuple[str, str]]:
        """Yield (path, how it was found) of every file of this name on the way of the search, the one taken first."""
        for folders, how in self._search(wanted_by):
            for folder in folders:
                path = os.path.join(folder, name)
                if folder and os.path.isfile(path) and self._fits(path, wanted_by):
                    yield path, how
        path = self._cached().get(name, "")
        if path and self._fits(path, wanted_by):
            yield path, "the loader's cache"
        last = [(folder, "the default folders") for folder in DEFAULT_FOLDERS]
        for folder, how in (*last, *((folder, "torch's own search") for folder in self.extra)):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and self._fits(path, wanted_by):
                yield path, how

    def named(self, beginning: str, ending: str) -> dict[str, tuple[str, str]]:
        """Return {name: (path, how)} of libraries whose names begin and end so, where any program would find them."""
        found: dict[str, tuple[str, str]] = {}
        for folder in re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", "")):
            for name in listed(folder):
                found.setdefault(name, (os.path.join(folder, name), "LD_LIBRARY_PATH"))
        for name, path in self._cached().items():
            found.setdefault(name, (path, "the loader's cache"))
        return {name: place for name, place in found.items() if name.startswith(beginning) and name.endswith(ending)}

    def _search(self, wanted_by: SharedObject) -> list[tuple[list[str], str]]:
        variable = re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", ""))
        return [
            ([] if wanted_by.runpath else list(self._inherited(wanted_by)), "RPATH"),
            (variable, "LD_LIBRARY_PATH"),
            (expanded(wanted_by.runpath, wanted_by.path), "RUNPATH"),
        ]

    def _inherited(self, item: SharedObject) -> Iterator[str]:
        """Yield the RPATH folders that speak for a file: its own, those of its requesters, and the program's."""
        chain, seen = [item], {item.path}
        while chain[-1].path in self._parents and self._parents[chain[-1].path].path not in seen:
            chain.append(self._parents[chain[-1].path])
            seen.add(chain[-1].path)
        for link in (*chain, *([self._program] if self._program else [])):
            if not link.runpath:
                yield from expanded(link.rpath, link.path)

    def _fits(self, path: str, wanted_by: SharedObject) -> bool:
        """Tell whether the loader would take a file of this kind; what is no ELF file it takes, and fails."""
        if path not in self._fitting:
            kind = kind_of(path)
            self._fitting[path] = kind is None or kind == wanted_by.image.header.text
        return self._fitting[path]

    def _cached(self) -> dict[str, str]:
        if self._cache is None:
            self._cache = dict(reversed(list(read_cache(CACHE))))
        return self._cache

    def load(self, path: str) -> list[SharedObject]:
        """Take a file and all that it needs into the process, breadth first as the loader does; return them.

        A file that cannot be read ends up in ``problems``; a library that is nowhere is left out.
        """
        first = self.open(path)
        taken = [first] if first else []
        if first:
            self.loaded.setdefault(first.soname or os.path.basename(path), first)
        for item in taken:
            for name in item.needed:
                found = self.loaded.get(name) or self._take(name, item)
                if found and found not in taken and len(taken) < MOST_LIBRARIES:
                    taken.append(found)
        return taken

    def _take(self, name: str, wanted_by: SharedObject) -> SharedObject | None:
        path, how = self.find(name, wanted_by)
        item = self.open(path) if path else None
        if item:
            self.loaded[name], self._how[name] = item, how
            self._parents.setdefault(item.path, wanted_by)
        return item


def listed(folder: str) -> list[str]:
    """Return the names in a folder; nothing for one that cannot be read."""
    try:
        return os.listdir(folder) if folder else []
    except OSError:
        return []


def kind_of(path: str) -> str | None:
    """Return word size and processor of an ELF file in words, None for any other file."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return read_header(data, len(data)).text
    except (OSError, ValueError, BadFileError):
        return None


def expanded(folders: Iterable[str], path: str) -> list[str]:
    """Return search folders with ``$ORIGIN`` replaced by the folder of the file that names them."""
    origin = os.path.dirname(os.path.realpath(path))
    return [folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for folder in folders]


def read_cache(path: str) -> Iterable[tuple[str, str]]:
    """Yield (name, path) of the loader's cache for 64-bit libraries, in its order; nothing where it cannot be read.

    The layout is glibc's (elf/cache.c, since 2.2); an older part may stand before it.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_CACHE_BYTES)
    except OSError:
        return
    start = data.find(CACHE_MAGIC)
    if start < 0 or len(data) < start + CACHE_HEADER.size:
        return
    count = CACHE_HEADER.unpack_from(data, start)[1]
    for index in range(count):
        at = start + CACHE_HEADER.size + index * CACHE_ENTRY.size
        if at + CACHE_ENTRY.size > len(data):
            return
        flags, name, place, _, _ = CACHE_ENTRY.unpack_from(data, at)
        if flags in (CACHE_X86_64, CACHE_AARCH64):
            yield text_at(data, start + name), text_at(data, start + place)


MOST_CACHE_BYTES = 16 * 2**20


def text_at(data: bytes, at: int) -> str:
    """Return the text at a place of the cache, up to its zero byte."""
    return data[at : max(at, data.find(b"\0", at))].decode(errors="replace")
