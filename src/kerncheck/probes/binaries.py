"""Probe: what the extension files of a kernel package ask of the loader, read without loading them.

Runs under kerncheck's own interpreter, which nothing broken disturbs. Options: ``python`` (the judged interpreter),
``modules`` (top-level names to find there) and ``watch`` (prefixes of symbols that torch's own libraries take from
libraries which another install may shadow). A case names a ``package`` and its ``extensions``; the package ``torch``
stands for torch's own libraries. Answers ``{"files": [...]}``.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import struct
import subprocess
from typing import Any

from kerncheck.probes import locate
from kerncheck.probes.demangle import demangle
from kerncheck.probes.elf import BadFileError, SharedObject, without_parameters
from kerncheck.probes.loader import Loader

INTERPRETER_SYMBOLS = ("Py", "_Py")  # come from the program that runs, whatever it is linked to
TORCH_ROOTS = ("libtorch_global_deps.so", "libtorch_python.so")  # loaded first by ``import torch``, in this order
MOST_SYMBOLS = 40
MOST_EXPLAINED = 12


def setup(options: dict[str, Any]) -> dict[str, Any]:
    """Ask the judged interpreter where things are."""
    command = [options["python"], "-B", locate.__file__, *options["modules"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "watch": tuple(options["watch"])}


def run(case: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Read the extension files of one package, or torch's own libraries."""
    with contextlib.closing(Loader(state["executable"])) as loader:
        torch = load_torch(loader, state["modules"].get("torch", {}))
        if case["package"] == "torch":
            return {"files": torch_files(loader, torch, state["watch"])}
        files: list[dict[str, Any]] = []
        for path in package_files(case, state):
            files += guarded_look(path, case["package"], loader, torch)
        return {"files": files}


def guarded_look(path: str, package: str, loader: Loader, torch: list[SharedObject]) -> list[dict[str, Any]]:
    """Return the facts of an extension. A table that points outside of a file makes it a damaged file."""
    try:
        return look(path, package, loader, torch)
    except (BadFileError, ValueError, IndexError, OverflowError, struct.error) as error:
        return [{"path": path, "package": package, "problem": f"damaged: {error}", **stamp(path)}]


def load_torch(loader: Loader, found: dict[str, Any]) -> list[SharedObject]:
    """Take torch's libraries into the loader's process, as ``import torch`` does before any extension."""
    taken: list[SharedObject] = []
    for folder in found.get("folders", ()):
        for name in TORCH_ROOTS:
            for path in glob.glob(os.path.join(glob.escape(folder), "lib", name)):
                taken += [item for item in loader.load(path) if item not in taken]
    return taken


def package_files(case: dict[str, Any], state: dict[str, Any]) -> list[str]:
    """Return the extension files of a package: those that this Python would take, else those for another one."""
    found: list[str] = []
    for module in case["extensions"]:
        files = locate.extension_files(module, state["path"])
        origin = state["modules"].get(module, {}).get("origin", "")
        own = [path for path in files if path.endswith(tuple(state["suffixes"]))]
        found += [origin] if origin.endswith(".so") else own[:1]
    return found


def look(path: str, package: str, loader: Loader, torch: list[SharedObject]) -> list[dict[str, Any]]:
    """Return the facts of an extension, and of each library that it pulls in and that has a problem of its own."""
    before = dict(loader.loaded)
    loader.problems.pop(path, None)
    closure = loader.load(path)
    if not closure:
        return [{"path": path, "package": package, "problem": loader.problems[path], **stamp(path)}]
    scope = list(dict.fromkeys((*closure, *torch)))
    answers = [facts(closure[0], package, "extension", loader, scope)]
    for item in closure[1:]:
        if item not in torch:
            found = facts(item, package, "dependency", loader, scope)
            answers += [found] if found["unresolved"] or found["unmet"] or lacks(found) else []
    loader.loaded = before  # the next extension is judged alone
    return answers


