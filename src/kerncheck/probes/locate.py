"""Where the import system would find modules and what metadata says, without running any of their code.

Also a script: ``PYTHON locate.py NAME...`` prints the answer of that interpreter as JSON. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

MOST_FILES = 40
ENDINGS = (".so", ".pyd", ".dylib")


def find(name: str) -> dict[str, Any]:
    """Return the file and the folders of a top-level module, empty for one that is nowhere."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # finders of editable installs run here, and may raise anything
        spec = None
    if spec is None:
        return {"origin": "", "folders": []}
    folders = [str(folder) for folder in spec.submodule_search_locations or ()]
    return {"origin": spec.origin or "", "folders": folders}


def location(name: str) -> str:
    """Return the file of a top-level module, or its first folder for a package without one."""
    found = find(name)
    return str(found["origin"] or next(iter(found["folders"]), ""))


def interpreter(names: Iterable[str]) -> dict[str, Any]:
    """Return what a static look needs to know of this interpreter: its program, search path and these modules."""
    return {
        "executable": os.path.realpath(sys.executable),
        "path": [entry for entry in sys.path if entry],
        "suffixes": list(importlib.machinery.EXTENSION_SUFFIXES),
        "modules": {name: find(name) for name in names},
    }


def distributions(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return name, version, place and time stamp of those distributions that are installed."""
    found = []
    for name in names:
        try:
            item = importlib.metadata.distribution(name)
            version = item.version
        except (importlib.metadata.PackageNotFoundError, KeyError, TypeError, UnicodeDecodeError):
            continue
        place = str(getattr(item, "_path", ""))
        found.append({"name": name, "version": str(version), "location": place, "installed": modified(place)})
    return found


def modified(path: str) -> float | None:
    """Return a file's time stamp (Unix seconds), or None where there is no such file."""
    try:
        return os.path.getmtime(path)
    except (OSError, ValueError):
        return None


def extension_files(module: str, path: Iterable[str]) -> list[str]:
    """Return the files on a search path that hold an extension of this name, for whatever Python they were built."""
    package, _, name = module.rpartition(".")
    found = []
    for entry in path:
        folder = os.path.join(entry, *package.split(".")) if package else entry
        own = (file for file in listed(folder) if file.partition(".")[0] == name and file.endswith(ENDINGS))
        found += [os.path.join(folder, file) for file in own]
    return found[:MOST_FILES]


def listed(folder: str) -> list[str]:
    """Return the names in a folder, sorted; nothing for one that cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


if __name__ == "__main__":
    sys.path.pop(0)  # this script's folder, whose names would shadow the user's
    print(json.dumps(interpreter(sys.argv[1:])))  # noqa: T201 - the answer of this script
