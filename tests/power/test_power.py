"""A small part of the power table (benchmarks/power.py shows all of it): two faults, and fla as it is installed."""

from __future__ import annotations

import pytest
from harness import FAULTS, FROM_TABLE, changed, findings, lane_run, launched, observe, trial

pytestmark = pytest.mark.torch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lane", "codes"),
    [
        ("gated norm without its rstd in dx", "bf16", {"KC402"}),
        ("l2norm runs eagerly", "fp32", {"KC404"}),
    ],
)
def test_a_fault_is_live_and_caught_for_its_cause_and_the_healthy_kernel_is_not_accused(name, lane, codes):
    fault = FAULTS[name]
    healthy = observe(lane_run(lane, fault.op, quick=True))
    assert findings(healthy, fault.op) == []
    assert not changed(healthy, healthy)
    assert launched(healthy, fault.kernel)
    found = trial(name, lane, healthy, quick=True)
    assert found.live
    assert set(found.codes) == codes, found.words


def test_the_table_holds_the_faults_of_the_method_notes():
    assert len(FROM_TABLE) == 21
    assert {fault.bf16 for fault in FAULTS.values()} == {"caught", "unseen", "n.a."}
