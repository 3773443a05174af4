"""GPU architectures: does torch hold code for the GPU, and can Triton's assembler make some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.architectures import Coverage, coverage, number_of
from kerncheck.checks.registry import Case, check
from kerncheck.facts import (
    Device,
    TorchFacts,
    devices,
    machine,
    runtime,
    setting,
    torch_facts,
    triton_version,
    without_cuda,
    without_devices,
)
from kerncheck.matching import applies
from kerncheck.model.base import Evidence, Missing, seen
from kerncheck.model.binaries import DeviceCode
from kerncheck.model.environment import Tool
from kerncheck.model.outcome import Outcome, Say
from kerncheck.versions import parse

if TYPE_CHECKING:
    from kerncheck.catalog import Catalog
    from kerncheck.model.environment import Environment
    from kerncheck.model.matrix import KnownBad
    from kerncheck.model.releases import Toolkit, TorchRelease

ON_THE_CPU = "the emulated device is the CPU"
WORDS: dict[Coverage, str] = {
    "native": "holds code for exactly this GPU",
    "compatible": "holds code of the same major that runs on it",
    "ptx": "holds PTX that the driver compiles for it",
}


@check("KC106", "torch holds code for the GPU", needs=("environment", "gpus", "imports"), also=("binaries",))
def torch_architectures(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge the GPU architectures in torch's build against each GPU.

    What it checks
    torch's own list of architectures (torch.cuda.get_arch_list), else the GPU code inside its libraries, else what the
    matrix knows of this build, against the compute capability of each GPU or declared target, by torch's rule: code for
    X.Y runs on the same major with a minor not below Y, apart from the exceptions for Jetson; PTX for X.Y runs on
    everything later.

    Why it matters
    Without code for the GPU each launch fails with "no kernel image is available for execution on the device", while
    is_available() stays True. An exact match is not needed: sm_86 and sm_80 code runs on an RTX 4090 (8.9).

    Example
    V100 (7.0) with torch 2.11.0 for CUDA 12.8, which has sm_75 to sm_120: no code. The build for CUDA 12.6 has sm_70.

    How to fix
    Install the build that the finding names. Reinstalling the same one changes nothing.
    """
    environment = seen(case.snapshot.environment)
    torch = torch_facts(environment, case.catalog)
    if case.job.profile == "ci":
        yield say.not_applicable("GPU", ON_THE_CPU)
    elif torch is None or not torch.cuda:
        yield without_cuda(torch, "GPU", say)
    elif not devices(case):
        reason, remedy = without_devices(case)
        yield say.not_judged("GPU", reason, remedy=remedy)
    else:
        yield from (judge_device(case, environment, torch, device, say) for device in devices(case))


def listed(case: Case, environment: Environment, torch: TorchFacts) -> tuple[tuple[str, ...] | None, str, Evidence]:
    """Return (architectures, who says so, evidence); None where nobody knows; empty where torch's list is empty."""
    found, inside = runtime(case), code_inside(case)
    if found is not None and found.cuda and found.arch_list:
        return found.arch_list, "torch.cuda.get_arch_list()", "inferred"
    if inside:
        return inside, "the code in libtorch_cuda.so", "inferred"
    if found is not None and found.cuda:
        return found.arch_list, "torch.cuda.get_arch_list()", "inferred"
    release = case.catalog.torch_release(torch.version)
    arch = declared(release, torch.cuda, machine(environment)) if release else None
    return arch, "the matrix", "declared"


def code_inside(case: Case) -> tuple[str, ...]:
    """Return the architectures of the GPU code in torch's main library, empty where its file was not read."""
    section = case.snapshot.binaries
    files = () if isinstance(section, Missing) else section.torch
    codes = (file.device for file in files if file.path.endswith("/libtorch_cuda.so"))
    return next((code.names for code in codes if isinstance(code, DeviceCode)), ())


def declared(release: TorchRelease, cuda: str, where: str) -> tuple[str, ...] | None:
    """Return the architectures of a released build, or None where the matrix has none."""
    row = release.arch.get(cuda)
    codes = getattr(row, where, ()) if row else ()
    if row is None or not codes:
        return None
    return (*(f"sm_{code}" for code in codes), *(f"compute_{code}" for code in row.ptx))


