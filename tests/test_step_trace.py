"""Reading a profiler trace of a step: hand-made events, a real trace of torch, and real traces of GPUs."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import plain_step

from kerncheck import tracing
from kerncheck.model.base import Missing
from kerncheck.model.job import Job
from kerncheck.model.step import Run
from kerncheck.probes import ranges, step_trace
from kerncheck.stages import step as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers
from kerncheck.tracing import labels
from kerncheck.tracing.join import link
from kerncheck.tracing.names import plain

FIGURES = ("kernels", "launches", "joined", "busy_microseconds", "span_microseconds")
OLD_TRITON = re.compile(r"_0(?=[\dcde]*[cde])[\dcde]+$")
TRACES = Path(__file__).parents[2] / "shared" / "traces"


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launched(number, ts, tid=1, cat="cuda_driver", name="cuLaunchKernelEx", kernel="chunk_fwd_kernel_o"):
    return [
        event(cat, name, ts, 2.0, tid, correlation=number),
        event("kernel", kernel, ts + 10.0, 4.0, 7, correlation=number),
    ]


RANGE = event("user_annotation", "kc::3::chunk_gated_delta_rule", 0.0, 100.0)
TWIN = event("gpu_user_annotation", "kc::3::chunk_gated_delta_rule", 5.0, 50.0, 7)
FORWARD = {"Sequence number": 41}
ENGINE = "autograd::engine::evaluate_function: ChunkGatedDeltaRuleFunctionBackward"


@pytest.fixture
def read(tmp_path):
    """Reads events as the parent does, and proves that the independent reading says the same."""

    def reading(*events):
        return told_by_both({"traceEvents": [RANGE, TWIN, *events]}, tmp_path / "trace.json")

    return reading


def told_by_both(trace, path):
    path.write_text(json.dumps(trace))
    told = msgspec.to_builtins(labels.profile(tracing.read(path)))
    plain = plain_step.read(trace)
    assert {name: told[name] for name in FIGURES} == {name: plain[name] for name in FIGURES}
    assert told["reason"] == plain.get("reason", "")
    assert placed(told) == placed(plain)
    return told


def placed(told):
    """Return the kernels by label; outside of all labels the phases count as one: the plain reading knows none there.

    Names are compared without what stands behind an anonymous namespace, where the plain reading cut them off.
    """
    found = {}
    for item in told["labelled"]:
        key = (item["layer"], item["seam"], item["phase"] if item["seam"] else "")
        kernels, time = found.setdefault(key, (Counter(), [0.0]))
        for name, count in item["kernels"].items():
            kernels[OLD_TRITON.sub("", name.partition("(anonymous")[0])] += count
        time[0] += item["microseconds"]
    return {key: (kernels, pytest.approx(time[0], abs=0.01)) for key, (kernels, time) in found.items()}


def by_phase(told):
    return {(item["layer"], item["seam"], item["phase"]): item["kernels"] for item in told["labelled"]}


def test_a_kernel_belongs_to_the_range_of_its_launch(read):
    told = read(
        *launched(1, 50.0), *launched(2, 150.0, kernel="void at::native::vectorized_elementwise_kernel<4>(int)")
    )
    assert by_phase(told) == {
        (3, "chunk_gated_delta_rule", "forward"): {"chunk_fwd_kernel_o": 1},
        (-1, "", "forward"): {"at::native::vectorized_elementwise_kernel": 1},
    }


def test_a_backward_launch_follows_its_sequence_number_to_the_forward(read):
    forward = event("cpu_op", "ChunkGatedDeltaRuleFunction", 10.0, 20.0, **FORWARD)
    backward = event("cpu_op", ENGINE, 500.0, 30.0, 2, **FORWARD, **{"Fwd thread id": 1})
    other = event("cpu_op", ENGINE, 600.0, 30.0, 2, **{"Sequence number": 99})
    told = read(forward, backward, other, *launched(1, 510.0, tid=2), *launched(2, 610.0, tid=2))
    assert by_phase(told) == {
        (3, "chunk_gated_delta_rule", "backward"): {"chunk_fwd_kernel_o": 1},
        (-1, "", "backward"): {"chunk_fwd_kernel_o": 1},
    }


def test_a_launch_of_another_thread_is_not_in_the_range(read):
    assert by_phase(read(*launched(1, 50.0, tid=9))) == {(-1, "", "forward"): {"chunk_fwd_kernel_o": 1}}


def test_the_innermost_range_wins(read):
    inner = event("user_annotation", "kc::3::causal_conv1d_fn", 40.0, 20.0)
    told = read(inner, *launched(1, 50.0), *launched(2, 70.0))
    assert set(by_phase(told)) == {(3, "causal_conv1d_fn", "forward"), (3, "chunk_gated_delta_rule", "forward")}


def test_kernels_without_a_launch_and_launches_without_a_kernel_are_counted(read):
    lost = event("kernel", "k", 300.0, 5.0, 7, correlation=77)
    idle = event("cuda_runtime", "cudaLaunchKernel", 320.0, 1.0, correlation=78)
    copy = event("cuda_runtime", "cudaMemcpyAsync", 330.0, 1.0, correlation=79)
    told = read(*launched(1, 50.0), lost, idle, copy)
    assert (told["kernels"], told["launches"], told["joined"]) == (2, 2, 1)


def test_one_graph_launch_owns_many_kernels(read):
    graph = event("cuda_runtime", "cudaGraphLaunch", 10.0, 3.0, correlation=5)
    kernels = [event("kernel", "k", 20.0 + 5 * at, 4.0, 7, correlation=5) for at in range(300)]
    told = read(graph, *kernels)
    assert (told["kernels"], told["launches"], told["joined"]) == (300, 1, 300)
    assert told["reason"] == ""


def test_busy_time_is_a_union_over_streams(read):
    kernels = [
        event("kernel", "k", 0.0, 10.0, 7),
        event("kernel", "k", 5.0, 10.0, 8),
        event("kernel", "k", 40.0, 5.0, 7),
    ]
    told = read(*kernels)
    assert (told["busy_microseconds"], told["span_microseconds"]) == (20.0, 45.0)


def test_a_trace_without_kernels_says_so(read):
    told = read(event("cpu_op", "aten::mm", 1.0, 2.0))
    assert told["reason"] == "the trace holds no GPU kernel event"
    assert told["labelled"] == ()


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void at::native::reduce_kernel<512, 1>(int)", "at::native::reduce_kernel"),
        ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64"),
        ("void (anonymous namespace)::softmax_warp<float>(float*)", "(anonymous namespace)::softmax_warp"),
        ("void flash::flash_fwd_kernel<Traits<64>, true>(Params)", "flash::flash_fwd_kernel"),
    ],
)
def test_names_lose_their_arguments_only(kernel, name):
    assert plain(kernel) == name


def test_the_label_of_a_module_is_no_seam(read):
    module = event("user_annotation", "kc::model.layers.0::Qwen3_5DecoderLayer", 200.0, 50.0)
    told = labels.parts(module["name"])
    assert told == (-1, "")
    assert labels.parts("kc::-1::l2norm") == (-1, "l2norm")
    assert labels.parts("") == (-1, "")


def test_the_step_is_measured_without_the_ops_that_run_alone_after_it(read):
    step = event("user_annotation", ranges.STEP, 0.0, 200.0)
    alone = event("user_annotation", ranges.seam_label(-1, "chunk_gated_delta_rule"), 250.0, 20.0)
    told = read(step, alone, *launched(1, 50.0), *launched(2, 150.0), *launched(3, 255.0))
    assert told["kernels"] == 3
    measures = told["measures"]
    assert (measures["kernels"], measures["busy_microseconds"], measures["step_microseconds"]) == (2, 8.0, 200.0)
    assert measures["idle"]["host"] == 60.0 + 96.0
    assert read(alone, *launched(1, 50.0))["measures"] is None


REAL = {
    "a100_alexnet": True,
    "a100_training_rank3": True,
    "mi250_training": True,
    "triton_one_kernel": True,
    "cpu_only": False,
}
OLD_WORDS = {"Kernel": "kernel", "Runtime": "cuda_runtime", "Operator": "cpu_op", "hip_runtime": "cuda_runtime"}


def real(name):
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the sample traces (shared/traces) are not on this machine")
    with gzip.open(path, "rt", errors="replace") as file:
        trace = json.load(file)
    for item in trace["traceEvents"]:  # the plain reading knows today's words only
        item["cat"] = OLD_WORDS.get(item.get("cat"), item.get("cat", ""))
    return trace


@pytest.mark.parametrize("name", REAL)
def test_both_readings_of_real_traces_agree(name, tmp_path):
    told = told_by_both(real(name), tmp_path / "trace.json")
    assert (told["reason"] == "") is REAL[name]
    if REAL[name]:
        assert told["joined"] >= 0.95 * told["kernels"] > 0
        assert 0 < told["busy_microseconds"] <= told["span_microseconds"]


def test_both_readings_agree_on_labels_planted_into_real_steps(tmp_path):
    """Ranges over stretches of the forward thread: their backward work follows by the real sequence numbers."""
    trace = real("v100_nanoseconds")
    forward = [
        item for item in trace["traceEvents"] if "Sequence number" in item.get("args", {}) and not backward(item)
    ]
    forward.sort(key=lambda item: item["ts"])
    stretches = [forward[at : at + 60] for at in range(0, len(forward) - 60, 100)]
    for layer, stretch in enumerate(stretches):
        first = stretch[0]
        last = max(item["ts"] + item["dur"] for item in stretch if item["tid"] == first["tid"])
        planted = event("user_annotation", ranges.seam_label(layer, "planted"), first["ts"], last - first["ts"])
        trace["traceEvents"].append({**planted, "pid": first["pid"], "tid": first["tid"]})
    found = {(item["layer"] >= 0, item["phase"]) for item in told_by_both(trace, tmp_path / "t.json")["labelled"]}
    assert {(True, "forward"), (True, "backward")} <= found


def backward(item):
    return "evaluate_function" in item["name"] or "Backward" in item["name"]


@pytest.mark.torch
def test_a_real_trace_of_torch_maps_backward_work_to_its_range(tmp_path):
    import torch

    path = tmp_path / "trace.json"
    weight = torch.nn.Parameter(torch.randn(8, 8))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with torch.profiler.record_function(ranges.seam_label(2, "op")):
            inside = (torch.randn(8, 8) @ weight).sin()
        (inside.cos() * weight).sum().backward()
    profiler.export_chrome_trace(str(path))
    found = engine_places(with_launches(path))
    assert found["SinBackward0"] == found["MmBackward0"] == ("kc::2::op", "backward")
    assert found["CosBackward0"] == found["MulBackward0"] == ("", "backward")


def with_launches(path):
    """Put a launch and its kernel into each node of the autograd engine: this machine has no GPU that would."""
    trace = json.loads(path.read_text())
    nodes = [item for item in trace["traceEvents"] if is_engine(item)]
    for number, node in enumerate(nodes):
        call, kernel = launched(number, node["ts"] + 0.001, node["tid"])
        trace["traceEvents"] += [{**call, "pid": node["pid"], "dur": 0.001}, {**kernel, "name": node["name"]}]
    told_by_both(trace, path)
    return path


def engine_places(path):
    linked = link(tracing.read(path))
    places, device = labels.Places(linked), linked.trace.device
    names = [linked.trace.names[name].removeprefix(plain_step.ENGINE) for name in device.name]
    return {name: places.of(call) for name, call in zip(names, linked.call, strict=True)}


def is_engine(item):
    return item.get("name", "").startswith(plain_step.ENGINE) and "Sequence number" in item.get("args", {})


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # the profiler warns that there is no CUDA: that is the situation here
def test_a_profile_without_a_gpu_says_that_it_saw_none(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here: see tests/gpu")
    weight = torch.nn.Parameter(torch.randn(8, 8))
    calls = []
    path = tmp_path / "folder" / "trace.json"
    told = step_trace.profile(lambda: weight.sin().sum().backward(), lambda: calls.append(1), str(path))
    assert told == {}
    assert labels.profile(tracing.read(path)).reason == "the trace holds no GPU kernel event"
    assert len(calls) == step_trace.WARM + 1
    assert step_trace.timed(lambda: None, lambda: calls.append(1)) >= 0
    told = step_trace.profile(lambda: None, lambda: None, str(tmp_path / "trace.json" / "trace.json"))
    assert told == {}


# The stage: it reads the trace that the child left, and removes it.

RUN = {
    "layer_types": ["linear_attention"], "dtype": "bfloat16", "tokens": 2048, "phase": "done", "loss": 1.0,
    "raised": None, "work": [], "uses": [], "gradients": {}, "alone": [], "device": {"name": "NVIDIA H200"},
}  # fmt: skip


def collected(trace, **profile):
    """Return the fused and the eager profile that the stage reads, and the folder of both runs."""
    missing = Missing(reason="not part of this test")
    model = stage_model()
    job = Job(profile="node", device="cuda", model=model)
    ask = Ask(job=job, catalog=None, environment=missing, devices=missing, gpus=("0",))
    runs = stage.runs(ask)
    folder = Path(runs[0].options["exchange"])
    folder.mkdir(mode=0o700)
    if trace is not None:
        (folder / step_trace.TRACE).write_text(trace)
    told = {**RUN, "profile": {"seconds": 0.5, **profile}}
    section = stage.collect(ask, [Answers(run=run, setup=None, cases=(told,)) for run in runs])
    assert not folder.exists()
    fused, eager = section.devices[0].fused, section.devices[0].eager
    assert isinstance(fused, Run)
    assert isinstance(eager, Run)
    return fused.profile, eager.profile


def stage_model():
    from kerncheck import catalog

    return catalog.load().model("qwen").request()


def test_the_stage_reads_the_trace_and_removes_it():
    fused, eager = collected(json.dumps({"traceEvents": [RANGE, *launched(1, 50.0)]}))
    assert (fused.kernels, fused.seconds, fused.reason) == (1, 0.5, "")
    assert [(item.layer, item.seam) for item in fused.labelled] == [(3, "chunk_gated_delta_rule")]
    assert (eager.kernels, eager.seconds, eager.reason) == (0, 0.5, "")


@pytest.mark.parametrize(
    ("trace", "words"), [('{"traceEvents": [', "truncated"), (None, "No such file"), ("", "the file is empty")]
)
def test_a_trace_that_cannot_be_read_is_a_reason_and_is_removed(trace, words):
    fused, _ = collected(trace)
    assert "the profiler's trace cannot be read" in fused.reason
    assert words in fused.reason
    assert fused.seconds == 0.5


def test_what_the_child_could_not_profile_is_said_in_its_words():
    fused, _ = collected(None, reason="the profiler gave no trace (RuntimeError: no CUPTI)")
    assert fused.reason == "the profiler gave no trace (RuntimeError: no CUPTI)"


def test_the_trace_is_removed_where_an_answer_cannot_be_used():
    with pytest.raises(msgspec.ValidationError):
        collected("{}", seconds="soon")
