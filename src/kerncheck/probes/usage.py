"""What a wrapper's source calls of its compiled extension, and what the extension offers. Standard library only."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

MOST_FILES = 400
MOST_BYTES = 2_000_000
DOCUMENTED = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)\)( -> .*)?$")
GUARDS = ("hasattr", "getattr")


def calls(folders: Iterable[str], extensions: Iterable[str]) -> list[dict[str, Any]]:
    """Return every name of an extension that the Python files of a package use.

    ``arguments`` is the number of values that a call passes by position, None where that cannot be told.
    """
    wanted = set(extensions)
    found: list[dict[str, Any]] = []
    for path in list(sources(folders))[:MOST_FILES] if wanted else ():
        tree = parsed(path)
        if tree is not None:
            found += [{**use, "file": path} for use in used(tree, wanted)]
    return found


def sources(folders: Iterable[str]) -> Iterator[str]:
    """Yield the Python files below some folders."""
    for folder in folders:
        for place, below, files in os.walk(folder):
            below.sort()
            yield from (os.path.join(place, file) for file in sorted(files) if file.endswith(".py"))


def parsed(path: str) -> ast.Module | None:
    """Return a file's syntax tree, or None for one that cannot be read."""
    try:
        if os.path.getsize(path) > MOST_BYTES:
            return None
        with open(path, encoding="utf-8") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def used(tree: ast.Module, extensions: set[str]) -> list[dict[str, Any]]:
    """Return the uses of extensions in one file, those behind ``hasattr`` or ``getattr`` left out as optional."""
    modules, names = imported(tree, extensions)
    optional = guarded(tree)
    counts = {id(node.func): positional(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        extension, name = "", ""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            extension, name = modules.get(node.value.id, ""), node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            extension, name = names.get(node.id, ("", ""))
        if extension and name not in optional and not name.startswith("__"):
            line = getattr(node, "lineno", 0)
            found.append({"extension": extension, "name": name, "arguments": counts.get(id(node)), "line": line})
    return found


def imported(tree: ast.Module, extensions: set[str]) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return {local name: extension} of imported extensions, and {local name: (extension, name)} of their parts."""
    modules: dict[str, str] = {}
    names: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update({item.asname or item.name: item.name for item in node.names if item.name in extensions})
        elif isinstance(node, ast.ImportFrom) and node.module in extensions:
            names.update({item.asname or item.name: (str(node.module), item.name) for item in node.names})
    return modules, names


def guarded(tree: ast.Module) -> set[str]:
    """Return the names that a file asks for with ``hasattr`` or ``getattr``, or tries in a ``try`` statement."""
    tried = (node for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers)
    attempted = {
        part.attr for node in tried for line in node.body for part in ast.walk(line) if isinstance(part, ast.Attribute)
    }
    return attempted | {
        str(node.args[1].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in GUARDS
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
    }


def positional(node: ast.Call) -> int | None:
    """Return how many values a call passes by position; None if it also passes others."""
    if node.keywords or any(isinstance(value, ast.Starred) for value in node.args):
        return None
    return len(node.args)


def offered(module: Any) -> list[dict[str, Any]]:
    """Return the public functions of an extension, with how many arguments each takes.

    pybind11 writes the signature as the first line of a docstring: ``name(arg0: Tensor, arg1: int = 3) -> None``.
    ``least`` and ``most`` are None where no such line is (other binders, overloads).
    """
    if not str(getattr(module, "__file__", "")).endswith(".so"):
        return []
    found = []
    for name in sorted(name for name in dir(module) if not name.startswith("_")):
        least, most = arity(name, getattr(getattr(module, name, None), "__doc__", None))
        found.append({"name": name, "least": least, "most": most})
    return found


def arity(name: str, document: Any) -> tuple[int | None, int | None]:
    """Return the least and the greatest number of arguments that a docstring's first line tells."""
    line = document.splitlines()[0].strip() if isinstance(document, str) and document.strip() else ""
    match = DOCUMENTED.match(line)
    if not match or match["name"] != name or "*" in match["arguments"] or "Overloaded" in str(document):
        return None, None
    parts = split_arguments(match["arguments"])
    return sum("=" not in part for part in parts), len(parts)


def split_arguments(text: str) -> list[str]:
    """Split an argument list at its own commas, not at those inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
