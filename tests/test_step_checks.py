"""Training step: the judge on hand-made sections. Each check fires on its fault and is silent on the healthy step."""

from __future__ import annotations

import msgspec
import pytest

from kerncheck import catalog as catalogs
from kerncheck.checks import _step as read
from kerncheck.checks import step as checks
from kerncheck.checks import step_result
from kerncheck.checks.registry import Case, Check
from kerncheck.judge import judge
from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import Job, RequiredOp
from kerncheck.model.snapshot import Snapshot
from kerncheck.model.step import (
    Alone,
    Comparison,
    Counts,
    Gradients,
    Labelled,
    OnDevice,
    Profile,
    Raised,
    Run,
    Step,
    Tensor,
    Use,
    Work,
)
from kerncheck.model.trace import Idle, Measures
from kerncheck.report import Report
from kerncheck.stages import step as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers

CATALOG = catalogs.load()
CHECKS = tuple(item for module in (checks, step_result) for item in vars(module).values() if isinstance(item, Check))
CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
CONV = "causal_conv1d:causal_conv1d_fn"
SEAM = "chunk_gated_delta_rule"
KINDS = ("linear_attention",) * 3 + ("full_attention",)
FORWARD, BACKWARD = {"l2norm": 2, "kkt": 1}, {"dhu": 1, "l2norm_bwd": 2}
EAGER_FORWARD = {"linalg_solve_triangular": 2, "bmm": 10, "mul": 14, "clone": 3}
EAGER_BACKWARD = {"bmm": 18, "mul": 33}
GLUE = {"mul": 3, "sigmoid": 1, "mm": 4}
BLOCK = "GatedDeltaNet"


def layer_work(layer, *, operations=(None, None), launches=(None, None), seam=SEAM):
    pairs = zip(("forward", "backward"), operations, launches, strict=True)
    inside = [
        Work(phase=phase, layer=layer, block=BLOCK, module=BLOCK, seam=seam, operations=ops or {}, launches=runs or {})
        for phase, ops, runs in pairs
    ]
    glue = [
        Work(phase=phase, layer=layer, block=BLOCK, module=BLOCK, operations=GLUE) for phase in ("forward", "backward")
    ]
    return [*inside, *glue]


def fused_layer(layer, **changes):
    return layer_work(layer, **{"operations": ({"zeros": 1}, {"add_": 2}), "launches": (FORWARD, BACKWARD), **changes})


def eager_layer(layer):
    return layer_work(layer, operations=(EAGER_FORWARD, EAGER_BACKWARD))


def attention_work():
    return [
        Work(phase="forward", layer=3, block="Attention", module="RMSNorm", operations={"pow": 2, "mean": 2, "mul": 2}),
        Work(phase="optimizer", layer=-1, operations={"add_": 1000}),
    ]


def uses(bound="package", layers=(0, 1, 2), **more):
    given = {"seam": SEAM, "op": CHUNK, "bound": bound, "implementation": f"{bound}.{SEAM}", "calls": 1}
    return tuple(Use(**{**given, "layer": layer, "differentiable": True, **more}) for layer in layers)


LEARNED = Alone(
    op=CHUNK,
    seam=SEAM,
    forward=Counts(operations={"zeros": 1}, launches=FORWARD),
    backward=Counts(operations={"add_": 2}, launches=BACKWARD),
)
REFERENCE = Alone(
    op=CHUNK, seam=SEAM, forward=Counts(operations=EAGER_FORWARD), backward=Counts(operations=EAGER_BACKWARD)
)


def run(work, **changes):
    given = {
        "layer_types": KINDS,
        "dtype": "float32",
        "tokens": 66,
        "phase": "done",
        "loss": 4.8,
        "raised": None,
        "work": (*(item for layer in work for item in layer), *attention_work()),
        "uses": uses(),
        "gradients": Gradients(),
        "alone": (LEARNED,),
    }
    return Run(**{**given, **changes})


FUSED = run([fused_layer(layer) for layer in range(3)])
EAGER = run([eager_layer(layer) for layer in range(3)], uses=uses("eager"), alone=(REFERENCE,))


