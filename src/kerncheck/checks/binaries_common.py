"""What the checks of compiled files share: whose files are judged, which import outranks them, their words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from kerncheck.checks import imports_words as words
from kerncheck.facts import torch_facts
from kerncheck.model.base import Broken, Missing, seen
from kerncheck.model.binaries import BinaryFile, Package
from kerncheck.model.imports import NOT_TRIED, Attempt, Distribution, Imported, PackageImport, TorchRuntime

if TYPE_CHECKING:
    from kerncheck.checks.registry import Case
    from kerncheck.facts import TorchFacts
    from kerncheck.model.binaries import Binaries
    from kerncheck.model.outcome import Outcome, Say, Severity

Tried = Literal["", "imported", "broken"]
NEEDS = ("binaries", "environment")
"""What every check of this family reads; with the imports where they were tried."""

TOLD = {
    "imported": "its import was tried in a child and went through, which is stronger than what its file says",
    "broken": "its import was tried in a child and broke: KC201 to KC215 report that",
}


@dataclass(frozen=True)
class Subject:
    """One file in question, and the package that it belongs to."""

    file: BinaryFile
    package: Package

    @property
    def name(self) -> str:
        """What a finding calls it: the module, else the file's name."""
        return self.file.module or PurePath(self.file.path).name

    @property
    def severity(self) -> Severity:
        """An error for what the package cannot work without; a module that it may never import is a warning."""
        return "warning" if self.file.role == "module" else "error"


Finding = Callable[["Case", "Say", Subject], Iterator["Outcome"]]


def binaries(case: Case) -> Binaries:
    """Return the section."""
    return seen(case.snapshot.binaries)


def subjects(case: Case) -> Iterator[Subject]:
    """Yield every file that was looked at, torch's first, each under its package."""
    own = Package(package="torch", files=binaries(case).torch)
    for package in (own, *binaries(case).packages):
        yield from (Subject(file, package) for file in package.files)


def verdicts(case: Case, say: Say, good: str, finding: Finding) -> Iterator[Outcome]:
    """Yield the findings about each file, and one pass for each package whose files have none.

    Where the import of a file was really tried, the import's checks speak and this one leaves a note.
    """
    for package in (Package(package="torch", files=binaries(case).torch), *binaries(case).packages):
        found = [
            softened(case, say, Subject(file, package), outcome)
            for file in package.files
            for outcome in finding(case, say, Subject(file, package))
        ]
        yield from found or clean(say, package, good)
    if not any(True for _ in subjects(case)) and not problems(case):
        yield say.not_applicable("compiled files", nothing(case))


def clean(say: Say, package: Package, good: str) -> Iterator[Outcome]:
    """Yield the pass of a package without findings, or why there was nothing to judge."""
    if package.problem:
        yield say.not_judged(package.package, f"its files could not be looked at: {package.problem}")
    elif package.files:
        yield say.passed(package.package, f"{good} ({counted(package.files)}, read without loading)")


def problems(case: Case) -> bool:
    """Tell whether the files of a package could not be looked at."""
    return any(package.problem for package in binaries(case).packages)


def nothing(case: Case) -> str:
    """Return why no file was looked at."""
    facts = torch(case)
    where = "" if facts is None or facts.cuda else f", and torch is built for {facts.kind}"
    return f"no compiled extension of a kernel package is installed{where}"


def softened(case: Case, say: Say, subject: Subject, outcome: Outcome) -> Outcome:
    """Return a finding as it is, or as a note where the file's import was tried: then that has been told."""
    state = tried(case, subject)
    if outcome.status not in ("failed", "not_judged") or not state:
        return outcome
    return say.note(outcome.subject, f"{outcome.message}; {TOLD[state]}", source=outcome.source)


def tried(case: Case, subject: Subject) -> Tried:
    """Tell whether the module, the package of a dependency, or torch itself was really imported."""
    imports = case.snapshot.imports
    if isinstance(imports, Missing):
        return ""
    if subject.package.package == "torch":
        return "imported" if isinstance(imports.torch, TorchRuntime) else state_of(imports.torch)
    found = imports.package(subject.package.package)
    attempts = found.extensions if found else ()
    if subject.file.role == "dependency":
        states = {state_of(attempt.result) for attempt in attempts}
        return "broken" if "broken" in states else "imported" if "imported" in states else ""
    return next((state_of(item.result) for item in attempts if item.module == subject.file.module), "")


def state_of(result: object) -> Tried:
    """Return what came of an import."""
    return "imported" if isinstance(result, Imported) else "broken" if isinstance(result, Broken) else ""


def torch(case: Case) -> TorchFacts | None:
    """Return what torch is installed, by its own files; None where that was not looked at."""
    environment = case.snapshot.environment
    return None if isinstance(environment, Missing) else torch_facts(environment, case.catalog)


def torch_words(case: Case) -> str:
    """Return torch with its version and what it is built for."""
    facts = torch(case)
    return f"torch {facts.version} (built for {facts.kind})" if facts else "the installed torch"


def counted(files: Iterable[BinaryFile]) -> str:
    """Return how many files there are, and the names of the first."""
    names = [PurePath(file.path).name for file in files]
    return f"{len(names)} files" if len(names) > 2 else ", ".join(names)


def listed(names: Iterable[str], most: int = 8) -> str:
    """Join names with commas, and say how many are left out."""
    given = list(dict.fromkeys(names))
    return ", ".join(given[:most]) + (f" and {len(given) - most} more" if len(given) > most else "")


def rebuild(case: Case, package: Package) -> str:
    """Return the command that builds a package anew for the installed torch."""
    return words.rebuild(case, as_import(package))


def as_import(package: Package) -> PackageImport:
    """Return a package as the imports family knows it, for the remedies that both share."""
    pairs = (item.rpartition(" ") for item in package.installed)
    owned = tuple(Distribution(name=name, version=version) for name, _, version in pairs)
    return PackageImport(
        package=package.package,
        root=Attempt(module=package.package, result=NOT_TRIED),
        known_extensions=package.extensions or tuple(file.module for file in package.files if file.module)[:1],
        distributions=owned,
    )
