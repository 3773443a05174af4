"""Section ``trace`` of a snapshot: what was measured in one profiler trace, and, in a comparison, in the one before.

Times are microseconds. Each measure is defined in docs/traces.md, with its blind spots.
"""

from __future__ import annotations

from typing import Literal

from packaging.specifiers import SpecifierSet

from kerncheck.model.base import Frozen
from kerncheck.model.matrix import ANY, Known

Phase = Literal["forward", "backward", "optimizer", "unknown"]


# What is known of traces: matrices/traces.toml.


class NameRule(Known):
    """A kind of name, and the regular expression that finds it. Of several rows the first that matches speaks."""

    kind: str
    pattern: str


class ExpectedKernels(Known):
    """The kernels that each call of an op launches, forward and backward, in some versions of its distribution.

    ``a|b`` stands for one of two. Other ops may launch some of them too: an op was there when all of them were.
    """

    op: str
    distribution: str
    versions: SpecifierSet = ANY
    forward: tuple[str, ...]
    backward: tuple[str, ...] = ()


class EagerSignature(Known):
    """Operators that an op's eager reference runs forward, and how often for each layer and step at least."""

    op: str
    library: str
    versions: SpecifierSet = ANY
    operators: dict[str, int]


class TraceFile(Frozen):
    """``traces.toml``."""

    family: tuple[NameRule, ...]
    call: tuple[NameRule, ...]
    range: tuple[NameRule, ...]
    expected: tuple[ExpectedKernels, ...]
    eager: tuple[EagerSignature, ...]


# What was measured.


class Share(Frozen):
    """Some work under one name: how many pieces, and how long they took together."""

    name: str
    count: int
    microseconds: float


class KernelUse(Frozen):
    """One kernel, by its name without template and function arguments, in one phase."""

    name: str
    family: str
    phase: Phase
    count: int
    microseconds: float


class OperatorUse(Frozen):
    """One operator. ``cpu_microseconds`` include what it called; the launches are those that it made itself."""

    name: str
    calls: int
    cpu_microseconds: float
    launches: int = 0
    launch_microseconds: float = 0.0
    gpu_operations: int = 0
    gpu_microseconds: float = 0.0


class Offender(Frozen):
    """Chains of small work under one class of module: three and more elementwise or copying kernels in a row.

    ``instances`` counts the modules of this class that have such a chain, ``of`` all that launched something;
    ``chains`` are all of their chains.
    """

    module: str
    phase: Phase
    instances: int
    of: int
    chains: int
    longest: int
    launches: int
    gpu_microseconds: float
    launch_microseconds: float
    operators: dict[str, int]


class Spread(Frozen):
    """Percentiles of some values, and how many values there are."""

    count: int = 0
    p10: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    largest: float = 0.0


class Idle(Frozen):
    """Time in which a GPU did nothing, by what it waited for; ``host`` is the sum of the last four."""

    host: float = 0.0
    kernel: float = 0.0
    other: float = 0.0
    compiling: float = 0.0
    data: float = 0.0
    synchronising: float = 0.0
    enqueue: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.host + self.kernel + self.other


class Measures(Frozen):
    """What was measured in one step, or in the whole trace."""

    name: str
    cpu_calls: int = 0
    operators: int = 0
    gpu_operations: int = 0
    kernels: int = 0
    launches: int = 0
    span_microseconds: float = 0.0
    step_microseconds: float = 0.0
    enqueue_microseconds: float = 0.0
    enqueue_span_microseconds: float = 0.0
    busy_microseconds: float = 0.0
    lead: Spread = Spread()
    early: int = 0
    queue: Spread = Spread()
    idle: Idle = Idle()
    families: tuple[Share, ...] = ()
    fused_share: float = 0.0
    communication_microseconds: float = 0.0
    exposed_communication_microseconds: float = 0.0
    synchronisations: int = 0
    blocking_synchronisations: int = 0
    synchronising_microseconds: float = 0.0
    data_microseconds: float = 0.0
    compilations: int = 0
    compiling_microseconds: float = 0.0
    module_loads: int = 0
    optimizer_microseconds: float = 0.0
    optimizer_gpu_microseconds: float = 0.0
    copies: int = 0
    copied_bytes: int = 0
    copy_microseconds: float = 0.0
    pageable_copies: int = 0
    pageable_bytes: int = 0
    graph_launches: int = 0
    graph_kernels: int = 0

    @property
    def cpu_gpu_ratio(self) -> float | None:
        """CPU enqueue time over GPU busy time; None without GPU work."""
        return self.enqueue_microseconds / self.busy_microseconds if self.busy_microseconds > 0 else None


