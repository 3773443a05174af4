"""KC001 and KC401 to KC411: each fires on the smallest broken observation, and is silent on the healthy one."""

from __future__ import annotations

import msgspec
import pytest

from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.kernels import all_specs
from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.numerics import Cell, CellLost, Lane, Numerics, Sizes, TensorSeen, Unimportable, Unrepeated
from kerncheck.model.snapshot import Snapshot

CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
STEP = "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule"
CONV = "causal_conv1d:causal_conv1d_fn"
CHECKS = tuple(check for check in all_checks() if check.code.startswith(("KC001", "KC4")))
FACTS = {"torch": "2.13.0", "triton": "3.9.0"}
replace = msgspec.structs.replace


def tensor(name, role="output", error=4e-3, **changes):
    found = Sizes(
        rms_reference=1.0,
        natural=0.0,
        rms_fused=error,
        rms_eager=(3.5e-3,),
        block_fused=error,
        block_eager=(4e-3,),
        gain_fused=0.0,
        gain_error=1e-4,
        gain_eager=(0.0,),
    )
    return TensorSeen(name=name, role=role, precision="bf16", **{"sizes": found, **changes})


HEALTHY = Cell(
    op=CHUNK,
    name="weak gates",
    regime="weak",
    lengths=(150,),
    seeds=4,
    tensors=(
        tensor("o"),
        tensor("ht", "state"),
        tensor("dq", "gradient"),
        tensor("dk", "gradient"),
        tensor("dg", "gradient"),
    ),
    launched_forward=("chunk_fwd_kernel_o",),
    launched_backward=("chunk_bwd_kernel_dqkwg",),
    configurations={"chunk_fwd_kernel_o": "BK=64"},
)
CAUSAL = Cell(op=CHUNK, name="causality", regime="weak", lengths=(100,), seeds=1, cuts=(40, 70))


def with_tensor(cell, name, **changes):
    return replace(cell, tensors=tuple(replace(x, **changes) if x.name == name else x for x in cell.tensors))


def with_error(cell, name, error):
    return replace(cell, tensors=tuple(tensor(x.name, x.role, error) if x.name == name else x for x in cell.tensors))


def job(*ops, training=True, device="emulate", model=True):
    required = tuple(RequiredOp(op=op, training=op != STEP) for op in ops)
    request = ModelRequest(name="m", folder="m", architecture="M", config={}, required=required) if model else None
    profile = "ci" if device == "emulate" else "node"
    return Job(profile=profile, device=device, model=request, training=training)


def section(*cells, evidence="emulated", left_out=None, **lane):
    one = Lane(**{"name": "bf16", "facts": FACTS, "cells": cells or (HEALTHY, CAUSAL), **lane})
    return Numerics(evidence=evidence, lanes=(one,), left_out=left_out or {})


def judged(numerics, asked=None):
    asked = asked or job(CHUNK)
    outcomes, crashes = judge(Case(asked, Snapshot(numerics=numerics), None), CHECKS)
    assert not crashes, crashes[0].detail
    return outcomes


def failed(numerics, asked=None):
    return {item.code: item for item in judged(numerics, asked) if item.status == "failed"}


def test_a_healthy_op_passes_every_check_with_evidence_lanes_and_margins():
    outcomes = judged(section())
    assert {item.code for item in outcomes if item.status == "passed"} == {
        "KC001", "KC401", "KC402", "KC403", "KC404", "KC405", "KC406", "KC407", "KC408", "KC410", "KC411"
    }  # fmt: skip
    assert [item.code for item in outcomes if item.status == "failed"] == []
    passed = next(item for item in outcomes if item.code == "KC402")
    assert passed.evidence == "emulated"
    assert "dg 0." in passed.message
    assert "in bf16: weak gates" in passed.message


def test_kc409_cannot_fail_in_emulation_and_says_so():
    outcome = next(item for item in judged(section()) if item.code == "KC409")
    assert outcome.status == "not_judged"
    assert outcome.required is False
    assert "cannot fail" in outcome.message


def test_kc401_names_what_is_wrong_and_what_is_right_once():
    numerics = section(with_error(with_error(HEALTHY, "o", 0.41), "dq", 0.5), with_error(HEALTHY, "o", 0.3))
    found = failed(numerics)
    assert set(found) == {"KC401"}
    assert found["KC401"].message == "o wrong; ht right"
    assert "relative error 0.41" in found["KC401"].found
    assert "chunk_fwd_kernel_o: BK=64" in found["KC401"].found
    assert "triton 3.9.0" in found["KC401"].found
    note = next(item for item in judged(numerics) if item.code == "KC402")
    assert note.status == "note"
    assert "dq" in note.message


