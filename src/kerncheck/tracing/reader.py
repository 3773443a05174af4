"""Read a trace file into columns, piece by piece: memory stays near what is kept, whatever the size of the file."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import msgspec

from kerncheck.errors import UsageError
from kerncheck.tracing.events import ABSENT, LATEST, LONGEST, Arguments, Event, LooseEvent, head_of
from kerncheck.tracing.pieces import Pieces
from kerncheck.tracing.table import NONE, Interned, Table, Trace

LARGEST = 2**62
LONGEST_NAME = 16384
"""Characters that are kept of a name. Templates make long names; the longest in the sample traces has 5,123."""
MODULE = "nn.Module: "

# Categories, with the names of old schemas (torch 1.8 to 1.10) and of ROCm beside today's.
OPERATORS = ("cpu_op", "Operator")
CALLS = ("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver", "runtime", "driver")
RANGES = ("user_annotation",)
STACKS = ("python_function",)
KERNELS = ("kernel", "Kernel")
COPIES = ("gpu_memcpy", "Memcpy")
SETS = ("gpu_memset", "Memset")
DEVICE = {**dict.fromkeys(KERNELS, 0), **dict.fromkeys(COPIES, 1), **dict.fromkeys(SETS, 2)}
KERNEL, COPY, SET = 0, 1, 2

KNOWN = (*OPERATORS, *CALLS, *RANGES, *STACKS, *DEVICE)
NAME, THREAD = attrgetter("name"), attrgetter("pid", "tid")
EMPTY = Arguments()
Events = list[Event]


def read(path: str | os.PathLike[str]) -> Trace:
    """Read a Chrome trace of torch.profiler (Kineto), plain or gzip, old schema or new, of NVIDIA or ROCm devices.

    Events that cannot be used (no time, wrong types) are left out and counted in ``Trace.oddities``.

    Raises:
        UsageError: the file cannot be read, is truncated or is no trace. The message is one line.

    """
    reader = Reader()
    pieces = Pieces(Path(path), reader.decode)
    for events in pieces:
        reader.take(events)
    if pieces.bare and not reader.trace.events:
        raise UsageError(f"{path}: no profiler trace: an empty list")
    reader.trace.path, reader.trace.head = str(path), head_of(pieces.head)
    return reader.finished()


class Reader:
    """Collects the events of a trace, piece by piece."""

    def __init__(self) -> None:
        self.trace = Trace(path="", head=head_of({}))
        self._typed = msgspec.json.Decoder(list[Event], strict=False)
        # A loose event has the same fields as an event; only the words in two of them may be any.
        self._loose = cast("msgspec.json.Decoder[Events]", msgspec.json.Decoder(list[LooseEvent], strict=False))
        self._one = cast("msgspec.json.Decoder[Event]", msgspec.json.Decoder(LooseEvent, strict=False))
        self._raw = msgspec.json.Decoder(list[msgspec.Raw])
        self._names: Interned = Interned()
        self._threads: Interned = Interned()
        self._lanes: Interned = Interned()

    def decode(self, text: bytes) -> Events:
        """Decode a list of events; those of the wrong shape are left out and counted."""
        with suppress(msgspec.ValidationError):
            return self._typed.decode(text)
        with suppress(msgspec.ValidationError):
            return self._loose.decode(text)
        return self._one_by_one(text)

    def _one_by_one(self, text: bytes) -> Events:
        found, bad = [], 0
        for raw in self._raw.decode(text):
            try:
                found.append(self._one.decode(raw))
            except (msgspec.DecodeError, UnicodeDecodeError):
                bad += 1
        self.trace.oddities["events of the wrong shape"] += bad
        self.trace.events += bad
        return found

    def take(self, events: Events) -> None:
        """Add the events of a piece to the columns."""
        self.trace.events += len(events)
        groups: dict[str, Events] = {category: [] for category in KNOWN}
        others: Events = []
        for event in events:
            groups.get(event.cat, others).append(event)
        for category, group in groups.items():
            if not group:
                continue
            if category in OPERATORS:
                self._add(self.trace.operators, group, "sequence")
            elif category in CALLS:
                self._add(self.trace.calls, group, "correlation")
            elif category in DEVICE:
                self._add_device(group, DEVICE[category])
            elif category in RANGES:
                self._add(self.trace.ranges, group, "sequence")
            else:
                self._add(self.trace.modules, [one for one in group if one.name.startswith(MODULE)], "sequence")

    def _timed(self, table: Table, group: Events) -> Events:
        """Add times and names of the events that can be used; return these events."""
        starts, durations = [event.ts for event in group], [event.dur for event in group]
        if not self._sound(group, starts, durations):
            group = self._sifted(group)
            starts, durations = [event.ts for event in group], [event.dur for event in group]
        table.start.fromlist(starts)
        table.duration.fromlist(durations)
        names = [*map(self._names.__getitem__, map(NAME, group))]
        if "" in self._names:
            self.trace.oddities["events without a name"] += names.count(self._names[""])
        table.name.fromlist(names)
        return group

    def _sound(self, group: Events, starts: list[float], durations: list[float]) -> bool:
        """Tell whether nothing is odd about any of the events."""
        if not group or [event.ph for event in group].count("X") < len(group):
            return False
        if type(group[0]) is Event:  # as are all of its piece: its decoder has looked at what times there are
            return min(durations) != ABSENT
        if not isfinite(sum(starts)) or not isfinite(sum(durations)):  # one value that is no number makes the sum none
            return False
        return min(starts) > -LATEST and max(starts) < LATEST and min(durations) >= 0 and max(durations) < LONGEST

    def _sifted(self, group: Events) -> Events:
        """Return the complete events that have a time; count what is odd about the others and about these."""
        odd = self.trace.oddities
        complete = [event for event in group if event.ph == "X"]
        odd["events that are not complete ones (ph is not X)"] += len(group) - len(complete)
        timed = [e for e in complete if -LATEST < e.ts < LATEST and (e.dur < LONGEST or e.dur == ABSENT)]
        odd["events without a usable time"] += len(complete) - len(timed)
        mend_durations(timed, odd)
        return timed

    def _add(self, table: Table, group: Events, number: str) -> None:
        events = self._timed(table, group)
        table.place.fromlist(self._places(events))
        self._ids(table, [event.args or EMPTY for event in events], number)

    def _places(self, events: Events) -> list[int]:
        """Return the number of each event's thread; those of one process are looked up by thread alone."""
        processes = {event.pid for event in events}
        if len(processes) != 1:
            return [*map(self._threads.__getitem__, map(THREAD, events))]
        process, threads = processes.pop(), [event.tid for event in events]
        numbers = {thread: self._threads[process, thread] for thread in dict.fromkeys(threads)}
        return [*map(numbers.__getitem__, threads)]

    def _add_device(self, group: Events, kind: int) -> None:
        table, lanes = self.trace.device, self._lanes
        events = self._timed(table, group)
        arguments = [event.args or EMPTY for event in events]
        table.place.fromlist(
            [
                lanes[e.pid if a.device is None else a.device, e.tid if a.stream is None else a.stream]
                for e, a in zip(events, arguments, strict=True)
            ]
        )
        self._ids(table, arguments, "correlation")
        fill(table.size, [max(0, a.size) for a in arguments], self.trace.oddities)
        self.trace.kinds.extend([kind] * len(events))

    def _ids(self, table: Table, arguments: list[Arguments], number: str) -> None:
        odd = self.trace.oddities
        external = [a.external for a in arguments]
        if NONE in external:
            external = [a.lower_external if a.external == NONE else a.external for a in arguments]
        fill(table.external, external, odd)
        numbers = [a.correlation for a in arguments] if number == "correlation" else [a.sequence for a in arguments]
        fill(table.number, numbers, odd)

    def finished(self) -> Trace:
        """Return the trace: device work in order of its start, no rows at time 0 where 0 is no time of this trace."""
        trace = self.trace
        trace.names = [str(name)[:LONGEST_NAME] for name in self._names]
        trace.threads, trace.lanes = listed(self._threads), listed(self._lanes)
        tables = (trace.operators, trace.calls, trace.ranges, trace.modules)
        drop_zero(trace, tables)
        order_device(trace)
        trace.oddities = Counter({words: count for words, count in trace.oddities.items() if count})
        return trace