def tensor(name, error, eager=1.0, fused=1.0):
    return Tensor(name=name, error=error, eager=eager, fused=fused, largest=error)


OUTPUT = "output of chunk_gated_delta_rule in layer {}"
GRADIENT = "gradient of layers.{}.A_log"


def compared(*wrong, scale=1e-6):
    right = [tensor(OUTPUT.format(layer), 1e-7) for layer in range(3)]
    right += [tensor(GRADIENT.format(layer), scale) for layer in range(3)]
    named = {item.name: item for item in [*right, *wrong]}
    return Comparison(tensors=tuple(named.values()))


def section(fused=FUSED, eager=EAGER, comparison=None, evidence="emulated", visible=0):
    device = OnDevice(device="Triton interpreter", fused=fused, eager=eager, comparison=comparison or compared())
    return Step(evidence=evidence, devices=(device,), visible=visible)


def job(*ops, **changes):
    request = CATALOG.model("qwen").request()
    required = ops or (RequiredOp(op=CHUNK, layer_type="linear_attention"),)
    model = msgspec.structs.replace(request, required=required)
    return Job(**{"profile": "ci", "device": "emulate", "model": model, **changes})


def report(step, asked=None):
    asked = asked or job()
    snapshot = Snapshot(job=asked, step=step)
    outcomes, crashes = judge(Case(asked, snapshot, CATALOG), CHECKS)
    return Report(version="0", job=asked, snapshot=snapshot, outcomes=outcomes, crashes=crashes)


def codes(told):
    assert told.crashes == ()
    return [found.code for found in told.findings]


def the(told, code, status):
    return [outcome for outcome in told.outcomes if (outcome.code, outcome.status) == (code, status)]


def test_a_healthy_step_passes_and_prints_its_numbers():
    told = report(section())
    assert codes(told) == []
    assert told.exit_code == 0
    assert {outcome.code for outcome in told.of("passed")} == {f"KC60{n}" for n in (1, 2, 3, 4, 5, 6, 7)}
    ran, layers, economy = (the(told, code, "passed")[0].message for code in ("KC601", "KC602", "KC604"))
    assert "3 kernels forward and 3 backward in 3 of 3 linear_attention layers" in ran
    assert "24 of 32" in layers
    assert economy == "294 operations eager, 63 + 18 launches fused: 213 fewer, 213 expected"
    assert all(outcome.evidence == "emulated" for outcome in told.of("passed"))


def test_silently_eager_is_found_though_the_result_is_right():
    eager_bound = run([eager_layer(layer) for layer in range(3)], uses=uses("eager"))
    told = report(section(fused=eager_bound))
    assert codes(told) == ["KC601"]
    assert told.exit_code == 1
    (found,) = told.findings
    assert "linalg_solve_triangular" in found.found or "mul 42" in found.found
    assert "eager" in found.found
    assert "24 of 32" in found.wanted


def test_a_package_function_that_launches_nothing_even_alone_is_found():
    hollow = Alone(op=CHUNK, seam=SEAM, forward=REFERENCE.forward, backward=REFERENCE.backward)
    told = report(section(fused=run([eager_layer(layer) for layer in range(3)], alone=(hollow,))))
    assert codes(told) == ["KC601"]
    assert "none even alone" in told.findings[0].wanted
    assert "reinstall fla" in told.findings[0].remedy


def test_an_op_that_cannot_be_imported_says_so():
    absent = Alone(op=CHUNK, seam=SEAM, raised="ModuleNotFoundError: No module named 'fla'")
    told = report(section(fused=run([eager_layer(layer) for layer in range(3)], uses=uses("eager"), alone=(absent,))))
    assert codes(told) == ["KC601"]
    assert "No module named 'fla'" in told.findings[0].wanted


def test_nothing_entered_is_not_judged_and_never_a_pass():
    told = report(section(fused=run([layer_work(layer) for layer in range(3)], uses=(), alone=())))
    assert the(told, "KC601", "not_judged")
    assert told.exit_code == 3