class Joins(Frozen):
    """What could be joined. ``lost`` launches have no work on a device; ``orphans`` are work without its call.

    ``attributed`` counts the launches whose operator is known, ``linked`` the backward nodes whose forward operator is.
    """

    gpu_operations: int = 0
    joined: int = 0
    orphans: int = 0
    ambiguous: int = 0
    launches: int = 0
    lost: int = 0
    attributed: int = 0
    backward_nodes: int = 0
    linked: int = 0

    @property
    def rate(self) -> float:
        """The share of launches and of GPU operations that have each other, the lower of both; 0 without either."""
        if not self.gpu_operations or not self.launches:
            return 0.0
        return min(self.joined / self.gpu_operations, 1 - self.lost / self.launches)


class StepReport(Frozen):
    """What was measured in one trace.

    ``iterations`` is how many steps it holds, by ``iterations_by`` (annotations ``ProfilerStep#`` or optimizer steps);
    0 where neither tells. ``span_of_steps`` is the time from the start of the first to the end of the last one's work.
    ``gpus`` names the devices with work; the measures of GPU time are those of the busiest. ``signatures`` counts
    forward calls of the operators by which eager references show themselves. ``backward`` says whether a backward pass
    ran; ``left_out_names`` how many names of operators and kernels were too many to list.
    """

    file: str
    events: int
    rank: int | None = None
    world_size: int | None = None
    processes: int = 0
    gpus: tuple[str, ...] = ()
    iterations: int = 0
    iterations_by: Literal["ProfilerStep", "Optimizer.step", ""] = ""
    span_of_steps: float = 0.0
    joins: Joins = Joins()
    total: Measures
    steps: tuple[Measures, ...] = ()
    operators: tuple[OperatorUse, ...] = ()
    kernels: tuple[KernelUse, ...] = ()
    offenders: tuple[Offender, ...] = ()
    signatures: dict[str, int] = {}
    backward: bool = False
    oddities: dict[str, int] = {}
    left_out_names: int = 0

    @property
    def step_microseconds(self) -> float | None:
        """The time of one step: the span of the GPU's work over the number of steps; None where that is unknown."""
        return self.span_of_steps / self.iterations if self.iterations and self.span_of_steps else None

    def per_step(self, measure: str) -> float | None:
        """Return a measure for one step, as the mean over the steps; None where their number is unknown."""
        if self.steps:
            return float(sum(getattr(step, measure) for step in self.steps)) / len(self.steps)
        return float(getattr(self.total, measure)) / self.iterations if self.iterations else None


class Change(Frozen):
    """One name in both traces, per step where steps are known. ``ratio`` is before over after; None from or to 0."""

    name: str
    before: float
    after: float
    before_microseconds: float
    after_microseconds: float
    ratio: float | None = None


class TraceComparison(Frozen):
    """Two traces, matched by operator, by kernel and by class of module. All numbers are per step if ``per_step``."""

    per_step: bool
    cpu_calls: Change
    gpu_operations: Change
    step: Change
    families: tuple[Change, ...]
    operators: tuple[Change, ...]
    kernels: tuple[Change, ...]
    modules: tuple[Change, ...]
    appeared: tuple[str, ...] = ()
    disappeared: tuple[str, ...] = ()


class TraceSection(Frozen, tag="trace", tag_field="kind"):
    """The trace that is judged, and in a comparison the one before."""

    report: StepReport
    before: StepReport | None = None
    comparison: TraceComparison | None = None
