"""Mutate profiler traces, read, analyse and judge each, and report how they ended and how long the slowest took.

    python benchmarks/fuzz_traces.py --files 5000 --seed 1

Ends with whatever exception a file caused; that file is then left where the first line says.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fuzz"))

from trace_mutations import SLOWEST, hostile


def main() -> None:
    """Run and print the figures."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--files", type=int, default=5000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kerncheck-fuzz-"))
    print(f"in {folder}; the file of a failure stays there")
    started, slowest, ends = time.monotonic(), (0.0, ""), Counter()
    for name, end, seconds in hostile(folder, given.files, given.seed):
        slowest = max(slowest, (seconds, name))
        ends[end] += 1
        if seconds > SLOWEST:
            sys.exit(f"{name} took {seconds:.1f} s")
    print(f"{given.files} traces in {time.monotonic() - started:.0f} s, the slowest {slowest[0]:.2f} s ({slowest[1]})")
    print(", ".join(f"{end} {count}" for end, count in ends.most_common()))
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
