"""How the checks of this family turn causes into outcomes: a finding for each cause, one pass for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from kerncheck.checks import imports_words as words
from kerncheck.checks.imports_causes import Cause, diagnose
from kerncheck.checks.registry import Case
from kerncheck.model.base import seen
from kerncheck.model.imports import TorchRuntime
from kerncheck.model.outcome import Outcome, Say

if TYPE_CHECKING:
    from kerncheck.model.imports import PackageImport

Finding = Callable[[Case, Say, Cause], Outcome]


def verdicts(case: Case, say: Say, good: str, finding: Finding, *, compiled: bool = False) -> Iterator[Outcome]:
    """Yield the findings of this check, and one pass about all packages (``compiled`` ones only) that import.

    A package whose import another check reports is neither: what broke first hides what would have come next.
    """
    diagnosis = diagnose(case)
    for cause in diagnosis.of(say.code):
        outcome = finding(case, say, cause)
        yield with_ops(outcome, cause)
    clean = tuple(package for package in diagnosis.clean if package.known_extensions or not compiled)
    if clean:
        yield say.passed(listed(clean), f"{good}: {listed(clean)} imports in a child, after torch")
    elif compiled and torch_imports(case) and not any(item.location for item in with_extensions(case)):
        yield say.not_applicable("compiled packages", "no package with a compiled extension is installed")


def torch_imports(case: Case) -> bool:
    """Tell whether torch imports: without it no package is looked at."""
    return isinstance(seen(case.snapshot.imports).torch, TorchRuntime)


def with_extensions(case: Case) -> list[PackageImport]:
    """Return the packages that have a compiled half."""
    return [item for item in seen(case.snapshot.imports).packages if item.known_extensions]


def with_ops(outcome: Outcome, cause: Cause) -> Outcome:
    """Add the ops that a finding takes away, so that one finding speaks for all of them."""
    if outcome.status != "failed" or not cause.ops:
        return outcome
    return msgspec.structs.replace(outcome, found=words.joined((outcome.found, f"lost ops: {words.listed(cause.ops)}")))


def listed(packages: tuple[PackageImport, ...]) -> str:
    """Return the names of packages."""
    return words.listed(package.package for package in packages)
