"""What the checks of traces share: whether a trace is complete, what its time was lost to, which kernels it shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kerncheck.checks.registry import Case
from kerncheck.model.base import NotObservedError, seen
from kerncheck.model.job import RequiredOp
from kerncheck.model.trace import EagerSignature, ExpectedKernels, Measures, StepReport
from kerncheck.tracing.names import known
from kerncheck.versions import holds

JOINED = 0.95
"""The least share of launches and work that must have each other (methods.md, 4.1)."""
LOST_SHARE = 0.10
"""Of the time of the steps. What costs less than a tenth cannot make a run 1.11 times faster when it is cured."""
AHEAD_QUEUE, AHEAD_LEAD, AHEAD_WAIT = 8, 5.0, 0.05
"""The host runs ahead: a queue of 8, a median lead of 5 floors, waits for the host below 5 % (methods.md, 4.2)."""
FLOOR = 10.0
"""Microseconds that a launch on an idle stream takes at most: the traces of methods.md 4.2 have 1 to 2 at their p10.
The floor of a trace is its own p10, or this where the host is ahead from the first launch on."""
ENQUEUE_RATIO, ENQUEUE_IDLE = 1.0, 0.5
"""CPU-bound: enqueue span over GPU busy time above 1, and waits for the host over half of the idle (ibid.)."""

Kind = Literal[
    "CPU-bound", "GPU-bound", "data-starved", "synchronising", "recompiling", "communication-bound", "unclear"
]


@dataclass(frozen=True)
class Bottleneck:
    """What limits the steps of a trace, and the share of their time that a cure could win at most."""

    kind: Kind
    share: float


def trace_of(case: Case) -> StepReport:
    """Return the trace that is judged, if it is complete enough to judge anything by.

    Raises:
        NotObservedError: it is not; the reason says what is missing.

    """
    report = seen(case.snapshot.trace).report
    reason = incomplete(report)
    if reason:
        raise NotObservedError(reason)
    return report


def incomplete(report: StepReport) -> str:
    """Return why a trace proves nothing about the GPU's work, or nothing if it may."""
    joins = report.joins
    if not joins.gpu_operations:
        return without_work(report)
    if joins.rate < JOINED:
        return (
            f"only {joins.joined} of {joins.gpu_operations} GPU operations have their launch and "
            f"{joins.launches - joins.lost} of {joins.launches} launches their kernel: below {JOINED:.0%} the trace "
            f"shows too little"
        )
    return ""


def without_work(report: StepReport) -> str:
    """Say what a trace without any GPU event holds."""
    if report.joins.launches:
        return (
            f"the trace holds {report.joins.launches} launches and no GPU event: the profiler lost the kernels "
            "(CUPTI not started, or a session before this one); no step is judged by it"
        )
    if report.total.cpu_calls:
        return "the trace holds no GPU kernel event: the run was CPU-only or nothing was collected of the GPU"
    return "the trace holds neither operators nor GPU work"


def share(part: float, measures: Measures) -> float:
    """Return a part of the time that the steps took; 0 where that is unknown."""
    return part / measures.span_microseconds if measures.span_microseconds > 0 else 0.0


def host_wait(measures: Measures) -> float:
    """Return the share of the time in which the GPU waited for the host."""
    return share(measures.idle.host, measures)


def runs_ahead(measures: Measures) -> bool:
    """Tell whether the host runs ahead of the GPU, by all three signs."""
    floor = max(1.0, min(measures.lead.p10, FLOOR))
    return (
        measures.lead.p50 >= AHEAD_LEAD * floor
        and measures.queue.p50 >= AHEAD_QUEUE
        and host_wait(measures) < AHEAD_WAIT
    )


def cpu_bound(measures: Measures) -> bool:
    """Tell whether the GPU waits for launches: enqueueing takes longer than the work, and idle time is mostly that.

    Where another cause is larger (a slow loader), waits for launches count from a tenth of the time on.
    """
    idle, waits = measures.idle, share(measures.idle.enqueue, measures)
    mostly = idle.enqueue > ENQUEUE_IDLE * idle.total and waits >= AHEAD_WAIT
    return (
        measures.enqueue_span_microseconds > ENQUEUE_RATIO * measures.busy_microseconds
        and idle.host > ENQUEUE_IDLE * idle.total
        and (mostly or waits >= LOST_SHARE)
    )


