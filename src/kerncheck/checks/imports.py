"""KC201, KC206 to KC208, KC212, KC213, KC215: whether torch, the kernel packages and their ops are there at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.checks import imports_deaths as deaths
from kerncheck.checks import imports_loader as loader
from kerncheck.checks import imports_pair as pair
from kerncheck.checks import imports_words as words
from kerncheck.checks.imports_causes import Cause, diagnose, torch_cause
from kerncheck.checks.imports_verdicts import verdicts
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Broken, Missing, seen
from kerncheck.model.imports import Imported, OpImport, PackageImport, TorchRuntime
from kerncheck.model.outcome import Outcome, Say

if TYPE_CHECKING:
    from kerncheck.checks.imports_verdicts import Finding
    from kerncheck.model.loader import Said


@check("KC201", "Every required package is installed", needs=("imports",))
def packages_are_installed(case: Case, say: Say) -> Iterator[Outcome]:
    """Missing package.

    What it checks
        For each package whose ops the model needs: no module of its name can be found. A distribution that is
        installed without its module is said to be so.

    Why it matters
        The model library then runs its eager code, several times slower, and says so once in a log.

    Example
        The model needs causal_conv1d; neither the distribution nor the module is there.

    How to fix
        Install the package for this torch. On a CPU build of torch a compiled CUDA package cannot exist: not
        applicable. Without a model, a package that is not installed is not applicable either.
    """
    diagnosis = diagnose(case)
    for package in diagnosis.absent:
        yield absent(case, say, package)
    there = [package for package in seen(case.snapshot.imports).packages if package.location]
    if there and isinstance(seen(case.snapshot.imports).torch, TorchRuntime):
        names = words.listed(package.package for package in there)
        yield say.passed(names, f"found: {words.listed(words.installed(item) or item.package for item in there)}")


def absent(case: Case, say: Say, package: PackageImport) -> Outcome:
    """Say that a package is not there, where the job needs it."""
    torch = seen(case.snapshot.imports).torch
    if case.job.model is None and not words.installed(package):
        return say.not_applicable(package.package, "not installed, and no model asks for it")
    if package.known_extensions and isinstance(torch, TorchRuntime) and not (torch.cuda or torch.hip):
        return say.not_applicable(
            package.package, f"a compiled extension needs a CUDA build of torch; torch {torch.version} is a CPU build"
        )
    owned = words.installed(package)
    ops = [op.op for op in seen(case.snapshot.imports).ops if op.package == package.package]
    none = f"none of {words.listed(package.known_distributions)}"
    return say.failed(
        package.package,
        f"{package.package} is not there: {owned + ' is installed without the module' if owned else 'not installed'}",
        found=f"no module {package.package} on the search path; distributions: {owned or none}",
        wanted=f"a module {package.package} with {words.listed(ops)}",
        remedy=words.install(case, package),
    )


@check("KC206", "Wrapper and extension belong together", needs=("imports",))
def pairs_match(case: Case, say: Say) -> Iterator[Outcome]:
    """Wrong pair of wrapper and extension.

    What it checks
        The Python half of a compiled package and its extension: the extension is there, for this Python; it has each
        function that the wrapper's source calls, with as many arguments; the module's version is that of the
        installed distribution.

    Why it matters
        Two halves of different releases import well and fail at the first call, or take arguments for others.

    Example
        causal_conv1d 1.7.0 calls causal_conv1d_cuda.causal_conv1d_fwd with 8 arguments, the extension takes 7.

    How to fix
        Remove every copy of both halves from the search path, then install one release, built for this torch.
    """
    yield from verdicts(case, say, "wrapper and extension agree", pair_finding, compiled=True)
    for package in diagnose(case).clean:
        text = pair.other_version(package)
        if text:
            yield version_warning(case, say, package, text)


def pair_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say how the two halves differ."""
    hidden = words.misleading(case, cause.package, cause.attempt) if isinstance(cause.attempt.result, Broken) else ""
    owned = words.installed(cause.package)
    return say.failed(
        cause.subject,
        f"{cause.subject} and its extension do not belong together: {pair_text(case, cause)}.{hidden}",
        found=words.joined((owned, pair_evidence(cause))),
        wanted=f"{words.listed(cause.package.known_extensions)} of the same release, built for this Python and torch",
        remedy=f"install one release of both halves, built here: {words.rebuild(case, cause.package)}",
    )


def pair_text(case: Case, cause: Cause) -> str:
    """Return in one clause what does not fit."""
    if cause.found:
        return cause.found
    host = seen(case.snapshot.imports).host
    suffixes = () if isinstance(host, Missing) else host.suffixes
    own = "" if isinstance(host, Missing) else f", this one is {host.python}"
    foreign = list(pair.foreign_files(cause.package, suffixes)) if suffixes else []
    if foreign:
        return f"the extension is built for another Python ({words.listed(foreign)}{own})"
    if "version" in cause.parts:
        return f"the extension is built for Python {cause.parts['version']}{own}"
    if "name" in cause.parts:
        return f"the extension {cause.parts['module']} has no {cause.parts['name']}"
    return f"the extension {cause.parts.get('module', '')} is not installed beside its wrapper"


