"""Run the packing or step probe of a job among broken packages, and judge what it saw."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
from standins import CATALOG, NOT_SEEN

from kerncheck.checks import packing as packing_checks
from kerncheck.checks import step as step_checks
from kerncheck.checks import step_result
from kerncheck.checks.registry import Case, Check
from kerncheck.judge import judge
from kerncheck.model.job import Job, ModelRequest
from kerncheck.model.packing import Packing
from kerncheck.model.snapshot import Snapshot
from kerncheck.model.step import Step
from kerncheck.report import Report
from kerncheck.stages import packing, step
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, ProbeRun, Supervisor

CHECKS = {
    "packing": (packing_checks,),
    "step": (step_checks, step_result),
}


def model(**config: object) -> ModelRequest:
    """Return the known model, as small as one period of layers can be: few heads make the interpreter fast."""
    request = CATALOG.model("qwen").request()
    small = {
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    return msgspec.structs.replace(request, shrink={**request.shrink, **small}, config={**request.config, **config})


def job(**changes: object) -> Job:
    """Return a job of profile ci on the emulated device."""
    return Job(**{"profile": "ci", "device": "emulate", "model": model(), **changes})


def ask(asked: Job) -> Ask:
    """Return what the stages are given."""
    return Ask(job=asked, catalog=CATALOG, environment=NOT_SEEN, devices=NOT_SEEN, timeout=300.0)


def ran(run: ProbeRun, environment: dict[str, str]) -> Answers:
    """Run a probe with packages in front of the installed ones."""
    return Supervisor(sys.executable).run(replace(run, environment={**run.environment, **environment}))


def packed(asked: Job, environment: dict[str, str]) -> Packing:
    """Observe a job's packing."""
    (run,) = packing.runs(ask(asked))
    return packing.collect(ask(asked), [ran(run, environment)])


def eager_step(asked: Job, folder: Path) -> Answers:
    """Run the step with the eager references once; its tensors stay in ``folder`` for any number of fused runs."""
    run = step.runs(ask(asked))[1]
    return ran(replace(run, options={**run.options, "exchange": str(folder)}), {})


def stepped(asked: Job, environment: dict[str, str], eager: Answers, folder: Path) -> Step:
    """Observe a job's step among broken packages, beside an eager step that ran before."""
    run = step.runs(ask(asked))[0]
    shutil.copytree(eager.run.options["exchange"], folder)
    fused = ran(replace(run, options={**run.options, "exchange": str(folder)}), environment)
    kept = replace(eager, run=replace(eager.run, options={**eager.run.options, "exchange": str(folder)}))
    return step.collect(ask(asked), [fused, kept])


def judged(asked: Job, **section: Packing | Step) -> Report:
    """Judge one section by its checks."""
    (name,) = section
    snapshot = Snapshot(job=asked, **section)
    checks = [item for module in CHECKS[name] for item in vars(module).values() if isinstance(item, Check)]
    outcomes, crashes = judge(Case(asked, snapshot, CATALOG), checks)
    return Report(version="0", job=asked, snapshot=snapshot, outcomes=outcomes, crashes=crashes)


def codes(report: Report) -> list[str]:
    """Return the codes of the findings; no check may have crashed."""
    assert [crash.detail for crash in report.crashes] == []
    return sorted(outcome.code for outcome in report.findings)


def both(*work: object) -> list[object]:
    """Run two pieces of work side by side."""
    with ThreadPoolExecutor(2) as pool:
        return [done.result() for done in [pool.submit(item) for item in work]]