def lost(measures: Measures) -> dict[Kind, float]:
    """Return the causes that cost their share, with it."""
    idle = measures.idle
    shares: dict[Kind, float] = {
        "recompiling": share(idle.compiling, measures),
        "data-starved": share(idle.data, measures),
        "synchronising": share(idle.synchronising, measures) if repeated(measures) else 0.0,
        "communication-bound": share(measures.exposed_communication_microseconds, measures),
    }
    found = {kind: part for kind, part in shares.items() if part >= LOST_SHARE}
    if cpu_bound(measures):
        found["CPU-bound"] = share(idle.enqueue, measures)
    return found


def repeated(measures: Measures) -> bool:
    """Tell whether waits are many: one or two at the end of a step (a loss that is read, a barrier) are normal."""
    return measures.blocking_synchronisations > 2


def bottleneck(report: StepReport) -> Bottleneck:
    """Return what limits a trace: the cause that costs most, else the GPU itself, else it is unclear."""
    total = report.total
    found = lost(total)
    if found:
        kind = max(found, key=found.__getitem__)
        return Bottleneck(kind, found[kind])
    idle = share(total.idle.total, total)
    if runs_ahead(total) or idle < AHEAD_WAIT:
        return Bottleneck("GPU-bound", 1.0 - idle)
    return Bottleneck("unclear", idle)


# Which kernels a trace shows.


@dataclass(frozen=True)
class Shown:
    """What a trace shows of one op: whether its fused kernels ran, and its eager reference.

    ``forward`` and ``backward`` are the kernels seen, ``missing`` those of the backward pass that were not. ``known``
    says that the declared version is one whose kernels are known (always, where none was declared).
    """

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    missing: tuple[str, ...]
    trains: bool
    eager: dict[str, int]
    known: bool
    version: str = ""


def shown(case: Case, report: StepReport, op: str) -> Shown:
    """Read what a trace shows of an op."""
    request = case.job.trace
    versions = request.versions if request else {}
    rows = [row for row in known().expected if row.op == op]
    version = next((versions[row.distribution] for row in rows if row.distribution in versions), "")
    fitting = [row for row in rows if not version or holds(row.versions, version)]
    names = {use.name.rpartition("::")[2] for use in report.kernels}
    best = max(fitting or rows, key=lambda row: (len(present(row.forward, names)), row in fitting), default=None)
    eager = max((signature(row, report) for row in known().eager if row.op == op), key=len, default={})
    if best is None:
        return Shown((), (), (), trains=False, eager=eager, known=False, version=version)
    forward = present(best.forward, names)
    backward = present(best.backward, names)
    return Shown(
        forward=forward if len(forward) == len(best.forward) else (),
        backward=backward,
        missing=tuple(name for name in best.backward if not present((name,), names)),
        trains=bool(best.backward),
        eager=eager,
        known=bool(fitting),
        version=version,
    )


def present(wanted: Iterable[str], names: set[str]) -> tuple[str, ...]:
    """Return the kernels of a list that ran; ``a|b`` is one of two."""
    found = []
    for name in wanted:
        ran = [one for one in name.split("|") if one in names]
        found += ran[:1]
    return tuple(found)


def signature(row: EagerSignature, report: StepReport) -> dict[str, int]:
    """Return the forward calls of an eager signature, or nothing if one of its operators ran too seldom for a layer."""
    counts = {name: report.signatures.get(name, 0) for name in row.operators}
    steps = max(1, report.iterations)
    whole = all(counts[name] >= least * steps for name, least in row.operators.items())
    return counts if whole else {}


def seams(case: Case) -> tuple[RequiredOp, ...]:
    """Return the ops of the job's model that its own code binds."""
    return tuple(op for op in case.job.needed if op.role == "seam")


def fused_rows(report: StepReport) -> list[tuple[str, ExpectedKernels]]:
    """Return the ops whose forward kernels a trace shows, each once, by the row that fits."""
    names = {use.name.rpartition("::")[2] for use in report.kernels}
    found = {row.op: row for row in known().expected if len(present(row.forward, names)) == len(row.forward)}
    return sorted(found.items())