def torch_files(loader: Loader, torch: list[SharedObject], watch: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return those of torch's libraries that lack a library, a version, or a symbol of one that may be shadowed."""
    found = [facts(item, "torch", "torch", loader, torch, watch) for item in torch]
    found = [item for item in found if item["unresolved"] or item["unmet"] or lacks(item)]
    unread = [{"path": path, "package": "torch", "problem": text} for path, text in loader.problems.items()]
    return [*found, *(item for item in unread if "/torch/" in item["path"])]


def lacks(found: dict[str, Any]) -> bool:
    """Tell whether a needed library is nowhere."""
    return any(not item["path"] for item in found["needed"])


def facts(
    item: SharedObject,
    package: str,
    role: str,
    loader: Loader,
    scope: list[SharedObject],
    watch: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return what one file asks of the loader, with what nobody in the scope offers."""
    needed = [{"name": name, **place(loader, name, item)} for name in item.needed]
    complete = all(entry["path"] for entry in needed)
    missing = unresolved(item, scope, watch) if complete else []
    return {
        "path": item.path,
        "package": package,
        "role": role,
        "machine": item.machine,
        "soname": item.soname,
        "needed": needed,
        "rpath": item.rpath,
        "runpath": item.runpath,
        "unresolved": explained(missing, scope),
        "unmet": unmet(item, loader),
        **stamp(item.path),
    }


def stamp(path: str) -> dict[str, Any]:
    """Return size (bytes) and time stamp (Unix seconds) of a file."""
    return {"size": os.path.getsize(path) if os.path.exists(path) else 0, "modified": locate.modified(path)}


def place(loader: Loader, name: str, wanted_by: SharedObject) -> dict[str, str]:
    """Return the file that a needed name resolves to, and how."""
    path, how = loader.find(name, wanted_by)
    return {"path": path, "via": how}


def unresolved(item: SharedObject, scope: list[SharedObject], watch: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return (symbol, version) of what the file needs and nobody in the scope exports."""
    found = []
    for symbol, index in item.undefined():
        watched = symbol.startswith(watch) if watch else not symbol.startswith(INTERPRETER_SYMBOLS)
        if watched and not any(other.exports(symbol) for other in scope):
            found.append((symbol, item.version_of(index)))
            if len(found) >= MOST_SYMBOLS:
                break
    return found


def explained(missing: list[tuple[str, str]], scope: list[SharedObject]) -> list[dict[str, Any]]:
    """Return the missing symbols, readable, each with exported ones that differ only in their parameters."""
    near = {symbol: similar(symbol, scope) for symbol, _ in missing[:MOST_EXPLAINED]}
    others = [name for found in near.values() for name, _ in found]
    readable = demangle([*(symbol for symbol, _ in missing), *others])
    return [
        {
            "symbol": symbol,
            "demangled": readable.get(symbol, ""),
            "version": version,
            "similar": [
                {"symbol": name, "demangled": readable.get(name, ""), "library": library}
                for name, library in near.get(symbol, ())
            ],
        }
        for symbol, version in missing
    ]


def similar(symbol: str, scope: list[SharedObject]) -> list[tuple[str, str]]:
    """Return (symbol, library) of exported functions with the same name and other parameters."""
    prefix = without_parameters(symbol)
    if not prefix:
        return []
    return [(name, os.path.basename(other.path)) for other in scope for name in other.starting_with(prefix)]


def unmet(item: SharedObject, loader: Loader) -> list[dict[str, str]]:
    """Return the symbol versions that the file demands of a library that is there and does not define them."""
    found = []
    for name, version in item.versions_needed.values():
        path, _ = loader.find(name, item)
        library = loader.loaded.get(name)
        if library and library.versions_defined and version not in library.versions_defined:
            family = version.partition("_")[0] + "_"
            newest = max(
                (known for known in library.versions_defined if known.startswith(family)), key=order, default=""
            )
            found.append({"library": name, "version": version, "path": path, "newest": newest})
    return found


def order(version: str) -> tuple[int, ...]:
    """Return the numbers of a symbol version, so that GLIBC_2.9 comes before GLIBC_2.36."""
    return tuple(int(part) for part in version.partition("_")[2].split(".") if part.isdigit())
