"""What is known: the rows of ``matrices/``, typed. Each row says where it comes from and when that was read."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from kerncheck.model.base import Frozen
from kerncheck.model.job import ModelRequest, RequiredOp
from kerncheck.model.outcome import Severity

Phase = Literal["forward", "backward"]
ANY = SpecifierSet()


class Known(Frozen):
    """A row. ``uncertain`` says what about it is in doubt; ``note`` what a reader should know besides."""

    source: str
    date: datetime.date
    note: str = ""
    uncertain: str = ""


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
    """One CUDA toolkit: the driver that came with it, the architectures it knows, the compilers it takes."""

    version: str
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


class CudaFile(Frozen):
    """``cuda.toml``."""

    floor: tuple[DriverFloor, ...]
    toolkit: tuple[Toolkit, ...]
    torch_gcc: GccBounds


# gpus.toml


class GpuModel(Known):
    """A GPU by its product name, without the leading "NVIDIA" or "Tesla"."""

    name: str
    cc: str
    architecture: str
    kind: Literal["datacenter", "workstation", "consumer", "jetson"]


class SharedMemory(Known):
    """Bytes of shared memory per block from which a kernel package picks its tile sizes."""

    package: str
    architecture: str
    bytes: int


class GpuFile(Frozen):
    """``gpus.toml``."""

    shared_memory: tuple[SharedMemory, ...] = ()
    gpu: tuple[GpuModel, ...]


# kernels/<package>.toml and triton.toml


class Condition(Frozen):
    """All that is given must hold, the first three of one GPU: it has one of ``cc`` and none of ``not_cc``.

    ``packages`` maps a distribution to a range that its installed version must lie in; ``absent`` and ``without``
    name distributions and tools that must not be there. ``variables`` maps an environment variable to values of
    which it must have one, ``not_variables`` to values that it may not have; ``variables_set`` must have any value.
    """

    cc: tuple[str, ...] = ()
    not_cc: tuple[str, ...] = ()
    cc_below: str = ""
    packages: dict[str, SpecifierSet] = {}
    absent: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    variables: dict[str, tuple[str, ...]] = {}
    not_variables: dict[str, tuple[str, ...]] = {}
    variables_set: tuple[str, ...] = ()
    python: SpecifierSet = ANY
    torch_cuda: SpecifierSet = ANY


class Cure(Frozen):
    """A change that lifts a known-bad combination, as data, so that a test can prove it lifts and brings no other."""

    packages: dict[str, str] = {}
    tools: tuple[str, ...] = ()
    variables: dict[str, str] = {}


class KnownBad(Known):
    """A combination that is known to be bad. ``unless`` lists conditions of which each alone lifts it.

    ``ops`` are op ids, or ``*`` for every op of the package. ``where`` names the function inside the package.
    """

    id: str
    package: str = ""
    versions: SpecifierSet = ANY
    when: Condition = Condition()
    unless: tuple[Condition, ...] = ()
    ops: tuple[str, ...]
    where: str = ""
    phase: Phase = "forward"
    effect: str
    symptom: str = ""
    severity: Severity = "error"
    remedy: str
    cure: tuple[Cure, ...] = ()


class Op(Known):
    """A public function or module of a kernel package, ``module:name``."""

    id: str
    needs: tuple[str, ...] = ()


class NoBackward(Known):
    """An op, or a backend of it, that cannot be trained through."""

    op: str
    versions: SpecifierSet
    behaviour: str
    backend: str = ""


class Backend(Known):
    """Another implementation that a package may choose for its own ops."""

    name: str
    distribution: str
    requires: str
    default: str


class Variable(Known):
    """An environment variable that a package reads. ``off`` lists values that switch fused kernels off."""

    name: str
    default: str
    effect: str = ""
    off: tuple[str, ...] = ()


Requirements = dict[str, dict[str, SpecifierSet]]
"""For each distribution of a package, the ranges that it wants of others, extras included."""


class KernelRelease(Known):
    """One release and what it wants of its neighbours. ``recommends`` is what it only warns about."""

    version: Version
    python: SpecifierSet = ANY
    requires: Requirements = {}
    recommends: dict[str, SpecifierSet] = {}
    recommends_python: SpecifierSet = ANY
    extras: dict[str, str] = {}
    torch_in_base: bool = True
    split_core: bool = False


class Wheels(Known):
    """The prebuilt wheels of one release: each combination of these is published, except what ``exclude`` says.

    ``complete`` says that ``torch`` is known to hold every minor that a wheel was published for.
    """

    version: Version
    python: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    cxx11_abi: tuple[bool, ...] = ()
    build_os: str = ""
    exclude: tuple[str, ...] = ()
    complete: bool = True


class Gencode(Known):
    """The architectures that a package's setup builds, by release; the bounds are nvcc's CUDA version."""

    versions: SpecifierSet
    always: tuple[int, ...]
    nvcc_up_to_12_9: tuple[int, ...] = ()
    nvcc_from_11_8: tuple[int, ...] = ()
    nvcc_from_12_8: tuple[int, ...] = ()
    nvcc_from_13_0: tuple[int, ...] = ()


class Conflict(Known):
    """Two requirements that cannot both be met."""

    other: str
    versions: SpecifierSet = ANY
    other_versions: SpecifierSet = ANY
    reason: str
    severity: Severity = "warning"


class Fact(Known):
    """A sourced statement about a package that no rule reads yet."""

    name: str
    value: str


class KernelPackage(Known):
    """A kernel package: its distributions (the one that holds the kernels first), modules and compiled extension."""

    name: str
    distributions: tuple[str, ...]
    modules: tuple[str, ...]
    extension: str = ""
    needs: tuple[str, ...] = ()
    install: str
    cc_min: str = ""
    python: SpecifierSet = ANY
    cuda_min: str = ""
    wheel_name: str = ""
    requires: Requirements = {}


class KernelFile(Frozen):
    """``kernels/<package>.toml``."""

    package: KernelPackage
    op: tuple[Op, ...] = ()
    release: tuple[KernelRelease, ...] = ()
    wheels: tuple[Wheels, ...] = ()
    gencode: tuple[Gencode, ...] = ()
    known_bad: tuple[KnownBad, ...] = ()
    no_backward: tuple[NoBackward, ...] = ()
    backend: tuple[Backend, ...] = ()
    variable: tuple[Variable, ...] = ()
    conflict: tuple[Conflict, ...] = ()
    fact: tuple[Fact, ...] = ()


class TritonRelease(Known):
    """One release of Triton. ``blackwell`` lists the capabilities from 100 on that its ptxas can target."""

    version: Version
    python: SpecifierSet = ANY
    tag: str
    glibc: str
    ptxas: str
    ptxas_blackwell: str = ""
    blackwell_from: int | None = None
    blackwell: tuple[int, ...] = ()


class TritonFile(Frozen):
    """``triton.toml``."""

    release: tuple[TritonRelease, ...]
    known_bad: tuple[KnownBad, ...] = ()
    variable: tuple[Variable, ...] = ()


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


# models/<name>.toml


class ModelProfile(Known):
    """A model that kerncheck knows by name. ``shrink`` overrides fields of ``config`` for the emulated device."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    folder: str
    architecture: str
    model_types: tuple[str, ...]
    config: dict[str, Any]
    shrink: dict[str, Any] = {}
    required: tuple[RequiredOp, ...]

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The kinds of layer of the real configuration, in order."""
        return tuple(self.config.get("layer_types", ()))

    def request(self) -> ModelRequest:
        """Return this profile as the model of a job."""
        return ModelRequest(
            name=self.name,
            folder=self.folder,
            architecture=self.architecture,
            config=self.config,
            layer_types=self.layer_types,
            required=self.required,
            shrink=self.shrink,
            origin="profile",
        )


# tested.toml


class Tested(Known):
    """A combination that was run and found right, on a device, by a continuous run or by hand."""

    id: str
    device: Literal["emulate", "cuda"]
    cc: tuple[str, ...] = ()
    python: str
    packages: dict[str, str]
    variables: dict[str, str] = {}
    tools: tuple[str, ...] = ()


class TestedFile(Frozen):
    """``tested.toml``."""

    tested: tuple[Tested, ...] = ()


# loader.toml


class SymbolOwner(Known):
    """Who should export a missing symbol: a C++ ``namespace`` (mangled, as in ``3c104cuda``) or a name's ``prefix``.

    ``shadowed`` marks libraries of which another install is often found first; then the file that the error names is
    innocent. ``stale`` may hold a pattern whose group ``wanted`` is the version that the symbol's own name asks for.
    """

    namespace: str = ""
    prefix: str = ""
    library: str
    project: str
    shadowed: bool = False
    stale: str = ""
    remedy: str = ""


class SymbolMeaning(Known):
    """What a certain missing symbol says about the torch that an extension was built for."""

    symbol: str
    means: str


class CudaLibrary(Known):
    """A library of the CUDA toolkit: its name without the number, and which number belongs to which CUDA major."""

    name: str
    majors: dict[str, str]


class SharedLibrary(Known):
    """A library, by the beginning of its name: what ships it, and what to do when it is not found."""

    prefix: str
    ships_in: str
    remedy: str
    driver: bool = False


class LoaderMessage(Known):
    """A pattern in an exception's message and the class that it shows."""

    pattern: str
    cause: Literal["symbol", "library", "version", "file", "python", "module", "name"]
    means: str = ""


class Said(Known):
    """A line or warning that a package writes at import. ``judge``: a finding always, on a GPU only, or a note."""

    text: str
    means: str
    judge: Literal["always", "with_gpu", "note"]
    severity: Severity = "warning"
    remedy: str = ""


class Misleading(Known):
    """What a library that catches the exception says about a package that is installed and broken."""

    library: str
    text: str
    packages: tuple[str, ...]


class Rebuild(Known):
    """How to build a compiled package anew for the torch that is installed."""

    distribution: str
    command: str
    switch: str = ""


class LoaderFile(Frozen):
    """``loader.toml``."""

    owner: tuple[SymbolOwner, ...]
    meaning: tuple[SymbolMeaning, ...] = ()
    cuda_library: tuple[CudaLibrary, ...] = ()
    library: tuple[SharedLibrary, ...] = ()
    message: tuple[LoaderMessage, ...]
    said: tuple[Said, ...] = ()
    misleading: tuple[Misleading, ...] = ()
    rebuild: tuple[Rebuild, ...] = ()
