"""A second, independent reading of a trace: plain json, dictionaries and loops, other algorithms than the library.

It shares with ``kerncheck.tracing`` the definitions in docs/traces.md and the patterns in matrices/traces.toml only.
Intervals are merged by counting begins and ends instead of by a running end.
"""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from pathlib import Path

RULES = tomllib.loads((Path(__file__).parents[1] / "matrices" / "traces.toml").read_text())


def load(path):
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", errors="replace") as file:
        return json.load(file)


def kind(table, name):
    return next((row["kind"] for row in RULES[table] if re.search(row["pattern"], name)), "")


def covered(spans):
    """Return the time in which at least one span is open, by counting begins and ends."""
    moments = sorted([(start, -1) for start, _ in spans] + [(end, 1) for _, end in spans])
    total, depth, since = 0.0, 0, 0.0
    for time, change in moments:
        if change < 0:
            if depth == 0:
                since = time
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                total += time - since
    return total


def holes(spans):
    """Return the gaps between spans as (start, end)."""
    moments = sorted([(start, -1) for start, _ in spans] + [(end, 1) for _, end in spans])
    found, depth, left = [], 0, None
    for time, change in moments:
        if depth == 0 and change < 0 and left is not None and time > left:
            found.append((left, time))
        depth -= change
        if depth == 0:
            left = time
    return found


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Plain:
    def __init__(self, trace):
        events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
        of = lambda *names: [e for e in events if e.get("cat") in names]  # noqa: E731
        self.ops, self.calls = of("cpu_op"), of("cuda_runtime", "cuda_driver")
        self.work = of("kernel", "gpu_memcpy", "gpu_memset")
        self.notes = of("user_annotation")
        self.events = len(trace["traceEvents"])
        self.by_number = {e["args"]["correlation"]: e for e in self.calls if "correlation" in e["args"]}
        self.pairs = [
            (self.by_number[e["args"]["correlation"]], e)
            for e in self.work
            if e["args"]["correlation"] in self.by_number
        ]

    @staticmethod
    def end(event):
        return event["ts"] + event["dur"]

    def spans(self, events):
        return [(e["ts"], self.end(e)) for e in events]

    def joins(self):
        owners = {e["args"]["correlation"] for e in self.work}
        launches = [e for e in self.calls if kind("call", e["name"]) in ("launch", "graph")]
        return {
            "gpu_operations": len(self.work),
            "joined": len(self.pairs),
            "launches": len(launches),
            "lost": sum(e["args"]["correlation"] not in owners for e in launches),
        }

    def steps(self):
        return sorted((e for e in self.notes if e["name"].startswith("ProfilerStep#")), key=lambda e: e["ts"])

    def busy(self, work=None):
        return covered(self.spans(self.work if work is None else work))

    def span(self):
        """Return the time from the first step's start (or the first work) to the end of the last work."""
        first = min(e["ts"] for e in self.work)
        if self.steps():
            first = min(first, self.steps()[0]["ts"])
        return max(self.end(e) for e in self.work) - first

    def enqueue(self):
        """Return the time in operators and calls of threads that launch, without synchronisations, thread by thread."""
        launching = {(call["pid"], call["tid"]) for call, _ in self.pairs} or {(e["pid"], e["tid"]) for e in self.ops}
        moments = []
        for thread in launching:
            here = [e for e in self.ops + self.calls if (e["pid"], e["tid"]) == thread]
            waits = [e for e in here if kind("call", e["name"]) == "synchronise" and e in self.calls]
            moments += self.active(self.spans(here), self.spans(waits))
        return covered(moments)

    @staticmethod
    def active(spans, waits):
        """Cut the time line at every border and keep the pieces inside a span and outside of all waits."""
        borders = sorted(
            [(s, 0, 1) for s, _ in spans]
            + [(e, 0, -1) for _, e in spans]
            + [(s, 1, 1) for s, _ in waits]
            + [(e, 1, -1) for _, e in waits]
        )
        kept, depth, last = [], [0, 0], None
        for time, which, change in borders:
            if last is not None and time > last and depth[0] > 0 and depth[1] == 0:
                kept.append((last, time))
            depth[which] += change
            last = time
        return kept

    def enqueue_span(self):
        return max(self.end(call) for call, _ in self.pairs) - min(call["ts"] for call, _ in self.pairs)

    def leads(self):
        return [work["ts"] - self.end(call) for call, work in self.pairs]

    def queue(self):
        """Return the length of the busiest stream's queue at each launch, counted from scratch for every one."""
        streams = {}
        for call, work in self.pairs:
            streams.setdefault((work["args"]["device"], work["args"]["stream"]), []).append((call["ts"], work["ts"]))
        most = max(streams.values(), key=len)
        moments = sorted([(launch, 1) for launch, _ in most] + [(start, -1) for _, start in most])
        lengths, now = [], 0
        for _, change in moments:
            now += change
            if change == 1:
                lengths.append(now)
        return lengths

    def idle(self):
        spans = self.spans(self.work)
        if self.steps() and self.steps()[0]["ts"] < min(start for start, _ in spans):
            spans.append((self.steps()[0]["ts"], self.steps()[0]["ts"]))
        first = {}
        for e in self.work:
            first.setdefault(e["ts"], e)
        found = {"host": 0.0, "kernel": 0.0, "other": 0.0}
        for start, end in holes(spans):
            call = self.by_number.get(first[end]["args"]["correlation"])
            if call is None:
                found["other"] += end - start
            elif (call["ts"] if kind("call", call["name"]) == "graph" else self.end(call)) > start:
                found["host"] += end - start
            else:
                found["kernel" if end - start < 2.0 else "other"] += end - start
        return found

    def families(self):
        found = {}
        for e in self.work:
            if e["cat"] != "kernel":
                name = "set" if e["cat"] == "gpu_memset" else "copy and cast"
            else:
                name = kind("family", e["name"])
                call = self.by_number.get(e["args"]["correlation"])
                if not name:
                    driver = (call is not None and call["cat"] == "cuda_driver") or (
                        call and call["name"] == "hipExtModuleLaunchKernel"
                    )
                    name = "fused" if driver and re.fullmatch(r"[A-Za-z_]\w*", e["name"]) else "other"
            count, time = found.get(name, (0, 0.0))
            found[name] = (count + 1, time + e["dur"])
        return found

    def exposed(self):
        talk = [e for e in self.work if e["cat"] == "kernel" and kind("family", e["name"]) == "communication"]
        known = {id(e) for e in talk}
        others = [e for e in self.work if id(e) not in known]
        return covered(self.spans(talk)), covered(self.spans(self.work)) - covered(self.spans(others))

    def step_counts(self):
        """Return for each step (calls, work launched in it)."""
        found = []
        for step in self.steps():
            inside = lambda time: step["ts"] <= time < self.end(step)  # noqa: B023, E731
            calls = sum(inside(e["ts"]) for e in self.ops + self.calls)
            work = 0
            for e in self.work:
                call = self.by_number.get(e["args"]["correlation"])
                work += inside(call["ts"] if call else e["ts"])
            found.append((step["name"], calls, work))
        return found

    def copies(self):
        moved = [e for e in self.work if e["cat"] == "gpu_memcpy"]
        paged = [e for e in moved if "Pageable" in e["name"]]
        size = lambda events: sum(e["args"].get("bytes", 0) for e in events)  # noqa: E731
        return len(moved), size(moved), len(paged), size(paged)

    def synchronisations(self):
        return [e for e in self.calls if kind("call", e["name"]) == "synchronise"]

    def range_time(self, what):
        return covered([(e["ts"], self.end(e)) for e in self.notes + self.ops if kind("range", e["name"]) == what])

    def operator_time(self):
        """Return GPU microseconds by operator: the innermost one that is open when the call begins.

        External ids are not used: this walks the events of each thread in order of time with a stack of open operators.
        """
        work = {}
        for call, device in self.pairs:
            work[id(call)] = work.get(id(call), 0.0) + device["dur"]
        found, stacks = {}, {}
        moments = [(e["ts"], -e["dur"], 0, e) for e in self.ops] + [
            (e["ts"], 0, 1, e) for e in self.calls if id(e) in work
        ]
        for time, _, is_call, event in sorted(moments, key=lambda item: item[:3]):
            stack = stacks.setdefault((event["pid"], event["tid"]), [])
            while stack and (self.end(stack[-1]) < time or (not is_call and self.end(stack[-1]) <= time)):
                stack.pop()
            if not is_call:
                stack.append(event)
            elif stack:
                name = stack[-1]["name"]
                found[name] = found.get(name, 0.0) + work[id(event)]
        return found