def test_one_layer_without_the_kernels_is_named():
    told = report(section(fused=run([fused_layer(0), eager_layer(1), fused_layer(2)])))
    assert codes(told) == ["KC602"]
    assert "2 of 3 layers; not in layer 1" in told.findings[0].message
    assert the(told, "KC604", "not_applicable")


def test_a_layer_whose_backward_alone_is_eager_counts_as_missing():
    half = fused_layer(1, launches=(FORWARD, {}), operations=({"zeros": 1}, EAGER_BACKWARD))
    told = report(section(fused=run([fused_layer(0), half, fused_layer(2)])))
    assert codes(told) == ["KC602"]
    assert "l2norm_bwd 2" in told.findings[0].found


def test_both_forms_in_one_layer_are_double_work():
    both = {**EAGER_FORWARD, "zeros": 1}
    told = report(
        section(fused=run([fused_layer(0, operations=(both, EAGER_BACKWARD)), fused_layer(1), fused_layer(2)]))
    )
    assert codes(told) == ["KC603", "KC604"]
    assert "layer 0: bmm 10, clone 3, linalg_solve_triangular 2" in told.findings[0].found


def test_the_op_twice_in_one_layer_is_double_work():
    twice = ({name: 2 * count for name, count in FORWARD.items()}, BACKWARD)
    told = report(section(fused=run([fused_layer(0, launches=twice), fused_layer(1), fused_layer(2)])))
    assert codes(told) == ["KC603"]
    assert "layer 0: l2norm 2, kkt 1" in told.findings[0].found


def test_operators_of_the_block_itself_are_no_signature():
    item = next(read.ops_run(job(), section()))
    assert set(read.eager_signature(item)) == {"linalg_solve_triangular", "bmm", "clone"}


def test_work_that_came_back_elsewhere_is_seen_in_the_sum():
    extra = Work(phase="forward", layer=0, block="MLP", module="MLP", operations={"copy_": 60})
    told = report(section(fused=msgspec.structs.replace(FUSED, work=(*FUSED.work, extra))))
    assert codes(told) == ["KC604"]
    assert "153 fewer" in told.findings[0].found


@pytest.mark.parametrize(("extra", "found"), [(21, []), (22, ["KC604"])])
def test_nine_tenths_of_the_saving_is_the_border(extra, found):
    more = Work(phase="forward", layer=0, block="MLP", module="MLP", operations={"copy_": extra})
    assert codes(report(section(fused=msgspec.structs.replace(FUSED, work=(*FUSED.work, more))))) == found


@pytest.mark.parametrize(
    ("name", "error", "found"),
    [
        (OUTPUT.format(1), 0.9e-5, []),
        (OUTPUT.format(1), 1.1e-5, ["KC605"]),
        (GRADIENT.format(1), 4.9e-5, []),
        (GRADIENT.format(1), 5.1e-5, ["KC605"]),
        (GRADIENT.format(1), None, ["KC605"]),
    ],
)
def test_the_limits_of_the_comparison(name, error, found):
    assert codes(report(section(comparison=compared(tensor(name, error))))) == found


def test_a_wrong_gradient_behind_right_outputs_blames_the_backward():
    told = report(section(comparison=compared(tensor(GRADIENT.format(2), 0.5))))
    assert codes(told) == ["KC605"]
    assert "every output is right, so the backward is wrong" in told.findings[0].message
    assert "layers.2.A_log" in told.findings[0].found


def test_the_first_wrong_output_is_told_first():
    wrong = [tensor(OUTPUT.format(layer), 0.5) for layer in (2, 1)]
    (found,) = report(section(comparison=compared(*wrong))).findings
    assert found.found.startswith("output of chunk_gated_delta_rule in layer 1")


def test_a_gradient_that_cancels_is_compared_on_the_scale_of_the_largest():
    tiny = tensor("gradient of layers.0.dt_bias", 3e-8, eager=1e-7)
    assert codes(report(section(comparison=compared(tiny)))) == []
    assert codes(report(section(comparison=compared(tensor("gradient of x", 6e-8, eager=1e-7))))) == ["KC605"]