def test_kc402_judges_each_gradient_alone():
    found = failed(section(with_error(HEALTHY, "dk", 0.54)))
    assert set(found) == {"KC402"}
    assert found["KC402"].message == "dk wrong; dq, dg right"


@pytest.mark.parametrize("change", [{"absent": True, "sizes": None}, {"zero": True}])
def test_kc402_a_gradient_that_does_not_come_is_missing(change):
    found = failed(section(replace(with_tensor(HEALTHY, "dg", **change), slopes={"g": 0.25})))
    assert set(found) == {"KC402"}
    assert found["KC402"].message.startswith("dg ")
    assert "slope 0.25 along g" in found["KC402"].found


def test_kc402_inference_needs_no_gradient():
    outcomes = judged(section(with_error(HEALTHY, "dk", 0.54)), job(CHUNK, training=False))
    assert next(item for item in outcomes if item.code == "KC402").status == "not_applicable"


RAISES = replace(
    HEALTHY,
    backward="raised",
    backward_error="NotImplementedError: no",
    launched_backward=(),
    tensors=HEALTHY.tensors[:2],
)


def test_kc403_a_backward_that_raises_fails_where_training_enters_the_op():
    found = failed(section(RAISES))
    assert set(found) == {"KC403"}
    assert "NotImplementedError" in found["KC403"].found
    silent = replace(RAISES, backward="no graph", backward_error="")
    assert "no output has a graph" in failed(section(silent))["KC403"].found


def test_kc403_a_forward_only_op_is_fine_for_decoding():
    outcomes = judged(section(replace(RAISES, op=STEP)), job(STEP))
    told = next(item for item in outcomes if item.code == "KC403")
    assert told.status == "not_applicable"
    assert "forward-only" in told.message
    assert [item.code for item in outcomes if item.status == "failed"] == []


@pytest.mark.parametrize(("change", "way"), [("launched_forward", "forward"), ("launched_backward", "backward")])
def test_kc404_eager_code_behind_the_name_is_no_evidence(change, way):
    numerics = section(replace(HEALTHY, **{change: ()}))
    found = failed(numerics)
    assert set(found) == {"KC404"}
    assert way in found["KC404"].message
    assert not [item for item in judged(numerics) if item.code in ("KC401", "KC402") and item.status == "passed"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nonfinite": 7, "sizes": None}, "7 entries that are not finite"),
        ({"shape": "[1], wanted [2]", "sizes": None}, "has shape [1], wanted [2]"),
        ({"dtype": "float32, wanted bfloat16"}, "is float32, wanted bfloat16"),
        ({"zero": True}, "is all zero"),
    ],
)
def test_kc405_what_is_malformed_is_told_once(change, words):
    found = failed(section(with_tensor(HEALTHY, "o", **change)))
    assert set(found) == {"KC405"}
    assert words in found["KC405"].message


def test_kc405_one_malformed_tensor_is_one_finding_even_if_it_is_wrong_elsewhere():
    broken = with_tensor(HEALTHY, "o", nonfinite=7, sizes=None)
    elsewhere = replace(with_error(with_error(HEALTHY, "o", 0.4), "dq", 0.4), name="model gates")
    outcomes = judged(section(broken, elsewhere))
    assert {item.code for item in outcomes if item.status == "failed"} == {"KC405"}
    assert {item.code: item.status for item in outcomes}["KC402"] == "note"


def test_kc406_changed_inputs():
    found = failed(section(replace(HEALTHY, changed=("q", "do"))))
    assert set(found) == {"KC406"}
    assert "q, do" in found["KC406"].message


def test_kc407_outputs_that_see_later_tokens():
    found = failed(section(HEALTHY, replace(CAUSAL, leaks=(70,))))
    assert set(found) == {"KC407"}
    assert "position 70" in found["KC407"].found


def test_kc408_unwritten_memory_is_told_as_that_and_not_as_nan():
    hole = replace(with_tensor(HEALTHY, "o", nonfinite=448, sizes=None), unwritten=("o",))
    found = failed(section(hole))
    assert set(found) == {"KC408"}


def test_kc409_on_a_gpu_differences_fail_unless_declared_and_small():
    ran = replace(HEALTHY, repeats=30)
    assert failed(section(ran, evidence="measured"), job(CHUNK, device="cuda")) == {}
    loose = replace(ran, unrepeated=(Unrepeated(name="o", spread=0.3, bound=0.01),))
    found = failed(section(loose, evidence="measured"), job(CHUNK, device="cuda"))
    assert set(found) == {"KC409"}
    assert "0.3" in found["KC409"].found


