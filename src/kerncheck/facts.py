"""What the environment's checks ask of a snapshot more than once: torch's build, the GPUs in question, their words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerncheck.matching import Setting
from kerncheck.model.base import Evidence, Missing
from kerncheck.model.environment import Environment, Gpus, Tool, TorchBuild
from kerncheck.model.imports import TorchRuntime
from kerncheck.versions import flavour, flavour_cuda

if TYPE_CHECKING:
    from kerncheck.catalog import Catalog
    from kerncheck.checks.registry import Case
    from kerncheck.model.outcome import Outcome, Say

GO_TO_A_GPU = (
    "run kerncheck on a node with a GPU; without one, `--device emulate` judges the kernels in Triton's interpreter, "
    "and `--profile image --target h200` judges an image build for a declared GPU"
)
DECLARE_A_TARGET = "name the GPU that the image is meant for, such as `--target h200` or `--target sm_90`"
TRITON_NAMES = ("triton", "pytorch-triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton-xpu")
"""Distributions that hold the module triton: PyPI's, and those of PyTorch's own index."""


@dataclass(frozen=True)
class TorchFacts:
    """What kind of torch is installed. ``cuda`` and ``hip`` are versions, empty without such a build.

    ``known`` is false where neither torch's files, nor its local tag, nor the matrix tell the build. ``how`` says
    which of them did.
    """

    version: str
    cuda: str = ""
    hip: str = ""
    xpu: bool = False
    known: bool = True
    how: str = ""

    @property
    def cpu(self) -> bool:
        """Whether this is a build without any accelerator."""
        return self.known and not (self.cuda or self.hip or self.xpu)

    @property
    def kind(self) -> str:
        """What the build is for, in words."""
        if not self.known:
            return "an unknown build"
        kinds = {f"CUDA {self.cuda}": self.cuda, f"ROCm {self.hip}": self.hip, "XPU": self.xpu}
        return next((name for name, given in kinds.items() if given), "the CPU only")


def torch_facts(environment: Environment, catalog: Catalog) -> TorchFacts | None:
    """Return what torch is installed, or None without one: by its own files, its local tag, or the matrix."""
    build, version = environment.torch, environment.version("torch")
    if isinstance(build, TorchBuild):
        xpu = flavour(build.version) == "xpu"
        return TorchFacts(build.version, build.cuda, build.hip, xpu=xpu, how="torch/version.py")
    if not version:
        return None
    tag = flavour(version)
    if tag:
        rocm = tag.removeprefix("rocm") if tag.startswith("rocm") else ""
        return TorchFacts(version, flavour_cuda(tag), rocm, xpu=tag == "xpu", how="its local tag")
    release = catalog.torch_release(version)
    if release is None or environment.python.machine not in ("x86_64", "aarch64"):
        return TorchFacts(version, known=False)
    has_cuda = environment.python.machine == "x86_64" or release.aarch64_cuda
    return TorchFacts(version, release.pypi_cuda if has_cuda else "", how="the matrix, for the wheel on PyPI")


def without_cuda(torch: TorchFacts | None, subject: str, say: Say) -> Outcome:
    """Say why nothing is asked about CUDA: no torch, or a build for something else; an unknown build is not judged."""
    if torch is None:
        return say.not_applicable(subject, "torch is not installed (KC101)")
    if not torch.known:
        return say.not_judged(subject, f"for which CUDA version torch {torch.version} was built is unknown")
    return say.not_applicable(subject, f"torch is built for {torch.kind}, so no CUDA version is in question (KC102)")


def triton_version(environment: Environment) -> str:
    """Return the version of the distribution that holds Triton; empty without one."""
    return next((environment.version(name) for name in TRITON_NAMES if environment.version(name)), "")


@dataclass(frozen=True)
class Device:
    """A GPU in question: what to call it, its capability, and how it is known."""

    label: str
    cc: str
    evidence: Evidence


def devices(case: Case) -> tuple[Device, ...]:
    """Return the GPUs that rules about hardware speak of, each kind once: the machine's, or an image's targets."""
    if case.job.profile == "ci":
        return ()
    if case.job.profile == "image":
        return tuple(Device(target.name or target.text, target.cc, "declared") for target in case.job.targets)
    gpus = case.snapshot.gpus
    found = () if isinstance(gpus, Missing) else gpus.gpus
    return tuple(dict.fromkeys(Device(gpu.name, gpu.cc, "inferred") for gpu in found if gpu.cc))


def without_devices(case: Case) -> tuple[str, str]:
    """Return (reason, remedy) for a rule about hardware that has no GPU to speak of."""
    if case.job.profile == "image":
        return "no target GPU is declared for this image", DECLARE_A_TARGET
    gpus = case.snapshot.gpus
    reason = gpus.reason if isinstance(gpus, Missing) else gpus.problem or "the driver shows no GPU"
    return f"there is no GPU to judge by ({reason})", GO_TO_A_GPU


def capabilities(case: Case) -> tuple[str, ...] | None:
    """Return the capabilities in question: none at all for the emulated device, None where they are not known."""
    if case.job.profile == "ci":
        return ()
    return tuple(dict.fromkeys(device.cc for device in devices(case))) or None


def setting(case: Case, environment: Environment) -> Setting:
    """Return what the matrix's conditions are asked about."""
    torch = torch_facts(environment, case.catalog)
    packages = dict(environment.versions)
    if triton_version(environment):
        packages.setdefault("triton", triton_version(environment))
    tools = {"nvcc": environment.nvcc, "ptxas": environment.ptxas, "cc": environment.compiler}
    return Setting(
        packages=packages,
        cc=() if torch and torch.hip else capabilities(case),
        tools={name: bool(tool.path) for name, tool in tools.items() if isinstance(tool, Tool)},
        variables=environment.variables,
        python=environment.python.version,
        torch_cuda=torch.cuda if torch else "",
    )


def runtime(case: Case) -> TorchRuntime | None:
    """Return what torch said of itself when it was imported, or None where that was not observed or broke."""
    imports = case.snapshot.imports
    if isinstance(imports, Missing):
        return None
    return imports.torch if isinstance(imports.torch, TorchRuntime) else None


def has_gpus(gpus: Gpus | Missing) -> bool:
    """Tell whether the driver shows a GPU."""
    return not isinstance(gpus, Missing) and bool(gpus.gpus)


def machine(environment: Environment) -> str:
    """Return the machine's architecture as torch's tables name it."""
    return environment.python.machine.replace("arm64", "aarch64").replace("AMD64", "x86_64")
