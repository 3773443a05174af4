"""Enlarge a real trace and time its decoding alone, `kerncheck trace`, and HolisticTraceAnalysis side by side.

    python benchmarks/trace_scale.py TRACE.json.gz --events 2200000 --runs 5 --hta /path/to/venv/bin/python
    python benchmarks/trace_scale.py TRACE.json.gz --sizes 100000,300000,1000000,2200000,5000000 --runs 1
    python benchmarks/trace_scale.py --published

Each run is a process of its own; wall time and peak memory are those of that process (wait4), CPU time beside
them: on a busy machine it is the steadier one. The three are run in
turn, so that a slow moment of the machine meets all of them. "decode" reads the whole file and decodes a few fields of
each event, in one go, and keeps them: the plain typed decode that the time of the analysis is held against.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

DECODE = """
import sys, msgspec
class Args(msgspec.Struct, gc=False):
    correlation: int | None = None
    stream: int | str | None = None
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str | int = ""
    ts: float = 0
    dur: float = 0
    pid: int | str = 0
    tid: int | str = 0
    args: Args | None = None
class Trace(msgspec.Struct, gc=False):
    traceEvents: list[Event]
with open(sys.argv[1], "rb") as file:
    print(len(msgspec.json.decode(file.read(), type=Trace, strict=False).traceEvents))
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
launches = analysis.get_cuda_kernel_launch_stats(visualize=False)
print(len(kernels[1]))
"""
Run = tuple[float, float, float]
IDS = ("correlation", "External id", "Sequence number")


def enlarge(source: Path, target: Path, wanted: int) -> int:
    """Write a trace of about ``wanted`` events: the source's, again and again, later and with other ids."""
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rt", errors="replace") as file:
        trace = json.load(file)
    events = [event for event in trace.pop("traceEvents") if isinstance(event.get("ts"), int | float)]
    timed = [event for event in events if event.get("ph") == "X"]
    span = max(event["ts"] + event["dur"] for event in timed) - min(event["ts"] for event in timed) + 1000
    most = max(value for event in timed for name in IDS if (value := event.get("args", {}).get(name, 0)) >= 0) + 1
    template, fields = templated(events)
    copies = max(1, round(wanted / len(events)))
    with target.open("w") as file:
        head = json.dumps({name: value for name, value in trace.items() if name != "traceName"})
        file.write(head[:-1] + ', "traceEvents": [\n')
        for copy in range(copies):
            values = tuple(value + copy * (span if is_time else most) for value, is_time in fields)
            file.write((",\n" if copy else "") + template % values)
        file.write("\n]}\n")
    return copies * len(events)


def enlarged(source: Path, target: Path, wanted: int) -> int:
    """Enlarge in a process of its own: a child begins with the peak memory of the process that started it."""
    script = (
        "import sys, trace_scale as s; print(s.enlarge(s.Path(sys.argv[1]), s.Path(sys.argv[2]), int(sys.argv[3])))"
    )
    command = [sys.executable, "-c", script, str(source), str(target), str(wanted)]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=here).stdout)


def templated(events: list[dict]) -> tuple[str, list[tuple[float, bool]]]:
    """Return the events as one format string, and the times and ids that it wants."""
    rows, fields = [], []
    for event in events:
        arguments = dict(event.get("args", {}))
        numbers = [name for name in IDS if isinstance(arguments.get(name), int) and arguments[name] >= 0]
        fields.append((event["ts"], True))
        fields += [(arguments[name], False) for name in numbers]
        marked = {
            **event,
            "ts": "@@ts",
            **({"args": {**arguments, **dict.fromkeys(numbers, "@@id")}} if arguments else {}),
        }
        ordered = {"ts": marked.pop("ts"), **marked}  # in the order of ``fields``: the time, then the ids
        if numbers:
            ordered["args"] = {**dict.fromkeys(numbers, "@@id"), **ordered["args"]}
        text = json.dumps(ordered).replace("%", "%%").replace('"@@ts"', "%s").replace('"@@id"', "%d")
        rows.append(text)
    return ",\n".join(rows), fields


def measured(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return its wall seconds, its CPU seconds and its peak memory in MB."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - started
        code = os.waitstatus_to_exitcode(status)
        child.returncode = code
        if code not in (0, 1, 3):
            errors.seek(0)
            sys.exit(f"{command[:3]} ended with {code}: {errors.read()[-2000:].decode(errors='replace')}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def contest(path: Path, runs: int, hta: str) -> dict[str, list[Run]]:
    """Run each in turn, several times."""
    commands = {
        "decode": [sys.executable, "-c", DECODE, str(path)],
        "kerncheck trace": [sys.executable, "-m", "kerncheck", "trace", str(path)],
    }
    if hta:
        commands["HolisticTraceAnalysis"] = [hta, "-c", HTA, str(path)]
    found: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            found[name].append(measured(command))
    return found


def told(path: Path, events: int, found: dict[str, list[Run]]) -> None:
    """Print one size."""
    print(f"{events:,} events, {path.stat().st_size / 1e6:,.0f} MB")
    medians = {name: [statistics.median(run[at] for run in rows) for at in (0, 1)] for name, rows in found.items()}
    for name, rows in found.items():
        wall, processor = medians[name]
        spread = f"{min(run[0] for run in rows):.2f} to {max(run[0] for run in rows):.2f}"
        times = f"{wall / medians['decode'][0]:.2f} x decode by wall, {processor / medians['decode'][1]:.2f} x by CPU"
        peak = max(run[2] for run in rows)
        print(f"  {name:<22} {wall:>7.2f} s ({spread}), CPU {processor:>7.2f} s, {peak:>6,.0f} MB, {times}", flush=True)
    if "HolisticTraceAnalysis" in medians:
        ratios = [medians["HolisticTraceAnalysis"][at] / medians["kerncheck trace"][at] for at in (0, 1)]
        print(f"  HolisticTraceAnalysis over kerncheck: {ratios[0]:.1f} by wall, {ratios[1]:.1f} by CPU")


def published(folder: Path) -> None:
    """Make the traces of the published shape, judge both and the pair, and print what was said."""
    from published_shape import AFTER, BEFORE, write  # noqa: PLC0415 - beside the tests

    paths = [folder / "before.json", folder / "after.json"]
    for path, shape in zip(paths, (BEFORE, AFTER), strict=True):
        write(path, shape)
        print(f"{path.name}: {path.stat().st_size / 1e6:,.0f} MB")
    for arguments in (
        [str(paths[0]), "--model", "qwen"],
        [str(paths[1]), "--model", "qwen"],
        ["compare", *map(str, paths), "--model", "qwen", "--min-op-reduction", "14x"],
    ):
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "kerncheck", "trace", *arguments], capture_output=True, text=True, check=False
        )
        print(done.stdout, f"exit {done.returncode} in {time.monotonic() - started:.1f} s\n", sep="")


def main() -> None:
    """Run what was asked."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("trace", nargs="?", type=Path)
    options.add_argument("--events", type=int, default=2_200_000)
    options.add_argument("--sizes", default="")
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--hta", default="", help="a Python with HolisticTraceAnalysis")
    options.add_argument("--published", action="store_true", help="make and judge the traces of the published shape")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerncheck-scale-") as folder:
        if given.published:
            published(Path(folder))
            return
        path = Path(folder) / "trace.json"
        for size in [int(text) for text in given.sizes.split(",") if text] or [given.events]:
            told(path, enlarged(given.trace, path, size), contest(path, given.runs, given.hta))


if __name__ == "__main__":
    main()