def pair_evidence(cause: Cause) -> str:
    """Return the real exception, or where the two halves lie."""
    if isinstance(cause.attempt.result, Broken):
        return words.exception(cause.attempt.result)
    halves = (cause.package.root, *cause.package.extensions)
    return words.listed(half.result.file for half in halves if isinstance(half.result, Imported) and half.result.file)


def version_warning(case: Case, say: Say, package: PackageImport, text: str) -> Outcome:
    """Warn about a module that is not the one which the metadata speaks of."""
    return say.failed(
        package.package,
        f"{package.package}: {text}; another copy lies before the installed one, or an installation was overwritten",
        found=text,
        wanted="one version in the module and in its metadata",
        remedy="take the other copy off the search path (PYTHONPATH, user site), or install anew: "
        + words.rebuild(case, package),
        severity="warning",
    )


@check("KC207", "No import raises", needs=("imports",))
def nothing_is_raised(case: Case, say: Say) -> Iterator[Outcome]:
    """Another exception.

    What it checks
        Importing a package or an op raised something that no other check of this family classifies. The real
        exception is shown with its type, its causes and its place, whatever its type is.

    Why it matters
        Model libraries catch it, run their eager code, and say that the package is not installed.

    Example
        import fla raises AttributeError: module 'triton' has no attribute 'jit'.

    How to fix
        Follow the exception: it is the package's own. The versions of the packages around it are the usual cause.
    """
    yield from verdicts(case, say, "nothing is raised", raised_finding)


def raised_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Show the exception."""
    result = cause.broken
    passing = "" if cause.attempt.ordinary else " It is no Exception, so that no library catches it: the process ends."
    return say.failed(
        cause.subject,
        f"importing {cause.attempt.module} raises {words.shortened(f'{result.exception}: {result.message}')}."
        f"{passing}{words.misleading(case, cause.package, cause.attempt)}",
        found=words.joined((words.exception(result) + words.place(result), words.installed(cause.package))),
        wanted="an import that returns",
        remedy="bring the package and what it needs to versions that fit; to install it anew: "
        + words.rebuild(case, cause.package),
    )


@check("KC208", "Every required op is there", needs=("imports",))
def ops_are_there(case: Case, say: Say) -> Iterator[Outcome]:
    """An op is None or absent.

    What it checks
        Each op that the model needs is imported from its module. The package may import while the op is None, or has
        moved to another module, or is gone in this release.

    Why it matters
        A package that imports says nothing about its ops; a seam that finds None takes the eager reference.

    Example
        import mamba_ssm works, causal_conv1d_fn is None in it.

    How to fix
        Install a release that has the op where the model's code looks for it.
    """
    diagnosis = diagnose(case)
    if isinstance(seen(case.snapshot.imports).torch, Broken):
        yield say.not_judged("ops", "torch does not import (KC212)")
    for cause in diagnosis.of(say.code):
        yield moved_finding(case, say, cause)
    for op in diagnosis.ops:
        yield say.passed(op.op, f"imports{described(op)}")
    for subject, reason in diagnosis.unjudged:
        yield say.not_judged(subject, reason)


def described(op: OpImport) -> str:
    """Return where an op was found, and what it is."""
    result = op.result
    if not isinstance(result, Imported):
        return ""
    elsewhere = f" from {result.module}" if len(op.attempt.tried) > 1 else ""
    return f"{elsewhere} ({result.type})" if result.type else elsewhere


def moved_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say which op is not where the model's code looks for it."""
    gone = cause.found or words.exception(cause.broken)
    return say.failed(
        words.listed(cause.ops),
        f"{cause.subject} imports, but {words.listed(cause.ops)} is not there: {gone}."
        f"{words.misleading(case, cause.package, cause.attempt)}",
        found=words.joined((gone, words.installed(cause.package), f"tried {words.listed(cause.attempt.tried)}")),
        wanted=words.listed(cause.ops),
        remedy=f"install a release of {words.named(cause.package)} that has it, and pin it: "
        + words.install(case, cause.package),
    )


