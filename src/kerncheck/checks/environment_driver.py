"""The driver, the GPUs that it shows, and whether torch sees them too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.checks.registry import Case, check
from kerncheck.facts import GO_TO_A_GPU, TorchFacts, has_gpus, runtime, torch_facts, without_cuda
from kerncheck.model.base import Missing, NotObservedError, seen
from kerncheck.model.environment import Gpus
from kerncheck.model.outcome import Outcome, Say
from kerncheck.versions import parse

if TYPE_CHECKING:
    from packaging.version import Version

    from kerncheck.model.environment import Environment
    from kerncheck.model.imports import TorchRuntime
    from kerncheck.model.releases import DriverFloor

OUTSIDE = {"ci": "the emulated device needs no driver", "image": "an image build has no driver; judged on the node"}
NOT_SUPPORTED = "kerncheck supports NVIDIA GPUs only so far: {} is not judged"


@check("KC103", "the driver is new enough for torch's CUDA version", needs=("environment", "gpus"))
def driver_floor(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge the driver against the CUDA version that torch was built for.

    What it checks
    That the driver is of at least the branch that runs the CUDA major of torch's build: 580 for 13.x, 525 for 12.x,
    450 for 11.x. An image is judged against the driver that its nodes are declared to have.

    Why it matters
    Below that branch nothing runs ("The NVIDIA driver on your system is too old"). Within the major a newer toolkit
    runs on an older driver (minor-version compatibility): only PTX and new features may not.

    Example
    torch for CUDA 13.0 (needs driver >= 580), driver 565.57.01 offers CUDA 12.7.

    How to fix
    Install the torch build of the driver's CUDA major (cu126 or cu128), or a newer driver. With uv, name the package
    that must be replaced: --reinstall-package torch.
    """
    environment = seen(case.snapshot.environment)
    torch = torch_facts(environment, case.catalog)
    if case.job.profile == "ci":
        yield say.not_applicable("driver", OUTSIDE["ci"])
    elif torch is None or not torch.cuda:
        yield without_cuda(torch, "driver", say)
    else:
        yield from judge_driver(case, torch, say)


def driver_version(case: Case) -> tuple[str, str]:
    """Return (driver, CUDA version that it offers) of the machine, or of the nodes that an image is meant for."""
    if case.job.profile == "image":
        return case.job.driver, ""
    gpus = case.snapshot.gpus
    if not isinstance(gpus, Missing) and gpus.driver:
        return gpus.driver, gpus.cuda
    environment = seen(case.snapshot.environment)
    module = environment.driver_module
    return ("" if isinstance(module, Missing) else module), ""


def judge_driver(case: Case, torch: TorchFacts, say: Say) -> Iterator[Outcome]:
    """Compare driver and CUDA major."""
    driver, offers = driver_version(case)
    major = int(torch.cuda.partition(".")[0])
    floor = next((row for row in case.catalog.cuda.floor if row.cuda_major == major), None)
    version = parse(driver)
    if floor is None:
        yield say.not_judged("driver", f"no driver floor is known for CUDA {torch.cuda}", required=False)
    elif version is None and case.job.profile == "image":
        yield say.not_judged("driver", "the driver of the nodes is not declared", required=False)
    elif version is None:
        yield say.not_judged("driver", "no driver was seen", remedy=GO_TO_A_GPU)
    elif version < floor.branch:
        yield too_old(torch, driver, offers, floor, say)
    else:
        yield say.passed("driver", f"driver {driver} runs CUDA {torch.cuda} (needs >= {floor.branch})", "declared")
        yield from older_minor(case, torch, version, say)


def older_minor(case: Case, torch: TorchFacts, driver: Version, say: Say) -> Iterator[Outcome]:
    """Note what minor-version compatibility leaves out: a driver of the major that is older than the toolkit."""
    ships = next((row for row in case.catalog.cuda.toolkit if row.version == torch.cuda), None)
    needs = parse(ships.driver_ga) if ships else None
    if ships is not None and needs is not None and driver < needs:
        told = driver_version(case)[0]
        branch = needs.release[: len(driver.release)] == driver.release
        relation = "may be" if branch else "is"  # `--driver 580` names a branch, of which some are older
        message = (
            f"driver {told} {relation} older than CUDA {torch.cuda}, which came with {ships.driver_ga}: "
            "precompiled kernels run, PTX compilation and new features may not"
        )
        yield say.note("driver", message, "declared")


def too_old(torch: TorchFacts, driver: str, offers: str, floor: DriverFloor, say: Say) -> Outcome:
    """Say that the driver cannot run torch's CUDA major."""
    offered = f" (CUDA {offers})" if offers else ""
    return say.failed(
        "driver",
        f"torch {torch.version} is built for CUDA {torch.cuda} (needs driver >= {floor.branch}), found driver {driver}"
        f"{offered}",
        found=f"driver {driver}{offered}",
        wanted=f"driver >= {floor.branch}",
        remedy="install the torch build for the driver's CUDA major (cu126 or cu128 for 12.x; with uv also "
        f"`--reinstall-package torch`), or driver >= {floor.branch} on the host",
        evidence="declared",
        source=floor.source,
    )


