"""Show the power of the default numeric cells: ``python benchmarks/power.py [--faults A,B] [--nulls 20] [--jobs 2]``.

Prints a line for each fault and lane, then the margins of healthy kernels on fresh seeds. Exits 1 if a fault that must
be caught was not, was not live, or a healthy kernel was accused. In full about 25 minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "power"))

import harness
import nulls

HELD_OUT = range(nulls.HELD_OUT, nulls.HELD_OUT + 1000)


def main() -> int:
    """Run everything, or what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", default=",".join(harness.FAULTS), help="names, separated by commas; empty for none")
    parser.add_argument("--nulls", type=int, default=20, help="fresh seeds for each lane")
    parser.add_argument("--held-out", type=int, default=0, help="as many more seeds that no constant was chosen on")
    parser.add_argument("--store", help="a file for the margins of the healthy kernels (see nulls.py)")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    start = time.monotonic()
    names = [name for name in asked.faults.split(",") if name]
    trials = harness.run_faults(names, asked.jobs) if names else []
    found = harness.run_nulls((*range(1, asked.nulls + 1), *HELD_OUT[: asked.held_out]), asked.jobs)
    alarms = harness.accused(found)
    if asked.store:
        nulls.store(Path(asked.store), found)
    bad = [one for one in trials if not one.as_asked]
    caught = sum(bool(one.codes) for one in trials)
    print(f"{len(trials)} trials, {caught} flagged, {len(bad)} not as asked; {time.monotonic() - start:.0f} s")
    return 0 if not alarms and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
