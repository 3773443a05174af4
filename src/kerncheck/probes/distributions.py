"""What is installed, read from the import path without importing it.

Own code instead of ``importlib.metadata``: that reads and parses the metadata of every distribution (0.2 s and more in
a large environment), while a folder's name already says which few are wanted.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

INFO = re.compile(r"(?P<name>.+?)(?:-(?P<version>\d[^-]*))?(?:-py[\d.]+)?\.(?:dist|egg)-info$")
VERSION = re.compile(r"""^(?:__version__|version)\s*(?::[^=\n]+)?=\s*["']([^"'\n]+)["']""", re.MULTILINE)
VERSION_FILES = ("__init__.py", "version.py", "_version.py")
MOST_BYTES = 600 * 2**20  # to hash: the largest libraries of CUDA have about that size
MOST_FILES = 50
SOURCE_BYTES = 1 << 16


def canonical(name: str) -> str:
    """Return a distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(name: str, names: Iterable[str], prefixes: Iterable[str]) -> bool:
    """Tell whether a canonical name is one that was asked for."""
    return name in names or name.startswith(tuple(prefixes))


def entries() -> list[str]:
    """Return the folders of the import path, each once, in order."""
    return [
        path for path in dict.fromkeys(os.path.abspath(entry) for entry in sys.path if entry) if os.path.isdir(path)
    ]