@check("KC104", "the driver answers and shows its GPUs", needs=("environment", "gpus"))
def driver_answers(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge whether NVIDIA's driver can be reached and shows a GPU.

    What it checks
    That the driver's management library (NVML) starts and lists at least one GPU; where not, which of the known
    causes it is, told by the library's words, the device files and the container.

    Why it matters
    "torch.cuda.is_available() is False" is a symptom of many causes. A machine with a GPU that nothing can reach is
    never a pass, and a machine without one cannot prove anything about kernels.

    Example
    Inside a container without device files: it was started without --gpus. With device files that may not be opened:
    the container lost its GPUs, most often after a daemon-reload on the host.

    How to fix
    By cause: start the container with --gpus all, recreate it, load the kernel module, or go to a node with a GPU.
    """
    environment = seen(case.snapshot.environment)
    if case.job.profile in OUTSIDE:
        yield say.not_applicable("driver", OUTSIDE[case.job.profile])
        return
    gpus = case.snapshot.gpus
    if isinstance(gpus, Gpus) and gpus.gpus:
        yield shown(gpus, say)
        return
    torch = torch_facts(environment, case.catalog)
    yield other_hardware(environment, torch, say) or no_gpu(case, environment, torch, say)


def shown(gpus: Gpus, say: Say) -> Outcome:
    """Judge a driver that lists GPUs: each of them must answer."""
    names = ", ".join(sorted({gpu.name for gpu in gpus.gpus}))
    if not gpus.problem:
        return say.passed("driver", f"driver {gpus.driver} shows {len(gpus.gpus)} GPU(s): {names}")
    return say.failed(
        "driver",
        f"driver {gpus.driver} answers for {len(gpus.gpus)} GPU(s) ({names}) and not for all: {gpus.problem}",
        found=gpus.problem,
        wanted="an answer of every GPU",
        remedy="take the node out of service; `nvidia-smi -q` and the kernel's log (`dmesg`, Xid) say why",
    )


def other_hardware(environment: Environment, torch: TorchFacts | None, say: Say) -> Outcome | None:
    """Say that another maker's hardware, or torch's build for it, is not judged yet."""
    if environment.nvidia_nodes:
        return None
    if environment.amd or (torch and torch.hip):
        return say.not_judged("AMD GPU", NOT_SUPPORTED.format("ROCm"), required=True)
    if torch and torch.xpu:
        return say.not_judged("Intel GPU", NOT_SUPPORTED.format("XPU"), required=True)
    return None


def no_gpu(case: Case, environment: Environment, torch: TorchFacts | None, say: Say) -> Outcome:
    """Tell apart the ways of seeing no NVIDIA GPU."""
    gpus = case.snapshot.gpus
    problem = "" if isinstance(gpus, Missing) else gpus.problem
    nodes = environment.nvidia_nodes
    if problem and (nodes or environment.denied):
        return denied(case, environment, problem, say)
    if nodes and environment.denied:
        return denied(case, environment, f"no access to {', '.join(environment.denied)}", say)
    if not nodes and environment.container and torch and torch.cuda:
        return started_without(environment, torch, say)
    reason = problem or (gpus.reason if isinstance(gpus, Missing) else "the driver shows no GPU")
    if nodes:
        reason = f"device files of {len(nodes)} GPU(s) exist, but the driver's library cannot be asked: {reason}"
    return say.not_judged("driver", f"no NVIDIA GPU was seen ({reason})", remedy=GO_TO_A_GPU)


def denied(case: Case, environment: Environment, problem: str, say: Say) -> Outcome:
    """Say that GPUs are there and cannot be reached."""
    row = case.catalog.driver_message(problem)
    where = f"inside a container ({environment.container}), " if environment.container else ""
    return say.failed(
        "driver",
        f"{where}device files exist but the driver does not answer: {row.means if row else problem}",
        found=f"NVML: {problem}; {', '.join(environment.nodes)}",
        wanted="a driver that lists its GPUs",
        remedy=row.remedy if row else "recreate the container, or load the driver on the host; `nvidia-smi` says more",
        source=row.source if row else "",
    )


def started_without(environment: Environment, torch: TorchFacts, say: Say) -> Outcome:
    """Say that the container was given no GPU."""
    return say.failed(
        "driver",
        f"inside a container ({environment.container}), no device files: it was started without GPU access",
        found=f"no /dev/nvidia*, torch {torch.version} for CUDA {torch.cuda}",
        wanted="the device files of at least one GPU",
        remedy="start the container with `--gpus all`, with the NVIDIA container toolkit on the host; in an image "
        "build use `--profile image`",
        source="NVIDIA/nvidia-docker#533; TorchDSP/torchsig#329",
    )


@check("KC105", "torch sees the GPUs that the driver shows", needs=("environment", "gpus", "imports"))
def torch_sees(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge whether torch, once imported, sees the GPUs of the machine.

    What it checks
    torch.cuda in a child process of the judged interpreter against the driver's own list, with CUDA_VISIBLE_DEVICES
    as the user has set it. torch's warning, where it gives one, is told apart by the words that are known.

    Why it matters
    The driver's list (nvidia-smi) proves nothing about CUDA: Fabric Manager, a compat library or a hung module leave
    the GPU listed and unusable. A program then warns once and goes on with the CPU.

    Example
    One H200 is listed, torch says "Error 802: system not yet initialized": Fabric Manager is not running.

    How to fix
    By cause, as the finding says. An "unknown error" that hints at CUDA_VISIBLE_DEVICES seldom comes from there.
    """
    environment = seen(case.snapshot.environment)
    torch = torch_facts(environment, case.catalog)
    seen_by_torch = runtime(case)
    if case.job.profile in OUTSIDE:
        yield say.not_applicable("torch.cuda", OUTSIDE[case.job.profile])
    elif torch is None or not torch.cuda:
        yield without_cuda(torch, "torch.cuda", say)
    elif seen_by_torch is None:
        raise NotObservedError(unobserved(case))
    else:
        yield compare(case, environment, seen_by_torch, say)


def unobserved(case: Case) -> str:
    """Return why torch was not asked."""
    imports = case.snapshot.imports
    if isinstance(imports, Missing):
        return imports.reason
    return imports.torch.reason if isinstance(imports.torch, Missing) else "torch does not import (KC2xx says why)"


def compare(case: Case, environment: Environment, torch: TorchRuntime, say: Say) -> Outcome:
    """Compare what torch sees with what the driver shows."""
    gpus = case.snapshot.gpus
    shown = 0 if isinstance(gpus, Missing) else len(gpus.gpus)
    hidden = environment.variables.get("CUDA_VISIBLE_DEVICES")
    if torch.available and torch.device_count:
        return seen_devices(case, torch, shown if hidden is None else 0, say)
    if has_gpus(gpus) and hidden is not None and hidden.partition(",")[0].strip() in ("", "-1"):
        return masked(shown, hidden, say)
    if has_gpus(gpus) or environment.nvidia_nodes:
        return blind(case, shown, torch, say)
    return say.not_judged("torch.cuda", "neither the driver nor torch shows a GPU", remedy=GO_TO_A_GPU)


def seen_devices(case: Case, torch: TorchRuntime, expected: int, say: Say) -> Outcome:
    """Judge how many devices torch sees; ``expected`` is 0 where a variable chooses among them."""
    gpus = case.snapshot.gpus
    parted = not isinstance(gpus, Missing) and any(gpu.mig for gpu in gpus.gpus)
    names = ", ".join(sorted(set(torch.device_names))) or "GPU"
    if torch.device_count >= expected or parted:
        return say.passed("torch.cuda", f"torch sees {torch.device_count} device(s): {names}", "measured")
    return say.failed(
        "torch.cuda",
        f"the driver shows {expected} GPUs, torch sees {torch.device_count}",
        found=f"{torch.device_count} device(s): {names}",
        wanted=f"{expected} devices, since CUDA_VISIBLE_DEVICES is not set",
        remedy="look for a GPU in exclusive mode or in error: `nvidia-smi -q -d COMPUTE,ECC`",
        evidence="measured",
    )


def masked(shown: int, value: str, say: Say) -> Outcome:
    """Say that a variable hides every GPU."""
    return say.failed(
        "torch.cuda",
        f"no GPU is visible: CUDA_VISIBLE_DEVICES={value!r} hides all {shown}",
        found=f"CUDA_VISIBLE_DEVICES={value!r}",
        wanted="at least one visible GPU: Triton says `0 active drivers` without one",
        remedy="unset CUDA_VISIBLE_DEVICES, or set it to the GPUs of this job",
        source="huggingface/sentence-transformers#3557; modelscope/ms-swift#3279",
    )


def blind(case: Case, shown: int, torch: TorchRuntime, say: Say) -> Outcome:
    """Say that torch sees nothing of the GPUs that are there, and which known cause its words name."""
    words = " ".join((*torch.warnings, *torch.output))
    row = case.catalog.driver_message(words)
    cause = row.means if row else "torch gives no reason that is known"
    return say.failed(
        "torch.cuda",
        f"{shown or 'a number of'} GPU(s) present, torch sees none: {cause}",
        found=f"torch.cuda.is_available() is False; {(torch.warnings or ('no warning',))[0]}",
        wanted="the GPUs that the driver shows",
        remedy=row.remedy if row else "run `python -c 'import torch; torch.zeros(1).cuda()'` and follow its message",
        evidence="measured",
        source=row.source if row else "",
    )
