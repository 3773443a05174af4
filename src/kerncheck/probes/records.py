"""What the RECORD files of installed distributions say about compiled files. Standard library only."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

INFO = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)\.dist-info")
BINARY = re.compile(r"\.so(\.|$)")
LARGEST_HASHED = 8 * 2**20  # bytes; larger files are compared by size alone: a gigabyte takes seconds to hash
MOST_HASHED = 64 * 2**20  # bytes of all files together


class Records:
    """The RECORD files on a search path, read when they are asked for."""

    def __init__(self, path: Iterable[str]) -> None:
        self._path = list(dict.fromkeys(path))
        self._folders: list[tuple[str, str, str, str]] | None = None
        self._claims: dict[str, list[dict[str, Any]]] | None = None
        self._budget = MOST_HASHED

    def folders(self) -> list[tuple[str, str, str, str]]:
        """Return (canonical name, version, search path entry, folder) of each distribution, the first copies first."""
        if self._folders is None:
            self._folders = [item for entry in self._path for item in distributions(entry)]
        return self._folders

    def installed(self, names: Iterable[str]) -> list[str]:
        """Return ``name version`` of those distributions that are installed."""
        wanted = {canonical(name) for name in names}
        first = {name: version for name, version, _, _ in reversed(self.folders()) if name in wanted}
        return [f"{name} {version}" for name, version in sorted(first.items())]

    def binaries(self, names: Iterable[str]) -> list[str]:
        """Return the paths of the compiled files that distributions list."""
        wanted = {canonical(name) for name in names}
        return [
            os.path.normpath(os.path.join(entry, file))
            for name, _, entry, folder in self.folders()
            if name in wanted
            for file, _, _ in lines(folder)
        ]

    def of(self, path: str) -> list[dict[str, Any]]:
        """Return what each distribution that lists a file says about it."""
        if self._claims is None:
            self._claims = {}
            for name, version, entry, folder in self.folders():
                for file, sha256, size in () if patched_later(folder) else lines(folder):
                    claim = {"distribution": name, "version": version, "sha256": sha256, "size": size}
                    place = os.path.realpath(os.path.join(entry, file))
                    self._claims.setdefault(place, []).append(claim)
        return self._claims.get(os.path.realpath(path), [])

    def digest(self, path: str) -> str:
        """Return a file's sha256 as RECORD writes it; empty for one too large, or when enough has been hashed."""
        try:
            size = os.path.getsize(path)
            if size > min(LARGEST_HASHED, self._budget):
                return ""
            self._budget -= size
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read(LARGEST_HASHED)).digest()
        except OSError:
            return ""
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def distributions(entry: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (canonical name, version, entry, folder) of the distributions in one folder of the search path."""
    try:
        names = sorted(os.listdir(entry))
    except OSError:
        return
    for name in names:
        match = INFO.fullmatch(name)
        if match:
            yield canonical(match["name"]), match["version"], entry, os.path.join(entry, name)


def patched_later(folder: str) -> bool:
    """Tell whether a distribution's files may differ from its RECORD: conda relocates them after it is written."""
    try:
        with open(os.path.join(folder, "INSTALLER"), encoding="utf-8", errors="replace") as file:
            return file.read(64).strip() == "conda"
    except OSError:
        return False


def canonical(name: str) -> str:
    """Return a distribution's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lines(folder: str) -> Iterator[tuple[str, str, int | None]]:
    """Yield (file, sha256, size) of the compiled files in a RECORD; nothing without one."""
    try:
        with open(os.path.join(folder, "RECORD"), encoding="utf-8", errors="replace") as file:
            for line in file:
                parts = line.rstrip("\n").rsplit(",", 2) if ".so" in line else ()
                if len(parts) == 3 and BINARY.search(parts[0].strip('"')):
                    digest = parts[1].removeprefix("sha256=") if parts[1].startswith("sha256=") else ""
                    yield parts[0].strip('"'), digest, int(parts[2]) if parts[2].isdigit() else None
    except OSError:
        return