def test_a_gpu_between_one_and_three_limits_is_a_warning_only():
    for error, severity in ((0.25, "warning"), (0.35, "error")):
        wrong = compared(tensor(GRADIENT.format(0), error))
        both = [msgspec.structs.replace(item, dtype="bfloat16") for item in (FUSED, EAGER)]
        told = report(section(*both, comparison=wrong, evidence="measured", visible=1))
        assert [(found.code, found.severity) for found in told.findings] == [("KC605", severity)]


@pytest.mark.parametrize(("dtype", "layer", "found"), [("bfloat16", 2, []), ("bfloat16", 0, 1), ("float32", 2, 1)])
def test_experts_in_16_bits_are_compared_before_the_first_router_only(dtype, layer, found):
    both = [msgspec.structs.replace(item, dtype=dtype, experts=True) for item in (FUSED, EAGER)]
    told = report(section(*both, comparison=compared(tensor(OUTPUT.format(layer), 0.9))))
    assert codes(told) == (["KC605"] if found else [])


def test_a_lost_gradient_is_one_finding_and_not_two():
    lost = msgspec.structs.replace(FUSED, gradients=Gradients(zero=("layers.0.A_log",), without=("layers.1.A_log",)))
    told = report(section(fused=lost, comparison=compared(tensor(GRADIENT.format(0), 1.0))))
    assert codes(told) == ["KC607"]
    assert "layers.0.A_log, layers.1.A_log" in told.findings[0].found


def test_a_gradient_that_is_zero_in_both_runs_is_no_loss():
    same = Gradients(zero=("unused.weight",))
    both = [msgspec.structs.replace(item, gradients=same) for item in (FUSED, EAGER)]
    assert codes(report(section(*both))) == []


def test_a_forward_without_a_backward_names_the_op_that_cuts():
    cut = msgspec.structs.replace(FUSED, gradients=Gradients(zero=("x",)), uses=uses(differentiable=False))
    (found,) = report(section(fused=cut)).findings
    assert found.code == "KC607"
    assert "no backward through package.chunk_gated_delta_rule in layer 0" in found.found


RAISED = Raised(exception="NotImplementedError", message="Backward pass is not implemented", layer=2, seam=SEAM)


def test_a_forward_only_op_in_training_is_named():
    stopped = msgspec.structs.replace(FUSED, phase="backward", raised=RAISED, alone=())
    told = report(section(fused=stopped))
    assert codes(told) == ["KC606"]
    assert "package.chunk_gated_delta_rule in layer 2, which has no backward" in told.findings[0].message
    assert "chunk_gated_delta_rule" in told.findings[0].remedy
    assert {outcome.status for outcome in told.outcomes if outcome.code in ("KC601", "KC605")} == {"not_applicable"}


def test_any_other_exception_tells_its_phase_and_place():
    raised = Raised(exception="RuntimeError", message="size mismatch", layer=0, seam="")
    (found,) = report(section(fused=msgspec.structs.replace(FUSED, phase="forward", raised=raised))).findings
    assert found.message == "the step raised RuntimeError in forward of layer 0"
    assert found.found == "RuntimeError: size mismatch"


@pytest.mark.parametrize(
    ("how", "word"), [("signal", "died"), ("exit", "died"), ("stood_still", "stood still"), ("raised", "died")]
)
def test_a_step_that_dies_or_stands_still_is_a_finding(how, word):
    told = report(section(fused=Broken(how=how, message="it ended", detail="frame\nlast line")))
    assert codes(told) == ["KC606"]
    assert word in told.findings[0].message
    assert "last line" in told.findings[0].found


def test_out_of_memory_judges_nothing():
    told = report(section(fused=Missing(reason="out of memory (OutOfMemoryError: 3 GiB)")))
    assert codes(told) == []
    assert told.exit_code == 3
    assert all("out of memory" in outcome.message for outcome in told.unjudged)


def test_without_an_eager_step_nothing_is_compared_and_presence_still_is():
    told = report(section(eager=Broken(how="signal", message="killed by SIGSEGV")))
    assert codes(told) == []
    assert the(told, "KC601", "passed")
    assert {outcome.code for outcome in told.unjudged} == {"KC604", "KC605", "KC607"}


