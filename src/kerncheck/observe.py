"""Run the planned probes in child processes and put what they saw into one snapshot."""

from __future__ import annotations

import datetime
import importlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from kerncheck._version import __version__
from kerncheck.catalog import Catalog
from kerncheck.model.base import Missing
from kerncheck.model.environment import Gpus
from kerncheck.model.job import Job
from kerncheck.model.snapshot import RunRecord, Snapshot
from kerncheck.plan import STATIC
from kerncheck.plugins import plugged
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, ProbeRun, Supervisor

COSTLIEST_FIRST = ("compiled", "numerics", "packing", "step", "seams", "imports", "binaries", "trace")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to observe: the job, the sections wanted, with which interpreter and limits (seconds for one case)."""

    job: Job
    catalog: Catalog
    sections: tuple[str, ...]
    python: str
    timeout: float


@dataclass(frozen=True)
class Observed:
    """Sections of a snapshot by name, and the runs that made them."""

    sections: dict[str, Any]
    runs: tuple[RunRecord, ...]


def stage(section: str) -> ModuleType:
    """Return the module that plans and reads the probes of a section."""
    return importlib.import_module(f"kerncheck.stages.{section}")


def observe(request: Request, supervisor: Supervisor) -> Snapshot:
    """Observe the static sections first, since the other probes are planned by them; then all others at once."""
    ask = first_ask(request)
    static = run_stages(ask, STATIC, request, supervisor)
    ask = informed(ask, static)
    with plugged(ask.environment):
        later = run_stages(ask, dynamic(request), request, supervisor)
    taken = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    sections = {**static.sections, **later.sections}
    return Snapshot(kerncheck=__version__, taken=taken, job=request.job, runs=(*static.runs, *later.runs), **sections)


def dynamic(request: Request) -> tuple[str, ...]:
    """Return the sections that need more than a look at files, the costliest first."""
    return tuple(section for section in COSTLIEST_FIRST if section in request.sections)


def informed(ask: Ask, static: Observed) -> Ask:
    """Return what the other stages plan by."""
    devices = static.sections["gpus"]
    gpus = visible(devices) if ask.job.device == "cuda" else ()
    return replace(ask, environment=static.sections["environment"], devices=devices, gpus=gpus)


NOT_YET = Missing(reason="not observed yet")


def first_ask(request: Request) -> Ask:
    """Return what the static stages are given: nothing was observed yet."""
    return Ask(
        job=request.job,
        catalog=request.catalog,
        environment=NOT_YET,
        devices=NOT_YET,
        timeout=request.timeout,
        python=request.python,
    )


def planned(request: Request, supervisor: Supervisor) -> list[tuple[str, list[ProbeRun]]]:
    """Return what would run, section by section. Only the static probes are run for it."""
    ask = first_ask(request)
    ask = informed(ask, run_stages(ask, STATIC, request, supervisor))
    with plugged(ask.environment):
        return [(section, stage(section).runs(ask)) for section in (*STATIC, *dynamic(request))]


def run_stages(ask: Ask, sections: Iterable[str], request: Request, supervisor: Supervisor) -> Observed:
    """Run the probes of several sections side by side; return each section's data, and what ran for how long."""
    plans = {section: stage(section).runs(ask) for section in sections}
    lanes = in_lanes(request.job, [run for runs in plans.values() for run in runs])
    with ThreadPoolExecutor(max_workers=max(1, min(len(lanes), workers(request.job)))) as pool:
        walked = list(pool.map(lambda lane: [supervisor.run(run) for run in lane], lanes))
    answers_of = {id(one.run): one for lane in walked for one in lane}
    done = {section: [answers_of[id(run)] for run in runs] for section, runs in plans.items()}
    found = {section: stage(section).collect(ask, answers) for section, answers in done.items()}
    records = [record(section, one) for section, answers in done.items() for one in answers]
    return Observed(found, tuple(records))


def record(section: str, answers: Answers) -> RunRecord:
    """Return what is kept about a run."""
    cases = len(answers.run.cases)
    return RunRecord(section=section, label=answers.run.label, cases=cases, seconds=round(answers.seconds, 2))


def in_lanes(job: Job, runs: list[ProbeRun]) -> list[list[ProbeRun]]:
    """Group runs that must not run at the same time: on a GPU, those of one device; elsewhere each is alone."""
    if job.device != "cuda":
        return [[run] for run in runs]
    lanes: dict[str, list[ProbeRun]] = {}
    for run in runs:
        lanes.setdefault(run.environment.get("CUDA_VISIBLE_DEVICES", ""), []).append(run)
    return list(lanes.values())


def workers(job: Job) -> int:
    """Return how many children may run at once: one a GPU, or one a core up to four (each may take a gigabyte)."""
    return 64 if job.device == "cuda" else min(4, os.cpu_count() or 1)


def visible(gpus: Gpus | Missing) -> tuple[str, ...]:
    """Return the values for CUDA_VISIBLE_DEVICES that select each visible GPU alone."""
    if isinstance(gpus, Missing):
        return ()
    declared = os.environ.get("CUDA_VISIBLE_DEVICES")
    if declared is None:
        return tuple(str(index) for index in range(len(gpus.gpus)))
    entries = [entry.strip() for entry in declared.split(",")]
    stop = next((index for index, entry in enumerate(entries) if entry in ("", "-1")), len(entries))
    return tuple(entries[:stop])  # CUDA ignores what follows the first invalid entry
