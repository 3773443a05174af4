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
    parser.add_argument("rest", nargs="*", help="options for kerncheck verify")
    return parser.parse_args()


def main() -> None:
    """Run both in turns; print the medians and the stages of the last run."""
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
    print(f"{'command':<28}{'seconds':>9}{'peak GiB':>10}   median of {given.runs}, {os.cpu_count()} cores")
    for name, results in rows.items():
        seconds, memory = (statistics.median(row[index] for row in results) for index in (0, 1))
        print(f"{name:<28}{seconds:>9.1f}{memory:>10.2f}")
    report = json.loads(rows["kerncheck verify"][-1][2])
    print(f"\nstages of the last full run (they overlap), exit {report['exit_code']}")
    for run in report["snapshot"]["runs"]:
        print(f"{run['section']:<14}{run['label']:<44}{run['cases']:>4} cases{run['seconds']:>8.1f} s")


if __name__ == "__main__":
    main()
