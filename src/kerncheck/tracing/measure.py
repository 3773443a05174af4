"""Measure one window of a trace: a step, or all of it. The formulas stand in docs/traces.md under the same names."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerncheck.model.trace import Idle, Measures, Share, Spread
from kerncheck.tracing.intervals import Covered, Interval, Intervals, length, merged, minus, union
from kerncheck.tracing.join import Linked, outermost
from kerncheck.tracing.names import family
from kerncheck.tracing.reader import COPY, KERNEL
from kerncheck.tracing.table import NONE, Table

KERNEL_WAIT = 2.0
"""Microseconds. A shorter gap between kernels whose launches were there in time is the device's own."""
WAITS = 10.0
"""Microseconds. A synchronisation that lasts longer waited for something; one with nothing to wait for takes fewer."""


@dataclass
class Context:
    """What all windows of one trace share: the intervals of the host's activities, and what each kernel is.

    By row of device work: its ``start`` and ``end``, and when its call began (``launched``) and returned (``ready``).
    """

    linked: Linked
    device: int | str = ""
    rows: list[int] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    operator_times: list[float] = field(default_factory=list)
    call_times: list[float] = field(default_factory=list)
    enqueue: Covered = field(default_factory=Covered)
    data: Covered = field(default_factory=Covered)
    compiling: Covered = field(default_factory=Covered)
    optimizer: Covered = field(default_factory=Covered)
    loads: list[float] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    blocking: list[tuple[float, float]] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    launched: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    in_optimizer: set[int] = field(default_factory=set)
    pageable: set[int] = field(default_factory=set)


def context(linked: Linked) -> Context:
    """Prepare what the windows share."""
    trace = linked.trace
    found = Context(linked)
    found.device, found.rows = busiest(linked)
    found.families = row_families(linked)
    found.operator_times = sorted(trace.operators.start)
    found.call_times = sorted(trace.calls.start)
    found.data, found.optimizer = spans_of(linked, "data"), spans_of(linked, "optimizer")
    found.compiling = spans_of(linked, "compile")
    calls = trace.calls
    found.loads = [calls.start[row] for row in linked.named(calls, linked.calls, "load")]
    found.waits = [ended(calls, row) for row in linked.named(calls, linked.calls, "synchronise")]
    found.blocking = [(start, end) for start, end in found.waits if end - start >= WAITS]
    found.enqueue = Covered(enqueueing(linked))
    by_row(found)
    return found


def by_row(found: Context) -> None:
    """Lay out what is asked of each piece of device work; the times of a call that is absent are never read."""
    linked = found.linked
    trace, device = linked.trace, linked.trace.device
    found.start = device.start.tolist()
    found.end = [start + duration for start, duration in zip(found.start, device.duration, strict=True)]
    begun = trace.calls.start.tolist() or [0.0]
    done = [start + duration for start, duration in zip(begun, trace.calls.duration, strict=False)] or [0.0]
    found.launched = [begun[call] for call in linked.call]
    found.ready = [done[call] for call in linked.call]
    if found.optimizer:
        found.in_optimizer = {
            row
            for row, (call, time) in enumerate(zip(linked.call, found.launched, strict=True))
            if call != NONE and found.optimizer.covers(time)
        }
    found.pageable = {number for number, name in enumerate(trace.names) if "Pageable" in name}


def ended(table: Table, row: int) -> tuple[float, float]:
    """Return start and end of a row."""
    start = table.start[row]
    return start, start + table.duration[row]


def busiest(linked: Linked) -> tuple[int | str, list[int]]:
    """Return the device with the most time of work, and the rows of its work in order of their start."""
    device, lanes = linked.trace.device, linked.trace.lanes
    if len({lane[0] for lane in lanes}) <= 1:
        return (lanes[0][0] if lanes else ""), list(range(len(device)))
    by_lane: Counter[int] = Counter()
    for place, duration in zip(device.place, device.duration, strict=True):
        by_lane[place] += duration  # type: ignore[assignment]
    by_device: Counter[int | str] = Counter()
    for place, total in by_lane.items():
        by_device[lanes[place][0]] += total
    chosen = max(by_device, key=by_device.__getitem__)
    wanted = {place for place, lane in enumerate(lanes) if lane[0] == chosen}
    return chosen, [row for row, place in enumerate(device.place) if place in wanted]


