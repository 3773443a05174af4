"""Compile a model's kernels for several targets and print what came of it as Markdown.

    python benchmarks/compile_ahead.py --model qwen --target sm_80 --target sm_90 --target sm_100 --target sm_120

Another Triton: put it first on PYTHONPATH (``pip install --no-deps --target DIR triton==3.7.1``). ``--constants``
prints what each launch was specialised for instead, as one JSON line each, to be compared with a run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from kerncheck import catalog
from kerncheck.checks import _compiled as read
from kerncheck.checks.registry import Case
from kerncheck.model.base import Missing
from kerncheck.model.compiled import Compiled, Rehearsal
from kerncheck.model.job import Job
from kerncheck.model.snapshot import Snapshot
from kerncheck.models import resolve
from kerncheck.stages import compiled as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor, why
from kerncheck.targets import parse_targets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen")
    parser.add_argument("--target", action="append", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--constants", action="store_true")
    given = parser.parse_args()
    known = catalog.load()
    for text in given.target:
        job = Job(
            profile="image",
            model=resolve(given.model, known),
            targets=parse_targets([text], known),
            quick=given.quick,
        )
        started, spent = time.monotonic(), cpu_seconds()
        section = observe(job, known)
        case = Case(job, Snapshot(job=job, compiled=section), known)
        for one in section.rehearsals:
            if given.constants:
                constants(one)
            else:
                report(case, one, time.monotonic() - started, cpu_seconds() - spent)
    return 0


def observe(job: Job, known: catalog.Catalog) -> Compiled:
    """Run the stage's children side by side, as ``verify`` does."""
    missing = Missing(reason="not looked")
    ask = Ask(job=job, catalog=known, environment=missing, devices=missing)
    supervisor = Supervisor(sys.executable)
    runs = stage.runs(ask)
    with ThreadPoolExecutor(max_workers=max(1, min(len(runs), os.cpu_count() or 1))) as pool:
        section = stage.collect(ask, list(pool.map(supervisor.run, runs)))
    if isinstance(section, Missing):
        raise SystemExit(section.reason)
    return section


def cpu_seconds() -> float:
    """Return the CPU time of all children that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def report(case: Case, one: Rehearsal, wall: float, cpu: float) -> None:
    """Print the table of one target."""
    tool = one.toolchain
    print(f"\n### {one.name}, triton {tool.triton} (ptxas {tool.version}, {tool.target})\n")
    if one.survey is not None or not tool.knows:
        print(f"nothing was compiled: {why(one.survey) if one.survey is not None else tool.message}")
        return
    print(f"| kernel | compiled | fit in {one.facts.shared_memory:,} | shared memory | registers | local | seconds |")
    print("|---|---|---|---|---|---|---|")
    for tally in read.tallies(case, one):
        print("| " + " | ".join(row(tally, one)) + " |")
    for lost in one.lost:
        print(f"\nnot finished: {lost.name}: {why(lost.why)}")
    made = [result for result in one.results if result.compiled]
    cached = sum(result.cached for result in made)
    print(f"\n{len(made)} compilations ({cached} from Triton's cache), {len(one.results) - len(made)} failed; ", end="")
    inside = sum(result.seconds for result in made)
    print(f"{inside:.0f} s of CPU time in them, {cpu:.0f} s in all, {wall:.0f} s of wall time")


def row(tally: read.Tally, one: Rehearsal) -> list[str]:
    """Return the cells of a kernel."""
    made = [result for _, result in tally.compiled]
    fit = sum(read.fits(result, one) for result in made)
    return [
        tally.name,
        f"{len(made)} of {tally.tried}",
        f"{fit} of {len(made)}",
        span([result.shared for result in made]),
        span([result.registers or 0 for result in made]),
        span([result.local_memory or 0 for result in made]),
        f"{sum(result.seconds for result in made):.1f}",
    ]


def span(values: list[int]) -> str:
    """Return the least and the most of some numbers."""
    if not values:
        return "-"
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def constants(one: Rehearsal) -> None:
    """Print what each launch was specialised for."""
    for call, phase, kernel in one.walk():
        for item in kernel.configurations:
            line = {
                "target": one.name,
                "call": call.name,
                "phase": phase.phase,
                "kernel": kernel.name,
                "grid": kernel.grid,
                "constants": {**kernel.constants, **item.choice},
                "types": kernel.types,
            }
            print(json.dumps(line))


if __name__ == "__main__":
    sys.exit(main())