def mend_durations(events: Events, odd: Counter[str]) -> None:
    """Set absent and negative durations to 0 and count them."""
    for event in events:
        if event.dur < 0:
            odd["events without a duration" if event.dur == ABSENT else "negative durations"] += 1
            event.dur = 0.0


def fill(column: array[int], values: list[int], odd: Counter[str]) -> None:
    """Append values to a column; a number that no id can have counts as absent."""
    try:
        column.fromlist(values)
    except OverflowError:
        odd["ids beyond 64 bits"] += sum(not -LARGEST < value < LARGEST for value in values)
        column.fromlist([value if -LARGEST < value < LARGEST else NONE for value in values])


def listed(numbers: dict[Any, int]) -> list[Any]:
    """Return the things in the order of their numbers."""
    return list(numbers)


def drop_zero(trace: Trace, tables: Iterable[Table]) -> None:
    """Drop rows that start at 0 or before in a trace whose other rows start much later, and count them."""
    every = (*tables, trace.device)
    latest = max((max(table.start) for table in every if table), default=0.0)
    if latest < 1e6:  # a trace that itself begins at 0: within a second, 0 is a time like any other
        return
    for table in every:
        if table and min(table.start) <= 0:
            kept = [row for row, start in enumerate(table.start) if start > 0]
            trace.oddities["timestamps of 0"] += len(table) - len(kept)
            if table is trace.device:
                trace.kinds = array("b", [trace.kinds[row] for row in kept])
            table.keep(kept)


def order_device(trace: Trace) -> None:
    """Order the work on devices by start, its kinds with it."""
    device = trace.device
    order = sorted(range(len(device)), key=device.start.__getitem__)
    trace.kinds = array("b", [trace.kinds[row] for row in order])
    device.keep(order)
