"""Analyse one trace: join, cut into steps, measure, and sum by operator and kernel."""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Literal

from kerncheck.model.trace import KernelUse, Measures, OperatorUse, Phase, StepReport
from kerncheck.tracing.chains import offenders
from kerncheck.tracing.join import Linked, link, phase
from kerncheck.tracing.measure import Context, Window, context, measure
from kerncheck.tracing.names import known, plain
from kerncheck.tracing.reader import KERNEL
from kerncheck.tracing.table import NONE, Trace

MOST_NAMES = 5000
"""Names of operators or kernels that a report lists; the traces of real models have some hundred."""
MOST_STEPS = 200
EVER = float("inf")


def analyse(trace: Trace) -> StepReport:
    """Measure a trace. Times are microseconds.

    Raises:
        MatrixError: matrices/traces.toml is absent or breaks a rule.

    """
    linked = link(trace)
    found = context(linked)
    windows = steps(found)
    measured = tuple(measure(found, window) for window in windows)
    total = measure(found, whole(found, windows))
    count, by = iterations(linked, windows)
    operators, kernels = operator_uses(linked), kernel_uses(found)
    return StepReport(
        file=trace.path,
        events=trace.events,
        rank=trace.head.distributed.rank if trace.head.distributed else None,
        world_size=trace.head.distributed.world_size if trace.head.distributed else None,
        processes=trace.processes,
        gpus=gpus(trace),
        iterations=count,
        iterations_by=by,
        span_of_steps=span_of_steps(linked, windows, total),
        joins=linked.joins(),
        total=total,
        steps=measured,
        operators=tuple(operators[:MOST_NAMES]),
        kernels=tuple(kernels[:MOST_NAMES]),
        offenders=offenders(linked, found.rows, found.families),
        signatures=signatures(linked),
        backward=bool(linked.nodes),
        oddities=dict(trace.oddities),
        left_out_names=max(0, len(operators) - MOST_NAMES) + max(0, len(kernels) - MOST_NAMES),
    )


def whole(found: Context, windows: list[Window]) -> Window:
    """Return the window of everything: the device waits from the first step's start on, if there are steps."""
    return Window("total", -EVER, EVER, found.rows, windows[0].start if windows else EVER)


def steps(found: Context) -> list[Window]:
    """Return the profiler's steps with the device work launched in each; work without a call goes by its own start."""
    linked = found.linked
    trace = linked.trace
    table = trace.ranges
    marked = linked.named(table, linked.ranges, "step")[:MOST_STEPS]
    if not marked:
        return []
    starts = [table.start[row] for row in marked]
    ends = [start + table.duration[row] for start, row in zip(starts, marked, strict=True)]
    rows: list[list[int]] = [[] for _ in marked]
    for row in found.rows:
        call = linked.call[row]
        time = trace.calls.start[call] if call != NONE else trace.device.start[row]
        at = bisect.bisect_right(starts, time) - 1
        if at >= 0 and time < ends[at]:
            rows[at].append(row)
    windows = []
    reach = -EVER
    device = trace.device
    for row, start, end, inside in zip(marked, starts, ends, rows, strict=True):
        name = trace.names[table.name[row]]
        windows.append(Window(name, start, end, inside, max(start, reach), end - start))
        reach = max([reach, *(device.start[other] + device.duration[other] for other in inside)])
    return windows


def iterations(linked: Linked, windows: list[Window]) -> tuple[int, Literal["ProfilerStep", "Optimizer.step", ""]]:
    """Return how many steps the trace holds, and by what that is known."""
    if windows:
        return len(windows), "ProfilerStep"
    trace = linked.trace
    optimizer = Counter(
        trace.names[table.name[row]]
        for table in (trace.ranges, trace.operators)
        for row in linked.named(table, linked.ranges, "optimizer")
    )
    return (max(optimizer.values()), "Optimizer.step") if optimizer else (0, "")


def span_of_steps(linked: Linked, windows: list[Window], total: Measures) -> float:
    """Return the time from the first step's start to the end of the last work that a step launched."""
    if not windows:
        return total.span_microseconds
    device = linked.trace.device
    last = max((device.start[row] + device.duration[row] for window in windows for row in window.rows), default=None)
    return last - windows[0].start if last is not None else 0.0


def gpus(trace: Trace) -> tuple[str, ...]:
    """Name the devices that worked."""
    listed = trace.head.devices
    names = []
    for device in sorted({lane[0] for lane in trace.lanes}, key=str):
        known_name = listed[device].name if isinstance(device, int) and 0 <= device < len(listed) else ""
        names.append(f"GPU {device}" + (f": {known_name}" if known_name else ""))
    return tuple(names)


def operator_uses(linked: Linked) -> list[OperatorUse]:
    """Sum by operator: its calls, and what it launched itself."""
    trace = linked.trace
    table = trace.operators
    calls, (cpu, launch, gpu) = Counter(table.name), ([0.0] * len(trace.names) for _ in range(3))
    for name, duration in zip(table.name, table.duration, strict=True):
        cpu[name] += duration
    launches, works = [0] * len(trace.names), [0] * len(trace.names)
    for call, row in linked.operator.items():
        name = table.name[row]
        launches[name] += 1
        launch[name] += trace.calls.duration[call]
    owners = map(linked.operator.get, linked.call)
    for operator, duration in zip(owners, trace.device.duration, strict=True):
        if operator is not None:
            name = table.name[operator]
            works[name] += 1
            gpu[name] += duration
    uses = [
        OperatorUse(
            name=trace.names[name],
            calls=count,
            cpu_microseconds=cpu[name],
            launches=launches[name],
            launch_microseconds=launch[name],
            gpu_operations=works[name],
            gpu_microseconds=gpu[name],
        )
        for name, count in calls.items()
    ]
    return sorted(uses, key=lambda use: (-use.gpu_microseconds, -use.calls, use.name))


def kernel_uses(found: Context) -> list[KernelUse]:
    """Sum by kernel and phase, on all devices."""
    linked = found.linked
    trace = linked.trace
    rows = [row for row, kind in enumerate(trace.kinds) if kind == KERNEL]
    keys = [(trace.device.name[row], found.families[row], phase(linked, linked.call[row])) for row in rows]
    count: Counter[tuple[int, str, Phase]] = Counter(keys)
    time = dict.fromkeys(count, 0.0)
    for key, row in zip(keys, rows, strict=True):
        time[key] += trace.device.duration[row]
    merged: dict[tuple[str, str, Phase], tuple[int, float]] = {}
    for key, number in count.items():
        short = (plain(trace.names[key[0]]), key[1], key[2])
        before = merged.get(short, (0, 0.0))
        merged[short] = (before[0] + number, before[1] + time[key])
    uses = [
        KernelUse(name=name, family=family, phase=when, count=number, microseconds=spent)
        for (name, family, when), (number, spent) in merged.items()
    ]
    return sorted(uses, key=lambda use: (-use.microseconds, use.name, use.phase))


def signatures(linked: Linked) -> dict[str, int]:
    """Count forward calls of the operators by which eager references show themselves."""
    trace = linked.trace
    wanted = {name for row in known().eager for name in row.operators}
    numbers = {number for number, name in enumerate(trace.names) if name in wanted}
    table = trace.operators
    found: Counter[str] = Counter()
    if not numbers & linked.used(table):
        return {}
    for row, name in enumerate(table.name):
        if name in numbers and linked.engine.around(table.place[row], table.start[row]) == NONE:
            found[trace.names[name]] += 1
    return dict(found)