def row_families(linked: Linked) -> list[str]:
    """Return the family of each piece of device work; a kernel's by its name and by how it was launched."""
    trace = linked.trace
    driver = {number for number, name in enumerate(trace.names) if name.startswith(("cu", "hipModule", "hipExt"))}
    driver -= {number for number in driver if trace.names[number].startswith("cuda")}
    known: dict[tuple[int, bool], str] = {}
    found = []
    for kind, name, call in zip(trace.kinds, trace.device.name, linked.call, strict=True):
        if kind != KERNEL:
            found.append("copy and cast" if kind == COPY else "set")
            continue
        by_driver = call != NONE and trace.calls.name[call] in driver
        answer = known.get((name, by_driver))
        if answer is None:
            answer = family(trace.names[name], linked.families, by_driver=by_driver)
            known[name, by_driver] = answer
        found.append(answer)
    return found


def spans_of(linked: Linked, kind: str) -> Covered:
    """Return the time in which ranges of a kind ran, on any thread; they may be annotations or operators."""
    trace = linked.trace
    spans = []
    for table in (trace.ranges, trace.operators):
        spans += [ended(table, row) for row in linked.named(table, linked.ranges, kind)]
    return Covered(union(spans))


def enqueueing(linked: Linked) -> Intervals:
    """Return when the threads that launch were inside of an operator or a call, without their synchronisations."""
    trace = linked.trace
    threads = linked.outer.keys()
    called = outermost(trace.calls, {*threads})
    spans = {thread: linked.outer[thread] + called[thread] for thread in threads}
    waits: dict[int, list[tuple[float, float]]] = {thread: [] for thread in threads}
    for row in linked.named(trace.calls, linked.calls, "synchronise"):
        if trace.calls.place[row] in waits:
            waits[trace.calls.place[row]].append(ended(trace.calls, row))
    parts = [minus(union(spans[thread]), union(waits[thread])) for thread in threads]
    return parts[0] if len(parts) == 1 else union(span for part in parts for span in part)


def spread(values: Sequence[float]) -> Spread:
    """Return percentiles: the value at position int(p * n) of the sorted values."""
    if not values:
        return Spread()
    ordered = sorted(values)
    p10, p50, p90 = (ordered[min(len(ordered) - 1, int(p * len(ordered)))] for p in (0.1, 0.5, 0.9))
    return Spread(count=len(ordered), p10=p10, p50=p50, p90=p90, largest=ordered[-1])


@dataclass
class Window:
    """A stretch of the host's time, and the device work that was launched in it.

    ``idle_from`` is when the device had nothing left to do of what came before: from there on it waits for this window.
    """

    name: str
    start: float
    end: float
    rows: list[int]
    idle_from: float = float("inf")
    step_microseconds: float = 0.0


def measure(found: Context, window: Window) -> Measures:
    """Measure one window."""
    linked = found.linked
    rows = window.rows
    busy, gaps = busy_and_gaps(found, window)
    joined = [row for row in rows if linked.call[row] != NONE]
    values: dict[str, Any] = {
        **counts(found, window, joined),
        **host_times(found, window, joined),
        **queueing(found, joined),
        **families(found, rows, busy),
        **copies(found, rows),
    }
    return Measures(
        name=window.name,
        busy_microseconds=length(busy),
        span_microseconds=busy[-1][1] - min(busy[0][0], window.idle_from) if busy else 0.0,
        step_microseconds=window.step_microseconds,
        idle=idle(found, gaps),
        **values,
    )


