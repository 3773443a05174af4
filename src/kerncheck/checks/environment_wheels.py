"""What was published and what excludes each other: wheels of compiled packages, and pairs of packages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.checks.registry import Case, check
from kerncheck.facts import machine, torch_facts
from kerncheck.model.base import seen
from kerncheck.model.environment import Tool
from kerncheck.model.outcome import Outcome, Say
from kerncheck.versions import holds, minor, parse, same_release
from kerncheck.wheels import Place, wheel_name

if TYPE_CHECKING:
    from kerncheck.facts import TorchFacts
    from kerncheck.model.environment import Environment
    from kerncheck.model.matrix import Conflict, KernelFile, Wheels


@check("KC120", "a wheel of each compiled package was published for this torch", needs=("environment",))
def published(case: Case, say: Say) -> Iterator[Outcome]:
    """Compare the installed torch with the wheels that a compiled package was published for.

    What it checks
    For each compiled kernel package, whether its release has wheels for the minor version of the installed torch. A
    package that was built from source for this torch is right without any, so this is a warning at most.

    Why it matters
    A wheel for another torch minor imports by luck, or with "undefined symbol". Setup scripts that find no wheel
    build from source without a word, for minutes, with whatever nvcc is there.

    Example
    causal-conv1d 1.6.1 has wheels up to torch 2.10, found torch 2.11.0.

    How to fix
    Build it for this torch: --no-build-isolation, with an nvcc of the CUDA major of torch. The checks of binaries and
    imports (KC2xx) say whether what is installed loads.
    """
    environment = seen(case.snapshot.environment)
    torch = torch_facts(environment, case.catalog)
    compiled = [item for item in case.catalog.kernels.values() if item.package.extension and item.wheels]
    installed = [item for item in compiled if environment.version(item.package.distributions[0])]
    if torch is None or not installed:
        absent = "torch" if torch is None else "a compiled kernel package"
        yield say.not_applicable("wheels", f"{absent} is not installed")
        return
    for item in installed:
        yield judge_wheels(case, item, torch, say)


def judge_wheels(case: Case, item: KernelFile, torch: TorchFacts, say: Say) -> Outcome:
    """Judge the wheels of one package."""
    environment = seen(case.snapshot.environment)
    name = item.package.distributions[0]
    version, have = environment.version(name), minor(torch.version)
    row = next((row for row in item.wheels if same_release(str(row.version), version)), None)
    if row is None or have is None or not torch.known:
        return say.not_judged(name, f"unknown: no list of wheels of {name} {version} in the matrix", required=False)
    if f"{have[0]}.{have[1]}" in row.torch:
        return say.passed(name, f"{name} {version} was published for torch {have[0]}.{have[1]}", "declared")
    newest = row.torch[-1]
    message = f"{name} {version} has wheels for torch {row.torch[0]} to {newest}, found torch {torch.version}"
    if not row.complete:
        note = f"{message}: a wheel for it is not known; built from source it can be right (KC2xx judges the binary)"
        return say.note(name, note, "declared", source=row.source)
    return say.failed(
        name,
        message,
        found=f"torch {torch.version}",
        wanted=f"a build for this torch, named {wanted_wheel(case, item, row, torch)}",
        remedy=f"build it for this torch: {item.package.install}; what is installed may be such a build already: the "
        "checks of binaries and imports say so",
        evidence="declared",
        severity="warning",
        source=row.source,
    )


def wanted_wheel(case: Case, item: KernelFile, row: Wheels, torch: TorchFacts) -> str:
    """Return the exact name of the wheel that this environment would want; of an unknown torch only the package."""
    environment = seen(case.snapshot.environment)
    release, python = case.catalog.torch_release(torch.version), parse(environment.python.version)
    if release is None or python is None or not torch.cuda:
        return f"{item.package.name}-{row.version}"
    have = f"{python.major}.{python.minor}"
    return wheel_name(item, row, Place(torch=release, cuda=torch.cuda, python=have, machine=machine(environment)))


@check("KC121", "no two installed packages exclude each other", needs=("environment",))
def conflicts(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge pairs of installed packages that are known to exclude each other.

    What it checks
    Pairs whose requirements cannot both be met, or that write into one import package, where both are installed in
    the versions concerned.

    Why it matters
    pip installs the second over the first's requirement. The one that is called first then runs with a neighbour that
    it was not made for.

    Example
    mamba-ssm 2.3.2.post1 pins tilelang==0.1.8, found tilelang 0.1.15 (which fla and flash-qla want).

    How to fix
    Keep the two in different environments, or take versions whose ranges meet.
    """
    environment = seen(case.snapshot.environment)
    pairs: dict[tuple[str, str], list[Conflict]] = {}
    for item in case.catalog.kernels.values():
        name = item.package.distributions[0]
        for row in item.conflict if environment.version(name) else ():
            if environment.version(row.other):
                pairs.setdefault((name, row.other), []).append(row)
    for (name, other), rows in pairs.items():
        yield judge_pair(environment, name, other, rows, say)
    if not pairs:
        yield say.not_applicable("pairs", "no pair of packages is installed that could exclude each other")


