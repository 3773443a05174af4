"""Arithmetic of intervals of time: sorted lists of (start, end) that do not overlap."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence

Interval = tuple[float, float]
Intervals = list[Interval]


def union(spans: Iterable[Interval]) -> Intervals:
    """Merge intervals that overlap or touch."""
    return merged(sorted(spans))


def merged(ordered: Sequence[Interval]) -> Intervals:
    """Merge intervals that overlap or touch; they come in order of their start."""
    found: Intervals = []
    if not ordered:
        return found
    begin, reach = ordered[0]
    for start, end in ordered:
        if start > reach:
            found.append((begin, reach))
            begin, reach = start, end
        elif end > reach:
            reach = end
    found.append((begin, reach))
    return found


def length(spans: Iterable[Interval]) -> float:
    """Return the time that disjoint intervals take together."""
    return sum(end - start for start, end in spans)


def minus(spans: Sequence[Interval], holes: Sequence[Interval]) -> Intervals:
    """Take the holes out of the intervals; both are disjoint and sorted."""
    left: Intervals = []
    at = 0
    for begin, end in spans:
        start = begin
        while at < len(holes) and holes[at][1] <= start:
            at += 1
        here = at
        while here < len(holes) and holes[here][0] < end:
            if holes[here][0] > start:
                left.append((start, holes[here][0]))
            start = max(start, holes[here][1])
            here += 1
        if start < end:
            left.append((start, end))
    return left


class Covered:
    """Disjoint sorted intervals, laid out so that how much of a window they cover is two searches."""

    def __init__(self, spans: Sequence[Interval] = ()) -> None:
        self.starts = [start for start, _ in spans]
        self._ends = [end for _, end in spans]
        self._sums = [0.0, *itertools.accumulate(end - start for start, end in spans)]

    def overlap(self, start: float, end: float) -> float:
        """Return how much of a window the intervals cover."""
        return max(0.0, self._until(end) - self._until(start)) if self.starts else 0.0

    def _until(self, time: float) -> float:
        """Return how long the intervals have lasted up to a time."""
        at = bisect.bisect_right(self.starts, time)
        return self._sums[at] - max(0.0, self._ends[at - 1] - time) if at else 0.0

    def covers(self, time: float) -> bool:
        """Tell whether one of the intervals holds a time, its end excluded."""
        at = bisect.bisect_right(self.starts, time)
        return at > 0 and time < self._ends[at - 1]

    def __bool__(self) -> bool:
        """Tell whether there is any interval."""
        return bool(self.starts)


class Finder:
    """Finds the innermost interval of one thread around a time. Intervals may nest."""

    def __init__(self) -> None:
        self._rows: dict[int, list[tuple[float, float, int]]] = {}
        self._times: dict[int, list[float]] = {}
        self._inside: dict[int, list[int]] = {}

    def add(self, place: int, start: float, end: float, row: int) -> None:
        """Add an interval; ``sort`` must follow before the first question."""
        self._rows.setdefault(place, []).append((start, -end, row))

    def sort(self) -> Finder:
        """Turn the intervals of each thread into moments at which the innermost one changes."""
        for place, rows in self._rows.items():
            self._times[place], self._inside[place] = changes(sorted(rows))
        return self

    def __bool__(self) -> bool:
        """Tell whether there is any interval."""
        return bool(self._rows)

    def around(self, place: int, time: float) -> int:
        """Return the row of the innermost interval of a thread around a time, or -1."""
        times = self._times.get(place)
        if times is None:
            return -1
        at = bisect.bisect_right(times, time) - 1
        return self._inside[place][at] if at >= 0 else -1

    def all_around(self, places: Iterable[int], times: Iterable[float]) -> Iterator[int]:
        """Yield what ``around`` says of each pair: without a call for each of very many."""
        known, inside, search = self._times, self._inside, bisect.bisect_right
        for place, time in zip(places, times, strict=True):
            moments = known.get(place)
            at = search(moments, time) - 1 if moments is not None else -1
            yield inside[place][at] if at >= 0 else -1


def changes(rows: Sequence[tuple[float, float, int]]) -> tuple[list[float], list[int]]:
    """Return the moments at which the innermost interval changes, and which one it is from there on (-1: none).

    ``rows`` holds (start, -end, row), sorted: a parent precedes its children.
    """
    times: list[float] = []
    inside: list[int] = []
    stack: list[tuple[float, int]] = []
    for start, negative, row in rows:
        leave(stack, start, times, inside)
        stack.append((-negative, row))
        times.append(start)
        inside.append(row)
    leave(stack, float("inf"), times, inside)
    return times, inside


def leave(stack: list[tuple[float, int]], until: float, times: list[float], inside: list[int]) -> None:
    """Note the ends of the intervals that are over by a time."""
    while stack and stack[-1][0] <= until:
        end, _ = stack.pop()
        times.append(end if not times else max(end, times[-1]))
        inside.append(stack[-1][1] if stack else -1)