def busy_and_gaps(found: Context, window: Window) -> tuple[Intervals, list[tuple[float, float, int]]]:
    """Return when at least one stream worked, and the gaps between as (start, end, row of the work that ended it).

    The time between the start of the window and the first work is a gap too: so the wait for data before a step counts.
    """
    starts, ends = found.start, found.end
    busy: Intervals = []
    gaps: list[tuple[float, float, int]] = []
    begin = reach = None
    for row in window.rows:
        start = starts[row]
        end = ends[row]
        if reach is None or begin is None:
            begin, reach = start, end
            if window.idle_from < start:
                gaps.append((window.idle_from, start, row))
        elif start > reach:
            busy.append((begin, reach))
            gaps.append((reach, start, row))
            begin, reach = start, end
        elif end > reach:
            reach = end
    if reach is not None and begin is not None:
        busy.append((begin, reach))
    return busy, gaps


def idle(found: Context, gaps: Iterable[tuple[float, float, int]]) -> Idle:
    """Split the gaps by what the device waited for: the host, if the launch was not done when the device fell idle.

    HolisticTraceAnalysis asks whether the launch had not begun; but with small kernels the launch itself is the wait.
    A graph's launch returns while its kernels run, so there the begin counts.
    """
    linked = found.linked
    graphs = set(linked.graphs)
    launched, ready = found.launched, found.ready
    parts = [0.0, 0.0, 0.0, 0.0]
    host = kernel = other = 0.0
    for start, end, row in gaps:
        call, gap = linked.call[row], end - start
        if call == NONE:
            other += gap
        elif (launched[row] if call in graphs else ready[row]) > start:
            host += gap
            for at, part in enumerate(causes(found, start, end, launched[row])):
                parts[at] += part
        elif gap < KERNEL_WAIT:
            kernel += gap
        else:
            other += gap
    compiling, data, synchronising, enqueue = parts
    return Idle(
        host=host,
        kernel=kernel,
        other=other,
        compiling=compiling,
        data=data,
        synchronising=synchronising,
        enqueue=enqueue,
    )


def causes(found: Context, start: float, end: float, launched: float) -> tuple[float, float, float, float]:
    """Split one gap that waited for the host by what the host did: compile, wait for data, catch up, or enqueue."""
    gap = end - start
    if found.loads:
        load = bisect.bisect_left(found.loads, start)
        if load < len(found.loads) and found.loads[load] <= launched:
            return gap, 0.0, 0.0, 0.0
    compiling = min(gap, found.compiling.overlap(start, end)) if found.compiling.starts else 0.0
    data = min(gap - compiling, found.data.overlap(start, end)) if found.data.starts else 0.0
    rest = gap - compiling - data
    return (compiling, data, rest, 0.0) if waited(found, start) else (compiling, data, 0.0, rest)


def waited(found: Context, time: float) -> bool:
    """Tell whether the host stood in a synchronisation when the device fell idle."""
    at = bisect.bisect_right(found.blocking, (time, float("inf")))
    return any(found.blocking[before][1] >= time for before in range(max(0, at - 4), at))


def counts(found: Context, window: Window, joined: Sequence[int]) -> dict[str, Any]:
    """Count calls, operations and launches."""
    linked = found.linked
    kinds = linked.trace.kinds
    owners = {linked.call[row] for row in joined}
    graphs = set(linked.graphs) & owners if linked.graphs else set()
    operators = between(found.operator_times, window.start, window.end)
    return {
        "cpu_calls": operators + between(found.call_times, window.start, window.end),
        "operators": operators,
        "gpu_operations": len(window.rows),
        "kernels": sum(kinds[row] == KERNEL for row in window.rows),
        "launches": len(owners),
        "graph_launches": len(graphs),
        "graph_kernels": sum(linked.call[row] in graphs for row in joined) if graphs else 0,
    }


def between(times: Sequence[float], start: float, end: float) -> int:
    """Count sorted times in a window, its end excluded."""
    return bisect.bisect_left(times, end) - bisect.bisect_left(times, start)


