"""Seconds and peak memory of ``kerncheck verify``, by stage, beside ``python -m torch.utils.collect_env``.

Both are run in turns in one session of this script, since the load of a machine changes. Run it by the interpreter that
is to be judged, with kerncheck installed:  python benchmarks/verify.py [--runs 3] [-- verify options]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        found.append(queue.pop())
        queue += parents.get(found[-1], [])
    return found


def resident(root: int) -> int:
    """Return the resident memory of a process tree in bytes (pages shared by two of them count twice)."""
    total = 0
    for number in tree(root):
        try:
            total += int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return total


def measured(command: list[str]) -> tuple[float, float, str]:
    """Run a command; return its wall seconds, the peak memory of its tree in GiB, and its standard output."""
    started, peak = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.append(process.stdout.read() if process.stdout else ""))
    reader.start()
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.1)
    reader.join()
    return time.monotonic() - started, peak / 2**30, output[0]


def arguments() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--page", default="", help="write the tables to this file too")
    parser.add_argument("rest", nargs="*", help="options for kerncheck verify")
    return parser.parse_args()


def main() -> None:
    """Run all in turns; print the medians and the stages of the last run."""
    given = arguments()
    options = given.rest or ["--model", "qwen", "--device", "emulate"]
    verify = [sys.executable, "-m", "kerncheck", "verify", *options, "--format", "json"]
    commands = {
        "kerncheck verify": verify,
        "kerncheck verify --quick": [*verify, "--quick"],
        "torch.utils.collect_env": [sys.executable, "-m", "torch.utils.collect_env"],
    }
    rows: dict[str, list[tuple[float, float, str]]] = {name: [] for name in commands}
    for _ in range(given.runs):
        for name, command in commands.items():
            rows[name].append(measured(command))
    text = table(rows, given.runs)
    print(text)
    if given.page:
        Path(given.page).write_text(HEAD + text + "\n")


HEAD = """# Performance

Made by `python benchmarks/verify.py --page docs/performance.md`, in which the commands take turns. No test asserts a
time. Memory is the sum over all processes of a run, in which pages that two of them share count twice.

"""


def table(rows: dict[str, list[tuple[float, float, str]]], runs: int) -> str:
    """Return both tables as Markdown."""
    lines = ["| command | seconds | peak GiB |", "|---|---|---|"]
    for name, results in rows.items():
        seconds, memory = (statistics.median(row[index] for row in results) for index in (0, 1))
        lines.append(f"| `{name}` | {seconds:.1f} | {memory:.2f} |")
    report = json.loads(rows["kerncheck verify"][-1][2])
    about = (
        f"Median of {runs} on {os.cpu_count()} cores; `verify` ended with {report['exit_code']}. {report['headline']}."
    )
    stages = [
        f"| {run['section']} | {run['label']} | {run['cases']} | {run['seconds']:.1f} |" for run in runs_of(report)
    ]
    heads = ["| section | child | cases | seconds |", "|---|---|---|---|"]
    return "\n".join([*lines, "", about, "", "Children of the last full run; two run at a time:", "", *heads, *stages])


def runs_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what ran, the longest first."""
    return sorted(report["snapshot"]["runs"], key=lambda run: -float(run["seconds"]))


if __name__ == "__main__":
    main()
