"""The training step on a real GPU: what only a GPU can show. Needs one, with fla and causal-conv1d for its torch."""

from __future__ import annotations

import sys

import pytest
from needs_gpu import MARKS

from kerncheck import catalog as catalogs
from kerncheck.checks import step as step_checks
from kerncheck.checks import step_result
from kerncheck.checks.registry import Case, Check
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.job import Job
from kerncheck.model.snapshot import Snapshot
from kerncheck.model.step import Run
from kerncheck.report import Report
from kerncheck.stages import step
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor

pytestmark = MARKS
CATALOG = catalogs.load()
CHUNK = "chunk_gated_delta_rule"


@pytest.fixture(scope="module")
def observed():
    job = Job(profile="node", device="cuda", model=CATALOG.model("qwen").request())
    missing = Missing(reason="not part of this test")
    ask = Ask(job=job, catalog=CATALOG, environment=missing, devices=missing, gpus=("0",), timeout=600.0)
    return job, step.collect(ask, [Supervisor(sys.executable).run(run) for run in step.runs(ask)])


def test_the_step_runs_and_is_judged(observed):
    job, section = observed
    checks = [
        item for module in (step_checks, step_result) for item in vars(module).values() if isinstance(item, Check)
    ]
    snapshot = Snapshot(job=job, step=section)
    outcomes, crashes = judge(Case(job, snapshot, CATALOG), checks)
    told = Report(version="0", job=job, snapshot=snapshot, outcomes=outcomes, crashes=crashes)
    assert told.crashes == ()
    assert told.failing == ()
    assert {outcome.code for outcome in told.of("passed")} >= {"KC601", "KC602", "KC604", "KC606", "KC609"}
    assert all(outcome.evidence == "measured" for outcome in told.of("passed"))


def test_hooks_and_profiler_agree_on_the_kernels_of_each_layer(observed):
    run = observed[1].devices[0].fused
    assert isinstance(run, Run)
    assert run.profile is not None
    assert run.profile.reason == ""
    assert run.profile.joined >= 0.95 * run.profile.kernels > 0
    layers = [layer for layer, kind in enumerate(run.layer_types) if kind == "linear_attention"]
    for layer in layers:
        for phase in ("forward", "backward"):
            seen = {name for item in run.profile.labelled for name in item.kernels if is_at(item, layer, phase)}
            assert set(run.launched(layer, CHUNK, phase)) <= seen


def is_at(item, layer, phase):
    return (item.layer, item.seam, item.phase) == (layer, CHUNK, phase)


def test_the_eager_step_is_timed_too(observed):
    eager = observed[1].devices[0].eager
    assert isinstance(eager, Run)
    assert eager.profile is not None
    assert eager.profile.seconds > 0
