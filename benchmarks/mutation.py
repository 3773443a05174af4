"""Measure what the default checks catch: mutants of fla's kernels and wrappers, judged as ``verify`` judges.

    python benchmarks/mutation.py --freeze          # once: draw the sample into benchmarks/mutants.json
    python benchmarks/mutation.py [--jobs 2]        # judge what benchmarks/mutation.jsonl does not hold yet
    python benchmarks/mutation.py --again           # judge once more, by cells added since, what was not killed
    python benchmarks/mutation.py --report          # write docs/detection.md from it

A mutant is first shown to the quick cells of its op, then to all cells in fp32 and bf16, then to the step and packing
probes; the first error ends it (killed). Live: some output or gradient has other bits, or a cell did not live. Equal
in every bit of every cell: equivalent. Anything else survived.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "power"))

import harness
import msgspec
import mutation_report
import running
from fla_patches import installed_fla
from mutants import FILES, Mutant, applied, mutants_of, sample

from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.kernels import all_specs
from kerncheck.model.numerics import Lane, LaneName, Numerics
from kerncheck.model.snapshot import Snapshot
from kerncheck.supervise import ProbeRun

ROOT = Path(__file__).parents[1]
SAMPLE, RESULTS = ROOT / "benchmarks" / "mutants.json", ROOT / "benchmarks" / "mutation.jsonl"
COUNT, SEED = 220, 20261129
ADDED = ("wide keys", "short rows", "with a residual", "a batch")
"""Cells of kernels/fla.py that were added after the first run, because of what it did not kill."""
LIMIT = 90.0
"""Seconds for one cell: a healthy one takes at most 8; a mutant may loop for ever."""
TRACER = """
import atexit, os, sys
seen = {}
def local(frame, event, argument):
    if event == "line":
        seen[frame.f_code.co_filename].add(frame.f_lineno)
    return local
def start(frame, event, argument):
    name = frame.f_code.co_filename
    if "/fla/" not in name:
        return None
    seen.setdefault(name, set()).add(frame.f_lineno)
    return local
def write():
    with open(os.environ["KERNCHECK_LINES"], "a") as out:
        for name, lines in seen.items():
            out.write(name + "|" + ",".join(map(str, sorted(lines))) + "\\n")
atexit.register(write)
sys.settrace(start)
"""


def op_of(file: str) -> str:
    """Return the id of the op whose cells run a file."""
    (op,) = [spec.id for spec in all_specs() if spec.package == "flash-linear-attention" and spec.name == FILES[file]]
    return op


def executed_lines(folder: Path) -> dict[str, set[int]]:
    """Run the fp32 cells once under a tracer; return the lines of each file of fla that ran."""
    (folder / "sitecustomize.py").write_text(TRACER)
    lines = folder / "lines"
    run = harness.lane_run("fp32", path=folder)
    harness.observe(replace(run, environment={**run.environment, "KERNCHECK_LINES": str(lines)}))
    found: dict[str, set[int]] = {}
    for row in lines.read_text().splitlines():
        name, _, numbers = row.partition("|")
        file = name.rpartition("/fla/")[2]
        found.setdefault(file, set()).update(int(number) for number in numbers.split(","))
    return found


def digest(root: Path) -> str:
    """Return one digest over all files that mutants are made of."""
    return hashlib.sha256(b"".join((root / file).read_bytes() for file in FILES)).hexdigest()


def freeze() -> None:
    """Draw the sample and write it down, before any mutant was run."""
    root = installed_fla()
    with tempfile.TemporaryDirectory() as folder:
        lines = executed_lines(Path(folder))
    found = [mutant for file in FILES for mutant in mutants_of(root, file, lines.get(file, set()))]
    drawn = sample(found, COUNT, SEED)
    text = {"fla": digest(root), "sites": len(found), "seed": SEED, "mutants": [asdict(one) for one in drawn]}
    SAMPLE.write_text(json.dumps(text, indent=0) + "\n")
    print(f"{len(found)} sites, {len(drawn)} drawn: {dict(Counter(one.operator for one in drawn))}")


def frozen() -> list[Mutant]:
    """Read the sample. Raises SystemExit where the installed fla is not the one that it was drawn from."""
    text = json.loads(SAMPLE.read_text())
    if text["fla"] != digest(installed_fla()):
        sys.exit("the installed fla is not the one that benchmarks/mutants.json was drawn from (0.6.0)")
    return [Mutant(**one) for one in text["mutants"]]


def mutated(folder: Path, mutant: Mutant) -> Path:
    """Copy fla with the mutant in it; return the path for PYTHONPATH."""
    shutil.copytree(installed_fla(), folder / "fla")
    target = folder / "fla" / mutant.file
    target.write_text(applied(mutant, target.read_text()))
    return folder


class Bench:
    """What mutants are compared with: the healthy cells, and the eager step, each run once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with ThreadPoolExecutor(2) as pool:
            healthy = list(pool.map(lambda lane: harness.observe(harness.lane_run(lane)), harness.LANES))
        self.healthy: dict[str, Lane] = dict(zip(harness.LANES, healthy, strict=True))
        self.quick = harness.observe(harness.lane_run("fp32", quick=True))
        self.eager = running.eager_step(running.job(), folder / "meet")

    def judged(self, mutant: Mutant, path: Path, where: Path) -> dict[str, Any]:
        """Show a mutant to one stage after the other until one of them finds it."""
        op, live = op_of(mutant.file), False
        for stage, lane, quick in (("quick", "fp32", True), ("fp32", "fp32", False), ("bf16", "bf16", False)):
            run = replace(harness.lane_run(lane, op, path=path, quick=quick), limit=LIMIT)  # type: ignore[arg-type]
            seen = harness.observe(run)
            codes = errors(seen, op)
            live = live or bool(codes) or harness.changed(self.quick if quick else self.healthy[lane], seen)
            if codes:
                return {"status": "killed", "by": stage, "codes": codes}
        return {"status": "survived" if live else "equivalent", **self.in_the_model(path, where)}

    def in_the_model(self, path: Path, where: Path) -> dict[str, Any]:
        """Show a mutant to the step and packing probes; return what is to be said of it."""
        environment = {"PYTHONPATH": str(path)}
        step = running.stepped(running.job(), environment, self.eager, where / "meet")
        codes = [found.code for found in running.judged(running.job(), step=step).findings]
        if codes:
            return {"status": "killed", "by": "step", "codes": codes}
        packing = running.packed(running.job(packing="both", quick=True), environment)
        told = running.judged(running.job(packing="both", quick=True), packing=packing)
        codes = [found.code for found in told.findings if found.severity == "error"]
        return {"status": "killed", "by": "packing", "codes": codes} if codes else {}


