"""Kernel packages against each other and against torch, Triton, transformers and Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from kerncheck.checks.registry import Case, check
from kerncheck.facts import TRITON_NAMES, setting, triton_version
from kerncheck.matching import applies
from kerncheck.model.base import seen
from kerncheck.model.outcome import Outcome, Say, Severity
from kerncheck.requirements import applying
from kerncheck.versions import flavour, holds, minor, same_release, shown

if TYPE_CHECKING:
    from kerncheck.model.environment import Distribution, Environment
    from kerncheck.model.matrix import KernelFile, KernelRelease

EXTRA = "cuda"
"""The extra whose requirements a package cannot do without: since 0.5.1 fla asks for torch and Triton only there."""


@dataclass(frozen=True)
class Demand:
    """What one distribution wants of another, and who says so."""

    name: str
    versions: SpecifierSet
    who: str
    severity: Severity = "error"


@check("KC111", "kernel packages find the versions that they require", needs=("environment",))
def requirements(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge each kernel package, and transformers, against what it requires of its neighbours.

    What it checks
    The requirements in the metadata of each installed kernel package and of transformers, and those that the matrix
    knows of that release, against the installed torch, Triton, transformers, Python and others.

    Why it matters
    pip installs a newer or older neighbour over a working one and only prints a line about it; a package whose
    requirements stand in an extra (fla's torch and Triton) is not even mentioned. Outside of its range a package
    fails to import, fails to compile, or is not used.

    Example
    fla-core 0.6.0 requires triton >= 3.3, found 3.2.0.

    How to fix
    Install a version in the range that the finding names; for Triton, through the torch that ships it.
    """
    environment = seen(case.snapshot.environment)
    judged = False
    for item in case.catalog.kernels.values():
        for name in item.package.distributions:
            distribution = environment.find(name)
            if distribution is not None:
                judged = True
                yield from one_package(case, environment, item, distribution, say)
    transformers = environment.find("transformers")
    if transformers is not None:
        judged = True
        yield from judge_demands(environment, transformers, transformers_demands(case, environment, transformers), say)
    if not judged:
        yield say.not_applicable("kernel packages", "neither a kernel package nor transformers is installed")


def one_package(
    case: Case, environment: Environment, item: KernelFile, distribution: Distribution, say: Say
) -> Iterator[Outcome]:
    """Judge one distribution of a kernel package."""
    release = release_of(item, distribution.version)
    demands = [*own_demands(environment, distribution, EXTRA), *known_demands(item, release, distribution)]
    demands = [demand for demand in demands if demand.name not in item.package.distributions]  # KC113 judges halves
    demands += floor_rows(case, environment, item, distribution)
    yield from lacking(environment, item, distribution, say)
    yield from judge_demands(environment, distribution, demands, say)
    if item.release and release is None:
        known = max(row.version for row in item.release)
        reason = (
            f"unknown: {distribution.name} {distribution.version} is no release in the matrix (newest there: {known})"
        )
        yield say.not_judged(distribution.name, reason, required=False)


def release_of(item: KernelFile, version: str) -> KernelRelease | None:
    """Return the row of a release; one that has only a list of wheels is known as well."""
    return next((row for row in item.release if same_release(str(row.version), version)), None)


def own_demands(environment: Environment, distribution: Distribution, extra: str) -> list[Demand]:
    """Return what the metadata of a distribution requires."""
    who = "its metadata"
    listed = applying(distribution.requires, environment, (extra,))
    return [Demand(item.name, item.specifier, who) for item in listed if not item.extras and item.specifier]


def known_demands(item: KernelFile, release: KernelRelease | None, distribution: Distribution) -> list[Demand]:
    """Return what the matrix knows that a distribution requires, and what it warns about."""
    wanted = {**item.package.requires.get(distribution.name, {})}
    demands = [Demand(name, versions, "the matrix") for name, versions in wanted.items()]
    if release is None:
        return demands
    required = release.requires.get(distribution.name, {})
    demands += [Demand(name, versions, "the matrix") for name, versions in required.items()]
    demands.append(Demand("python", release.python, "the matrix"))
    if distribution.name == item.package.distributions[0]:
        demands += [
            Demand(name, versions, "its own warning", "warning") for name, versions in release.recommends.items()
        ]
    return demands


