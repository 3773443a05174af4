"""Phrases that several checks of imports share: pure functions from what was seen to plain sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kerncheck.model.base import Broken, Missing

if TYPE_CHECKING:
    from kerncheck.checks.registry import Case
    from kerncheck.model.imports import Attempt, Distribution, PackageImport

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>.+)')
MACHINERY = ("<frozen ", "importlib", "/kerncheck/probes/", "runpy.py")
LONGEST = 300


def installed(package: PackageImport) -> str:
    """Return the installed distributions of a package as ``causal-conv1d 1.7.0``, "" for none."""
    if isinstance(package.distributions, Missing):
        return ""
    return ", ".join(f"{item.name} {item.version}" for item in package.distributions)


def named(package: PackageImport) -> str:
    """Return the distribution's name that an installer knows: the installed one, else the first that is known."""
    owned = () if isinstance(package.distributions, Missing) else package.distributions
    names = (*(item.name for item in owned), *package.known_distributions, package.package)
    return names[0]


def exception(result: Broken) -> str:
    """Return the real exception, with the cause that it was raised from."""
    lines = [shortened(line) for line in dict.fromkeys(result.chain)]
    return "; caused by ".join(lines[:3]) or shortened(f"{result.exception}: {result.message}")


def shortened(text: str) -> str:
    """Return a text on one line, its end left out when it is long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[:LONGEST] + " ..."


def place(result: Broken) -> str:
    """Return the last line of the package's own code in a traceback, as `` at FILE:LINE``; "" without one."""
    frames = [match for match in FRAME.finditer(result.detail) if not match["file"].startswith("<")]
    return f" at {frames[-1]['file']}:{frames[-1]['line']}" if frames else ""


def stack(result: Broken) -> str:
    """Return the innermost frames of a dead or blocked child, its import machinery left out."""
    frames = [match for match in FRAME.finditer(result.detail) if not any(word in match["file"] for word in MACHINERY)]
    shown = [f"{frame['name']} ({frame['file']}:{frame['line']})" for frame in frames[:4]]
    return "stack, innermost first: " + " < ".join(shown) if shown else ""


def last_words(result: Broken) -> str:
    """Return the last line that a child wrote, "" for a silent one."""
    lines = [line for line in result.detail.splitlines() if line.strip()]
    return f"its last output: {shortened(lines[-1])}" if lines else ""


def joined(parts: Iterable[str]) -> str:
    """Join what is not empty with semicolons."""
    return "; ".join(part for part in parts if part)


def listed(names: Iterable[str]) -> str:
    """Join names with commas."""
    return ", ".join(names)


def misleading(case: Case, package: PackageImport, attempt: Attempt) -> str:
    """Return what a library that catches the exception says, and that it is wrong; "" where nothing catches it.

    A package that can be found and raises is installed and broken; transformers says that it is not installed.
    """
    rows = [row for row in case.catalog.loader.misleading if package.package in row.packages]
    if not rows or not attempt.ordinary or not (installed(package) or package.location):
        return ""
    texts = " or ".join(f'"{row.text.format(distribution=named(package))}"' for row in rows)
    wrong = "that message is wrong here, the package is installed and broken"
    return f" {rows[0].library} hides this exception and says {texts}, by its release: {wrong}."


def rebuild(case: Case, package: PackageImport) -> str:
    """Return the command that installs a package anew, a compiled one by building it for the installed torch.

    Of a compiled package, a reinstall would take the same wheel again and build isolation would compile against
    another torch; the package's own switch, where it has one, keeps its setup from fetching a prebuilt wheel. Only
    torch itself is installed with what it requires: those libraries are what it lacks.
    """
    owned = () if isinstance(package.distributions, Missing) else package.distributions
    if package.package == "torch":
        return f"pip install --no-cache-dir --force-reinstall {pinned(owned) or 'torch'}"
    if not package.known_extensions:
        return f"pip install --no-cache-dir --no-deps --force-reinstall {pinned(owned) or named(package)}"
    name = named(package)
    kernel = case.catalog.kernel_of(name)
    switches = [row.name for row in kernel.variable if row.name.endswith("_FORCE_BUILD")] if kernel else []
    switch = f"{switches[0]}=TRUE " if switches else ""
    options = "--no-build-isolation --no-cache-dir --no-deps --force-reinstall"
    return f"{switch}pip install {options} --no-binary {name} {pinned(owned[:1], local=False) or name}"


def pinned(owned: Iterable[Distribution], *, local: bool = True) -> str:
    """Return installed distributions as requirements; a package index knows no local tag, except torch's own."""
    return " ".join(f"{item.name}=={item.version if local else item.version.partition('+')[0]}" for item in owned)


def install(case: Case, package: PackageImport) -> str:
    """Return how to install a package that is not there."""
    kernel = case.catalog.kernel_of(named(package))
    return kernel.package.install if kernel else f"pip install {named(package)}"
