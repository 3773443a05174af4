"""Why a package does not import: one cause for each package, and with it the code of the check that reports it.

Pure functions from the snapshot to causes. The checks of this family only pick their own causes out of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kerncheck.checks import imports_pair as pair
from kerncheck.checks import imports_words as words
from kerncheck.model.base import Broken, Missing, seen
from kerncheck.model.imports import Attempt, Imported, Imports, PackageImport, TorchRuntime

if TYPE_CHECKING:
    from kerncheck.checks.registry import Case
    from kerncheck.model.imports import OpImport
    from kerncheck.model.loader import LoaderMessage

DEATHS = {"signal": "KC209", "stood_still": "KC210", "exit": "KC211"}
LOADER_CAUSES = {"symbol", "library", "version", "file", "python"}
CLASSES = {"symbol": "KC202", "library": "KC203", "version": "KC205", "file": "KC214", "python": "KC206"}
OTHER, MOVED, ABSENT, PAIR, NEEDED, FOREIGN_CUDA = "KC207", "KC208", "KC201", "KC206", "KC213", "KC204"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One thing that is wrong with one package. ``parts`` are what the loader's message named."""

    code: str
    package: PackageImport
    attempt: Attempt
    ops: tuple[str, ...] = ()
    parts: dict[str, str] = field(default_factory=dict)
    means: str = ""
    found: str = ""

    @property
    def broken(self) -> Broken:
        """How the import broke."""
        assert isinstance(self.attempt.result, Broken)  # noqa: S101 - only such causes ask
        return self.attempt.result

    @property
    def subject(self) -> str:
        """What the finding is about."""
        return self.package.package


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All causes; the packages and ops that import; those that could not be judged, with the reason."""

    causes: tuple[Cause, ...] = ()
    clean: tuple[PackageImport, ...] = ()
    ops: tuple[OpImport, ...] = ()
    absent: tuple[PackageImport, ...] = ()
    unjudged: tuple[tuple[str, str], ...] = ()

    def of(self, code: str) -> tuple[Cause, ...]:
        """Return the causes that one check reports."""
        return tuple(cause for cause in self.causes if cause.code == code)


def diagnose(case: Case) -> Diagnosis:
    """Return what is wrong with each package. With a torch that does not import, nothing else is judged."""
    imports = seen(case.snapshot.imports)
    if not isinstance(imports.torch, TorchRuntime):
        return Diagnosis()
    parts = [of_package(case, package) for package in imports.packages]
    return Diagnosis(
        causes=tuple(cause for part in parts for cause in part.causes),
        clean=tuple(package for part in parts for package in part.clean),
        ops=tuple(op for part in parts for op in part.ops),
        absent=tuple(package for part in parts for package in part.absent),
        unjudged=tuple(pair for part in parts for pair in part.unjudged),
    )


def of_package(case: Case, package: PackageImport) -> Diagnosis:
    """Judge one package: its root, then its extensions, then what each says of the other, then its ops."""
    imports = seen(case.snapshot.imports)
    root = package.root.result
    if isinstance(root, Missing):
        return Diagnosis(unjudged=((package.package, root.reason),))
    if not_there(package):
        return Diagnosis(absent=(package,))
    ops = tuple(op for op in imports.ops if op.package == package.package)
    names = tuple(op.op for op in ops)
    binary = broken_extension(case, package)
    if isinstance(root, Broken):
        cause = cause_of(case, package, package.root)
        hidden = binary is not None and cause.code == OTHER
        return Diagnosis(causes=(replace(binary if binary and hidden else cause, ops=names),))
    found = binary or mismatch(package)
    if found:
        return Diagnosis(causes=(replace(found, ops=names),))
    return of_ops(case, package, ops)


def not_there(package: PackageImport) -> bool:
    """Tell whether the import system knows no module of this name."""
    root = package.root
    return isinstance(root.result, Broken) and root.missing == package.package and not package.location


def broken_extension(case: Case, package: PackageImport) -> Cause | None:
    """Return why a compiled extension does not import, whatever its wrapper made of that."""
    attempts = (attempt for attempt in package.extensions if isinstance(attempt.result, Broken))
    return next((cause_of(case, package, attempt) for attempt in attempts), None)


def mismatch(package: PackageImport) -> Cause | None:
    """Return what a wrapper wants of an extension that does not offer it; both import."""
    found = words.joined(pair.differences(package))
    return Cause(code=PAIR, package=package, attempt=package.root, found=found) if found else None


def of_ops(case: Case, package: PackageImport, ops: tuple[OpImport, ...]) -> Diagnosis:
    """Judge the ops of a package that imports. Ops with one cause make one finding."""
    causes: dict[tuple[str, str], Cause] = {}
    good, unjudged = [], []
    for op in ops:
        if isinstance(op.result, Missing):
            unjudged.append((op.op, op.result.reason))
            continue
        cause = of_op(case, package, op)
        if cause is None:
            good.append(op)
        else:
            key = (cause.code, cause.found or words.exception(cause.broken))
            earlier = causes.get(key, cause)
            causes[key] = replace(earlier, ops=(*earlier.ops, op.op))
    clean = () if causes or unjudged else (package,)
    return Diagnosis(causes=tuple(causes.values()), clean=clean, ops=tuple(good), unjudged=tuple(unjudged))


def of_op(case: Case, package: PackageImport, op: OpImport) -> Cause | None:
    """Return why one op is not there although its package imports, or None."""
    result = op.result
    if isinstance(result, Broken):
        return cause_of(case, package, op.attempt)
    assert isinstance(result, Imported)  # noqa: S101 - Missing was sorted out before
    if result.present and not result.is_none:
        return None
    state = "is None" if result.is_none else "is not there"
    tried = words.listed(op.attempt.tried)
    found = f"{op.op.partition(':')[2]} {state} in {tried}"
    return Cause(code=MOVED, package=package, attempt=op.attempt, found=found)


def cause_of(case: Case, package: PackageImport, attempt: Attempt) -> Cause:
    """Classify one broken import."""
    result = attempt.result
    assert isinstance(result, Broken)  # noqa: S101 - callers ask about broken imports only
    if result.how in DEATHS:
        return death(case, package, attempt, result)
    row, parts = classified(result, case.catalog.loader.message)
    if row is None:
        return Cause(code=OTHER, package=package, attempt=attempt)
    code = CLASSES.get(row.cause) or of_name(package, attempt, row.cause, parts.get("module", ""))
    if row.cause == "library" and foreign_cuda(case, parts["library"]):
        code = FOREIGN_CUDA
    return Cause(code=code, package=package, attempt=attempt, parts=parts, means=row.means)


def death(case: Case, package: PackageImport, attempt: Attempt, result: Broken) -> Cause:
    """Return how an import ended the process. A file that is known to be damaged explains a signal (SIGBUS)."""
    facts = seen(case.snapshot.imports).elf
    files = () if isinstance(facts, Missing) else facts
    damaged = [item for item in files if item.package == package.package and item.problem]
    if result.how == "signal" and damaged:
        means = f"the file is {damaged[0].problem}"
        return Cause(code="KC214", package=package, attempt=attempt, parts={"file": damaged[0].path}, means=means)
    return Cause(code=DEATHS[result.how], package=package, attempt=attempt)


def classified(result: Broken, rows: tuple[LoaderMessage, ...]) -> tuple[LoaderMessage | None, dict[str, str]]:
    """Return the row that an exception's text fits, and the parts that its pattern names.

    What the loader says is looked for in the whole chain of causes, since wrappers hide it behind messages of their
    own. A missing module or name counts when the exception itself says so, or when it is an ImportError raised
    because of it: any other exception raised while one was handled is its own cause.
    """
    texts = result.chain or (f"{result.exception}: {result.message}",)
    loader = [row for row in rows if row.cause in LOADER_CAUSES]
    names = [row for row in rows if row.cause not in LOADER_CAUSES]
    chain = texts if texts[0].startswith(("ImportError", "ModuleNotFoundError")) else texts[:1]
    return first_match(texts, loader) or first_match(chain, names) or (None, {})


def first_match(texts: Iterable[str], rows: Iterable[LoaderMessage]) -> tuple[LoaderMessage, dict[str, str]] | None:
    """Return the first row that fits one of the texts, the first text first."""
    hits = ((row, re.search(row.pattern, text)) for text in texts for row in rows)
    return next(((row, parts_of(match)) for row, match in hits if match), None)


def parts_of(match: re.Match[str]) -> dict[str, str]:
    """Return the named groups that took part in a match."""
    return {name: text for name, text in match.groupdict().items() if text}


def of_name(package: PackageImport, attempt: Attempt, kind: str, module: str) -> str:
    """Return the code for a module or name that is not there, by whose it is."""
    if module in package.known_extensions:
        return PAIR
    ours = module.partition(".")[0] == package.package
    if ours and attempt is not package.root:
        return MOVED
    if kind == "name" or ours:
        return OTHER
    return NEEDED


def foreign_cuda(case: Case, library: str) -> str:
    """Return the CUDA major that a library's name tells, if torch has another one or none; "" otherwise."""
    torch = seen(case.snapshot.imports).torch
    major = cuda_major(case, library)
    own = torch.cuda.partition(".")[0] if isinstance(torch, TorchRuntime) else ""
    return major if major != own else ""


