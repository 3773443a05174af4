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
from kerncheck.model.snapshot import Snapshot
from kerncheck.plan import STATIC
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, ProbeRun, Supervisor

COSTLIEST_FIRST = ("numerics", "packing", "step", "seams", "imports")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to observe: the job, the sections wanted, with which interpreter and limits (seconds for one case)."""

    job: Job
    catalog: Catalog
    sections: tuple[str, ...]
    python: str
    timeout: float


def stage(section: str) -> ModuleType:
    """Return the module that plans and reads the probes of a section."""
    return importlib.import_module(f"kerncheck.stages.{section}")


def observe(request: Request, supervisor: Supervisor) -> Snapshot:
    """Observe the static sections first, since the other probes are planned by them; then all others at once."""
    ask = Ask(job=request.job, catalog=request.catalog, environment=NOT_YET, devices=NOT_YET, timeout=request.timeout)
    static = run_stages(ask, STATIC, request, supervisor)
    ask = replace(ask, environment=static["environment"], devices=static["gpus"])
    ask = replace(ask, gpus=visible(ask.devices) if request.job.device == "cuda" else ())
    later = tuple(section for section in COSTLIEST_FIRST if section in request.sections)
    found = {**static, **run_stages(ask, later, request, supervisor)}
    taken = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Snapshot(kerncheck=__version__, taken=taken, job=request.job, **found)


NOT_YET = Missing(reason="not observed yet")


def planned(request: Request, supervisor: Supervisor) -> list[tuple[str, list[ProbeRun]]]:
    """Return what would run, section by section. Only the static probes are run for it."""
    ask = Ask(job=request.job, catalog=request.catalog, environment=NOT_YET, devices=NOT_YET, timeout=request.timeout)
    static = run_stages(ask, STATIC, request, supervisor)
    ask = replace(ask, environment=static["environment"], devices=static["gpus"])
    later = [section for section in COSTLIEST_FIRST if section in request.sections]
    return [(section, stage(section).runs(ask)) for section in (*STATIC, *later)]


def run_stages(ask: Ask, sections: Iterable[str], request: Request, supervisor: Supervisor) -> dict[str, Any]:
    """Run the probes of several sections side by side; return each section's data."""
    plans = {section: stage(section).runs(ask) for section in sections}
    lanes = in_lanes(request.job, [run for runs in plans.values() for run in runs])
    with ThreadPoolExecutor(max_workers=max(1, min(len(lanes), workers(request.job)))) as pool:
        done = [
            answers for lane in pool.map(lambda lane: [supervisor.run(run) for run in lane], lanes) for answers in lane
        ]
    return {section: section_of(section, ask, runs, done) for section, runs in plans.items()}


def section_of(section: str, ask: Ask, runs: list[ProbeRun], done: list[Answers]) -> Any:  # noqa: ANN401
    """Let the stage make its section of its own answers, in the order in which it planned them."""
    own = [answers for run in runs for answers in done if answers.run is run]
    return stage(section).collect(ask, own)


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
