"""Join what belongs together: work on a device to its call, a call to its operator, backward work to its forward.

Work joins its call by ``correlation``. A call joins its operator by ``External id``, which counts something else
(pytorch/pytorch#124388). A backward node names the forward operator's sequence number.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from kerncheck.model.trace import Joins, Phase
from kerncheck.tracing.intervals import Covered, Finder, Interval, union
from kerncheck.tracing.names import Rules, known
from kerncheck.tracing.table import NONE, Table, Trace

NEAR = 256
"""Operators that may have ended between the begin of an operator and a call that it makes itself; seldom over ten."""
UNDECIDED = -2


@dataclass
class Linked:
    """A trace with its joins. ``call`` holds for each row of device work the row of its call, or -1.

    The mappings are by the row of a call that owns device work. ``launches`` are the calls that launch kernels by
    name, ``lost`` those of them without any work. ``kinds`` and ``ranges`` name what calls and ranges are.
    """

    trace: Trace
    calls: Rules
    ranges: Rules
    families: Rules
    call: list[int] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    operator: dict[int, int] = field(default_factory=dict)
    node: dict[int, int] = field(default_factory=dict)
    forward: dict[int, int] = field(default_factory=dict)
    engine: Finder = field(default_factory=Finder)
    outer: dict[int, list[Interval]] = field(default_factory=dict)
    seen: dict[int, set[int]] = field(default_factory=dict)
    ambiguous: int = 0
    nodes: int = 0

    def named(self, table: Table, rules: Rules, kind: str) -> list[int]:
        """Return the rows of a table whose name is of a kind, in order of their start."""
        wanted = rules.numbers(self.trace.names, kind) & self.used(table)
        if not wanted:
            return []
        rows = [row for row, name in enumerate(table.name) if name in wanted]
        return sorted(rows, key=table.start.__getitem__)

    def used(self, table: Table) -> set[int]:
        """Return the names that a table holds; looked up once."""
        if id(table) not in self.seen:
            self.seen[id(table)] = set(table.name)
        return self.seen[id(table)]

    def joins(self) -> Joins:
        """Return the counts."""
        joined = len(self.call) - self.call.count(NONE)
        owners = set(self.call) - {NONE}
        return Joins(
            gpu_operations=len(self.call),
            joined=joined,
            orphans=len(self.call) - joined,
            ambiguous=self.ambiguous,
            launches=len(self.launches),
            lost=len(self.lost),
            attributed=sum(row in self.operator for row in owners),
            backward_nodes=self.nodes,
            linked=len(self.forward),
        )


def link(trace: Trace) -> Linked:
    """Join everything in a trace."""
    data = known()
    linked = Linked(trace, Rules(data.call), Rules(data.range), Rules(data.family))
    join_calls(linked)
    join_operators(linked)
    join_backward(linked)
    return linked


def join_calls(linked: Linked) -> None:
    """Find the call of each piece of device work, and the launches that have none."""
    calls, device = linked.trace.calls, linked.trace.device
    owner = dict(zip(calls.number, range(len(calls)), strict=True))
    owner.pop(NONE, None)
    twice = len(owner) < len(calls) - calls.number.count(NONE)
    pairs = disputed(linked.trace, owner) if twice else {}
    linked.call = [owner.get(number, NONE) for number in device.number]
    if pairs:
        settle(linked, pairs)
    graphs = linked.calls.numbers(linked.trace.names, "graph")
    launches = graphs | linked.calls.numbers(linked.trace.names, "launch")
    linked.launches = [row for row, name in enumerate(calls.name) if name in launches]
    linked.graphs = [row for row in linked.launches if calls.name[row] in graphs]
    owners = set(linked.call)
    linked.lost = [row for row in linked.launches if row not in owners]


def disputed(trace: Trace, owner: dict[int, int]) -> dict[int, dict[int, int]]:
    """Return, for each correlation that several calls have (merged ranks), the calls by their External id.

    A call that shares both ids with another is no call of anybody: -1.
    """
    calls = trace.calls
    shared = {number for row, number in enumerate(calls.number) if number != NONE and owner[number] != row}
    pairs: dict[int, dict[int, int]] = {number: {} for number in shared}
    for row, number in enumerate(calls.number):
        if number in shared:
            external = calls.external[row]
            pairs[number][external] = NONE if external in pairs[number] or external == NONE else row
    return pairs


def settle(linked: Linked, pairs: dict[int, dict[int, int]]) -> None:
    """Give work with a disputed correlation to the call that has its External id too, else to none."""
    device = linked.trace.device
    for row, number in enumerate(device.number):
        if number in pairs:
            linked.call[row] = pairs[number].get(device.external[row], NONE)
            linked.ambiguous += linked.call[row] == NONE


def join_operators(linked: Linked) -> None:
    """Find the operator of each call that owns device work: by External id, else the innermost around it in time."""
    trace = linked.trace
    operators, calls = trace.operators, trace.calls
    owners = set(linked.call) - {NONE}
    wanted = {calls.external[row] for row in owners} - {NONE}
    by_id = {number: row for row, number in enumerate(operators.external) if number in wanted}
    linked.outer = outermost(operators, {calls.place[row] for row in owners} or {*operators.place})
    missing = []
    for row in owners:
        found = by_id.get(calls.external[row], NONE)
        if found != NONE and inside(calls, row, operators, found):
            linked.operator[row] = found
        else:
            missing.append(row)
    if missing:
        by_time(linked, missing)


def outermost(table: Table, threads: set[int]) -> dict[int, list[Interval]]:
    """Return the intervals of each thread, without most of those that lie inside of the one before."""
    spans: dict[int, list[Interval]] = {thread: [] for thread in threads}
    last = dict.fromkeys(threads, (0.0, 0.0))
    here, begin, reach = NONE, 0.0, float("inf")  # of the thread of the row before: most rows stay on it
    for place, start, duration in columns(table):
        if place != here:
            here = place
            begin, reach = last.get(place, (-float("inf"), float("inf")))
        end = start + duration
        if end > reach or start < begin:
            begin, reach = last[here] = start, end
            spans[here].append((start, end))
    return spans


def inside(calls: Table, call: int, operators: Table, operator: int) -> bool:
    """Tell whether a call begins while an operator runs, on its thread: in some traces ids of both do not meet."""
    early = calls.start[call] - operators.start[operator]
    return 0 <= early <= operators.duration[operator] and calls.place[call] == operators.place[operator]


def by_time(linked: Linked, missing: list[int]) -> None:
    """Find operators by time for calls whose External id names none: the innermost that runs when the call begins.

    In old traces that is every call: there the ids of calls and of operators are different numbers.
    """
    operators, calls = linked.trace.operators, linked.trace.calls
    threads = {calls.place[row] for row in missing}
    rows = in_order(operators, threads)
    starts = {thread: [operators.start[row] for row in ordered] for thread, ordered in rows.items()}
    merged = {thread: Covered(union(linked.outer[thread])) for thread in threads}
    undecided = []
    for row in missing:
        place, time = calls.place[row], calls.start[row]
        begun, ordered = starts[place], rows[place]
        at = bisect.bisect_right(begun, time) - 1
        if at > 0 and begun[at] != begun[at - 1] and begun[at] + operators.duration[ordered[at]] >= time:
            linked.operator[row] = ordered[at]  # mostly the operator that began last, alone at its time
            continue
        found = innermost(operators, ordered, at, time)
        if found >= 0:
            linked.operator[row] = found
        elif found == UNDECIDED and merged[place].covers(time):
            undecided.append(row)
    if undecided:
        search(linked, undecided, rows)


def in_order(operators: Table, threads: set[int]) -> dict[int, list[int]]:
    """Return the operators of some threads by their start."""
    rows: dict[int, list[int]] = {thread: [] for thread in threads}
    for row, place in enumerate(operators.place):
        if place in rows:
            rows[place].append(row)
    return {thread: sorted(found, key=operators.start.__getitem__) for thread, found in rows.items()}


def innermost(operators: Table, rows: list[int], at: int, time: float) -> int:
    """Walk back from the operator that began last before a time to one that still runs then.

    Operators nest, so the first found is the innermost; of those that begin together it is the shortest.
    """
    start, duration = operators.start, operators.duration
    found = NONE
    for position in range(at, max(-1, at - NEAR), -1):
        row = rows[position]
        if found != NONE and start[row] != start[found]:
            return found
        if start[row] + duration[row] >= time and (found == NONE or duration[row] < duration[found]):
            found = row
    return found if found != NONE or at < NEAR else UNDECIDED


def search(linked: Linked, undecided: list[int], rows: dict[int, list[int]]) -> None:
    """Find the operators of calls whose enclosing one began long before, by all intervals of their threads."""
    operators, calls = linked.trace.operators, linked.trace.calls
    finder = Finder()
    for place in {calls.place[row] for row in undecided}:
        for row in rows[place]:
            finder.add(place, operators.start[row], operators.start[row] + operators.duration[row], row)
    finder.sort()
    for row in undecided:
        found = finder.around(calls.place[row], calls.start[row])
        if found != NONE:
            linked.operator[row] = found


def columns(table: Table) -> Iterator[tuple[int, float, float]]:
    """Yield place, start and duration of each row."""
    return zip(table.place, table.start, table.duration, strict=True)


def join_backward(linked: Linked) -> None:
    """Find the backward node around each call, and the forward operator of each node."""
    operators, calls = linked.trace.operators, linked.trace.calls
    nodes = linked.named(operators, linked.ranges, "engine")
    linked.nodes = len(nodes)
    if not nodes:
        return
    for row in nodes:
        start = operators.start[row]
        linked.engine.add(operators.place[row], start, start + operators.duration[row], row)
    linked.engine.sort()
    owners = list(set(linked.call) - {NONE})
    places, times = map(calls.place.__getitem__, owners), map(calls.start.__getitem__, owners)
    around = linked.engine.all_around(places, times)
    linked.node = {row: found for row, found in zip(owners, around, strict=True) if found != NONE}
    first = first_of(operators)
    for row in nodes:
        origin = first.get(operators.number[row], NONE)
        if origin != NONE and operators.start[origin] < operators.start[row]:
            linked.forward[row] = origin


def first_of(operators: Table) -> dict[int, int]:
    """Return for each sequence number the operator that had it first: the forward one, if it lies in the trace."""
    first: dict[int, int] = {}
    start = operators.start
    for row, number in enumerate(operators.number):
        if number >= 0:
            before = first.get(number)
            if before is None or start[row] < start[before]:
                first[number] = row
    return first


def phase(linked: Linked, call: int) -> Phase:
    """Return the phase of a call: backward inside of a node of the autograd engine."""
    if call == NONE:
        return "unknown"
    return "backward" if call in linked.node else "forward"
