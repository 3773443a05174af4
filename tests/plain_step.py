"""A second, independent reading of the trace of a profiled step: plain json, dictionaries and loops.

Until 0.1.0 the child read its trace so. A kernel belongs to the range ``kc::layer::seam`` in which its launch lies; one
of the backward pass to the range of the operator that has the sequence number of the autograd node around its launch.
"""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Any

PREFIX = "kc::"
ENGINE = "autograd::engine::evaluate_function: "
LAUNCHERS = ("cuda_runtime", "cuda_driver")

Event = dict[str, Any]


def read(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of a chrome trace: kernels, launches, how many join, busy time, and kernels by label."""
    events = [event for event in trace.get("traceEvents", ()) if event.get("ph") == "X"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = {correlation(event): event for event in events if launch(event)}
    joined = [(kernel, launches[correlation(kernel)]) for kernel in kernels if correlation(kernel) in launches]
    with_kernel = {correlation(kernel) for kernel in kernels}
    told = {
        "kernels": len(kernels),
        "launches": sum(launched in with_kernel or is_kernel_launch(launches[launched]) for launched in launches),
        "joined": len(joined),
        "busy_microseconds": union(kernels),
        "span_microseconds": span(kernels),
        "labelled": labelled(joined, Places(events)),
    }
    return told if kernels else {**told, "reason": "the trace holds no GPU kernel event"}


def correlation(event: Event) -> Any:
    """Return the number that joins a kernel and its launch; None if there is none."""
    return event.get("args", {}).get("correlation")


def launch(event: Event) -> bool:
    """Tell whether an event is a call into the CUDA runtime or driver that may own kernels."""
    return event.get("cat") in LAUNCHERS and correlation(event) is not None


def is_kernel_launch(event: Event) -> bool:
    """Tell whether a runtime or driver call launches kernels by its name (copies, sets and waits do not)."""
    return any(word in str(event.get("name", "")) for word in ("LaunchKernel", "GraphLaunch", "LaunchCooperative"))


def union(events: list[Event]) -> float:
    """Return how long at least one of the events ran, in microseconds."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((event["ts"], event["ts"] + event.get("dur", 0)) for event in events):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return round(total, 3)


def span(events: list[Event]) -> float:
    """Return the time from the first start to the last end, in microseconds."""
    if not events:
        return 0.0
    first = min(event["ts"] for event in events)
    last = max(event["ts"] + event.get("dur", 0) for event in events)
    return round(float(last - first), 3)


class Spans:
    """Intervals of one thread, each with a value; finds the innermost one around a time."""

    def __init__(self) -> None:
        self._items: dict[Any, list[tuple[float, float, Any]]] = {}

    def add(self, event: Event, value: Any) -> None:
        """Add an event's interval."""
        item = (event["ts"], event["ts"] + event.get("dur", 0), value)
        self._items.setdefault(event.get("tid"), []).append(item)

    def sort(self) -> None:
        """Order the intervals by start; must be called before ``around``."""
        for items in self._items.values():
            items.sort(key=lambda item: (item[0], -item[1]))

    def around(self, event: Event) -> Any:
        """Return the value of the innermost interval of the event's thread around its start; None without one."""
        items = self._items.get(event.get("tid"), [])
        at = bisect.bisect_right(items, event["ts"], key=lambda item: item[0])
        for start, end, value in reversed(items[:at]):
            if start <= event["ts"] <= end:
                return value
        return None


class Places:
    """Maps a launch to the label and phase that it belongs to."""

    def __init__(self, events: list[Event]) -> None:
        self._ranges, self._engine = Spans(), Spans()
        for event in events:
            if str(event.get("name", "")).startswith(PREFIX) and event.get("cat") == "user_annotation":
                self._ranges.add(event, event["name"])
            elif str(event.get("name", "")).startswith(ENGINE) and sequence(event) is not None:
                self._engine.add(event, sequence(event))
        self._ranges.sort()
        self._engine.sort()
        self._causes: dict[Any, str] = {}
        for event in events:
            if event.get("cat") == "cpu_op" and sequence(event) is not None:
                self._cause(event)

    def _cause(self, event: Event) -> None:
        inside = self._ranges.around(event)
        if inside is not None:
            self._causes.setdefault(sequence(event), inside)

    def of(self, event: Event) -> tuple[str, str]:
        """Return (label, phase); the label is empty outside of all seams."""
        inside = self._ranges.around(event)
        if inside is not None:
            return inside, "forward"
        number = self._engine.around(event)
        return (self._causes.get(number, ""), "forward" if number is None else "backward")


def sequence(event: Event) -> Any:
    """Return the autograd sequence number of an event; None if it has none."""
    return event.get("args", {}).get("Sequence number")


def labelled(joined: list[tuple[Event, Event]], places: Places) -> list[dict[str, Any]]:
    """Return the kernels by label and phase, with the microseconds they ran."""
    names: dict[tuple[str, str], Counter[str]] = {}
    times: Counter[tuple[str, str]] = Counter()
    for kernel, launched in joined:
        place = places.of(launched)
        names.setdefault(place, Counter())[plain_name(str(kernel["name"]))] += 1
        times[place] += kernel.get("dur", 0)
    return [
        {**parts(name), "phase": phase, "kernels": dict(counts), "microseconds": round(times[name, phase], 3)}
        for (name, phase), counts in names.items()
    ]


def parts(name: str) -> dict[str, Any]:
    """Take a label apart: its layer and seam."""
    layer, _, seam = name.removeprefix(PREFIX).partition("::")
    return {"layer": int(layer), "seam": seam} if seam else {"layer": -1, "seam": ""}


def plain_name(kernel: str) -> str:
    """Return a kernel's name without template and function arguments, which differ with shapes."""
    text = kernel.removeprefix("void ")
    cut = min((at for at in (text.find("<"), text.find("(")) if at > 0), default=len(text))
    return text[:cut]
