"""Show what the default numeric cells see of kernels beside qwen's: planted faults, and no healthy kernel.

    python benchmarks/power_more.py [--only kda] [--quick] [--nulls 8]

As ``benchmarks/power.py`` does for qwen's kernels, with the faults of ``tests/faults/kernel_patches.py``. A fault
counts only if it is live and both lanes see it; ``--nulls`` runs healthy kernels on as many fresh seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "power"), str(TESTS / "faults")]

from harness import LANES, changed, findings, lane_run, launched, margins, observe  # noqa: E402
from kernel_patches import FAULTS, patched  # noqa: E402

from kerncheck.model.numerics import Lane, LaneName  # noqa: E402

FRESH = 100  # added to a cell's own seed: seeds that nothing was chosen by


def tried(lane: LaneName, names: list[str], *, quick: bool) -> Iterator[bool]:
    """Try faults in a lane, and print a line for each; yield whether it was live and seen."""
    healthy: dict[str, Lane] = {}
    for name in names:
        fault = FAULTS[name]
        if fault.op not in healthy:
            healthy[fault.op] = observe(lane_run(lane, fault.op, quick=quick))
            if findings(healthy[fault.op], fault.op):
                raise SystemExit(f"the healthy {fault.op} is accused: {findings(healthy[fault.op], fault.op)}")
        with tempfile.TemporaryDirectory() as folder:
            faulty = observe(lane_run(lane, fault.op, path=patched(Path(folder), name), quick=quick))
        found = findings(faulty, fault.op)
        live = changed(healthy[fault.op], faulty) and launched(healthy[fault.op], fault.kernel)
        words = "; ".join(f"{one.code} {one.message}" for one in found) or "nothing"
        print(f"{lane} {name:52} live={live!s:5} {words[:120]}", flush=True)
        yield live and (bool(found) or (fault.fp32 if lane == "fp32" else fault.bf16) != "caught")


def healthy(lane: LaneName, ops: list[str], seeds: range) -> bool:
    """Run all cells of healthy ops on fresh seeds, print the largest margins, and tell whether all are right."""
    run = lane_run(lane, *ops)
    again = tuple({**case, "seed": case["seed"] + seed} for seed in seeds for case in run.cases)
    seen = observe(replace(run, cases=again))
    found, values = findings(seen, *ops), margins(seen)
    print(f"{lane}: {len(seeds)} seeds, {len(values)} tensors, findings {[one.message for one in found]}; largest:")
    for value, place in values[:8]:
        print(f"    {value:.2f} {place}", flush=True)
    return not found and values[0][0] <= 1


def main() -> int:
    """Try everything; return 1 unless all is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name begins like this")
    parser.add_argument("--quick", action="store_true", help="with the cells of a quick run")
    parser.add_argument("--nulls", type=int, default=0, help="fresh seeds for healthy kernels")
    asked = parser.parse_args()
    names = [name for name in FAULTS if name.startswith(asked.only)]
    ops = list(dict.fromkeys(FAULTS[name].op for name in names))
    good = [one for lane in LANES for one in tried(lane, names, quick=asked.quick)]
    if asked.nulls:
        good += [healthy(lane, ops, range(FRESH + 1, FRESH + 1 + asked.nulls)) for lane in LANES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
