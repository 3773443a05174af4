"""Traces with a planted cause: each gives exactly its codes and its verdict; its control, the smallest repair, is clean.

The traces are made as a GPU would make them (tests/trace_maker.py): the host enqueues, streams work in order.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from published_shape import AFTER, BEFORE, write
from trace_maker import (
    BACKWARD,
    CAST,
    CONV,
    ELEMENTWISE,
    FORWARD,
    NCCL,
    Maker,
    eager_backward,
    eager_layer,
    fused_backward,
    fused_layer,
    matmuls,
)

from kerncheck import catalog as catalogs
from kerncheck import tracing
from kerncheck.checks import trace as trace_checks
from kerncheck.checks import trace_compare, trace_fallback
from kerncheck.checks.registry import Case, Check
from kerncheck.commands import make_report
from kerncheck.model.job import Job, TraceRequest
from kerncheck.model.snapshot import Snapshot
from kerncheck.model.trace import TraceSection
from kerncheck.plan import Plan

CATALOG = catalogs.load()
CHECKS = tuple(
    item
    for module in (trace_checks, trace_fallback, trace_compare)
    for item in vars(module).values()
    if isinstance(item, Check)
)
GIVEN = {"fail_on": "error"}
CHUNK, CONVOLUTION = "fla.ops.gated_delta_rule:chunk_gated_delta_rule", "causal_conv1d:causal_conv1d_fn"


def judged(tmp_path, maker, *, before=None, **request):
    """Read, analyse and judge, as the command does."""
    reports = []
    for name, one in (("after", maker), ("before", before)):
        if one is not None:
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(one if isinstance(one, dict) else one.trace()))
            reports.append(tracing.analyse(tracing.read(path)))
    return as_judged(reports[0], before=reports[1] if before is not None else None, **request)


def as_judged(after, *, before=None, model=True, training=True, **request):
    comparison = tracing.compare(before, after) if before else None
    section = TraceSection(report=after, before=before, comparison=comparison)
    named = CATALOG.model("qwen").request() if model else None
    job = Job(model=named, training=training, trace=TraceRequest(file="after.json", **request))
    case = Case(job, Snapshot(job=job, trace=section), CATALOG)
    return make_report(case, Plan(CHECKS, (), ""), GIVEN, ())


def codes(report):
    assert report.crashes == ()
    return sorted({outcome.code for outcome in report.findings})


def unjudged(report):
    return sorted({outcome.code for outcome in report.unjudged})


def verdict(report):
    (note,) = [outcome for outcome in report.outcomes if outcome.code == "KC626" and outcome.status == "note"]
    return note.message.partition(":")[0]


def steps(body, count=4, layers=3, *, before=None, after=None, wait=True):
    """Return a trace of some steps of a model: forward, backward, optimizer, and a wait for the loss at the end."""
    maker = Maker()
    for number in range(count):
        with maker.step(number):
            if before:
                before(maker)
            body(maker, layers)
            maker.optimizer()
            if after:
                after(maker)
    if wait:
        maker.synchronise("cudaDeviceSynchronize")
    return maker


def fused(maker, layers, gpu=60.0, **options):
    """A good model: fused kernels and matrix products that keep the GPU busier than the host."""
    for layer in range(layers):
        fused_layer(maker, layer, gpu, **options)
        matmuls(maker, 6, gpu=120.0)
    for layer in reversed(range(layers)):
        fused_backward(maker, layer, gpu, **options)
        matmuls(maker, 6, gpu=120.0)


def eager(maker, layers, gpu=3.0, small=40, **options):
    """The same model on its eager references: many small kernels."""
    for layer in range(layers):
        eager_layer(maker, layer, gpu, small=small, **options)
        matmuls(maker, 6, gpu=8.0)
    for layer in reversed(range(layers)):
        eager_backward(maker, layer, gpu, small=small)
        matmuls(maker, 6, gpu=8.0)


def good(**options):
    return steps(lambda maker, layers: fused(maker, layers, **options))


# Good ones: no finding, of each kind that could look like a bad one.

GOOD = {
    "fused, the GPU behind the host": good,
    "fused, one wait for the loss at the end of each step": lambda: steps(
        fused, after=lambda maker: maker.synchronise()
    ),
    "data that was loaded while the GPU worked": lambda: steps(fused, before=lambda maker: maker.data(300.0)),
    "a compilation before the first step": lambda: compiled_before(4),
    "communication beside work": lambda: steps(hidden_communication),
    "CUDA graphs: one launch, 300 kernels": lambda: steps(graphs, wait=True),
    "a few copies": lambda: steps(fused, before=lambda maker: maker.copy(20.0)),
}


def compiled_before(count):
    maker = Maker()
    maker.compiling(200_000.0)
    maker.call("cuModuleLoadData", 900.0, "cuda_driver")
    for number in range(count):
        with maker.step(number):
            fused(maker, 3)
            maker.optimizer()
    return maker


def hidden_communication(maker, layers):
    for layer in range(layers):
        fused_layer(maker, layer, 60.0)
        maker.run("record_param_comms", NCCL, 300.0, stream=20)
        matmuls(maker, 8, gpu=120.0)
    for layer in reversed(range(layers)):
        fused_backward(maker, layer, 60.0)
        matmuls(maker, 6, gpu=120.0)


def graphs(maker, layers):
    fused(maker, layers)
    maker.graph(300, gpu=4.0)


@pytest.mark.parametrize("name", GOOD)
def test_good_traces_have_no_finding(tmp_path, name):
    report = judged(tmp_path, GOOD[name]())
    assert (codes(report), unjudged(report), report.exit_code) == ([], [], 0)
    assert verdict(report) == "GPU-bound"
    seen = [outcome.subject for outcome in report.of("passed") if outcome.code == "KC627"]
    assert seen == [CHUNK, CONVOLUTION]


# Causes of slowness: warnings. Each with its control.


def host_bound(maker, layers):
    for layer in range(layers):
        fused_layer(maker, layer, 8.0, host=30.0)
        matmuls(maker, 6, gpu=15.0, host=30.0)
    for layer in reversed(range(layers)):
        fused_backward(maker, layer, 8.0, host=30.0)
        matmuls(maker, 6, gpu=15.0, host=30.0)


def starved(maker):
    maker.data(9_000.0)


def items_in_layers(maker, layers):
    for layer in range(layers):
        fused_layer(maker, layer, 60.0)
        for _ in range(6):
            matmuls(maker, 1, gpu=60.0)
            maker.synchronise()
            maker.now += 30.0
    for layer in reversed(range(layers)):
        fused_backward(maker, layer, 60.0)


def compiling(maker):
    maker.compiling(20_000.0)
    maker.call("cuModuleLoadData", 300.0, "cuda_driver")


def loading_only(maker):
    maker.now += 20_000.0
    maker.call("cuModuleLoadDataEx", 300.0, "cuda_driver")


def bare_communication(maker, layers):
    for layer in range(layers):
        fused_layer(maker, layer, 60.0)
        matmuls(maker, 6, gpu=120.0)
    for layer in reversed(range(layers)):
        fused_backward(maker, layer, 60.0)
        matmuls(maker, 6, gpu=120.0)
    maker.run("record_param_comms", NCCL, 3_000.0)


def slow_python(maker):
    maker.now += 12_000.0


SLOW = {
    "launches slower than kernels": (lambda: steps(host_bound), ["KC621"], "CPU-bound"),
    "eager and host-bound": (lambda: steps(eager), ["KC621", "KC627"], "CPU-bound"),
    "Python between the steps": (lambda: steps(fused, before=slow_python), ["KC621"], "CPU-bound"),
    "a slow loader": (lambda: steps(fused, before=starved), ["KC622"], "data-starved"),
    "a slow loader and slow launches": (
        lambda: steps(host_bound, before=lambda maker: maker.data(1_500.0)),
        ["KC621", "KC622"],
        "data-starved",
    ),
    ".item() in the layers": (lambda: steps(items_in_layers), ["KC623"], "synchronising"),
    "compiling in each step": (lambda: steps(fused, before=compiling), ["KC624"], "recompiling"),
    "modules loaded in each step, no range of the compiler": (
        lambda: steps(fused, before=loading_only),
        ["KC624"],
        "recompiling",
    ),
    "communication with nothing beside": (lambda: steps(bare_communication), ["KC625"], "communication-bound"),
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_traces_warn_of_their_cause(tmp_path, name):
    make, expected, kind = SLOW[name]
    report = judged(tmp_path, make())
    assert codes(report) == expected
    assert verdict(report) == kind
    wrong = [outcome for outcome in report.findings if outcome.code < "KC627"]
    assert {outcome.severity for outcome in wrong} == {"warning"}
    assert report.exit_code == (1 if "KC627" in expected else 0)


@pytest.mark.parametrize(("share", "expected"), [(0.07, []), (0.13, ["KC622"])])
def test_both_sides_of_the_threshold_of_a_cause(tmp_path, share, expected):
    """The step above takes 7 ms; the host is ahead of it, so a loader costs what it takes beyond that."""
    plain = judged(tmp_path, steps(fused, count=1)).snapshot.trace.report.total
    work = plain.busy_microseconds
    report = judged(tmp_path, steps(fused, count=1, before=lambda maker: maker.data(work * share / (1 - share))))
    assert codes(report) == expected


# Fallback, forward-only, mixed.


def fused_forward_only(maker, layers):
    for layer in range(layers):
        fused_layer(maker, layer, 60.0)
        matmuls(maker, 6, gpu=120.0)
    for layer in reversed(range(layers)):
        with maker.backward("MmBackward0", 30_000 + layer):
            matmuls(maker, 6, gpu=120.0)


def without_backward(maker, layers):
    for layer in range(layers):
        fused_layer(maker, layer, 60.0)
        matmuls(maker, 6, gpu=120.0)


def eager_and_gpu_bound(maker, layers):
    eager(maker, layers, gpu=90.0, small=20)


def conv_fell_back(maker, layers):
    for layer in range(layers):
        fused_layer(maker, layer, 60.0, conv=False)
        maker.run("aten::conv1d", "void conv_depthwise2d_forward_kernel<4>()", 40.0)
        matmuls(maker, 6, gpu=120.0)
    for layer in reversed(range(layers)):
        fused_backward(maker, layer, 60.0, conv=False)
        matmuls(maker, 6, gpu=120.0)


def one_layer_fell_back(maker, layers):
    fused(maker, layers)
    eager_layer(maker, 99, gpu=90.0, small=10, conv=False)


def conv_backward_missing(maker, layers):
    for layer in range(layers):
        fused_layer(maker, layer, 60.0)
        matmuls(maker, 6, gpu=120.0)
    for layer in reversed(range(layers)):
        fused_backward(maker, layer, 60.0, conv=False)
        matmuls(maker, 6, gpu=120.0)


WRONG = {
    "both ops fell back, and the GPU hides it": (eager_and_gpu_bound, ["KC627"], [CHUNK, CONVOLUTION]),
    "only the convolution fell back": (conv_fell_back, ["KC627"], [CONVOLUTION]),
    "one layer fell back": (one_layer_fell_back, ["KC629"], [CHUNK]),
    "fused forward, no fused backward": (fused_forward_only, ["KC628"], [CONVOLUTION, CHUNK]),
    "the convolution has no fused backward": (conv_backward_missing, ["KC628"], [CONVOLUTION]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_traces_fail_for_their_cause(tmp_path, name):
    body, expected, subjects = WRONG[name]
    report = judged(tmp_path, steps(body))
    assert (codes(report), report.exit_code) == (expected, 1)
    assert sorted(outcome.subject for outcome in report.findings) == sorted(subjects)


def test_fallback_names_what_ran_instead(tmp_path):
    report = judged(tmp_path, steps(eager_and_gpu_bound))
    found = {outcome.subject: outcome for outcome in report.findings}
    assert "24 linalg_solve_triangular" in found[CHUNK].found  # 2 a layer, 3 layers, 4 steps
    assert "12 conv1d" in found[CONVOLUTION].found
    assert found[CHUNK].evidence == "measured"


def test_without_a_model_nothing_is_required_but_a_missing_backward_is_seen(tmp_path):
    assert codes(judged(tmp_path, steps(eager_and_gpu_bound), model=False)) == []
    assert codes(judged(tmp_path, steps(fused_forward_only), model=False)) == ["KC628"]


def test_inference_has_no_backward_to_miss(tmp_path):
    report = judged(tmp_path, steps(without_backward), training=False)
    assert codes(report) == []
    report = judged(tmp_path, steps(without_backward), model=False)
    assert [one.status for one in report.outcomes if one.code == "KC628"] == ["not_applicable"]


# Versions: names are data by version.


def test_an_unknown_version_is_inconclusive_about_presence(tmp_path):
    """Neither names of kernels nor eager operators are seen: a newer release may have renamed its kernels."""
    nothing = steps(lambda maker, _layers: matmuls(maker, 60, gpu=120.0))
    for versions, word in (
        ({}, "other names"),
        ({"fla-core": "0.9.0"}, "0.9.0"),
        ({"fla-core": "0.6.0"}, "other names"),
    ):
        report = judged(tmp_path, nothing, versions=versions)
        assert (codes(report), unjudged(report), report.exit_code) == ([], ["KC627"], 3)
        assert word in next(one.message for one in report.unjudged if one.subject == CHUNK)


def test_eager_operators_prove_a_fallback_in_any_version(tmp_path):
    report = judged(tmp_path, steps(eager_and_gpu_bound), versions={"fla-core": "0.9.0"})
    assert codes(report) == ["KC627"]


@pytest.mark.parametrize(
    ("version", "first", "seen"),
    [
        ("0.6.0", FORWARD[0], True),
        ("0.4.1", "chunk_scaled_dot_kkt_fwd_kernel", True),
        ("0.6.0", "chunk_scaled_dot_kkt_fwd_kernel", False),
    ],
)
def test_the_names_of_the_declared_version_count(tmp_path, version, first, seen):
    maker = Maker()
    for number in range(2):
        with maker.step(number):
            for layer in range(3):
                fused_layer(maker, layer, 60.0, names=(first, *FORWARD[1:]))
                matmuls(maker, 6, gpu=120.0)
                fused_backward(maker, layer, 60.0)
    report = judged(tmp_path, maker, versions={"fla-core": version})
    passed = [outcome.subject for outcome in report.of("passed") if outcome.code == "KC627"]
    assert (CHUNK in passed) is seen
    assert ("KC627" in unjudged(report)) is not seen


def test_old_triton_appended_the_arguments_to_names(tmp_path):
    maker = Maker()
    with maker.step(1):
        for names, back in ((FORWARD, False), (BACKWARD, True)):
            for name in names:
                if back:
                    with maker.backward("ChunkGatedDeltaRuleFunctionBackward", 1):
                        maker.launch(f"{name}_0d1d2d3de4c", 90.0, triton=True)
                else:
                    maker.launch(f"{name}_0d1d2d3de4c", 90.0, triton=True)
        maker.launch(CONV[0], 90.0)
        with maker.backward("CausalConv1dFnBackward", 2):
            maker.launch(CONV[0].replace("fwd", "bwd"), 90.0)
    assert codes(judged(tmp_path, maker)) == []


# Traces that prove nothing.


def cpu_only(maker):
    return {**maker.trace(), "traceEvents": [e for e in maker.events if e["cat"] in ("cpu_op", "user_annotation")]}


def without(maker, category, every=1):
    dropped = [event for event in maker.events if event["cat"] == category][::every]
    kept = [event for event in maker.events if not any(event is one for one in dropped)]
    return {**maker.trace(), "traceEvents": kept}


def shifted(maker):
    """Correlations of the kernels of another session: they join nothing."""
    trace = json.loads(json.dumps(maker.trace()))
    for event in trace["traceEvents"]:
        if event["cat"] == "kernel":
            event["args"]["correlation"] += 1_000_000
    return trace


NOTHING = {
    "CPU only": (lambda: cpu_only(good()), "CPU-only"),
    "empty": (lambda: {"traceEvents": []}, "neither operators nor GPU work"),
    "metadata only": (
        lambda: {"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "ts": 1}]},
        "neither",
    ),
    "all kernels lost": (lambda: without(good(), "kernel"), "lost the kernels"),
    "all kernels lost, and eager": (lambda: without(steps(eager), "kernel"), "lost the kernels"),
    "one kernel in ten lost": (lambda: without(good(), "kernel", 10), "below 95%"),
    "kernels of another session": (lambda: shifted(good()), "below 95%"),
    "launches lost": (lambda: without(good(), "cuda_driver"), "below 95%"),
}


@pytest.mark.parametrize("name", NOTHING)
@pytest.mark.parametrize("model", [True, False])
def test_a_trace_that_proves_nothing_is_inconclusive(tmp_path, name, model):
    make, words = NOTHING[name]
    report = judged(tmp_path, make(), model=model)
    assert (codes(report), report.exit_code) == ([], 3)
    assert words in next(outcome.message for outcome in report.unjudged if outcome.code == "KC620")
    assert report.of("passed") == ()


def test_two_lost_kernels_of_a_hundred_forbid_absence_only(tmp_path):
    """E98: each session loses some kernels at its head. What was seen was seen; what was not is not absent."""
    for body, waiting in ((fused, []), (eager_and_gpu_bound, ["KC627"])):
        maker = steps(body)
        report = judged(tmp_path, without(maker, "kernel", 60))
        assert codes(report) == []
        assert unjudged(report) == waiting
        message = next(one.message for one in report.of("passed") if one.code == "KC620")
        assert "absence proves nothing" in message


# Comparison and gates.


def compared(tmp_path, before, after, **gates):
    return judged(tmp_path, after, before=before, **gates)


def test_a_cure_is_proved(tmp_path):
    gates = {"min_op_reduction": 5.0, "max_cpu_gpu_ratio": 1.0, "max_step_time_ratio": 1.05}
    report = compared(tmp_path, steps(lambda maker, layers: eager(maker, layers, small=400)), good(), **gates)
    assert (codes(report), report.exit_code) == ([], 0)
    assert {"KC635", "KC636", "KC637"} <= {outcome.code for outcome in report.of("passed")}
    (note,) = [outcome for outcome in report.of("note") if outcome.code == "KC638"]
    assert note.message.startswith("fused replaced elementwise")
    assert set(FORWARD) <= set(report.snapshot.trace.comparison.appeared)


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ({"min_op_reduction": 200.0}, ["KC635"]),
        ({"max_step_time_ratio": 0.001}, ["KC637"]),
        ({"max_cpu_gpu_ratio": 0.01}, ["KC636"]),
    ],
)
def test_each_gate_closes(tmp_path, gates, expected):
    report = compared(tmp_path, steps(eager), good(), **gates)
    assert (codes(report), report.exit_code) == (expected, 1)


def test_a_gate_on_traces_without_steps_is_inconclusive(tmp_path):
    after = good()
    after.events = [event for event in after.events if event["cat"] != "user_annotation"]
    report = compared(tmp_path, good(), after, min_op_reduction=1.0, max_step_time_ratio=1.05)
    assert (codes(report), unjudged(report), report.exit_code) == ([], ["KC635", "KC637"], 3)


def test_a_gate_against_a_trace_that_proves_nothing_is_inconclusive(tmp_path):
    report = compared(tmp_path, cpu_only(good()), good(), min_op_reduction=1.0)
    assert (codes(report), report.exit_code) == ([], 3)
    assert "KC620" in unjudged(report)


def test_fewer_operations_of_a_smaller_model_are_no_fusion(tmp_path):
    report = compared(tmp_path, steps(eager_and_gpu_bound, layers=6), steps(eager_and_gpu_bound, layers=3))
    (note,) = [outcome for outcome in report.of("note") if outcome.code == "KC638"]
    assert note.message.startswith("fused did not replace elementwise")


# The published shape, a twentieth of it; `benchmarks/trace_scale.py --published` makes and judges the whole of it.


def test_the_published_shape(tmp_path):
    reports = []
    for name, shape in (("before", BEFORE), ("after", AFTER)):
        write(tmp_path / f"{name}.json", shape.part(0.05))
        reports.append(tracing.analyse(tracing.read(tmp_path / f"{name}.json")))
    counts = [(report.total.cpu_calls, report.total.gpu_operations) for report in reports]
    assert counts == [(85_719, 13_472), (5_915, 903)]
    before = as_judged(reports[0])
    assert codes(before) == ["KC621", "KC627"]
    assert verdict(before) == "CPU-bound"
    assert reports[0].total.cpu_gpu_ratio == pytest.approx(14.4 / 10.3, rel=0.01)
    after = as_judged(reports[1], before=reports[0], min_op_reduction=14.0)
    assert (codes(after), after.exit_code, verdict(after)) == ([], 0, "GPU-bound")
    comparison = after.snapshot.trace.comparison
    assert comparison.cpu_calls.ratio == pytest.approx(1_714_382 / 118_316, rel=0.001)
    assert comparison.gpu_operations.ratio == pytest.approx(269_448 / 18_060, rel=0.001)


# Notes.


def test_offenders_name_the_class_of_module(tmp_path):
    def norms(maker, layers):
        fused(maker, layers)
        for layer in range(layers):
            with maker.module(f"Qwen3_5RMSNorm_{layer}"):
                for name, kernel in (("aten::pow", ELEMENTWISE), ("aten::mul", ELEMENTWISE), ("aten::to", CAST)):
                    maker.run(name, kernel, 3.0)

    report = judged(tmp_path, steps(norms))
    (note,) = [one for one in report.of("note") if one.code == "KC630"]
    assert note.subject == "Qwen3_5RMSNorm (forward)"
    assert "12 chains of up to 3 small kernels in 3 of 3 modules" in note.message


@pytest.mark.parametrize(("inside", "module"), [(True, "LlamaMLP"), (False, "LlamaRMSNorm")])
def test_a_recomputation_belongs_to_the_module_that_runs_again(tmp_path, inside, module):
    """Checkpointing runs modules again inside of a backward node; without that, a node is its forward operator's."""

    def chains(maker, layers):
        for layer in range(layers):
            number = maker.ids
            with ranged(maker, f"kc::layers.{layer}.norm::LlamaRMSNorm"), maker.op("Op", **{"Sequence number": number}):
                maker.now += 1.0
            with maker.backward("OpBackward", number), ranged(maker, f"kc::layers.{layer}.mlp::LlamaMLP", there=inside):
                for _ in range(3):
                    maker.run("aten::mul", ELEMENTWISE, 3.0)

    report = judged(tmp_path, steps(chains))
    subjects = [one.subject for one in report.of("note") if one.code == "KC630"]
    assert subjects == [f"{module} (backward)"]


def ranged(maker, name, *, there=True):
    return maker.spanning("user_annotation", name) if there else contextlib.nullcontext()


def test_what_is_odd_is_noted(tmp_path):
    maker = good()
    maker.events[5]["dur"] = -3.0
    report = judged(tmp_path, maker)
    assert [one.message for one in report.of("note") if one.code == "KC631"] == ["1 negative durations"]
