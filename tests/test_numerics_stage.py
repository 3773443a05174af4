"""The stage: which lanes and cells a job gets, and how answers become the section."""

from __future__ import annotations

import json

import msgspec
import pytest

from kerncheck.kernels import all_specs
from kerncheck.model.base import Broken, Missing
from kerncheck.model.environment import Distribution, Environment
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.numerics import Cell, CellLost, Numerics
from kerncheck.stages import numerics
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers

OPS = tuple(spec.id for spec in all_specs())
NOT_SEEN = Missing(reason="not part of this test")


def ask(device="emulate", ops=OPS, gpus=(), config=None, environment=NOT_SEEN, **job):
    model = ModelRequest(
        name="m", folder="m", architecture="M", config=config or {}, required=tuple(RequiredOp(op=op) for op in ops)
    )
    asked = Job(**{"profile": "ci", "device": device, "model": model if ops else None, **job})
    return Ask(job=asked, catalog=None, environment=environment, devices=NOT_SEEN, gpus=gpus, timeout=100.0)


def test_emulation_runs_two_lanes_and_only_what_it_can():
    runs = numerics.runs(ask())
    assert [run.label for run in runs] == ["numerics fp32", "numerics bf16"]
    assert runs[0].environment["TRITON_F32_DEFAULT"] == "ieee"
    assert "TRITON_F32_DEFAULT" not in runs[1].environment
    for run in runs:
        assert run.environment["TRITON_INTERPRET"] == "1"
        assert {case["op"] for case in run.cases} == {op for op in OPS if op.startswith(("fla.", "liger_kernel."))}
        assert len({case["name"] for case in run.cases}) == len(run.cases)
        assert json.loads(json.dumps(run.cases))


def test_no_device_no_run():
    assert numerics.runs(ask("none")) == []
    assert isinstance(numerics.collect(ask("none"), []), Missing)


def test_every_gpu_gets_the_production_lane_with_the_models_sizes():
    config = {"text_config": {"linear_num_value_heads": 64, "dtype": "float16"}}
    runs = numerics.runs(ask("cuda", gpus=("0", "1"), config=config, profile="node"))
    assert [run.options["gpu"] for run in runs] == ["0", "1"]
    assert [run.environment["CUDA_VISIBLE_DEVICES"] for run in runs] == ["0", "1"]
    assert {case["lane"] for run in runs for case in run.cases} == {"fp16"}
    assert "TRITON_INTERPRET" not in runs[0].environment
    delta = [case for case in runs[0].cases if case["form"] == "chunk_delta_rule"]
    assert {case["sizes"]["HV"] for case in delta} == {64}
    assert any(max(case["lengths"]) >= 2048 and case["repeats"] == 30 for case in delta)
    assert {case["op"] for case in runs[0].cases} == set(OPS)
    assert runs[0].limit > 100


@pytest.mark.parametrize(
    ("named", "lane"), [("bfloat16", "bf16"), ("torch.float16", "fp16"), ("float32", "bf16"), (None, "bf16")]
)
def test_the_production_dtype_is_the_models(named, lane):
    assert numerics.production_lane(ask(config={"torch_dtype": named}).job) == lane


def test_a_quick_job_runs_a_part_in_one_child():
    whole = [case for run in numerics.runs(ask()) for case in run.cases]
    (run,) = numerics.runs(ask(quick=True))
    quick = run.cases
    assert 0 < len(quick) < len(whole)
    assert {case["lane"] for case in quick} == {case["lane"] for case in whole} == {"fp32", "bf16"}
    assert {case["op"] for case in quick} == {case["op"] for case in whole}


def test_the_inputs_of_a_cell_do_not_depend_on_the_run():
    seeds = [{case["name"]: case["seed"] for case in run.cases} for run in numerics.runs(ask())]
    both = seeds[0].keys() & seeds[1].keys()
    assert len(both) > 20
    assert all(seeds[0][name] == seeds[1][name] for name in both)
    assert len(set(seeds[0].values())) == len(seeds[0])


def test_without_a_model_the_installed_packages_are_judged():
    fla = Environment(distributions=(Distribution(name="fla-core", version="0.6.0"),))
    cases = numerics.runs(ask(ops=(), environment=fla))[0].cases
    assert {case["op"].partition(".")[0] for case in cases} == {"fla"}
    assert numerics.runs(ask(ops=(), environment=Environment())) == []


def answered(run, answers):
    padded = [*answers, *[Missing(reason="not reached")] * (len(run.cases) - len(answers))]
    return Answers(run=run, setup=None, cases=tuple(padded), seconds=1.0)


SEEN = {
    "facts": {"device": "emulate", "triton": "3.9.0", "memory": None},
    "tensors": [{"name": "o", "role": "output", "precision": "fp32", "nonfinite": 2, "zero": False, "dtype": ""}],
    "backward": "ok",
    "launched_forward": ["k"],
    "configurations": {"k": "BT=8"},
}


def test_answers_become_cells_and_losses():
    asked = ask(ops=("fla.modules.l2norm:l2norm",))
    run = numerics.runs(asked)[0]
    death = Broken(how="signal", message="killed by SIGABRT", signal=6)
    found = numerics.collect(asked, [answered(run, [SEEN, death])])
    assert isinstance(found, Numerics)
    assert found.evidence == "emulated"
    first, second, _ = found.lanes[0].cells
    assert isinstance(first, Cell)
    assert first.tensors[0].nonfinite == 2
    assert first.name == run.cases[0]["cell"]
    assert isinstance(second, CellLost)
    assert second.why == death
    assert found.lanes[0].facts == {"device": "emulate", "triton": "3.9.0"}
    assert msgspec.convert(msgspec.to_builtins(found), Numerics) == found


def test_an_op_that_cannot_be_imported_is_told_once():
    asked = ask(ops=("fla.modules.l2norm:l2norm",))
    run = numerics.runs(asked)[0]
    gone = {"unimportable": "ImportError: broken", "module": ""}
    found = numerics.collect(asked, [answered(run, [gone] * len(run.cases))])
    assert found.lanes[0].cells == ()
    assert [item.reason for item in found.lanes[0].unimportable] == ["ImportError: broken"]


def test_what_the_device_cannot_run_is_left_out_by_name():
    asked = ask()
    found = numerics.collect(asked, [answered(run, []) for run in numerics.runs(asked)])
    assert set(found.left_out) == {spec.id for spec in all_specs() if spec.library == "cuda"}


def test_a_worker_that_cannot_start_leaves_no_cells():
    asked = ask()
    run = numerics.runs(asked)[0]
    refused = Broken(how="raised", exception="DeviceUnusableError", message="no")
    told = Answers(run=run, setup=refused, cases=(Missing(reason="x"),) * len(run.cases), seconds=1.0)
    found = numerics.collect(asked, [told])
    assert found.lanes[0].unusable == refused
    assert found.lanes[0].cells == ()
