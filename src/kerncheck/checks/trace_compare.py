"""KC635 to KC638: gates that a trace must meet, alone or against the trace before."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks import _trace as read
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import NotObservedError, seen
from kerncheck.model.job import TraceRequest
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.trace import Change, TraceComparison

STEPLESS = "a trace has neither ProfilerStep nor Optimizer.step annotations: how many steps it holds is unknown"


def asked(case: Case) -> TraceRequest:
    """Return what the user asked."""
    return case.job.trace or TraceRequest(file="")


def compared(case: Case) -> TraceComparison | None:
    """Return the comparison, None in a job without one.

    Raises:
        NotObservedError: one of the traces proves nothing.

    """
    section = seen(case.snapshot.trace)
    reason = read.incomplete(section.report) or (read.incomplete(section.before) if section.before else "")
    if reason:
        raise NotObservedError(reason)
    return section.comparison


@check("KC635", "there are fewer operations than before", needs=("trace",))
def fewer(case: Case, say: Say) -> Iterator[Outcome]:
    """The gate --min-op-reduction: how many times fewer CPU calls and GPU operations a step has.

    What it checks
        CPU calls and GPU operations per step, before over after; the smaller of both ratios must reach the gate.
    Why it matters
        It is the number that fusing changes first, and the one that no clock or neighbour on the machine disturbs.
    Example
        CPU calls 1714382 -> 118316 (14.5 times fewer), GPU operations 269448 -> 18060 (14.9 times).
    How to fix
        The comparison lists what stayed: by operator, by kernel and by class of module.
    """
    gate, comparison = asked(case).min_op_reduction, compared(case)
    if gate is None or comparison is None:
        yield say.not_applicable("operations", "not asked (--min-op-reduction of trace compare)")
        return
    if not comparison.per_step:
        yield say.not_judged("operations", STEPLESS, required=True)
        return
    changes = (comparison.cpu_calls, comparison.gpu_operations)
    told = "; ".join(f"{item.name} {item.before:.0f} -> {item.after:.0f} ({times(item)})" for item in changes)
    if all(item.before >= gate * item.after for item in changes):
        yield say.passed("operations", told, "measured")
        return
    yield say.failed(
        "operations",
        f"the step has not {gate:g} times fewer operations",
        found=told,
        wanted=f"both at least {gate:g} times fewer",
        remedy="see what stayed in the comparison: by operator, kernel and class of module",
        evidence="measured",
    )


def times(item: Change) -> str:
    """Return a ratio in words."""
    return f"{item.ratio:.1f} times fewer" if item.ratio else "no ratio"


@check("KC636", "the host is fast enough", needs=("trace",))
def ratio(case: Case, say: Say) -> Iterator[Outcome]:
    """The gate --max-cpu-gpu-ratio: CPU enqueue time over GPU busy time.

    What it checks
        The time in which launching threads were inside of operators and calls, without synchronisations, over the time
        in which the GPU worked.
    Why it matters
        Above 1 the host cannot keep the GPU busy, whatever a utilisation figure says.
    Example
        14.4 s of enqueueing over 10.3 s of GPU work: 1.40.
    How to fix
        Fewer launches: fused kernels, torch.compile, CUDA graphs, a fused optimizer, larger micro-batches.
    """
    gate = asked(case).max_cpu_gpu_ratio
    if gate is None:
        yield say.not_applicable("CPU/GPU ratio", "not asked (--max-cpu-gpu-ratio)")
        return
    total = read.trace_of(case).total
    found = total.cpu_gpu_ratio
    told = f"{total.enqueue_microseconds / 1e3:.1f} ms enqueueing over {total.busy_microseconds / 1e3:.1f} ms GPU work"
    if found is None:
        yield say.not_judged("CPU/GPU ratio", "the GPU's work takes no time in this trace", required=True)
    elif found <= gate:
        yield say.passed("CPU/GPU ratio", f"{told}: {found:.2f}", "measured")
    else:
        yield say.failed(
            "CPU/GPU ratio",
            "enqueueing takes too long for the GPU's work",
            found=f"{told}: {found:.2f}",
            wanted=f"at most {gate:g}",
            remedy="fewer launches: fused kernels, torch.compile or CUDA graphs (KC630: where)",
            evidence="measured",
        )


@check("KC637", "a step takes no longer than before", needs=("trace",))
def step_time(case: Case, say: Say) -> Iterator[Outcome]:
    """The gate --max-step-time-ratio: the time of a step, after over before.

    What it checks
        The span of the GPU's work over the number of steps, of both traces. A profiler slows the host: compare traces
        that were recorded alike.
    Why it matters
        Fewer operations that take longer are no gain.
    Example
        77.5 ms -> 81.4 ms: 1.05.
    How to fix
        The comparison shows which kernels take longer; KC621 to KC626 what limits the step now.
    """
    gate, comparison = asked(case).max_step_time_ratio, compared(case)
    if gate is None or comparison is None:
        yield say.not_applicable("step time", "not asked (--max-step-time-ratio of trace compare)")
        return
    before, after = comparison.step.before, comparison.step.after
    if not comparison.per_step or not before:
        yield say.not_judged("step time", STEPLESS, required=True)
        return
    told = f"{before / 1e3:.2f} ms -> {after / 1e3:.2f} ms: {after / before:.3f}"
    if after <= gate * before:
        yield say.passed("step time", told, "measured")
        return
    yield say.failed(
        "step time",
        "a step takes longer than the gate allows",
        found=told,
        wanted=f"at most {gate:g} times the step before",
        remedy="see which kernels take longer in the comparison, and KC626 for what limits the step",
        evidence="measured",
    )


@check("KC638", "fused replaced elementwise", needs=("trace",))
def replaced(case: Case, say: Say) -> Iterator[Outcome]:
    """Says whether fused kernels came and elementwise ones went. A note, never a finding.

    What it checks
        The numbers of fused and of elementwise kernels, before and after, and the kernels that appeared.
    Why it matters
        Fewer operations may also mean a smaller model. Fused kernels that appear where elementwise ones went do not.
    Example
        fused 0 -> 384, elementwise 9120 -> 608; appeared: chunk_fwd_kernel_o, ...
    How to fix
        Nothing is wrong.
    """
    comparison = compared(case)
    if comparison is None:
        yield say.not_applicable("kernels", "one trace, nothing to compare")
        return
    rows = {item.name: item for item in comparison.families}
    none = Change(name="", before=0, after=0, before_microseconds=0, after_microseconds=0)
    small, fused = rows.get("elementwise", none), rows.get("fused", none)
    yes = fused.after > fused.before and small.after < small.before
    names = f"; appeared: {', '.join(comparison.appeared[:4])}" if comparison.appeared else ""
    yield say.note(
        "kernels",
        f"{'fused replaced elementwise' if yes else 'fused did not replace elementwise'}: fused {fused.before:.0f} -> "
        f"{fused.after:.0f}, elementwise {small.before:.0f} -> {small.after:.0f}{names}",
        "measured",
    )
