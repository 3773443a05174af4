"""Text of a judged trace: one calm screen. The numbers of a step, where its time went, then what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kerncheck.formats.sentence import headline
from kerncheck.formats.text import blank, line, print_judgements, text_of
from kerncheck.model.trace import Change, Measures, StepReport, TraceComparison, TraceSection
from kerncheck.report import Report

MOST_ROWS, MOST_NAME = 6, 56


def render(report: Report, *, colour: bool = False, width: int = 100, verbose: int = 0) -> str:
    """Return the report of a trace as text of at most ``width`` columns; ``verbose`` also lists what passed."""
    console = blank(colour=colour, width=width)
    section = report.snapshot.trace
    if isinstance(section, TraceSection):
        print_head(console, report, section)
        if section.comparison is None and section.report.joins.gpu_operations:
            print_measures(console, section.report)
        elif section.comparison is not None:
            print_comparison(console, section.comparison)
    else:
        line(console, headline(report), "bold")
    print_judgements(console, report, verbose)
    return text_of(console)


def print_head(console: Console, report: Report, section: TraceSection) -> None:
    """Print which trace of what was judged."""
    model = f" · model {report.job.model.name}" if report.job.model else ""
    names = [Path(one.file).name for one in (section.before, section.report) if one]
    line(console, f"kerncheck {report.version} · trace {' -> '.join(names)}{model}", "bold")
    one = section.report
    rank = f" · rank {one.rank} of {one.world_size}" if one.rank is not None and one.world_size else ""
    steps = f"{one.iterations} steps by {one.iterations_by}" if one.iterations else "steps unknown"
    line(console, f"{', '.join(one.gpus) or 'no GPU'}{rank} · {steps} · {one.events} events", "dim")


def print_measures(console: Console, report: StepReport) -> None:
    """Print the numbers of one trace; for one step, where steps are known."""
    total = report.total
    line(console, "\nOne step" if report.iterations else "\nThe whole trace", "bold")
    for label, text in rows(report, total):
        console.print(Text.assemble((f"  {label:<18}", "dim"), text), soft_wrap=True)
    if total.families:
        line(console, "\nGPU time by family", "bold")
        whole = sum(share.microseconds for share in total.families)
        for share in total.families[:MOST_ROWS]:
            print_row(console, share.name, share.count, share.microseconds, whole)
    used = [use for use in report.operators if use.gpu_microseconds][:MOST_ROWS]
    if used:
        line(console, "\nGPU time by operator", "bold")
        whole = sum(share.microseconds for share in total.families)
        for use in used:
            print_row(console, use.name, use.gpu_operations, use.gpu_microseconds, whole)


def print_row(console: Console, name: str, count: int, time: float, whole: float) -> None:
    """Print one row of a table of shares."""
    part = time / whole if whole else 0.0
    shown = name if len(name) <= MOST_NAME else name[: MOST_NAME - 3] + "..."
    console.print(Text(f"  {shown:<{MOST_NAME}} {count:>9,} {time / 1e3:>11,.2f} ms {part:>5.0%}"), soft_wrap=True)


def rows(report: StepReport, total: Measures) -> Iterable[tuple[str, str]]:
    """Yield label and text of each line."""

    def each(name: str) -> str:
        value = report.per_step(name)
        return f"{value if value is not None else getattr(total, name):,.0f}"

    part = report.iterations or 1
    ratio = f"{total.cpu_gpu_ratio:.2f}" if total.cpu_gpu_ratio is not None else "unknown"
    span = report.step_microseconds or total.span_microseconds
    idle = total.idle
    work = f"{each('gpu_operations')} GPU operations ({each('kernels')} kernels, {each('launches')} launching calls)"
    yield "calls", f"{each('cpu_calls')} on the CPU, {work}"
    yield "time", f"{milliseconds(span)}, GPU busy {percent(total.busy_microseconds, total.span_microseconds)}"
    yield (
        "CPU / GPU",
        (
            f"{milliseconds(total.enqueue_microseconds / part)} enqueueing over "
            f"{milliseconds(total.busy_microseconds / part)} of GPU work: {ratio}"
        ),
    )
    yield "lead", f"{total.lead.p10:,.0f} / {total.lead.p50:,.0f} / {total.lead.p90:,.0f} µs (p10, median, p90)"
    yield "queue", f"median {total.queue.p50:.0f}, largest {total.queue.largest:.0f}"
    causes = {
        "enqueue": idle.enqueue,
        "data": idle.data,
        "synchronising": idle.synchronising,
        "compiling": idle.compiling,
    }
    told = ", ".join(f"{name} {milliseconds(value / part)}" for name, value in causes.items() if value)
    yield (
        "idle",
        (
            f"{milliseconds(idle.total / part)}: host {milliseconds(idle.host / part)}{f' ({told})' if told else ''}, "
            f"kernels {milliseconds(idle.kernel / part)}, other {milliseconds(idle.other / part)}"
        ),
    )
    yield "fused", f"{total.fused_share:.0%} of the GPU time in kernels that are fused by name"
    yield from more_rows(total, part)


def more_rows(total: Measures, part: int) -> Iterable[tuple[str, str]]:
    """Yield the lines of what not every trace has."""
    if total.communication_microseconds:
        hidden = total.exposed_communication_microseconds / part
        time = milliseconds(total.communication_microseconds / part)
        yield "communication", f"{time}, {milliseconds(hidden)} with nothing beside"
    if total.copies:
        paged = f", {total.pageable_copies / part:,.0f} pageable" if total.pageable_copies else ""
        size = total.copied_bytes / part / 2**20
        yield (
            "copies",
            f"{total.copies / part:,.0f} of {size:,.1f} MiB, {milliseconds(total.copy_microseconds / part)}{paged}",
        )
    if total.graph_launches:
        yield "graphs", f"{total.graph_launches / part:,.0f} launches of {total.graph_kernels / part:,.0f} operations"


def milliseconds(value: float) -> str:
    """Return a time in ms."""
    return f"{value / 1e3:,.2f} ms"


def percent(part: float, whole: float) -> str:
    """Return a share."""
    return f"{part / whole:.0%}" if whole > 0 else "unknown"


def print_comparison(console: Console, found: TraceComparison) -> None:
    """Print what changed."""
    unit = "per step" if found.per_step else "whole traces: the steps of one are unknown"
    line(console, f"\nBefore and after ({unit})", "bold")
    for change in (found.cpu_calls, found.gpu_operations):
        print_change(console, change, times=False)
    step = found.step
    ratio = f"({step.after / step.before:.2f} of before)" if step.before else ""
    console.print(
        Text(f"  {'time':<44} {step.before / 1e3:>12,.2f} {step.after / 1e3:>12,.2f} ms {ratio}"), soft_wrap=True
    )
    for title, changes in (("families", found.families), ("operators", found.operators), ("modules", found.modules)):
        print_changes(console, title, changes)
    for title, names in (("appeared", found.appeared), ("disappeared", found.disappeared)):
        if names:
            more = f" and {len(names) - MOST_ROWS} more" if len(names) > MOST_ROWS else ""
            line(console, f"{title}: {', '.join(short(name) for name in names[:MOST_ROWS])}{more}", indent=2)


def short(name: str) -> str:
    """Return a name of a kernel that is not too long for a list."""
    return name if len(name) <= MOST_NAME else name[: MOST_NAME - 3] + "..."


def print_changes(console: Console, title: str, changes: Sequence[Change]) -> None:
    """Print the largest changes of one kind."""
    if changes:
        line(console, f"\nBy {title} (count before and after, GPU time)", "bold")
    for change in changes[:MOST_ROWS]:
        print_change(console, change, times=True)


def print_change(console: Console, change: Change, *, times: bool) -> None:
    """Print one change."""
    name = change.name if len(change.name) <= 44 else change.name[:41] + "..."
    ratio = f"{change.ratio:>6.1f}x" if change.ratio else f"{'':>7}"
    spent = f"  {change.before_microseconds / 1e3:,.2f} -> {change.after_microseconds / 1e3:,.2f} ms" if times else ""
    console.print(Text(f"  {name:<44} {change.before:>12,.0f} {change.after:>12,.0f} {ratio}{spent}"), soft_wrap=True)
