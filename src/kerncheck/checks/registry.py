"""What a check is, and how all of them are found: one decorated function each, whose docstring is its page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerncheck.model.outcome import Outcome, Say

if TYPE_CHECKING:
    from kerncheck.catalog import Catalog
    from kerncheck.model.job import Job
    from kerncheck.model.snapshot import Snapshot

FAMILIES = {
    "KC0": "kerncheck itself",
    "KC1": "Environment",
    "KC2": "Binaries and imports",
    "KC3": "Seams",
    "KC4": "Numerics",
    "KC5": "Packing",
    "KC6": "Training step",
    "KC7": "Compile-ahead",
    "KC8": "Run configuration",
}


@dataclass(frozen=True)
class Case:
    """What a check judges: the job as declared, what was seen, and what is known."""

    job: Job
    snapshot: Snapshot
    catalog: Catalog


Judge = Callable[[Case, Say], Iterator[Outcome]]


@dataclass(frozen=True)
class Check:
    """One check. ``needs`` names the sections of the snapshot that it reads; it sees no others.

    ``also`` names sections that it reads where another check had them observed: it judges as well without them.
    """

    code: str
    title: str
    needs: tuple[str, ...]
    judge: Judge
    also: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The family's prefix, such as ``KC1``."""
        return self.code[:3]

    @property
    def page(self) -> str:
        """The check's page of documentation: what it checks, why it matters, an example, how to fix."""
        return inspect.getdoc(self.judge) or ""


def check(code: str, title: str, *, needs: tuple[str, ...], also: tuple[str, ...] = ()) -> Callable[[Judge], Check]:
    """Make a check of a function that yields outcomes. An empty yield is "not judged", never a pass."""
    return lambda judge: Check(code=code, title=title, needs=needs, judge=judge, also=also)


def all_checks() -> tuple[Check, ...]:
    """Find every check of this package, by code. Two checks with one code are a bug, named by both modules."""
    package = importlib.import_module("kerncheck.checks")
    found: dict[str, Check] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"kerncheck.checks.{info.name}")
        for item in vars(module).values():
            if isinstance(item, Check) and found.setdefault(item.code, item) is not item:
                raise ValueError(f"{item.code} is declared twice, the second time in {module.__name__}")
    return tuple(found[code] for code in sorted(found))
