"""Run and judge the quick cells of some ops in one child, with another copy of their package where a path is given."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.numerics import Numerics
from kerncheck.model.outcome import Outcome
from kerncheck.model.snapshot import Snapshot
from kerncheck.stages import numerics
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor

NOT_SEEN = Missing(reason="not part of this test")


def job_of(*required: RequiredOp) -> Job:
    """Return a quick training job on the emulated device that needs these ops."""
    model = ModelRequest(name="m", folder="m", architecture="M", config={}, required=required)
    return Job(profile="ci", device="emulate", model=model, quick=True)


def observed(job: Job, path: str = "", change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Numerics:
    """Run the quick cells of a job in both lanes; ``change`` may make a case shorter."""
    ask = Ask(job=job, catalog=None, environment=NOT_SEEN, devices=NOT_SEEN, timeout=300.0)  # type: ignore[arg-type]
    run = numerics.run_of(ask, ("fp32", "bf16"), "")
    paths = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH", ""))))
    run = replace(run, cases=tuple(map(change, run.cases)), environment={**run.environment, "PYTHONPATH": paths})
    told = Supervisor(sys.executable).run(run)
    return Numerics(evidence="emulated", lanes=tuple(numerics.lane(name, told) for name in numerics.lanes_of(told)))


def judged(job: Job, section: Numerics) -> tuple[Outcome, ...]:
    """Return what the numeric checks say."""
    checks = [check for check in all_checks() if check.family == "KC4"]
    outcomes, crashes = judge(Case(job, Snapshot(numerics=section), None), checks)  # type: ignore[arg-type]
    assert not crashes, crashes
    return outcomes


def found(outcomes: tuple[Outcome, ...]) -> set[tuple[str, str]]:
    """Return code and subject of every finding."""
    return {(one.code, one.subject) for one in outcomes if one.status == "failed"}
