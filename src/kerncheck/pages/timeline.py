"""Lanes of one step of a trace: what the CPU threads did, above what the GPU's streams did. Times: milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kerncheck.pages.charts import Chart, Lane, histogram, timeline
from kerncheck.tracing.analysis import steps
from kerncheck.tracing.join import Linked, link
from kerncheck.tracing.measure import Context, context
from kerncheck.tracing.table import NONE, Table, Trace

PIXELS = 1400
"""Bars that would lie on one of so many columns are drawn as one: nobody could see more, and a page must stay small."""
MOST_LANES = 8
KINDS = (
    "operators",
    "launches and other calls",
    "fused and other kernels",
    "gemm and attention",
    "elementwise and copies",
)
OPERATOR, CALL, KERNEL, HEAVY, LIGHT = range(len(KINDS))
SERIES_OF = {
    "gemm": HEAVY,
    "attention": HEAVY,
    "elementwise": LIGHT,
    "copy and cast": LIGHT,
    "reduce": LIGHT,
    "index": LIGHT,
    "set": LIGHT,
}


def drawn(trace: Trace) -> list[Chart]:
    """Return the charts that only the events themselves can give."""
    linked = link(trace)
    found = context(linked)
    if not found.rows:
        return []
    return [step_chart(found), lead_chart(linked, found)]


def step_chart(found: Context) -> Chart:
    """Draw one step: the middle one, or the whole trace where it names none."""
    start, end, name = bounds(found)
    lanes = [*cpu_lanes(found.linked.trace, start, end), *gpu_lanes(found, start, end)]
    caption = (
        f"{name}: {(end - start) / 1000:,.1f} ms. CPU threads above, GPU streams below; gaps in a stream are idle time."
    )
    return timeline("timeline", "Timeline of one step", caption, lanes, KINDS)


def bounds(found: Context) -> tuple[float, float, str]:
    """Return start and end of the step to draw, with the work that it launched, and its name."""
    windows = steps(found)
    device = found.linked.trace.device
    if windows:
        window = windows[len(windows) // 2]
        ends = [device.start[row] + device.duration[row] for row in window.rows]
        return window.start, max([window.end, *ends]), window.name
    starts = [device.start[row] for row in found.rows]
    ends = [device.start[row] + device.duration[row] for row in found.rows]
    return min([*starts, *found.operator_times[:1], *found.call_times[:1]]), max(ends), "the whole trace"


def cpu_lanes(trace: Trace, start: float, end: float) -> list[Lane]:
    """Return a lane for each thread, the busiest first: operators, and calls over them."""
    spans: dict[int, list[tuple[float, float, int]]] = {}
    for table, kind in ((trace.operators, OPERATOR), (trace.calls, CALL)):
        for row in inside(table, start, end):
            spans.setdefault(table.place[row], []).append((table.start[row], table.duration[row], kind))
    busiest = sorted(spans, key=lambda place: -len(spans[place]))[:MOST_LANES]
    return [Lane(f"CPU thread {at + 1}", merged(spans[place], start, end)) for at, place in enumerate(busiest)]


def gpu_lanes(found: Context, start: float, end: float) -> list[Lane]:
    """Return a lane for each stream of the device."""
    device, lanes = found.linked.trace.device, found.linked.trace.lanes
    spans: dict[int, list[tuple[float, float, int]]] = {}
    rows = set(found.rows)
    for row in inside(device, start, end):
        if row in rows:
            kind = SERIES_OF.get(found.families[row], KERNEL)
            spans.setdefault(device.place[row], []).append((device.start[row], device.duration[row], kind))
    busiest = sorted(spans, key=lambda place: -len(spans[place]))[:MOST_LANES]
    return [
        Lane(f"GPU {lanes[place][0]} stream {lanes[place][1]}", merged(spans[place], start, end)) for place in busiest
    ]


def inside(table: Table, start: float, end: float) -> Iterable[int]:
    """Yield the rows that overlap a span of time."""
    for row, begin in enumerate(table.start):
        if begin < end and begin + table.duration[row] > start:
            yield row


def merged(spans: Sequence[tuple[float, float, int]], start: float, end: float) -> tuple[tuple[float, float, int], ...]:
    """Return bars as one for each run of columns with the same kind; the kind that is drawn last wins a column."""
    width = (end - start) / PIXELS or 1.0
    columns: dict[int, int] = {}
    for begin, length, kind in sorted(spans, key=lambda span: span[2]):
        first, last = int((max(begin, start) - start) / width), int((min(begin + length, end) - start) / width)
        columns |= dict.fromkeys(range(first, min(last, PIXELS - 1) + 1), kind)
    return tuple(runs(columns, width / 1000))


def runs(columns: dict[int, int], width: float) -> Iterable[tuple[float, float, int]]:
    """Yield (start, length, kind) for columns that follow each other with one kind."""
    first = before = None
    for column in sorted(columns):
        if before is None or first is None or column != before + 1 or columns[column] != columns[before]:
            if first is not None and before is not None:
                yield first * width, (before - first + 1) * width, columns[before]
            first = column
        before = column
    if first is not None and before is not None:
        yield first * width, (before - first + 1) * width, columns[before]


def lead_chart(linked: Linked, found: Context) -> Chart:
    """Draw how long before its start each piece of work was launched."""
    trace = linked.trace
    leads = [
        trace.device.start[row] - trace.calls.start[linked.call[row]] for row in found.rows if linked.call[row] != NONE
    ]
    leads = [max(0.0, lead) for lead in leads]
    near = sum(lead < 20 for lead in leads)  # methods.md 4.2: a queue that is nearly empty
    caption = (
        f"{len(leads):,} launches; {100 * near / len(leads):.0f} % start within 20 microseconds of their call. "
        "A short lead means that the GPU waits for the CPU."
        if leads
        else "No work could be joined to its launch."
    )
    return histogram("lead", "Launch lead", caption, leads or [1.0], "microseconds from launch to start of the work")
