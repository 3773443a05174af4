"""What is known of kernel packages and models: rows of ``matrices/``, each with where it comes from and when."""

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
    ``judged_by`` is the code of the check that looks at it, where that is another than the one of all such rows. A
    row of severity ``note`` changes no verdict.
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
    severity: Literal["error", "warning", "note"] = "error"
    judged_by: str = ""
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
    """An environment variable that a package reads, and whether its value switches fused kernels off.

    ``off`` lists the values that do; where ``on`` is given, every other value does. Case does not matter. ``severity``
    is what that deserves. ``cache`` says what it does to the compiled kernels that Triton keeps: ``key`` for one that
    decides what is compiled or under which key it is found again, ``unread`` for one with which they are not read.
    """

    name: str
    default: str
    effect: str = ""
    off: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    severity: Literal["error", "warning", "note"] = "note"
    cache: Literal["", "key", "unread"] = ""

    def switches_off(self, value: str) -> bool:
        """Tell whether this value switches fused kernels off."""
        given = value.strip().casefold()
        off = {item.casefold() for item in self.off}
        on = {item.casefold() for item in self.on}
        return given in off or (bool(on) and given not in on)


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


class WheelSet(Frozen):
    """Some of a release's wheels: those that have one of the values in each list that is given."""

    python: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    cxx11_abi: tuple[bool, ...] = ()


class Wheels(Known):
    """The prebuilt wheels of one release: each combination of these is published, except the sets in ``exclude``.

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
    exclude: tuple[WheelSet, ...] = ()
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


class Hardware(Known):
    """The lowest compute capability that some versions say they support."""

    versions: SpecifierSet
    cc_min: str


class TritonFile(Frozen):
    """``triton.toml``."""

    release: tuple[TritonRelease, ...]
    hardware: tuple[Hardware, ...] = ()
    known_bad: tuple[KnownBad, ...] = ()
    variable: tuple[Variable, ...] = ()


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
    """A combination that was run, on a device, by a continuous run or by hand, and what came out.

    ``codes`` are the findings of one that is known to be bad. One that ``may_fail`` declares nothing: an empty version
    in it means the newest. ``models`` and ``options`` say what is run; see ``matrix_rows``, which runs the rows.
    """

    id: str
    device: Literal["emulate", "cuda"]
    cc: tuple[str, ...] = ()
    python: str
    packages: dict[str, str]
    models: tuple[str, ...] = ("qwen",)
    options: tuple[str, ...] = ()
    exit_code: int = 0
    codes: tuple[str, ...] = ()
    may_fail: bool = False
    variables: dict[str, str] = {}
    tools: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether the combination was found right."""
        return not self.codes and not self.may_fail


class TestedFile(Frozen):
    """``tested.toml``."""

    tested: tuple[Tested, ...] = ()
