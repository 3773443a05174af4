"""Where the dynamic loader would find a library, by its own rules (ld.so(8)), without loading anything.

Runs under kerncheck's own interpreter, on files of the judged one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable

from kerncheck.probes.elf import BadFileError, SharedObject

DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu")
CACHE_LINE = re.compile(r"^\s*(?P<name>\S+) \((?P<kind>[^)]*)\) => (?P<path>\S+)$")
MOST_LIBRARIES = 120


class Loader:
    """Resolves names to files as one process would: a name that is loaded already is taken again, wherever it lies."""

    def __init__(self, program: str = "") -> None:
        self.loaded: dict[str, SharedObject] = {}
        self.problems: dict[str, str] = {}
        self._how: dict[str, str] = {}
        self._cache: dict[str, str] | None = None
        self._program = self.open(program) if program else None

    def open(self, path: str) -> SharedObject | None:
        """Open a file, or note why it cannot be read."""
        try:
            return SharedObject(path)
        except BadFileError as error:
            self.problems[path] = str(error)
            return None

    def find(self, name: str, wanted_by: SharedObject) -> tuple[str, str]:
        """Return (path, how it was found) of a needed library, both empty where there is none.

        DT_RPATH of the requester (and of the program) comes before LD_LIBRARY_PATH and counts only without a
        DT_RUNPATH; DT_RUNPATH comes after it.
        """
        if name in self.loaded:
            return self.loaded[name].path, self._how.get(name, "already loaded")
        if "/" in name:
            return (name, "by its path") if os.path.exists(name) else ("", "")
        for folders, how in self._search(wanted_by):
            for folder in folders:
                path = os.path.join(folder, name)
                if folder and os.path.isfile(path):
                    return path, how
        path = self._cached().get(name, "")
        return (path, "the loader's cache") if path else self._default(name)

    def _search(self, wanted_by: SharedObject) -> list[tuple[list[str], str]]:
        requester = [] if wanted_by.runpath else expanded(wanted_by.rpath, wanted_by.path)
        program = self._program
        own = expanded(program.rpath, program.path) if program and not wanted_by.runpath else []
        variable = re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", ""))
        return [
            (requester + own, "RPATH"),
            (variable, "LD_LIBRARY_PATH"),
            (expanded(wanted_by.runpath, wanted_by.path), "RUNPATH"),
        ]

    def _default(self, name: str) -> tuple[str, str]:
        paths = (os.path.join(folder, name) for folder in DEFAULT_FOLDERS)
        return next(((path, "the default folders") for path in paths if os.path.isfile(path)), ("", ""))

    def _cached(self) -> dict[str, str]:
        if self._cache is None:
            self._cache = dict(reversed(list(read_cache())))
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
        return item


def expanded(folders: Iterable[str], path: str) -> list[str]:
    """Return search folders with ``$ORIGIN`` replaced by the folder of the file that names them."""
    origin = os.path.dirname(os.path.realpath(path))
    return [folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for folder in folders]


def read_cache() -> Iterable[tuple[str, str]]:
    """Yield (name, path) of the loader's cache for 64-bit libraries, in its order; nothing without ldconfig."""
    for tool in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            done = subprocess.run(
                [tool, "-p"], capture_output=True, check=False, text=True, errors="replace", timeout=10
            )
        except (OSError, subprocess.SubprocessError):
            continue
        for line in done.stdout.splitlines():
            match = CACHE_LINE.match(line)
            if match and ("64" in match["kind"]):
                yield match["name"], match["path"]
        return