def judge_device(case: Case, environment: Environment, torch: TorchFacts, device: Device, say: Say) -> Outcome:
    """Judge one GPU."""
    names, who, evidence = listed(case, environment, torch)
    if names is None:
        reason = f"the architectures of torch {torch.version} for CUDA {torch.cuda} are not known"
        return say.not_judged(device.label, reason, required=False)
    answer = coverage(names, device.cc, case.catalog.torch.device_rule, torch.cuda)
    if answer == "unknown":
        return say.not_judged(device.label, f"{who} lists no architecture: nothing can be told from that")
    if answer == "none":
        return no_code(case, environment, torch, device, (names, who, evidence), say)
    message = f"torch {torch.version} (by {who}) {WORDS[answer]}: capability {device.cc}, {' '.join(names)}"
    return say.passed(device.label, message, evidence)


def no_code(
    case: Case,
    environment: Environment,
    torch: TorchFacts,
    device: Device,
    said: tuple[tuple[str, ...], str, Evidence],
    say: Say,
) -> Outcome:
    """Say that torch has no code for this GPU, and which build has."""
    names, who, evidence = said
    return say.failed(
        device.label,
        f"device sm_{number_of(device.cc)} ({device.label}), torch has {' '.join(names)}, no PTX for it",
        found=f"{' '.join(names)} (by {who})",
        wanted=f"code for capability {device.cc}",
        remedy=better_build(case.catalog, environment, torch, device),
        evidence=evidence,
    )


def better_build(catalog: Catalog, environment: Environment, torch: TorchFacts, device: Device) -> str:
    """Return which build of torch has code for a GPU: of the same release if one has, else the newest that has."""
    fitting = [
        (release, cuda)
        for release in sorted(catalog.torch.release, key=lambda row: row.version, reverse=True)
        for cuda in sorted(release.arch, key=lambda text: parse(text) or 0, reverse=True)
        if cuda in (release.pypi_cuda, *release.cuda_stable, *release.cuda_experimental)
        and has_code(catalog, release, cuda, machine(environment), device)
    ]
    same = [item for item in fitting if item[0] is catalog.torch_release(torch.version)]
    if not fitting:
        return f"no release in the matrix has code for capability {device.cc}: build torch from source for it"
    release, cuda = (same or fitting)[0]
    return f"install torch {release.version} built for CUDA {cuda} (cu{cuda.replace('.', '')}), which has code for it"


def has_code(catalog: Catalog, release: TorchRelease, cuda: str, where: str, device: Device) -> bool:
    """Tell whether a released build has code for a GPU."""
    names = declared(release, cuda, where) or ()
    return coverage(names, device.cc, catalog.torch.device_rule, cuda) in WORDS