def host_times(found: Context, window: Window, joined: Sequence[int]) -> dict[str, Any]:
    """Measure what the host did in a window."""
    start, end = window.start, window.end
    first = min(map(found.launched.__getitem__, joined), default=0.0)
    last = max(map(found.ready.__getitem__, joined), default=0.0)
    waits = found.waits[bisect.bisect_left(found.waits, (start,)) : bisect.bisect_left(found.waits, (end,))]
    return {
        "enqueue_microseconds": found.enqueue.overlap(start, end),
        "enqueue_span_microseconds": last - first,
        "synchronisations": len(waits),
        "blocking_synchronisations": sum(stop - begin >= WAITS for begin, stop in waits),
        "synchronising_microseconds": length(union(waits)),
        "data_microseconds": found.data.overlap(start, end),
        "compilations": between(found.compiling.starts, start, end),
        "compiling_microseconds": found.compiling.overlap(start, end),
        "module_loads": between(found.loads, start, end),
        "optimizer_microseconds": found.optimizer.overlap(start, end),
    }


def queueing(found: Context, joined: Sequence[int]) -> dict[str, Any]:
    """Measure how far the host is ahead: lead of each launch, and the length of the busiest stream's queue."""
    if not joined:
        return {}
    place, start = found.linked.trace.device.place, found.start
    leads = [start[row] - found.ready[row] for row in joined]
    lanes = Counter(place[row] for row in joined)
    lane = max(lanes, key=lambda one: (lanes[one], -one))
    rows = [row for row in joined if place[row] == lane]
    begun = sorted(start[row] for row in rows)
    launches = sorted(found.launched[row] for row in rows)
    # what was launched up to this launch, less what had begun by then
    lengths = [at - bisect.bisect_right(begun, time) for at, time in enumerate(launches, 1)]
    return {"lead": spread(leads), "early": sum(lead < 0 for lead in leads), "queue": spread(lengths)}


def families(found: Context, rows: Sequence[int], busy: Intervals) -> dict[str, Any]:
    """Sum device work by family; measure communication and how much of it nothing else hides."""
    durations = found.linked.trace.device.duration
    names = [found.families[row] for row in rows]
    count = Counter(names)
    time = dict.fromkeys(count, 0.0)
    for name, row in zip(names, rows, strict=True):
        time[name] += durations[row]
    shares = [Share(name=name, count=count[name], microseconds=total) for name, total in time.items()]
    kernels = sum(total for name, total in time.items() if name != "set")
    fused = time.get("fused", 0.0) + time.get("attention", 0.0)
    told: dict[str, Any] = {
        "families": tuple(sorted(shares, key=lambda share: -share.microseconds)),
        "fused_share": fused / kernels if kernels > 0 else 0.0,
        "optimizer_gpu_microseconds": sum(durations[row] for row in rows if row in found.in_optimizer),
    }
    return {**told, **communication(found, rows, busy)} if "communication" in time else told


def communication(found: Context, rows: Sequence[int], busy: Intervals) -> dict[str, Any]:
    """Measure the time of communication kernels, and the part of it in which no other work ran.

    ``rows`` are in order of their start.
    """
    parts: tuple[list[Interval], list[Interval]] = ([], [])
    for row in rows:
        parts[found.families[row] == "communication"].append((found.start[row], found.end[row]))
    return {
        "communication_microseconds": length(merged(parts[1])),
        "exposed_communication_microseconds": length(busy) - length(merged(parts[0])),
    }


def copies(found: Context, rows: Sequence[int]) -> dict[str, Any]:
    """Measure copies, and those of them from or to memory that the host may page out."""
    trace = found.linked.trace
    device = trace.device
    moved = [row for row in rows if trace.kinds[row] == COPY]
    paged = [row for row in moved if device.name[row] in found.pageable]
    return {
        "copies": len(moved),
        "copied_bytes": sum(device.size[row] for row in moved),
        "copy_microseconds": sum(device.duration[row] for row in moved),
        "pageable_copies": len(paged),
        "pageable_bytes": sum(device.size[row] for row in paged),
    }