def scan(paths: list[str], names: Iterable[str], prefixes: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """Return (import path entry, metadata folder) of each wanted distribution, in the order of the path.

    A folder that cannot be read is passed over.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for path in paths:
        try:
            inside = sorted(os.listdir(path))
        except OSError:
            continue
        for item in inside:
            match = INFO.match(item)
            if match and wanted(canonical(match["name"]), names, prefixes):
                found.setdefault(canonical(match["name"]), []).append((path, os.path.join(path, item)))
    return found


def headers(folder: str) -> list[str]:
    """Return the header lines of a distribution's metadata, without its description."""
    for name in ("METADATA", "PKG-INFO", ""):
        path = os.path.join(folder, name) if name else folder
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                return head(file)
    return []


def head(lines: Iterable[str]) -> list[str]:
    """Return the lines before the first empty one. One of spaces alone continues a long value (a licence, say)."""
    return list(itertools.takewhile(bool, (line.rstrip("\r\n") for line in lines)))


def values(lines: Iterable[str], key: str) -> list[str]:
    """Return the values of one header."""
    return [line[len(key) + 1 :].strip() for line in lines if line.startswith(key + ":")]


def of_interest(requirement: str, options: dict[str, Any]) -> bool:
    """Tell whether a requirement names a wanted distribution, always or for one of the extras that matter."""
    name = re.match(r"[A-Za-z0-9][\w.-]*", requirement)
    extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", requirement)
    named = name is not None and wanted(canonical(name[0]), options["names"], options["prefixes"])
    return named and (extra is None or extra[1] in options["extras"])


def describe(name: str, places: list[tuple[str, str]], options: dict[str, Any]) -> dict[str, Any] | None:
    """Describe the distribution that wins (the first on the path) and the copies that it hides."""
    copies = [copy for copy in (one_copy(path, folder) for path, folder in places) if copy["version"]]
    if not copies:
        return None
    first, *hidden = copies
    modules = options["modules"].get(name)
    file = module_file(modules[0]) if modules else ""
    return {
        "name": name,
        **first,
        "requires": [line for line in first["requires"] if of_interest(line, options)],
        "module": file,
        "imported": written_version(file),
        "copies": [{"version": copy["version"], "location": copy["location"]} for copy in hidden],
    }


def one_copy(path: str, folder: str) -> dict[str, Any]:
    """Read one copy's version and requirements."""
    try:
        lines = headers(folder)
    except OSError:
        lines = []
    match = INFO.match(os.path.basename(folder))
    versions = values(lines, "Version") or [match["version"] if match and match["version"] else ""]
    return {"version": versions[0], "location": path, "requires": values(lines, "Requires-Dist")}


def module_file(module: str) -> str:
    """Return the file that an import of a module would take, without importing it; empty when there is none."""
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return ""
    if spec is None:
        return ""
    if not rest:
        return spec.origin or ""
    for folder in spec.submodule_search_locations or ():
        for file in (os.path.join(*rest.split("."), "__init__.py"), os.path.join(*rest.split(".")) + ".py"):
            if os.path.isfile(os.path.join(folder, file)):
                return os.path.join(folder, file)
    return ""


def written_version(module: str) -> str:
    """Return the version that is written as a literal in a module's file or in a version file beside it."""
    if not module:
        return ""
    folder = os.path.dirname(module)
    names = VERSION_FILES if os.path.basename(module) == "__init__.py" else (os.path.basename(module),)
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                match = VERSION.search(file.read(SOURCE_BYTES))
        except OSError:
            continue
        if match:
            return match[1]
    return ""


def records(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (path, sha256 in URL-safe base64) of each hashed file that a distribution lists."""
    try:
        with open(os.path.join(folder, "RECORD"), encoding="utf-8", errors="replace") as file:
            for line in file:
                parts = line.rstrip("\n").rsplit(",", 2)
                if len(parts) == 3 and parts[1].startswith("sha256=") and not parts[0].startswith(".."):
                    yield parts[0].strip('"'), parts[1][len("sha256=") :]
    except OSError:
        return


def shared_files(found: dict[str, list[tuple[str, str]]], leave_out: Iterable[str]) -> list[dict[str, Any]]:
    """Find files that several distributions of one folder claim with different content: libraries, then others."""
    claims: dict[tuple[str, str], list[dict[str, str]]] = {}
    for name, places in found.items():
        for path, folder in places[:1] if name not in leave_out else ():
            version = one_copy(path, folder)["version"]
            for file, sha256 in records(folder):
                claims.setdefault((path, file), []).append({"name": name, "version": version, "sha256": sha256})
    different = [
        (path, file, owners) for (path, file), owners in claims.items() if len({o["sha256"] for o in owners}) > 1
    ]
    return hashed(different)


def hashed(claims: list[tuple[str, str, list[dict[str, str]]]]) -> list[dict[str, Any]]:
    """Hash the files on disk, libraries first and small ones before large ones, as far as the budget of bytes goes."""
    sized = [(".so" not in file, size(os.path.join(path, file)), path, file, owners) for path, file, owners in claims]
    budget, answers = MOST_BYTES, []
    for _, count, path, file, owners in sorted(sized, key=lambda item: item[:4])[:MOST_FILES]:
        budget -= count
        content = digest(os.path.join(path, file)) if budget >= 0 else ""
        answers.append({"path": file, "owners": owners, "sha256": content})
    return answers


def size(path: str) -> int:
    """Return a file's size in bytes; 0 for none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def digest(path: str) -> str:
    """Return a file's sha256 as RECORD writes it; empty when it cannot be read."""
    total = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                total.update(block)
    except OSError:
        return ""
    return base64.urlsafe_b64encode(total.digest()).rstrip(b"=").decode()


def torch_build(module: str) -> dict[str, Any]:
    """Read what torch's own ``version.py`` says of its build."""
    file = os.path.join(os.path.dirname(module), "version.py")
    with open(file, encoding="utf-8", errors="replace") as handle:
        text = handle.read(SOURCE_BYTES)
    return {
        "kind": "torch_build",
        "version": literal(text, "__version__"),
        "cuda": literal(text, "cuda"),
        "hip": literal(text, "hip"),
        "git": literal(text, "git_version"),
        "file": file,
    }


def literal(text: str, name: str) -> str:
    """Return the string that a name is given in a module's text; empty for None or for no such line."""
    match = re.search(rf"^{name}\s*(?::[^=\n]+)?=\s*[\"']([^\"'\n]*)[\"']", text, re.MULTILINE)
    return match[1] if match else ""
