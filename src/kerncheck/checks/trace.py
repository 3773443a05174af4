"""KC62: what limits the steps of a profiler trace. Warnings: a slow run is not a wrong one."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks import _trace as read
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.trace import Measures, StepReport

STEPS = "the steps"


@check("KC620", "the trace is complete", needs=("trace",))
def complete(case: Case, say: Say) -> Iterator[Outcome]:
    """A trace judges a run only if its launches and its GPU work belong together.

    What it checks
        That there is GPU work, that at least 95 % of it has the call that launched it, and that at least 95 % of the
        launches have their work. The same of the trace before, in a comparison.
    Why it matters
        A CPU-only trace, or one whose kernels were lost, looks like a run without fused kernels. It proves nothing.
    Example
        8568 launches and no GPU event: the profiler lost the kernels.
    How to fix
        Record again with a schedule that warms up, ProfilerActivity.CUDA, and one profiler session in the process.
    """
    section = seen(case.snapshot.trace)
    pairs = [("trace", section.report)] + ([("trace before", section.before)] if section.before else [])
    for subject, report in pairs:
        reason = read.incomplete(report)
        if reason:
            hint = "record with a warm-up (schedule), ProfilerActivity.CUDA and one session in the process"
            yield say.not_judged(subject, reason, required=True, remedy=hint)
        else:
            yield say.passed(subject, joined(report), "measured")


def joined(report: StepReport) -> str:
    """Say how much could be joined."""
    joins = report.joins
    text = f"{joins.joined} of {joins.gpu_operations} GPU operations joined to their launch"
    if joins.lost:
        return f"{text}; {joins.lost} of {joins.launches} launches have no kernel event, so absence proves nothing"
    return f"{text}, and all {joins.launches} launches to their kernels"


@check("KC621", "the GPU does not wait for launches", needs=("trace",))
def cpu_bound(case: Case, say: Say) -> Iterator[Outcome]:
    """The host must enqueue work faster than the GPU does it.

    What it checks
        Whether enqueueing takes longer than the GPU's work (enqueue span over busy time above 1), the idle time is
        mostly waits for the host (over half), and waits for launches are at least 5 % of the time and over half of the
        idle, or at least 10 % of the time.
    Why it matters
        nvidia-smi shows 98 % while kernels of a few microseconds follow one another with gaps: the GPU is then as fast
        as the Python code. Eager code where a fused kernel was meant looks like this.
    Example
        enqueue span 14.4 s over 10.3 s of GPU work; 28 % of the time the GPU waited for launches.
    How to fix
        Use fused kernels (KC627 says which are missing), torch.compile or CUDA graphs, a fused optimizer, or larger
        micro-batches. Offenders are listed by KC630.
    """
    total = read.trace_of(case).total
    if read.cpu_bound(total):
        yield warned(say, total, total.idle.enqueue, "CPU-bound: the GPU waits for launches", launches(total))
    else:
        yield say.passed(STEPS, launches(total), "measured")


def launches(total: Measures) -> str:
    """Give the numbers of the rule."""
    ratio = total.enqueue_span_microseconds / total.busy_microseconds if total.busy_microseconds else 0.0
    waits = read.share(total.idle.enqueue, total)
    return (
        f"enqueue span over GPU busy time {ratio:.2f}, waits for launches {waits:.1%} of the time, "
        f"median lead {total.lead.p50:.0f} µs, median queue {total.queue.p50:.0f}"
    )


def by_share(say: Say, total: Measures, lost: float, message: str, told: str) -> Outcome:
    """Warn if a cause costs the share of the time from which on it counts."""
    if read.share(lost, total) >= read.LOST_SHARE:
        return warned(say, total, lost, message, told)
    return say.passed(STEPS, told, "measured")


def warned(say: Say, total: Measures, part: float, message: str, found: str) -> Outcome:
    """Warn of a cause that costs time."""
    remedies = {
        "KC621": "fused kernels, torch.compile or CUDA graphs, a fused optimizer, larger micro-batches (KC630: where)",
        "KC622": "more DataLoader workers, prefetching, or work moved out of the collator; measure the loader alone",
        "KC623": "keep .item(), .cpu(), nonzero and prints of tensors out of the layers; read the loss every n steps",
        "KC624": "warm up before measuring; find what changes shape (TORCH_LOGS=recompiles), mark it dynamic or pad it",
        "KC625": "overlap communication with work (bucket sizes, prefetch), and look for a slow rank in other traces",
    }
    return say.failed(
        STEPS,
        message,
        found=f"{read.share(part, total):.0%} of the time lost; {found}",
        wanted=f"below {read.AHEAD_WAIT if say.code == 'KC621' else read.LOST_SHARE:.0%}",
        remedy=remedies[say.code],
        evidence="measured",
        severity="warning",
    )


@check("KC622", "the GPU does not wait for data", needs=("trace",))
def data(case: Case, say: Say) -> Iterator[Outcome]:
    """The next batch must be there when a step begins.

    What it checks
        How much of the GPU's idle time lies in a DataLoader's __next__ (its own annotation in the trace).
    Why it matters
        A starved GPU looks like a slow model; no kernel can cure it.
    Example
        62 % of the time lost; 3 waits of 250 ms.
    How to fix
        More workers, prefetching, cheaper collation. Measure the loader alone first: more workers do not always help.
    """
    total = read.trace_of(case).total
    told = f"{total.data_microseconds / 1e3:.1f} ms in DataLoader.__next__, the GPU idle in {total.idle.data / 1e3:.1f}"
    yield by_share(say, total, total.idle.data, "data-starved: the GPU waits in DataLoader.__next__", told)


@check("KC623", "the host does not stop for the GPU", needs=("trace",))
def synchronising(case: Case, say: Say) -> Iterator[Outcome]:
    """Synchronisations inside of steps empty the queue, and the GPU falls idle after each.

    What it checks
        The idle time that began while the host stood in a synchronisation of 10 µs or more, where there are more than
        two of these.
    Why it matters
        .item() in a layer costs twice: the wait, and the launches that could have been queued meanwhile.
    Example
        31 % of the time lost; 96 synchronisations that waited.
    How to fix
        Remove .item(), .cpu(), .tolist(), nonzero and printing of tensors from the layers and the loss.
    """
    total = read.trace_of(case).total
    told = (
        f"{total.blocking_synchronisations} of {total.synchronisations} synchronisations waited, "
        f"{total.synchronising_microseconds / 1e3:.1f} ms together"
    )
    lost = total.idle.synchronising if read.repeated(total) else 0.0
    yield by_share(say, total, lost, "synchronising: the host stops for the GPU", told)


@check("KC624", "nothing is compiled inside of the steps", needs=("trace",))
def recompiling(case: Case, say: Say) -> Iterator[Outcome]:
    """Compilation and autotuning belong before the measured steps.

    What it checks
        The idle time in which the host compiled (ranges of torch.compile and of autotuners) or loaded a new module,
        as every freshly compiled kernel must.
    Why it matters
        A shape that changes each step compiles each step. One compile costs thousands of kernels.
    Example
        71 % of the time lost; 3 compilations, 5 modules loaded.
    How to fix
        Warm up first. If it stays, find what changes (TORCH_LOGS=recompiles), then mark it dynamic or pad it.
    """
    total = read.trace_of(case).total
    told = f"{total.compilations} compilations, {total.module_loads} modules loaded"
    yield by_share(say, total, total.idle.compiling, "recompiling: kernels are compiled inside of the steps", told)


@check("KC625", "communication is hidden behind work", needs=("trace",))
def communication(case: Case, say: Say) -> Iterator[Outcome]:
    """Collectives should run while other kernels do.

    What it checks
        The time in which communication kernels ran and no other work did.
    Why it matters
        It grows with the number of nodes. A collective also waits for the slowest rank: the cause may lie elsewhere.
    Example
        19 % of the time lost; 163 ms of communication, 87 ms of it with nothing beside.
    How to fix
        Overlap (bucket sizes, prefetch of shards), and compare the traces of several ranks for one that comes late.
    """
    total = read.trace_of(case).total
    exposed = total.exposed_communication_microseconds
    if not total.communication_microseconds:
        yield say.not_applicable(STEPS, "no communication kernel ran")
        return
    told = f"{total.communication_microseconds / 1e3:.1f} ms of communication, {exposed / 1e3:.1f} with nothing beside"
    yield by_share(say, total, exposed, "communication-bound: collectives run with nothing beside them", told)


@check("KC626", "what limits the steps", needs=("trace",))
def verdict(case: Case, say: Say) -> Iterator[Outcome]:
    """Names the one thing that limits the steps of a trace. A note, never a finding.

    What it checks
        The cause of KC621 to KC625 that costs most; GPU-bound if the host runs ahead (a queue of 8 or more, a median
        lead of 5 floors, waits for the host below 5 %) or the GPU is idle less than 5 % of the time; else unclear.
    Why it matters
        A GPU-bound step gets faster by faster kernels; any other one does not.
    Example
        GPU-bound: busy 98 % of the time, median queue 1012.
    How to fix
        Nothing is wrong. If it is unclear, the numbers say how the idle time is split.
    """
    report = read.trace_of(case)
    found, total = read.bottleneck(report), report.total
    idle = total.idle
    numbers = (
        f"GPU busy {read.share(total.busy_microseconds, total):.0%}, idle for the host "
        f"{read.share(idle.host, total):.0%}, other idle {read.share(idle.kernel + idle.other, total):.0%}, "
        f"median queue {total.queue.p50:.0f}"
    )
    yield say.note("bottleneck", f"{found.kind}: {numbers}", "measured")


@check("KC630", "repeat offenders", needs=("trace",))
def repeat_offenders(case: Case, say: Say) -> Iterator[Outcome]:
    """Which classes of module launch chains of small kernels, layer after layer. Notes, never findings.

    What it checks
        Chains of three and more elementwise or copying kernels in a row on one stream under one module, in at least 80
        % of the modules of that class, where launching takes longer than the kernels or is among the three longest.
    Why it matters
        One fused kernel can replace such a chain; the launches and the trips to memory in between go away.
    Example
        Qwen3_5RMSNorm, forward: 64 chains of up to 6 in 64 of 64 modules; 384 launches took 1.9 ms.
    How to fix
        Nothing is wrong. A fused norm, activation or rotary kernel, or torch.compile, empties these places.
    """
    report = read.trace_of(case)
    rows = [item for item in report.offenders if item.instances >= 0.8 * item.of]
    chosen = [item for at, item in enumerate(rows) if at < 3 or item.gpu_microseconds < item.launch_microseconds]
    if not chosen:
        none = (
            "no chain of small kernels lies under one module, or none is named (with_stack, or kerncheck's recording)"
        )
        known = "no chain of small kernels repeats" if report.offenders else none
        yield say.not_applicable("modules", known)
    for item in chosen[:5]:
        operators = ", ".join(f"{name.removeprefix('aten::')} {count}" for name, count in item.operators.items())
        yield say.note(
            f"{item.module} ({item.phase})",
            f"{item.chains} chains of up to {item.longest} small kernels in {item.instances} of {item.of} modules; "
            f"{item.launches} launches took {item.launch_microseconds / 1e3:.1f} ms, the kernels "
            f"{item.gpu_microseconds / 1e3:.1f} ms ({operators})",
            "measured",
        )


@check("KC631", "what is odd about the trace", needs=("trace",))
def odd(case: Case, say: Say) -> Iterator[Outcome]:
    """What was left out or mended while the trace was read. Notes, never findings.

    What it checks
        Events without a time, of the wrong shape, with negative durations; several processes in one file; ids that
        several launches share.
    Why it matters
        Measures speak of what could be read. A reader should know how much could not.
    Example
        12 events without a usable time were left out.
    How to fix
        Mostly nothing. Many events of the wrong shape mean that the file was not written by torch.profiler.
    """
    report = seen(case.snapshot.trace).report
    for words, count in report.oddities.items():
        yield say.note("events", f"{count} {words}")
    if report.processes > 1:
        yield say.note("processes", f"{report.processes} processes in one file: GPU times are those of the busiest GPU")
    if len(report.gpus) > 1:
        yield say.note("GPUs", f"{len(report.gpus)} GPUs worked: times are those of the busiest, kernels those of all")
    if report.joins.ambiguous:
        yield say.note("ids", f"{report.joins.ambiguous} GPU operations share their ids with others and join nothing")
    if report.left_out_names:
        yield say.note("names", f"{report.left_out_names} names of operators and kernels are not listed")
    yield say.not_applicable("events", f"{report.events} events read")
