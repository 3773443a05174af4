"""What is known of torch, CUDA, GPUs and transformers: the rows of the files in ``matrices/`` of these names, typed."""

from __future__ import annotations

from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kerncheck.model.base import Frozen
from kerncheck.model.matrix import Fact, Known, Variable

# torch.toml


class Architectures(Frozen):
    """GPU architectures in one build, as integers (90 is sm_90). PTX runs on everything later."""

    x86_64: tuple[int, ...] = ()
    aarch64: tuple[int, ...] = ()
    ptx: tuple[int, ...] = ()


class TorchRelease(Known):
    """One release of torch. ``triton`` is the requirement of its CUDA wheels; ``arch`` is keyed by CUDA version."""

    version: Version
    requires_python: SpecifierSet
    python: tuple[str, ...]
    free_threaded: tuple[str, ...] = ()
    pypi_cuda: str
    pypi_cuda_component: str = ""
    aarch64_cuda: bool
    triton: SpecifierSet
    cudnn: str
    nccl: str
    cxx_standard: str
    cxx11_abi: bool
    glibc: str
    tags: dict[str, str] = {}
    gcc: str = ""
    cuda_stable: tuple[str, ...]
    cuda_experimental: tuple[str, ...] = ()
    measured_arch: bool = False
    arch: dict[str, Architectures]


class DeviceRule(Known):
    """Which compiled code runs on which GPU, beyond "same major, minor not above": torch's own rule."""

    set_only: dict[str, tuple[int, ...]]
    exclude: dict[str, tuple[int, ...]]
    exclude_lifted_from_cuda: str
    exclude_lifted: tuple[int, ...]


class Companion(Known):
    """A distribution whose minor version follows torch's: torch 2.m pairs with 0.(m + offset)."""

    name: str
    offset: int
    from_torch: Version


class TorchFile(Frozen):
    """``torch.toml``."""

    device_rule: DeviceRule
    companion: tuple[Companion, ...]
    release: tuple[TorchRelease, ...]


# cuda.toml


class DriverFloor(Known):
    """The oldest driver that runs an application of one CUDA major (minor-version compatibility)."""

    cuda_major: int
    branch: Version
    exact: Version


class Toolkit(Known):
    """One CUDA toolkit: the driver that came with it, the architectures it knows, the compilers it takes.

    ``ptx`` is the newest version of the PTX language that it writes.
    """

    version: str
    ptx: str = ""
    driver_ga: str = ""
    driver_latest: str = ""
    update: str = ""
    metapackage: str = ""
    arch: tuple[int, ...]
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    gcc_max: int
    clang_max: int | None = None


class GccBounds(Known):
    """torch.utils.cpp_extension's own GCC bounds by CUDA version; the bound itself is excluded."""

    max_exclusive: dict[str, str]
    unbounded: tuple[str, ...] = ()


class Doubt(Known):
    """Code for one architecture that should run on a GPU by the rule, and that somebody saw failing there."""

    code: int
    cc: str
    report: str


class CudaFile(Frozen):
    """``cuda.toml``."""

    floor: tuple[DriverFloor, ...]
    toolkit: tuple[Toolkit, ...]
    torch_gcc: GccBounds
    doubt: tuple[Doubt, ...] = ()


# driver.toml


class DriverMessage(Known):
    """Words of CUDA or NVML, what they mean and what helps."""

    text: str
    means: str
    remedy: str


class DriverFile(Frozen):
    """``driver.toml``."""

    message: tuple[DriverMessage, ...]


# gpus.toml


class GpuModel(Known):
    """A GPU by its product name, without the leading "NVIDIA" or "Tesla".

    ``machine`` is the CPU architecture of a GPU that exists only beside such a CPU; empty where any will do.
    """

    name: str
    cc: str
    architecture: str
    kind: Literal["datacenter", "workstation", "consumer", "jetson"]
    machine: Literal["", "x86_64", "aarch64"] = ""


class SharedMemory(Known):
    """Bytes of shared memory per block from which a kernel package picks its tile sizes."""

    package: str
    architecture: str
    bytes: int


class Limits(Known):
    """What every GPU of a capability offers: ``shared_memory`` is the most bytes that one block may ask for.

    ``multiprocessors`` is the number that the GPU named in ``like`` has.
    """

    cc: str
    shared_memory: int
    multiprocessors: int
    like: str


class GpuFile(Frozen):
    """``gpus.toml``."""

    shared_memory: tuple[SharedMemory, ...] = ()
    limits: tuple[Limits, ...] = ()
    gpu: tuple[GpuModel, ...]


# transformers.toml


class TransformersRelease(Known):
    """One inspected release of transformers; it speaks for the other patch releases of its minor."""

    version: Version
    python: SpecifierSet
    torch: SpecifierSet
    kernels: SpecifierSet
    mechanism: Literal["flags", "seam_silent", "seam_warns", "seam_refuses_packed"]


class Seam(Frozen):
    """One place where a model binds an op of a package, or its own eager function."""

    op: str
    package: str
    eager: str


class SeamModel(Known):
    """A model folder of transformers whose modules bind fused ops through seams."""

    folder: str
    first_seen: Version
    seam_since: Version = Version("5.15.0")
    seams: tuple[Seam, ...]


class TransformersFile(Frozen):
    """``transformers.toml``."""

    release: tuple[TransformersRelease, ...]
    model: tuple[SeamModel, ...]
    variable: tuple[Variable, ...] = ()
    fact: tuple[Fact, ...] = ()