def judge_pair(environment: Environment, name: str, other: str, rows: list[Conflict], say: Say) -> Outcome:
    """Judge one pair by all rows that speak of it."""
    left, right = environment.version(name), environment.version(other)
    row = next((row for row in rows if holds(row.versions, left) and holds(row.other_versions, right)), None)
    if row is None:
        return say.passed(f"{name} and {other}", f"{name} {left} and {other} {right} go together", "declared")
    return say.failed(
        f"{name} and {other}",
        f"{name} {left} and {other} {right} exclude each other: {row.reason}",
        found=f"{name} {left}, {other} {right}",
        wanted="one of the two, or versions whose requirements meet",
        remedy="keep them in different environments, or take versions whose ranges meet",
        evidence="declared",
        severity=row.severity,
        source=row.source,
    )


@check("KC122", "nvcc is of torch's CUDA major, where kernels are built at run time", needs=("environment",))
def nvcc_for_builders(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge nvcc where a package compiles CUDA code when it is first used.

    What it checks
    The CUDA version of nvcc against that of torch, if a package is installed that builds its own kernels at run time
    (DeepSpeed's FusedAdam and CPUAdam). Without such a package, or without nvcc, nothing is asked.

    Why it matters
    Another CUDA major ends the build ("does not match the version torch was compiled with"). Another minor is fine.

    Example
    nvcc of CUDA 12.2, torch for CUDA 11.7, DeepSpeed installed.

    How to fix
    Point CUDA_HOME at a toolkit of torch's CUDA major, or install the torch of nvcc's.
    """
    environment = seen(case.snapshot.environment)
    torch = torch_facts(environment, case.catalog)
    builders = [name for name in ("deepspeed",) if environment.version(name)]
    nvcc = environment.nvcc
    if not builders or torch is None or not torch.cuda:
        yield say.not_applicable("nvcc", "no package is installed that compiles CUDA code at run time for this torch")
    elif isinstance(nvcc, Tool) and not nvcc.path:
        yield say.not_applicable("nvcc", "there is no nvcc: only what is prebuilt can be used")
    else:
        yield judge_nvcc(seen(nvcc), torch, builders[0], say)


def judge_nvcc(nvcc: Tool, torch: TorchFacts, builder: str, say: Say) -> Outcome:
    """Compare the CUDA versions of nvcc and torch."""
    here, wanted = minor(nvcc.version), minor(torch.cuda)
    if here is None or wanted is None:
        return say.not_judged("nvcc", f"the version of {nvcc.path} is not known ({nvcc.problem})", required=False)
    message = f"nvcc is of CUDA {here[0]}.{here[1]}, torch of {torch.cuda}"
    if here == wanted:
        return say.passed("nvcc", message)
    if here[0] == wanted[0]:
        return say.passed("nvcc", f"{message}: another minor of one major builds extensions that load")
    return say.failed(
        "nvcc",
        f"{message}: {builder} cannot build its kernels",
        found=f"{nvcc.path} {nvcc.version} ({nvcc.via})",
        wanted=f"an nvcc of CUDA {wanted[0]}",
        remedy=f"set CUDA_HOME to a toolkit of CUDA {wanted[0]}, or build {builder} with its ops ahead",
        severity="warning",
        source="deepspeedai/DeepSpeed#3223; deepspeedai/DeepSpeed#2902; deepspeedai/DeepSpeed#3706",
    )