@pytest.mark.parametrize(("spread", "fails"), [(0.005, False), (0.3, True), (None, True)])
def test_kc409_sums_in_any_order_are_excused_as_far_as_rounding_goes(spread, fails):
    conv = replace(HEALTHY, op=CONV, repeats=30, unrepeated=(Unrepeated(name="dweight", spread=spread, bound=0.01),))
    assert ("KC409" in failed(section(conv, evidence="measured"), job(CONV, device="cuda"))) is fails


def test_kc410_a_margin_near_the_limit_is_a_warning():
    found = failed(section(with_error(HEALTHY, "dg", 0.008)))
    assert set(found) == {"KC410"}
    assert found["KC410"].severity == "warning"
    assert "dg at 0.6" in found["KC410"].message


def test_on_a_gpu_up_to_three_times_the_limit_is_an_uncalibrated_warning():
    measured = job(CHUNK, device="cuda")
    near = failed(section(with_error(HEALTHY, "o", 0.03), evidence="measured"), measured)["KC401"]
    assert near.severity == "warning"
    assert "not calibrated" in near.message
    assert failed(section(with_error(HEALTHY, "o", 0.1), evidence="measured"), measured)["KC401"].severity == "error"
    assert failed(section(with_error(HEALTHY, "o", 0.03)))["KC401"].severity == "error"


def test_an_op_that_the_job_does_not_enter_is_worth_a_warning():
    wrong = with_error(replace(RAISES, op=STEP), "o", 0.4)
    assert failed(section(wrong), job(STEP))["KC401"].severity == "warning"
    assert failed(section(wrong), job(STEP, training=False))["KC401"].severity == "error"


DEATHS = [
    Broken(how="signal", message="killed by SIGSEGV", signal=11, detail="Fatal Python error: Segmentation fault"),
    Broken(how="stood_still", message="stood still: no result after 120 s"),
    Broken(how="raised", exception="InterpreterError", message="ValueError"),
]


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.how)
def test_kc411_a_cell_that_dies_is_a_finding(death):
    found = failed(section(HEALTHY, CellLost(op=CHUNK, name="model gates", why=death)))
    assert set(found) == {"KC411"}
    assert death.message in found["KC411"].found


@pytest.mark.parametrize(
    "numerics",
    [
        section(CellLost(op=CHUNK, name="weak gates", why=Missing(reason="out of memory"))),
        section(cells=(), unimportable=(Unimportable(op=CHUNK, reason="ImportError: no"),)),
        section(cells=(), unusable=Broken(how="raised", message="No module named 'torch'")),
        section(replace(HEALTHY, op=STEP)),
    ],
    ids=["lost", "unimportable", "no worker", "not run"],
)
def test_kc411_what_did_not_run_is_not_judged(numerics):
    outcomes = judged(numerics)
    told = next(item for item in outcomes if item.code == "KC411")
    assert told.status == "not_judged"
    assert told.required is True
    assert not [item for item in outcomes if item.status == "passed" and item.subject == CHUNK]


def test_kc411_compiled_extensions_cannot_be_emulated_and_nobody_asks_for_them_there():
    outcomes = judged(section(left_out={CONV: "compiled CUDA extension"}), job(CHUNK, CONV))
    told = [item for item in outcomes if item.subject == CONV]
    assert [(item.code, item.status, item.required) for item in told] == [("KC411", "not_judged", False)]


def test_kc411_a_package_that_nobody_asked_for_may_be_absent():
    gone = section(cells=(), unimportable=(Unimportable(op=CHUNK, reason="ModuleNotFoundError: x", module="fla"),))
    told = next(item for item in judged(gone, job(model=False)) if item.code == "KC411")
    assert told.status == "not_applicable"


def test_kc001_a_refused_device_leaves_everything_open():
    refused = Broken(how="raised", exception="DeviceUnusableError", message="triton 3.6.0 cannot be emulated")
    outcomes = judged(section(cells=(), unusable=refused))
    told = next(item for item in outcomes if item.code == "KC001")
    assert told.status == "not_judged"
    assert told.required is True
    assert "3.6.0" in told.message
    assert [item for item in outcomes if item.status in ("passed", "failed")] == []


def test_kc001_has_nothing_to_say_on_a_gpu():
    outcomes = judged(section(evidence="measured"), job(CHUNK, device="cuda"))
    assert next(item for item in outcomes if item.code == "KC001").status == "not_applicable"


def test_without_a_model_every_op_that_was_seen_is_judged():
    outcomes = judged(section(), job(model=False))
    assert {item.subject for item in outcomes if item.status == "passed"} == {CHUNK, "emulated device"}


def test_a_section_that_is_missing_is_not_judged():
    statuses = {item.status for item in judged(Missing(reason="not looked"))}
    assert statuses == {"not_judged"}


def test_specs_name_every_op_of_these_tests():
    assert {CHUNK, STEP, CONV} <= {spec.id for spec in all_specs()}