def floor_rows(case: Case, environment: Environment, item: KernelFile, distribution: Distribution) -> list[Demand]:
    """Return the known-bad rows that are plain floors as demands, where they apply to this distribution."""
    here = setting(case, environment)
    first = next((name for name in item.package.distributions if environment.version(name)), "")
    return [
        Demand(name, above(versions), f"the matrix ({row.effect})", "warning" if row.severity == "warning" else "error")
        for row in item.known_bad
        if row.judged_by == "KC111" and distribution.name == first and applies(row, here, distribution.version)
        for name, versions in row.when.packages.items()
    ]


def above(versions: SpecifierSet) -> SpecifierSet:
    """Return the range that lies above one such as ``<3.3``."""
    return SpecifierSet(str(versions).replace("<", ">="))


def transformers_demands(case: Case, environment: Environment, distribution: Distribution) -> list[Demand]:
    """Return what transformers requires of torch and Python; its window for `kernels` is KC117's."""
    demands = [item for item in own_demands(environment, distribution, "torch") if item.name != "kernels"]
    row = case.catalog.transformers_release(distribution.version)
    if row is not None:
        demands += [Demand("torch", row.torch, "the matrix"), Demand("python", row.python, "the matrix")]
    return demands


def lacking(environment: Environment, item: KernelFile, distribution: Distribution, say: Say) -> Iterator[Outcome]:
    """Say that a package is installed without torch or Triton, which it cannot work without."""
    if distribution.name != next(name for name in item.package.distributions if environment.version(name)):
        return
    here = {"torch": bool(environment.version("torch")), "triton": bool(triton_version(environment))}
    for name in item.package.needs:
        if not here.get(name, True):
            yield say.failed(
                f"{distribution.name}: {name}",
                f"{distribution.name} {distribution.version} is installed, {name} is missing",
                found=f"no {name}",
                wanted=f"{name}, which {item.package.name} cannot be imported without",
                remedy=item.package.install,
                source=item.package.source,
            )


def installed_version(environment: Environment, name: str) -> str:
    """Return the version of a distribution, of Python, or of whatever distribution holds Triton."""
    if name == "python":
        return environment.python.version
    return triton_version(environment) if name in TRITON_NAMES else environment.version(name)


def judge_demands(
    environment: Environment, distribution: Distribution, demands: list[Demand], say: Say
) -> Iterator[Outcome]:
    """Judge what one distribution wants: one finding for each neighbour that does not fit, one pass for the rest."""
    unmet: dict[str, Demand] = {}
    fitting: list[str] = []
    for demand in demands:
        version = installed_version(environment, demand.name)
        answer = holds(demand.versions, version) if version else None
        if answer is False and unmet.get(demand.name, demand).severity in (demand.severity, "warning"):
            unmet[demand.name] = demand
        elif answer:
            fitting.append(demand.name)
    for demand in unmet.values():
        yield outside(environment, distribution, demand, say)
    met = sorted(set(fitting) - set(unmet))
    if met and not unmet:
        versions = ", ".join(f"{name} {installed_version(environment, name)}" for name in met)
        yield say.passed(distribution.name, f"{distribution.name} {distribution.version} fits {versions}")


def outside(environment: Environment, distribution: Distribution, demand: Demand, say: Say) -> Outcome:
    """Say that a neighbour is outside of the range that a distribution wants."""
    version = installed_version(environment, demand.name)
    through = " (through the torch that ships it)" if demand.name == "triton" else ""
    wanted = shown(demand.versions)
    change = f"install {demand.name} {wanted}{through}" if demand.name != "python" else "use such a Python"
    return say.failed(
        f"{distribution.name}: {demand.name}",
        f"{distribution.name} {distribution.version} wants {demand.name} {wanted}, found {version}",
        found=f"{demand.name} {version}",
        wanted=f"{demand.name} {wanted} (by {demand.who})",
        remedy=f"{change}, or a {distribution.name} whose range holds {demand.name} {version}",
        severity=demand.severity,
    )