def test_a_stand_in_is_never_counted_as_fused():
    asked = job(RequiredOp(op=CHUNK, layer_type="linear_attention"), RequiredOp(op=CONV, layer_type="linear_attention"))
    told = report(section(fused=msgspec.structs.replace(FUSED, standins=(CONV,))), asked)
    (outcome,) = the(told, "KC601", "not_judged")
    assert outcome.subject == CONV
    assert outcome.required is False
    assert told.exit_code == 0


def test_an_op_of_an_unknown_package_is_not_judged_in_the_interpreter_and_a_finding_on_a_gpu():
    op = "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined"
    asked = job(RequiredOp(op=op, layer_type="linear_attention"))
    eager_bound = run([], uses=uses("eager", seam="mamba_chunk_scan_combined", op=op), alone=())
    told = report(section(fused=eager_bound), asked)
    assert (codes(told), told.exit_code) == ([], 3)
    assert "no description" in the(told, "KC601", "not_judged")[0].message
    assert codes(report(section(fused=eager_bound, evidence="measured", visible=1), asked)) == ["KC601"]


# Compiled ops on a GPU: seen by the profiler, or not judged


def on_gpu(**profile):
    labels = [
        Labelled(layer=layer, seam="causal_conv1d_fn", phase=phase, kernels={name: 1}, microseconds=3.0)
        for layer in (-1, 0, 1, 2)
        for phase, name in (("forward", "causal_conv1d_fwd_kernel"), ("backward", "causal_conv1d_bwd_kernel"))
    ]
    given = {"kernels": 100, "launches": 100, "joined": 100, "labelled": tuple(labels), "seconds": 0.1}
    found = uses(seam="causal_conv1d_fn", op=CONV)
    alone = Alone(op=CONV, seam="causal_conv1d_fn")
    return run([fused_layer(0)], uses=found, alone=(alone,), profile=Profile(**{**given, **profile}))


def conv_report(**profile):
    asked = job(RequiredOp(op=CONV, layer_type="linear_attention"))
    return report(section(fused=on_gpu(**profile), evidence="measured", visible=1), asked)


def test_a_compiled_op_is_proved_by_the_kernels_under_its_label():
    told = conv_report()
    assert "launched 1 kernels forward and 1 backward in 3 of 3" in the(told, "KC601", "passed")[0].message
    kept = [item for item in on_gpu().profile.labelled if item.layer != 1]
    assert "KC602" in codes(conv_report(labelled=tuple(kept)))


@pytest.mark.parametrize(
    "holes", [{"joined": 94}, {"labelled": (), "reason": "the trace holds no GPU kernel event", "kernels": 0}]
)
def test_absence_in_a_trace_with_holes_proves_nothing(holes):
    told = conv_report(**{"labelled": (), **holes})
    assert codes(told) == []
    assert the(told, "KC601", "not_judged")
    assert told.exit_code == 3


def test_absence_in_a_complete_trace_is_a_finding():
    bare = Labelled(layer=0, seam="causal_conv1d_fn", phase="forward", kernels={"conv_depthwise2d": 1}, microseconds=3)
    assert "KC601" in codes(conv_report(labelled=(bare,), kernels=100, joined=95))


def test_gpus_that_did_not_run_are_counted():
    device = section(evidence="measured").devices[0]
    full = msgspec.structs.replace(device, device="GPU 1 (NVIDIA H200)", fused=Missing(reason="out of memory"))
    step = Step(evidence="measured", devices=(device, full), visible=2)
    (outcome,) = the(report(step), "KC609", "not_judged")
    assert outcome.message == "1 of 2 GPUs judged; GPU 1 (NVIDIA H200): out of memory"
    assert outcome.required is True
    whole = Step(evidence="measured", devices=(device, device), visible=2)
    assert the(report(whole), "KC609", "passed")[0].message == "2 of 2 GPUs judged"


@pytest.mark.parametrize(("fused", "found"), [(0.1, []), (0.9, ["KC610"])])
def test_slower_than_eager_warns(fused, found):
    pair = [msgspec.structs.replace(FUSED, profile=Profile(seconds=fused))]
    pair += [msgspec.structs.replace(EAGER, profile=Profile(seconds=0.5))]
    told = report(section(*pair, evidence="measured", visible=1))
    assert codes(told) == found
    assert all(item.severity == "warning" for item in told.findings)
    assert told.exit_code == 0


