"""Which needed libraries are taken from another place than the one that they belong to. Standard library only."""

from __future__ import annotations

import os
from typing import Any

from kerncheck.probes.elf import BadFileError, SharedObject
from kerncheck.probes.loader import Loader

BY_VARIABLE = ("LD_LIBRARY_PATH", "LD_PRELOAD")
BY_THE_FILE = ("RPATH", "RUNPATH", "torch's own search")
"""How a file or torch itself leads to the copy that belongs to it; the system's folders may hold any copy."""


def shadowed(item: SharedObject, loader: Loader, watched: tuple[str, ...], folders: list[str]) -> list[dict[str, Any]]:
    """Return those libraries a file needs of which another copy than the file's own lies in the way.

    Only libraries are compared whose names begin with one of ``watched``, or that lie in the ``folders`` of NVIDIA's
    packages: the system's own may lie anywhere.
    """
    names = [name for name in item.needed if name.startswith(watched) or brought(name, folders)]
    found = [one(item, name, loader) for name in names]
    return [answer for answer in found if answer]


def brought(name: str, folders: list[str]) -> bool:
    """Tell whether an NVIDIA package of the environment holds a library of this name."""
    return any(os.path.exists(os.path.join(folder, name)) for folder in folders)


def one(item: SharedObject, name: str, loader: Loader) -> dict[str, Any] | None:
    """Compare the copies of one library: that which gets loaded, the file's own, and those that variables bring."""
    candidates = list(loader.candidates(name, item))
    own = next((path for path, how in candidates if how in BY_THE_FILE), "")
    path, via = loader.find(name, item)
    if own and via in BY_VARIABLE and not same(path, own):
        return answer(item, path, own, via, loader) | {"taken": True}
    other = next((place for place, how in candidates if how in BY_VARIABLE and not same(place, own)), "")
    return answer(item, other, own, BY_VARIABLE[0], loader) | {"taken": False} if own and other else None


def answer(item: SharedObject, path: str, own: str, via: str, loader: Loader) -> dict[str, Any]:
    """Say what differs between two copies for the file that wants one of them."""
    lacks = lacking(item, path, own, loader)
    name = os.path.basename(own)
    numbers = {"version": number(path), "wanted": number(own)}
    return {"name": name, "path": path, "expected": own, "via": via, "lacks": lacks, **numbers}


def same(left: str, right: str) -> bool:
    """Tell whether two paths lead to one file."""
    try:
        return os.path.samefile(left, right)
    except OSError:
        return False


def number(path: str) -> str:
    """Return the version in the name of the file that a path leads to (``libnccl.so.2.15.5``), empty without one."""
    text = os.path.basename(os.path.realpath(path)).partition(".so.")[2]
    return text if "." in text else ""


def lacking(item: SharedObject, foreign: str, own: str, loader: Loader) -> list[str]:
    """Return the symbols that a file wants, that its own copy of the library exports and the foreign one does not."""
    first, second = loader.open(own), loader.open(foreign)
    try:
        if first is None or second is None:
            return []
        wanted = (symbol for symbol, _ in item.undefined() if first.exports(symbol))
        return [symbol for symbol in wanted if not second.exports(symbol)][:MOST_SYMBOLS]
    except BadFileError:
        return []
    finally:
        for file in (first, second):
            if file:
                file.close()


MOST_SYMBOLS = 12

PARTED = "libcudnn.so"
"""A library that opens its parts (``libcudnn_ops.so.9``) by their names when they are first used."""


def strays(loader: Loader) -> list[dict[str, Any]]:
    """Return the parts of cuDNN that are not beside the cuDNN that torch loads, and where they would be opened from."""
    found = []
    for name, item in list(loader.loaded.items()):
        if name.startswith(PARTED):
            folder, number_of = os.path.dirname(os.path.realpath(item.path)), name.rpartition(".so")[2]
            parts = loader.named(PARTED.partition(".")[0] + "_", ".so" + number_of)
            found += [
                {"name": part, "path": path, "expected": folder, "via": how, "taken": True, "version": number(path)}
                for part, (path, how) in sorted(parts.items())
                if not os.path.exists(os.path.join(folder, part))
            ]
    return found