@check("KC113", "the two halves of flash-linear-attention belong together", needs=("environment",))
def split_packages(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge whether fla-core and flash-linear-attention are of one version.

    What it checks
    That the distributions of a package that is split in several have one version, and that the one with the kernels
    is there.

    Why it matters
    fla-core holds the kernels, flash-linear-attention layers and models, in one folder on disk. Halves of two
    versions import and fail later, or quietly leave "no layers".

    Example
    fla-core 0.4.1 with flash-linear-attention 0.5.0.

    How to fix
    Remove both, then install flash-linear-attention with its extra, which pulls the matching fla-core.
    """
    environment = seen(case.snapshot.environment)
    split = [item for item in case.catalog.kernels.values() if len(item.package.distributions) > 1]
    installed = [item for item in split if any(environment.version(name) for name in item.package.distributions)]
    for item in installed:
        yield judge_halves(environment, item, say)
    if not installed:
        yield say.not_applicable("split packages", "no kernel package that is split in several is installed")


def judge_halves(environment: Environment, item: KernelFile, say: Say) -> Outcome:
    """Compare the core of a package (the first distribution) with the whole (the last)."""
    core, *_, whole = item.package.distributions
    have = {name: environment.version(name) for name in (core, whole)}
    if not have[whole]:
        return say.note(core, f"{core} {have[core]} alone: the kernels, without the layers and models of {whole}")
    row = release_of(item, have[whole])
    split = row.split_core if row else True
    if not have[core] and not split:
        return say.passed(whole, f"{whole} {have[whole]} holds its kernels itself")
    if have[core] and split and same_release(have[core], have[whole]):
        return say.passed(whole, f"{core} and {whole} are both {have[whole]}")
    found = f"{core} {have[core]}" if have[core] else f"no {core}"
    return say.failed(
        whole,
        f"{whole} {have[whole]} with {found}: the halves do not belong together",
        found=f"{whole} {have[whole]}, {found}",
        wanted=f"{core} {have[whole]}" if split else f"no {core}: {whole} {have[whole]} holds the kernels itself",
        remedy=f"remove both, then {item.package.install}: `pip uninstall {core} {whole}` first",
        source=item.package.source,
    )


@check("KC116", "torchvision pairs with torch", needs=("environment",))
def torchvision(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge torchvision against torch.

    What it checks
    The torch that torchvision's metadata requires, else the rule that 0.(m+15) pairs with torch 2.m; and whether both
    are built for one CUDA version.

    Why it matters
    "operator torchvision::nms does not exist" appears far from the cause, often in the import of transformers.

    Example
    torchvision 0.21.0 pairs with torch 2.6, found 2.8.0.

    How to fix
    Install the torchvision of the installed torch, from the same index.
    """
    environment = seen(case.snapshot.environment)
    row = next(row for row in case.catalog.torch.companion if row.name == "torchvision")
    companion, torch = environment.find(row.name), environment.version("torch")
    if companion is None or not torch:
        yield say.not_applicable(
            row.name, f"{row.name} is not installed" if companion is None else "torch is not installed"
        )
        return
    wanted = pinned(environment, companion, row.offset)
    fits = holds(wanted, torch) if wanted else None
    if fits is None or wanted is None:
        yield say.not_judged(row.name, f"unknown: {row.name} {companion.version} with torch {torch}", required=False)
    elif not fits:
        yield wrong_pair(companion, torch, wanted, row.offset, say)
    elif "" not in (flavour(companion.version), flavour(torch)) and flavour(companion.version) != flavour(torch):
        yield other_flavour(companion, torch, say)
    else:
        yield say.passed(row.name, f"{row.name} {companion.version} pairs with torch {torch}")


def pinned(environment: Environment, companion: Distribution, offset: int) -> SpecifierSet | None:
    """Return which torch a companion pairs with: by its metadata, else by the rule for minors."""
    listed = applying(companion.requires, environment)
    own = next((item.specifier for item in listed if item.name == "torch" and item.specifier), None)
    found = minor(companion.version)
    if own is not None or found is None:
        return own
    return SpecifierSet(f"==2.{found[1] - offset}.*") if found[0] == 0 and found[1] >= offset else None


def wrong_pair(companion: Distribution, torch: str, wanted: SpecifierSet, offset: int, say: Say) -> Outcome:
    """Say that torchvision belongs to another torch."""
    have = minor(torch)
    right = f"0.{have[1] + offset}" if have and have[0] == 2 else "that pairs"
    partner = str(wanted).lstrip("=").removesuffix(".*")
    return say.failed(
        companion.name,
        f"{companion.name} {companion.version} pairs with torch {partner}, found {torch}",
        found=f"{companion.name} {companion.version}, torch {torch}",
        wanted=f"torch {wanted}, or {companion.name} {right}",
        remedy=f"pip install '{companion.name}=={right}.*', from the index that torch came from",
        source="pytorch/vision#8985; pytorch/pytorch#157648",
    )


def other_flavour(companion: Distribution, torch: str, say: Say) -> Outcome:
    """Say that torch and torchvision are built for different CUDA versions."""
    return say.failed(
        companion.name,
        f"{companion.name} {companion.version} and torch {torch} are built for different CUDA versions",
        found=f"{flavour(companion.version)} and {flavour(torch)}",
        wanted="one CUDA version",
        remedy=f"reinstall {companion.name} from the {flavour(torch)} index",
        severity="warning",
    )


@check("KC117", "`kernels` lies in the window of the installed transformers", needs=("environment",))
def kernels_window(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge the distribution `kernels` against transformers.

    What it checks
    The installed `kernels` against the range that the installed transformers itself names, else the one in the
    matrix.

    Why it matters
    The windows are narrow and move with each minor of transformers, and pip does not enforce them. Outside of the
    window Hub kernels are switched off, with "Kernels are not available" or nothing at all.

    Example
    transformers 5.24.0 wants kernels >= 0.18.2, < 0.19, found 0.17.2.

    How to fix
    pip install 'transformers[kernels]' for the installed version of transformers.
    """
    environment = seen(case.snapshot.environment)
    kernels, transformers = environment.version("kernels"), environment.find("transformers")
    if not kernels or transformers is None:
        absent = "`kernels`" if not kernels else "transformers"
        yield say.not_applicable("kernels", f"{absent} is not installed")
        return
    wanted = window(case, environment, transformers)
    fits = holds(wanted, kernels) if wanted else None
    if fits is None or wanted is None:
        yield say.not_judged("kernels", f"the window of transformers {transformers.version} is unknown", required=False)
    elif fits:
        yield say.passed("kernels", f"kernels {kernels} lies in the window of transformers {transformers.version}")
    else:
        yield outside_window(case, transformers, kernels, wanted, say)


def outside_window(case: Case, transformers: Distribution, kernels: str, wanted: SpecifierSet, say: Say) -> Outcome:
    """Say that `kernels` is too old or too new for transformers."""
    row = case.catalog.transformers_release(transformers.version)
    doubt = f" ({row.uncertain})" if row and row.uncertain else ""
    return say.failed(
        "kernels",
        f"transformers {transformers.version} wants kernels {shown(wanted)}, found {kernels}: it loads no Hub kernels",
        found=f"kernels {kernels}",
        wanted=f"kernels {shown(wanted)}",
        remedy=f"pip install 'transformers[kernels]=={transformers.version}'; where no such release of kernels can be "
        f"found{doubt}, remove kernels: the model then binds the kernel packages themselves",
        source="huggingface/transformers#47630; huggingface/transformers#47312",
    )


def window(case: Case, environment: Environment, transformers: Distribution) -> SpecifierSet | None:
    """Return the range for `kernels` that transformers names, else the one that the matrix knows."""
    listed: list[Requirement] = applying(transformers.requires, environment, ("kernels",))
    own = next((item.specifier for item in listed if item.name == "kernels" and item.specifier), None)
    row = case.catalog.transformers_release(transformers.version)
    return own if own is not None else (row.kernels if row else None)