def test_what_a_profiler_measured_of_the_step_is_told():
    measures = Measures(name="step", enqueue_microseconds=3100.0, busy_microseconds=2200.0, idle=Idle(host=400.0))
    fused = msgspec.structs.replace(FUSED, profile=Profile(seconds=0.1, measures=measures))
    eager = msgspec.structs.replace(EAGER, profile=Profile(seconds=0.5))
    (passed,) = the(report(section(fused, eager, evidence="measured", visible=1)), "KC610", "passed")
    numbers = "profiled: CPU enqueueing 3.1 ms, GPU busy 2.2 ms, GPU waiting for the host 0.4 ms"
    assert passed.message == f"0.100 s fused, 0.500 s eager; {numbers}"


def test_what_is_left_to_fuse_is_a_note():
    (note,) = [outcome for outcome in report(section()).of("note") if outcome.code == "KC608"][:1]
    assert note.subject == BLOCK
    rms = Work(phase="forward", layer=0, block="Norm", module="RMSNorm", operations={"pow": 9, "mean": 9, "mul": 9})
    more = msgspec.structs.replace(FUSED, work=(*FUSED.work, rms))
    assert next(item.subject for item in the(report(section(fused=more)), "KC608", "note")) == "RMSNorm"


def test_a_model_without_fused_ops_has_nothing_to_require():
    told = report(section(), job(RequiredOp(op=CHUNK, training=False)))
    assert codes(told) == []
    assert the(told, "KC601", "not_applicable")


def test_the_section_round_trips():
    step = section(fused=msgspec.structs.replace(FUSED, profile=Profile(reason="no CUPTI"), raised=RAISED))
    assert msgspec.json.decode(msgspec.json.encode(step), type=Step) == step


# The stage


def ask(asked, gpus=()):
    missing = Missing(reason="x")
    return Ask(job=asked, catalog=CATALOG, environment=missing, devices=missing, gpus=gpus)


def test_each_device_gets_a_fused_and_an_eager_run_that_meet():
    fused, eager = stage.runs(ask(job()))
    assert (fused.options["eager"], eager.options["eager"]) == (False, True)
    assert fused.options["exchange"] == eager.options["exchange"]
    assert fused.options["ops"] == [CHUNK]
    assert fused.environment["TRITON_INTERPRET"] == "1"
    gpus = stage.runs(ask(job(device="cuda", profile="node"), gpus=("0", "3")))
    assert [run.environment["CUDA_VISIBLE_DEVICES"] for run in gpus] == ["0", "0", "3", "3"]
    assert len({run.options["exchange"] for run in gpus}) == 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"model": None}, "--model"), ({"device": "none"}, "device"), ({"training": False}, "train")],
)
def test_nothing_to_run_is_missing_with_its_reason(changed, reason):
    asked = job(**changed)
    assert stage.runs(ask(asked)) == []
    missing = stage.collect(ask(asked), [])
    assert isinstance(missing, Missing)
    assert reason in missing.reason


def test_answers_become_runs_and_the_meeting_place_goes_away(tmp_path):
    fused, eager = stage.runs(ask(job()))
    folder = tmp_path / "meet"
    folder.mkdir()
    for planned in (fused, eager):
        planned.options["exchange"] = str(folder)
    told = msgspec.to_builtins(FUSED) | {"device": {"name": "x"}, "comparison": msgspec.to_builtins(compared())}
    told.pop("kind")
    broken = Broken(how="signal", message="killed by SIGSEGV")
    answers = [Answers(run=fused, setup=None, cases=(told,)), Answers(run=eager, setup=None, cases=(broken,))]
    step = stage.collect(ask(job()), answers)
    assert step.devices[0].fused == FUSED
    assert step.devices[0].eager == broken
    assert step.devices[0].comparison == compared()
    assert step.evidence == "emulated"
    assert not folder.exists()
