"""Kimi delta attention: its reference, its eager forms, and its real kernels, sound and with one wrong line.

``benchmarks/power_more.py`` tries every fault with the cells of a real run; here they are as short as power allows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from kernel_patches import FAULTS, KDA, STEP, apply, patched
from kernel_trials import found, job_of, judged, observed
from test_kernels import double, gradchecked

from kerncheck.checks.numerics_rule import margin
from kerncheck.kernels import all_specs, cells_of, find_spec
from kerncheck.kernels.fla_kda import heads
from kerncheck.model.job import RequiredOp
from kerncheck.model.numerics import Numerics

JOB = job_of(RequiredOp(op=KDA), RequiredOp(op=STEP, training=False))


def shorter(case):
    return {**case, "lengths": [17], "configuration": 3} if case["op"] == KDA else case


def test_the_cells_take_the_sizes_of_the_model_and_reach_blocks_and_chunks():
    assert heads({"linear_num_heads": 4, "linear_head_dim": 64}) == {"H": 4, "HV": 4, "K": 64, "V": 64}
    cells = cells_of(find_spec(KDA), "emulate", {})
    assert {cell.regime for cell in cells} == {"weak", "model", "extreme", "bounded", "edge"}
    assert {1, 15, 17, 64, 66, 130} <= {length for cell in cells for length in cell.lengths}
    assert any(cell.sizes["HV"] > cell.sizes["H"] for cell in cells)
    assert {cell.configuration for cell in cells} == {0, 1, 2, 3}
    for lane in ("fp32", "bf16"):
        assert any(cell.quick and lane in (cell.lanes or (lane,)) for cell in cells)


def inputs(length=6):
    return {
        "q": double(1, length, 1, 3),
        "k": double(1, length, 1, 3, seed=1),
        "v": double(1, length, 2, 2),
        "beta": double(1, length, 2).sigmoid(),
        "g": -double(1, length, 2, 3, seed=2).exp(),
        "h0": double(1, 2, 2, 3, 2),
    }


@pytest.mark.torch
def test_the_reference_passes_gradcheck():
    from kerncheck.kernels import _kda

    assert gradchecked(_kda.reference, inputs(), {"lengths": [2, 4], "options": {}})


@pytest.mark.torch
def test_a_gate_that_is_the_same_in_all_channels_is_the_gated_delta_rule():
    from kerncheck.kernels import _delta_rule, _kda

    plan, given = {"lengths": [2, 4], "options": {}}, inputs()
    same = given["g"][..., :1]
    vector = _kda.reference({**given, "g": same.expand(-1, -1, -1, 3)}, plan)
    scalar = _delta_rule.reference({**given, "g": same[..., 0]}, plan)
    assert all((vector[name] - scalar[name]).abs().max() < 1e-14 for name in ("o", "ht"))
    assert (_kda.reference(given, plan)["o"] - scalar["o"]).abs().max() > 1e-3


@pytest.mark.torch
@pytest.mark.parametrize("large", [2**28, 0])
def test_the_chunked_forms_are_the_recurrence(monkeypatch, large):
    from kerncheck.kernels import _kda

    monkeypatch.setattr(_kda, "LARGE", large)
    plan = {"lengths": [1, 66], "options": {}}
    truth = _kda.reference(inputs(67), plan)
    single = {name: x.float().requires_grad_() for name, x in inputs(67).items()}
    for eager in (_kda.eager, _kda.eager_base2):
        found = eager(single, plan)
        assert all((found[name].double() - truth[name]).abs().max() < 2e-5 for name in ("o", "ht"))
        found["o"].sum().backward()
    low = _kda.eager(single, {**plan, "options": {"low_gate": True}})
    assert (low["o"].double() - truth["o"]).abs().max() < 2e-5


@pytest.mark.slow
@pytest.mark.torch
def test_healthy_kernels_are_right_as_the_layers_call_them():
    section = observed(JOB, change=shorter)
    outcomes = judged(JOB, section)
    assert found(outcomes) == set()
    assert {(one.code, one.subject) for one in outcomes if one.status == "passed"} >= {
        *((code, KDA) for code in ("KC401", "KC402", "KC403", "KC404", "KC405", "KC406", "KC408", "KC411")),
        ("KC401", STEP),
    }
    cells = [cell for lane in section.lanes for cell in lane.cells]
    assert len(cells) == 4
    assert {cell.backward for cell in cells if cell.op == STEP} == {"no graph"}  # detached, as the catalog says of it
    assert max(margin(tensor, cell.seeds).value for cell in cells for tensor in cell.tensors) < 0.7


@pytest.mark.slow
@pytest.mark.torch
def test_one_wrong_line_in_each_is_found_in_both_lanes_for_its_cause(tmp_path):
    root = apply(patched(tmp_path, "kda loses its last decay in dg"), "kda step does not decay")
    section = observed(JOB, root, shorter)
    for lane in section.lanes:
        outcomes = judged(JOB, Numerics(evidence="emulated", lanes=(lane,)))
        assert found(outcomes) == {("KC402", KDA), ("KC401", STEP)}, lane.name
        (gradient,) = (one for one in outcomes if one.code == "KC402" and one.status == "failed")
        assert gradient.message == "dg wrong; dq, dk, dv, dbeta right"


def test_every_fault_sits_in_an_op_that_is_described():
    assert {fault.op for fault in FAULTS.values()} <= {spec.id for spec in all_specs()}
