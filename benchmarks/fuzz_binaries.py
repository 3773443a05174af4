"""Mutate small real ELF files and fat binaries, read each as the probe does, and report how long the slowest took.

    python benchmarks/fuzz_binaries.py --files 20000 --fatbins 50000 --seed 1

Ends with whatever exception a file caused; that file is then left where the first line says.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fuzz"))

from mutations import SLOWEST, hostile, hostile_fatbins


def main() -> None:
    """Run both kinds and print the figures."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--files", type=int, default=20_000)
    options.add_argument("--fatbins", type=int, default=50_000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kerncheck-fuzz-"))
    print(f"in {folder}; the file of a failure stays there")
    started, slowest = time.monotonic(), 0.0
    for path, seconds in hostile(folder, given.files, given.seed):
        slowest = max(slowest, seconds)
        if seconds > SLOWEST:
            sys.exit(f"{path} took {seconds:.1f} s")
    print(f"{given.files} ELF files in {time.monotonic() - started:.0f} s, the slowest {1000 * slowest:.0f} ms")
    ends = hostile_fatbins(given.fatbins, given.seed)
    print(f"{given.fatbins} fat binaries: " + ", ".join(f"{words} {count}" for words, count in ends.most_common(8)))
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
