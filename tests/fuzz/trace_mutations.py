"""Mutations of profiler traces: cut, changed bytes, wrong types, huge numbers, deep nesting, ids that several share.

``hostile`` writes each mutated file, reads, analyses and judges it as the command does, and yields how it ended. What
is neither a report nor a UsageError of one line is an exception that ends the test.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from test_traces import as_judged, eager, fused, steps

from kerncheck import tracing
from kerncheck.errors import UsageError

SLOWEST = 5.0  # seconds of CPU time that one file may take; most have some hundred kilobytes, a few one or two MB
ODD = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**70,
    -(2**64),
    1e308,
    -1e308,
    0.5,
    "",
    "nan",
    "12",
    [],
    {},
    [1],
    {"a": 1},
    "x" * 5000,
)
KEYS = ("ph", "cat", "name", "ts", "dur", "pid", "tid", "args")
ARGUMENTS = ("correlation", "External id", "Sequence number", "stream", "device", "bytes")
CATEGORIES = (
    "cpu_op",
    "cuda_runtime",
    "cuda_driver",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "user_annotation",
    "ac2g",
    "",
)
HEADS = ("schemaVersion", "deviceProperties", "distributedInfo", "traceName", "traceEvents", "displayTimeUnit")


def originals():
    """Return small traces of each kind, as data."""
    small = [steps(fused, count=2, layers=1), steps(lambda maker, layers: eager(maker, layers, small=3), count=2)]
    small[1].copy(5.0)
    small[1].graph(10, 2.0)
    small[1].compiling(50.0)
    return [maker.trace(distributedInfo={"rank": 1, "world_size": 2}) for maker in small]


def spoil_values(trace, dice):
    for _ in range(dice.randint(1, 30)):
        event = dice.choice(trace["traceEvents"])
        if dice.random() < 0.5:
            event[dice.choice(KEYS)] = dice.choice(ODD)
        elif isinstance(event.get("args"), dict):
            event["args"][dice.choice(ARGUMENTS)] = dice.choice(ODD)
    return json.dumps(trace)


def spoil_times(trace, dice):
    for event in trace["traceEvents"]:
        if dice.random() < 0.2:
            event[dice.choice(("ts", "dur"))] = dice.choice((0, -5.0, 1e16, 1e18, 2**53, 1e-300, event["ts"] * 2, 1e12))
    return json.dumps(trace)


def spoil_ids(trace, dice):
    name, number = dice.choice(ARGUMENTS[:3]), dice.choice((1, 0, -1, 5, 2**62))
    for event in trace["traceEvents"]:
        if dice.random() < 0.7:
            event["args"][name] = number
    return json.dumps(trace)


def swap_categories(trace, dice):
    for event in trace["traceEvents"]:
        if dice.random() < 0.1:
            event["cat"] = dice.choice(CATEGORIES)
    return json.dumps(trace)


def drop_fields(trace, dice):
    for event in trace["traceEvents"]:
        if dice.random() < 0.2:
            event.pop(dice.choice(KEYS), None)
    return json.dumps(trace)


def multiply(trace, dice):
    events = trace["traceEvents"]
    trace["traceEvents"] = [event for event in events for _ in range(dice.randint(1, 4))]
    dice.shuffle(trace["traceEvents"])
    return json.dumps(trace)


def foreign_events(trace, dice):
    for _ in range(dice.randint(1, 20)):
        trace["traceEvents"].insert(dice.randrange(len(trace["traceEvents"])), dice.choice(ODD))
    return json.dumps(trace)


def spoil_head(trace, dice):
    trace[dice.choice(HEADS)] = dice.choice(ODD)
    return json.dumps(trace)


def nest(trace, dice):
    text = json.dumps(trace)
    depth = dice.choice((10, 500, 5000, 100_000))
    at = text.find('"args": {', dice.randrange(len(text) // 2)) + len('"args": {')
    opened, closed = dice.choice((("[", "]"), ('{"a": ', "}")))
    middle = "1" if opened != "[" else ""
    close = closed * depth if dice.random() < 0.8 else ""
    return f'{text[:at]}"x": {opened * depth}{middle}{close}, {text[at:]}'


def cut(trace, dice):
    text = json.dumps(trace, indent=dice.choice((None, 0, 2)))
    return text[: dice.randrange(len(text))]


def change_bytes(trace, dice):
    text = bytearray(json.dumps(trace).encode())
    for _ in range(dice.randint(1, 12)):
        text[dice.randrange(len(text))] = dice.randrange(256)
    return bytes(text)


def move_part(trace, dice):
    text = json.dumps(trace)
    start, end, to = sorted(dice.randrange(len(text)) for _ in range(3))
    return dice.choice((text[:start] + text[end:], text[:to] + text[start:end] + text[to:], text[end:] + text[:end]))


def long_names(trace, dice):
    for event in dice.sample(trace["traceEvents"], 5):
        event["name"] = dice.choice(
            ("a" * 300_000, "<" * 10_000, "(" * 10_000, "void " * 1000, "_0d1" * 5000, "\u2028" * 50)
        )
    return json.dumps(trace)


def broken_gzip(trace, dice):
    packed = bytearray(gzip.compress(json.dumps(trace).encode(), 1))
    if dice.random() < 0.5:
        return bytes(packed[: dice.randrange(2, len(packed))])
    packed[dice.randrange(10, len(packed))] ^= dice.randint(1, 255)
    return bytes(packed)


MUTATIONS = (
    spoil_values,
    spoil_times,
    spoil_ids,
    swap_categories,
    drop_fields,
    multiply,
    foreign_events,
    spoil_head,
    nest,
    cut,
    change_bytes,
    move_part,
    long_names,
    broken_gzip,
)


def hostile(folder, count, seed):
    """Yield (mutation, how it ended, CPU seconds) for each of ``count`` mutated files."""
    dice = random.Random(seed)
    kept = originals()
    path = folder / "trace.json"
    for number in range(count):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        text = mutation(copy.deepcopy(dice.choice(kept)), dice)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        started = time.process_time()
        yield mutation.__name__, ended(path), time.process_time() - started


def ended(path):
    """Judge a file as the command does and say how that ended."""
    try:
        report = as_judged(tracing.analyse(tracing.read(path)))
    except UsageError as error:
        return "unreadable" if "\n" not in error.message else f"several lines: {error.message!r}"
    assert report.crashes == (), report.crashes[0].detail
    return {0: "passed", 1: "finding", 3: "inconclusive"}[report.exit_code]
