"""Find plug-ins of kerncheck in this interpreter and read their descriptions, without running any code of theirs.

A distribution names a package under the entry point group ``kerncheck.kernels``; that package's folder holds
``kerncheck.toml``. Metadata and that file are read, nothing is imported. Standard library only.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Callable
from typing import Any

GROUP = "kerncheck.kernels"
FILE = "kerncheck.toml"
MOST_BYTES = 256 * 1024
PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
EMPTY: dict[str, Any] = {"value": "", "file": "", "text": "", "modules": [], "problem": ""}
SUFFIXES = (".py", ".so", ".pyd")


def found() -> list[dict[str, Any]]:
    """Return every plug-in of this interpreter, by name; one that cannot be read says why in ``problem``."""
    seen: list[dict[str, Any]] = []
    known: set[str] = set()
    for dist in importlib.metadata.distributions():
        text = fact(lambda dist=dist: dist.read_text("entry_points.txt")) or ""  # type: ignore[misc]
        if GROUP not in text:
            continue
        name = fact(lambda dist=dist: dist.metadata["Name"]) or ""  # type: ignore[misc]
        if name not in known:  # a second copy, later on the path, is never imported
            known.add(name)
            seen += described_by(dist, name)
    return sorted(seen, key=lambda item: (item["name"], item["distribution"]))


def fact(look: Callable[[], Any]) -> Any:
    """Return what a look into metadata gives; None where it is too broken to be read, as leftovers of pip are."""
    try:
        return look()
    except Exception:
        return None


def described_by(dist: Any, name: str) -> list[dict[str, Any]]:
    """Return the plug-ins of one distribution."""
    about = {"distribution": str(name), "version": str(fact(lambda: dist.version) or "")}
    try:
        points = [point for point in dist.entry_points if point.group == GROUP]
    except Exception as error:
        problem = f"its entry points cannot be read: {type(error).__name__}: {error}"
        return [{**EMPTY, **about, "name": str(name), "problem": problem}]
    return [{**EMPTY, **about, **described(dist, point)} for point in points]


def described(dist: Any, point: Any) -> dict[str, Any]:
    """Return one plug-in as plain data."""
    seen: dict[str, Any] = {"name": str(point.name), "value": str(point.value)}
    try:
        folder = folder_of(dist, seen["value"])
        seen["file"] = os.path.join(folder, FILE)
        seen["modules"] = modules_in(folder)
        seen["text"] = text_of(os.path.join(folder, FILE))
    except Exception as error:  # whatever is wrong is told of this plug-in, and of no other
        seen["problem"] = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
    return seen


def folder_of(dist: Any, value: str) -> str:
    """Return the folder of the package that an entry point names, without importing it or its parents."""
    if not PACKAGE.match(value):
        raise ValueError(f"its entry point is {value!r}; it must name a package, without attribute or extra")
    relative = os.path.join(*value.split("."))
    candidates = [str(dist.locate_file(relative)), *(os.path.join(entry, relative) for entry in sys.path)]
    folder = next((path for path in candidates if os.path.isfile(os.path.join(path, FILE))), "")
    if not folder:
        raise ValueError(f"its entry point names the package {value}, and no folder of it here holds {FILE}")
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