@check("KC108", "Triton's ptxas can target the GPU", needs=("environment", "gpus"))
def ptxas_reach(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge the assembler that Triton would use for each GPU.

    What it checks
    Which ptxas Triton takes for a GPU (its own, its Blackwell variant, or the one that TRITON_PTXAS_PATH or
    TRITON_PTXAS_BLACKWELL_PATH names), of which CUDA version that is, and whether that version knows the GPU.

    Why it matters
    Triton asks for exactly this GPU (sm_121a). A ptxas that is too old ends every compilation with "Value 'sm_121a'
    is not defined for option 'gpu-name'". torch's own ptxas serves torch.compile only; plain Triton does not see it.

    Example
    GB10 (12.1) with triton 3.5.1: its ptxas is of CUDA 12.8, which does not know sm_121.

    How to fix
    Install the torch whose Triton knows the GPU, or point TRITON_PTXAS_PATH at a newer ptxas, if the finding found one.
    """
    environment = seen(case.snapshot.environment)
    version = triton_version(environment)
    torch = torch_facts(environment, case.catalog)
    if case.job.profile == "ci":
        yield say.not_applicable("ptxas", "Triton's interpreter compiles nothing")
    elif not version:
        yield say.not_applicable("ptxas", "Triton is not installed")
    elif torch is not None and torch.hip:
        yield say.not_applicable("ptxas", f"torch is built for {torch.kind}, which has no ptxas")
    elif not devices(case):
        reason, remedy = without_devices(case)
        yield say.not_judged("ptxas", reason, remedy=remedy)
    else:
        yield from (judge_ptxas(case, environment, version, device, say) for device in devices(case))


def judge_ptxas(case: Case, environment: Environment, triton: str, device: Device, say: Say) -> Outcome:
    """Judge the ptxas for one GPU."""
    version, place = ptxas_for(case, environment, triton, device)
    toolkit = toolkit_of(case.catalog, version)
    if toolkit is None:
        reason = f"which GPUs ptxas {version or '(version unknown)'} of triton {triton} knows is not known"
        return say.not_judged(f"ptxas for {device.label}", reason, required=False)
    number = number_of(device.cc)
    if number in toolkit.arch:
        message = f"ptxas {version} ({place}) of triton {triton} can target sm_{number}"
        return say.passed(f"ptxas for {device.label}", message, "declared")
    row = explained(case, environment, device, triton)
    return say.failed(
        f"ptxas for {device.label}",
        f"Triton's ptxas {version} cannot target sm_{number} ({device.label}){': ' + row.effect if row else ''}",
        found=f"triton {triton}, ptxas {version} ({place})",
        wanted=f"a ptxas of a CUDA version that knows sm_{number}: {', '.join(knowing(case.catalog, number))}",
        remedy=newer_ptxas(case, environment, triton, device),
        evidence="declared",
        source=row.source if row else toolkit.source,
    )


def ptxas_for(case: Case, environment: Environment, triton: str, device: Device) -> tuple[str, str]:
    """Return (version, place) of the ptxas that Triton takes for a GPU: as found, else as the release bundles it."""
    release = case.catalog.triton_release(triton)
    blackwell = uses_blackwell(case, environment, triton, device)
    tool = environment.ptxas_blackwell if blackwell else environment.ptxas
    if isinstance(tool, Tool) and tool.version:
        return tool.version, tool.path
    if environment.variables.get(variable_for(blackwell)):
        return "", variable_for(blackwell)  # another one than the bundled, of which nothing is known
    bundled = (release.ptxas_blackwell if blackwell else release.ptxas) if release else ""
    return bundled, "bundled"


def variable_for(blackwell: bool) -> str:  # noqa: FBT001 - which of two programs
    """Return the variable that names the ptxas to take."""
    return "TRITON_PTXAS_BLACKWELL_PATH" if blackwell else "TRITON_PTXAS_PATH"


def uses_blackwell(case: Case, environment: Environment, triton: str, device: Device) -> bool:
    """Tell whether Triton takes ptxas-blackwell for a GPU: from 100 on where it has one, from 90 on since 3.9."""
    release = case.catalog.triton_release(triton)
    if release is not None:
        return release.blackwell_from is not None and number_of(device.cc) >= release.blackwell_from
    tool = environment.ptxas_blackwell
    return isinstance(tool, Tool) and bool(tool.path) and number_of(device.cc) >= 100


def toolkit_of(catalog: Catalog, version: str) -> Toolkit | None:
    """Return the CUDA toolkit that a tool of a version such as ``12.9.86`` belongs to."""
    name = ".".join(version.split(".")[:2])
    return next((row for row in catalog.cuda.toolkit if row.version == name), None)


def knowing(catalog: Catalog, number: int) -> list[str]:
    """Return the CUDA versions that know an architecture."""
    return [row.version for row in catalog.cuda.toolkit if number in row.arch]


def explained(case: Case, environment: Environment, device: Device, triton: str) -> KnownBad | None:
    """Return the row of the matrix that describes this failure, if one does."""
    here = setting(case, environment)
    rows = (row for row in case.catalog.triton.known_bad if row.judged_by == "KC108" and device.cc in row.when.cc)
    return next((row for row in rows if applies(row, here, triton)), None)


def newer_ptxas(case: Case, environment: Environment, triton: str, device: Device) -> str:
    """Return what helps: a ptxas on this machine that knows the GPU, else the torch whose Triton does."""
    number = number_of(device.cc)
    blackwell = uses_blackwell(case, environment, triton, device)
    variable = variable_for(blackwell)
    nvcc = environment.nvcc
    toolkit = toolkit_of(case.catalog, nvcc.version) if isinstance(nvcc, Tool) else None
    if toolkit and isinstance(nvcc, Tool) and number in toolkit.arch:
        return (
            f"set {variable}={nvcc.path.removesuffix('nvcc')}ptxas, the one of CUDA {toolkit.version} on this machine"
        )
    rows = [row for row in case.catalog.triton.release if number < 100 or number in row.blackwell]
    newest = max((row.version for row in rows), default=None)
    if newest is None:
        return f"no release of Triton in the matrix can target sm_{number}"
    torch = [row.version for row in case.catalog.torch.release if row.triton.contains(newest)]
    return f"install triton {newest} through torch {max(torch)}" if torch else f"install triton {newest}"
