"""Which seam of which layer launched which kernels: for the trace of one profiled step of `kerncheck verify`.

A kernel belongs to the range ``kc::layer::seam`` in which its call lies. A call of the backward pass lies in a node of
the autograd engine instead, whose sequence number is that of the forward operator that caused it, and that one lies in
a range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from kerncheck.model.step import Labelled, Profile
from kerncheck.model.trace import Measures
from kerncheck.probes.ranges import LABEL, STEP
from kerncheck.tracing.intervals import Finder, length, union
from kerncheck.tracing.join import Linked, link
from kerncheck.tracing.measure import Window, context, ended, measure
from kerncheck.tracing.names import plain
from kerncheck.tracing.reader import KERNEL
from kerncheck.tracing.table import NONE, Trace

Place = tuple[str, Literal["forward", "backward"]]
"""A label, empty outside of all, and the phase."""


def profile(trace: Trace) -> Profile:
    """Return what the trace of one step shows; its ``reason`` says so where it shows no kernel. Times: microseconds."""
    linked = link(trace)
    device = trace.device
    rows = [row for row, kind in enumerate(trace.kinds) if kind == KERNEL]
    spans = [ended(device, row) for row in rows]
    owners = {linked.call[row] for row in rows} - {NONE}
    return Profile(
        kernels=len(rows),
        launches=len(owners.union(linked.launches)),
        joined=sum(linked.call[row] != NONE for row in rows),
        busy_microseconds=round(length(union(spans)), 3),
        span_microseconds=round(max(end for _, end in spans) - min(spans)[0], 3) if spans else 0.0,
        labelled=tuple(labelled(linked, rows)),
        measures=step_measures(linked) if rows else None,
        reason="" if rows else "the trace holds no GPU kernel event",
    )


def step_measures(linked: Linked) -> Measures | None:
    """Measure the plain step alone, without the ops that ran by themselves after it; None if no range marks it."""
    table, names = linked.trace.ranges, linked.trace.names
    marked = next((row for row, name in enumerate(table.name) if names[name] == STEP), None)
    if marked is None:
        return None
    found = context(linked)
    start, end = ended(table, marked)
    rows = [row for row in found.rows if linked.call[row] != NONE and start <= found.launched[row] < end]
    return measure(found, Window("step", start, end, rows, start, end - start))


def labelled(linked: Linked, rows: list[int]) -> Iterator[Labelled]:
    """Yield the kernels of each label and phase by name, with the microseconds they ran; those without a call nowhere.

    A recomputation in the backward pass (activation checkpointing) runs in ranges of its own: it counts as forward.
    """
    trace = linked.trace
    places = Places(linked)
    counts: dict[Place, Counter[str]] = {}
    times: Counter[Place] = Counter()
    for row in rows:
        if linked.call[row] != NONE:
            place = places.of(linked.call[row])
            counts.setdefault(place, Counter())[plain(trace.names[trace.device.name[row]])] += 1
            times[place] += trace.device.duration[row]  # type: ignore[assignment] # a Counter adds floats as well
    for place, kernels in counts.items():
        layer, seam = parts(place[0])
        spent = round(float(times[place]), 3)
        yield Labelled(layer=layer, seam=seam, phase=place[1], kernels=dict(kernels), microseconds=spent)


class Places:
    """Finds the label and the phase of a call."""

    def __init__(self, linked: Linked) -> None:
        self._linked = linked
        self._labels = Finder()
        table, names = linked.trace.ranges, linked.trace.names
        wanted = {number for number, name in enumerate(names) if name.startswith(LABEL)}
        for row, name in enumerate(table.name):
            if name in wanted:
                self._labels.add(table.place[row], *ended(table, row), row)
        self._labels.sort()
        self._causes = self._labels_by_sequence_number()

    def _labels_by_sequence_number(self) -> dict[int, str]:
        """Return for each sequence number the label around an operator that has it."""
        operators = self._linked.trace.operators
        found: dict[int, str] = {}
        for row, number in enumerate(operators.number):
            if number >= 0 and number not in found:
                label = self._around(operators.place[row], operators.start[row])
                if label:
                    found[number] = label
        return found

    def _around(self, place: int, time: float) -> str:
        trace, row = self._linked.trace, self._labels.around(place, time)
        return trace.names[trace.ranges.name[row]] if row != NONE else ""

    def of(self, call: int) -> Place:
        """Return the label and the phase of a call."""
        linked = self._linked
        calls, operators = linked.trace.calls, linked.trace.operators
        label = self._around(calls.place[call], calls.start[call])
        node = linked.node.get(call, NONE)
        if label or node == NONE:
            return label, "forward"
        return self._causes.get(operators.number[node], ""), "backward"


def parts(label: str) -> tuple[int, str]:
    """Return the layer and the seam of a label; -1 and nothing outside of all, or for the label of a module."""
    layer, _, seam = label.removeprefix(LABEL).partition("::")
    return (int(layer), seam) if layer.removeprefix("-").isdecimal() else (-1, "")
