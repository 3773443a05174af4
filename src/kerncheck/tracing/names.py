"""What the names in a trace mean, by the rows of matrices/traces.toml; each name is looked at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from kerncheck.catalog import default_directory
from kerncheck.catalog import read as read_matrix
from kerncheck.model.trace import NameRule, TraceFile

PLAIN = re.compile(r"[A-Za-z_]\w*")
OTHER = "other"


@functools.cache
def known() -> TraceFile:
    """Return the rows of matrices/traces.toml.

    Raises:
        MatrixError: the file is absent or a row breaks a rule.

    """
    return read_matrix(default_directory() / "traces.toml", TraceFile)


class Rules:
    """The rows of one table, compiled; ``kind`` answers from memory for a name that was asked before."""

    def __init__(self, rows: Iterable[NameRule]) -> None:
        self._rows = [(row.kind, re.compile(row.pattern)) for row in rows]
        self._known: dict[str, str] = {}

    def kind(self, name: str) -> str:
        """Return the kind of the first row that matches, or nothing."""
        found = self._known.get(name)
        if found is None:
            found = next((kind for kind, pattern in self._rows if pattern.search(name)), "")
            self._known[name] = found
        return found

    def numbers(self, names: Iterable[str], kind: str) -> set[int]:
        """Return the positions of the names of one kind."""
        return {number for number, name in enumerate(names) if self.kind(name) == kind}


def plain(kernel: str) -> str:
    """Return a kernel's name without return type, template and function arguments, which differ with shapes.

    Old Triton appended the specialisation of arguments (``_0d1d2de``); that is cut off too. ``(anonymous namespace)``
    is part of a name.
    """
    text = kernel.removeprefix("void ").replace("(anonymous namespace)", "{anonymous}")
    cut = min((at for at in (text.find("<"), text.find("(")) if at > 0), default=len(text))
    text = re.sub(r"_0(?=[\dcde]*[cde])[\dcde]+$", "", text[:cut]) if PLAIN.fullmatch(text[:cut]) else text[:cut]
    return text.replace("{anonymous}", "(anonymous namespace)").strip()


def family(kernel: str, rules: Rules, *, by_driver: bool) -> str:
    """Return the family of a kernel. ``by_driver``: a call of the driver launched it, as calls of Triton do."""
    found = rules.kind(kernel)
    if found:
        return found
    return "fused" if by_driver and PLAIN.fullmatch(plain(kernel)) else OTHER