def errors(lane: Lane, op: str) -> list[str]:
    """Return the codes of the errors. What could not be judged is no finding, although a gate ends with 3 for it.

    An op without a backward is judged as `verify --inference` does: a job that only trains never enters it, so there
    its wrong results are a warning.
    """
    snapshot = Snapshot(numerics=Numerics(evidence="emulated", lanes=(lane,)))
    checks = [check for check in all_checks() if check.family == "KC4"]
    (trained,) = [spec.has_backward for spec in all_specs() if spec.id == op]
    job = msgspec.structs.replace(harness.job(op), training=trained)
    outcomes, _ = judge(Case(job, snapshot, None), checks)  # type: ignore[arg-type]
    return sorted({one.code for one in outcomes if one.status == "failed" and one.severity == "error"})


def one(bench: Bench, mutant: Mutant) -> dict[str, Any]:
    """Judge one mutant; return its row."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        found = bench.judged(mutant, mutated(where / "copy", mutant), where)
    return {**asdict(mutant), **found, "seconds": round(time.monotonic() - started, 1)}


def known() -> list[dict[str, Any]]:
    """Return the rows that were judged before."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(jobs: int, most: int) -> None:
    """Judge the rest of the sample; each row is written down at once."""
    done = {(row["file"], row["line"], row["column"], row["operator"], row["new"]) for row in known()}
    rest = [m for m in frozen() if (m.file, m.line, m.column, m.operator, m.new) not in done][:most]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        bench = Bench(Path(folder))
        for row in pool.map(lambda mutant: one(bench, mutant), rest):
            with RESULTS.open("a") as out:
                out.write(json.dumps(row) + "\n")
            show(row)


def again(jobs: int) -> None:
    """Show what was not killed to the cells that were added because of it. What was killed stays so."""
    rows = known()
    open_ = [row for row in rows if row["status"] != "killed" and not row.get("again")]
    healthy = {lane: harness.observe(added(lane)) for lane in harness.LANES}
    with ThreadPoolExecutor(jobs) as pool:
        for old, found in zip(open_, pool.map(lambda row: by_added(row, healthy), open_), strict=True):
            rows[rows.index(old)] = {**old, **found, "again": True}
            RESULTS.write_text("".join(json.dumps(item) + "\n" for item in rows))
            show({**old, **found})


def added(lane: LaneName, *ops: str, path: Path | None = None) -> ProbeRun:
    """Return the run of the cells in ``ADDED`` alone."""
    run = harness.lane_run(lane, *ops, path=path)
    return replace(run, cases=tuple(case for case in run.cases if case["cell"] in ADDED), limit=LIMIT)


def by_added(row: dict[str, Any], healthy: dict[LaneName, Lane]) -> dict[str, Any]:
    """Judge one mutant by the added cells of its op; return what is new about it."""
    op = op_of(row["file"])
    mutant = Mutant(**{name: row[name] for name in Mutant.__dataclass_fields__})
    with tempfile.TemporaryDirectory() as folder:
        path = mutated(Path(folder) / "copy", mutant)
        for lane in harness.LANES:
            run = added(lane, op, path=path)
            if not run.cases:
                return {}
            seen = harness.observe(run)
            if codes := errors(seen, op):
                return {"status": "killed", "by": lane, "codes": codes}
            if harness.changed(healthy[lane], seen):
                return {"status": "survived"}
    return {}


def show(row: dict[str, Any]) -> None:
    """Print one line about a mutant."""
    change = f"{row['operator']}: {row['old'][:50]} -> {row['new'][:50]}"
    found = f"{row['status']:10} {row.get('by', ''):7} {row['seconds']:6.1f} s"
    print(f"{found}  {row['file']}:{row['line']} {change}", flush=True)


def main() -> int:
    """Read the options and do what they ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most", type=int, default=10_000, help="stop after so many")
    asked = parser.parse_args()
    if asked.freeze:
        freeze()
    elif asked.again:
        again(asked.jobs)
    elif asked.report:
        mutation_report.write(known(), json.loads(SAMPLE.read_text()))
    else:
        run(asked.jobs, asked.most)
    return 0


if __name__ == "__main__":
    sys.exit(main())