@check("KC212", "torch imports", needs=("imports",))
def torch_imports(case: Case, say: Say) -> Iterator[Outcome]:
    """Torch itself.

    What it checks
        torch imports in a child. If it does not, the cause is named as for any other package: an undefined symbol of
        NCCL or nvJitLink, a missing library, a crash.

    Why it matters
        Nothing else can be judged without torch, so this is one finding, and the ops are not judged.

    Example
        libtorch_cuda.so: undefined symbol: ncclCommRegister, since an older libnccl.so.2 is found first.

    How to fix
        Repair what the finding names. The library that the error names is often not at fault.
    """
    torch = seen(case.snapshot.imports).torch
    if isinstance(torch, Missing):
        yield say.not_judged("torch", torch.reason)
        return
    cause = torch_cause(case)
    if cause is None:
        yield say.passed("torch", f"torch {torch.version} imports" if isinstance(torch, TorchRuntime) else "imports")
        return
    yield FINDINGS.get(cause.code, torch_finding)(case, say, cause)


def torch_finding(_case: Case, say: Say, cause: Cause) -> Outcome:
    """Show why torch does not import, where no check of the loader explains it."""
    return say.failed(
        "torch",
        f"torch does not import: {words.shortened(words.exception(cause.broken))}",
        found=words.exception(cause.broken) + words.place(cause.broken),
        wanted="torch in this interpreter",
        remedy="install torch into this interpreter, or name the interpreter that has it with --python",
    )


FINDINGS: dict[str, Finding] = {
    "KC202": loader.symbol_finding,
    "KC203": loader.library_finding,
    "KC205": loader.version_finding,
    "KC214": loader.file_finding,
    "KC209": deaths.signal_finding,
    "KC210": deaths.still_finding,
    "KC211": deaths.exit_finding,
}
"""For torch: the same sentences under its own code. A library of another CUDA cannot be told without torch."""


@check("KC213", "Every package has what it needs", needs=("imports",))
def dependencies_are_there(case: Case, say: Say) -> Iterator[Outcome]:
    """A dependency is not installed.

    What it checks
        A package is installed and its import fails because a module that it needs is not there.

    Why it matters
        The package's own metadata may not ask for it: fla pulls neither torch nor triton. Model libraries then say
        that the kernel package is not installed, which sends the reader the wrong way.

    Example
        import fla raises ModuleNotFoundError: No module named 'triton'.

    How to fix
        Install the module that is named.
    """
    yield from verdicts(case, say, "nothing that they need is absent", dependency_finding)


def dependency_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Name the module that is not there."""
    module = cause.parts["module"].partition(".")[0]
    return say.failed(
        cause.subject,
        f"{cause.subject} needs the module {module}, which is not installed."
        f"{words.misleading(case, cause.package, cause.attempt)}",
        found=words.joined((words.exception(cause.broken), words.installed(cause.package))),
        wanted=f"the module {module}",
        remedy=f"install what ships {module}; the package's own way: {words.install(case, cause.package)}",
    )


@check("KC215", "No import says that it gave something up", needs=("imports",))
def nothing_is_given_up(case: Case, say: Say) -> Iterator[Outcome]:
    """What an import says.

    What it checks
        Warnings and lines that a package writes while it is imported and that are known to hide a loss, such as
        fla's "roll back to CPU". What is right on a machine without a GPU is a failure beside one.

    Why it matters
        The import succeeds, so nothing else notices.

    Example
        fla finds no C compiler beside an H200, warns once and chooses the CPU.

    How to fix
        Each line has its own remedy.
    """
    imports = seen(case.snapshot.imports)
    if not isinstance(imports.torch, TorchRuntime):
        return
    quiet = True
    for package in diagnose(case).clean:
        for row in said(case, package):
            outcome = spoken(say, package, row, gpu=imports.torch.available)
            quiet = quiet and outcome.status != "failed"
            yield outcome
    clean = diagnose(case).clean
    if clean and quiet:
        names = words.listed(package.package for package in clean)
        yield say.passed(names, f"no import of {names} says that it gave up what this machine has")


def said(case: Case, package: PackageImport) -> Iterator[Said]:
    """Yield the rows whose text a package's imports wrote."""
    ops = (op.attempt for op in seen(case.snapshot.imports).ops if op.package == package.package)
    attempts = (package.root, *package.extensions, *ops)
    lines = [line for attempt in attempts for line in (*attempt.warnings, *attempt.output)]
    for row in case.catalog.loader.said:
        if any(row.text in line for line in lines):
            yield row


def spoken(say: Say, package: PackageImport, row: Said, *, gpu: bool) -> Outcome:
    """Judge one known line."""
    if row.judge == "note" or (row.judge == "with_gpu" and not gpu):
        expected = "" if row.judge == "note" else "; expected, since torch sees no GPU"
        return say.note(package.package, f'it says "{row.text}": {row.means}{expected}', source=row.source)
    return say.failed(
        package.package,
        f'importing {package.package} says "{row.text}": {row.means}',
        found=row.text,
        wanted="an import that uses what this machine has",
        remedy=row.remedy,
        severity=row.severity,
        source=row.source,
    )
