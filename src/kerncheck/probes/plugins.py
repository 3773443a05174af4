"""Find plug-ins of kerncheck in this interpreter and read their descriptions, without running any code of theirs.

A distribution names a package under the entry point group ``kerncheck.kernels``; that package's folder holds
``kerncheck.toml``. Metadata and that file are read, nothing is imported. Standard library only.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

GROUP = "kerncheck.kernels"
FILE = "kerncheck.toml"
MOST_BYTES = 256 * 1024
PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
SUFFIXES = (".py", ".so", ".pyd")


def found() -> list[dict[str, Any]]:
    """Return every plug-in of this interpreter, by name; one that cannot be read says why in ``problem``."""
    return sorted((described(point) for point in points()), key=lambda item: (item["name"], item["distribution"]))


def points() -> Iterator[Any]:
    """Yield the entry points of the group. Metadata that cannot be read at all belongs to no plug-in that we know."""
    yield from importlib.metadata.entry_points(group=GROUP)


def described(point: Any) -> dict[str, Any]:
    """Return one plug-in as plain data."""
    seen = {
        "name": str(point.name),
        "value": str(point.value),
        "distribution": "",
        "version": "",
        "file": "",
        "text": "",
        "modules": [],
        "problem": "",
    }
    try:
        seen["distribution"], seen["version"] = str(point.dist.metadata["Name"]), str(point.dist.version)
        folder = folder_of(point)
        seen["file"] = os.path.join(folder, FILE)
        seen["modules"] = modules_in(folder)
        seen["text"] = text_of(os.path.join(folder, FILE))
    except Exception as error:  # whatever is wrong is told of this plug-in, and of no other
        seen["problem"] = (
            str(error) if isinstance(error, LookupError | ValueError) else f"{type(error).__name__}: {error}"
        )
    return seen


def folder_of(point: Any) -> str:
    """Return the folder of the package that an entry point names, without importing it or its parents."""
    if not PACKAGE.match(point.value):
        raise ValueError(f"its entry point is {point.value!r}; it must name a package, without attribute or extra")
    relative = os.path.join(*point.value.split("."))
    candidates = [str(point.dist.locate_file(relative)), *(os.path.join(entry, relative) for entry in sys.path)]
    folder = next((path for path in candidates if os.path.isfile(os.path.join(path, FILE))), "")
    if not folder:
        raise ValueError(f"its entry point names the package {point.value}, and no folder of it here holds {FILE}")
    return folder


def modules_in(folder: str) -> list[str]:
    """Return the names of the modules and packages in a folder."""
    names = set()
    for entry in os.scandir(folder):
        if entry.is_dir() and os.path.isfile(os.path.join(entry.path, "__init__.py")):
            names.add(entry.name)
        elif entry.name.endswith(SUFFIXES):
            names.add(entry.name.partition(".")[0])
    return sorted(names - {"__init__"})


def text_of(path: str) -> str:
    """Return the text of a description."""
    if os.path.getsize(path) > MOST_BYTES:
        raise ValueError(f"{FILE} is larger than {MOST_BYTES // 1024} KiB")
    with open(path, encoding="utf-8") as file:
        return file.read()