def cuda_major(case: Case, library: str) -> str:
    """Return the CUDA major of a library such as ``libcudart.so.12``, "" where no row tells it."""
    name = library.rpartition("/")[2]
    for row in case.catalog.loader.cuda_library:
        if name.startswith(row.name + "."):
            return row.majors.get(name.removeprefix(row.name + "."), "")
    return ""


def torch_cause(case: Case) -> Cause | None:
    """Return why torch does not import, classified as a package's import is."""
    imports: Imports = seen(case.snapshot.imports)
    if not isinstance(imports.torch, Broken):
        return None
    owned: Any = (imports.torch_distribution,) if imports.torch_distribution else ()
    attempt = Attempt(module="torch", result=imports.torch, demangled=imports.torch_demangled)
    return cause_of(case, PackageImport(package="torch", root=attempt, distributions=owned), attempt)


def foreign_runtimes(case: Case) -> Iterator[tuple[PackageImport, str, str]]:
    """Yield (package, CUDA major, path) of CUDA libraries of another major that a working import brought along."""
    for package in diagnose(case).clean:
        for attempt in (package.root, *package.extensions):
            result = attempt.result
            for path in result.objects if isinstance(result, Imported) else ():
                major = foreign_cuda(case, path)
                if major:
                    yield package, major, path
