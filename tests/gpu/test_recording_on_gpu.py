"""Recording on a real GPU: `kerncheck trace record` and `kerncheck.step_trace`. Needs one, with fla for its torch."""

from __future__ import annotations

import json

import pytest
from needs_gpu import MARKS

import kerncheck
from kerncheck.cli import run

pytestmark = MARKS
CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    trace, told = folder / "trace.json.gz", folder / "report.json"
    with pytest.MonkeyPatch.context() as patch, told.open("w") as file:
        patch.setattr("sys.stdout", file)
        code = run(["trace", "record", "--model", "qwen", "--output", str(trace), "--format", "json"])
    assert code in (0, 3)  # 3 where causal-conv1d, a required op, shows neither its kernels nor its eager reference
    assert trace.stat().st_size
    return json.loads(told.read_text())


def test_the_recorded_steps_are_complete(report):
    measured = report["snapshot"]["trace"]["report"]
    assert measured["iterations"] == 3
    joins = measured["joins"]
    assert joins["joined"] >= 0.99 * joins["gpu_operations"] > 0
    assert joins["lost"] <= 0.01 * joins["launches"]
    assert measured["offenders"]
    assert {item["code"]: item["status"] for item in report["outcomes"]}["KC620"] == "passed"


def test_the_fused_kernels_are_seen(report):
    statuses = {item["subject"]: item["status"] for item in report["outcomes"] if item["code"] == "KC627"}
    assert statuses[CHUNK] == "passed"


def test_a_loop_of_this_process_is_recorded():
    import torch

    norm = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).cuda()
    with kerncheck.step_trace(norm, wait=1, warmup=2, active=3) as trace:
        for _ in range(6):
            norm(torch.ones(8, 64, device="cuda")).square().sum().backward()
            trace.step()
    assert trace.report is not None
    assert trace.report.joins.rate >= 0.95
    assert {outcome.status for outcome in trace.outcomes if outcome.code == "KC620"} == {"passed"}
    trace.raise_on_fallback()
