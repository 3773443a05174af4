"""Reading a profiler trace of a step: hand-made events, a real trace of torch, and real traces of GPUs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kerncheck.probes import step_trace

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


def read(*events):
    return step_trace.read({"traceEvents": [RANGE, TWIN, *events]})


def by_phase(told):
    return {(item["layer"], item["seam"], item["phase"]): item["kernels"] for item in told["labelled"]}


def test_a_kernel_belongs_to_the_range_of_its_launch():
    told = read(
        *launched(1, 50.0), *launched(2, 150.0, kernel="void at::native::vectorized_elementwise_kernel<4>(int)")
    )
    assert by_phase(told) == {
        (3, "chunk_gated_delta_rule", "forward"): {"chunk_fwd_kernel_o": 1},
        (-1, "", "forward"): {"at::native::vectorized_elementwise_kernel": 1},
    }


def test_a_backward_launch_follows_its_sequence_number_to_the_forward():
    forward = event("cpu_op", "ChunkGatedDeltaRuleFunction", 10.0, 20.0, **FORWARD)
    backward = event("cpu_op", ENGINE, 500.0, 30.0, 2, **FORWARD, **{"Fwd thread id": 1})
    other = event("cpu_op", ENGINE, 600.0, 30.0, 2, **{"Sequence number": 99})
    told = read(forward, backward, other, *launched(1, 510.0, tid=2), *launched(2, 610.0, tid=2))
    assert by_phase(told) == {
        (3, "chunk_gated_delta_rule", "backward"): {"chunk_fwd_kernel_o": 1},
        (-1, "", "backward"): {"chunk_fwd_kernel_o": 1},
    }


def test_a_launch_of_another_thread_is_not_in_the_range():
    assert by_phase(read(*launched(1, 50.0, tid=9))) == {(-1, "", "forward"): {"chunk_fwd_kernel_o": 1}}


def test_the_innermost_range_wins():
    inner = event("user_annotation", "kc::3::causal_conv1d_fn", 40.0, 20.0)
    told = read(inner, *launched(1, 50.0), *launched(2, 70.0))
    assert set(by_phase(told)) == {(3, "causal_conv1d_fn", "forward"), (3, "chunk_gated_delta_rule", "forward")}


def test_kernels_without_a_launch_and_launches_without_a_kernel_are_counted():
    lost = event("kernel", "k", 300.0, 5.0, 7, correlation=77)
    idle = event("cuda_runtime", "cudaLaunchKernel", 320.0, 1.0, correlation=78)
    copy = event("cuda_runtime", "cudaMemcpyAsync", 330.0, 1.0, correlation=79)
    told = read(*launched(1, 50.0), lost, idle, copy)
    assert (told["kernels"], told["launches"], told["joined"]) == (2, 2, 1)


def test_one_graph_launch_owns_many_kernels():
    graph = event("cuda_runtime", "cudaGraphLaunch", 10.0, 3.0, correlation=5)
    kernels = [event("kernel", "k", 20.0 + 5 * at, 4.0, 7, correlation=5) for at in range(300)]
    told = read(graph, *kernels)
    assert (told["kernels"], told["launches"], told["joined"]) == (300, 1, 300)
    assert "reason" not in told


def test_busy_time_is_a_union_over_streams():
    kernels = [
        event("kernel", "k", 0.0, 10.0, 7),
        event("kernel", "k", 5.0, 10.0, 8),
        event("kernel", "k", 40.0, 5.0, 7),
    ]
    told = read(*kernels)
    assert (told["busy_microseconds"], told["span_microseconds"]) == (20.0, 45.0)


def test_a_trace_without_kernels_says_so():
    told = read(event("cpu_op", "aten::mm", 1.0, 2.0))
    assert told["reason"] == "the trace holds no GPU kernel event"
    assert told["labelled"] == []


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
    assert step_trace.plain_name(kernel) == name


REAL = {
    "a100_alexnet": (True, 0.95),
    "a100_training_rank3": (True, 0.95),
    "triton_one_kernel": (True, 0.95),
    "cpu_only": (False, None),
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces_of_gpus(name):
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the sample traces (shared/traces) are not on this machine")
    has_kernels, joined = REAL[name]
    with gzip.open(path, "rt", errors="replace") as file:
        told = step_trace.read(json.load(file))
    assert ("reason" not in told) is has_kernels
    if has_kernels:
        assert told["joined"] >= joined * told["kernels"] > 0
        assert 0 < told["busy_microseconds"] <= told["span_microseconds"]


@pytest.mark.torch
def test_a_real_trace_of_torch_maps_backward_work_to_its_range(tmp_path):
    import torch

    path = tmp_path / "trace.json"
    weight = torch.nn.Parameter(torch.randn(8, 8))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with torch.profiler.record_function(step_trace.label(2, "op")):
            inside = (torch.randn(8, 8) @ weight).sin()
        (inside.cos() * weight).sum().backward()
    profiler.export_chrome_trace(str(path))
    events = [item for item in json.loads(path.read_text())["traceEvents"] if item.get("ph") == "X"]
    places = step_trace.Places(events)
    found = {item["name"].removeprefix(step_trace.ENGINE): places.of(item) for item in events if is_engine(item)}
    assert found["SinBackward0"] == found["MmBackward0"] == ("kc::2::op", "backward")
    assert found["CosBackward0"] == found["MulBackward0"] == ("", "backward")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # the profiler warns that there is no CUDA: that is the situation here
def test_a_profile_without_a_gpu_says_that_it_saw_none():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here: see tests/gpu")
    weight = torch.nn.Parameter(torch.randn(8, 8))
    calls = []
    told = step_trace.profile(lambda: weight.sin().sum().backward(), lambda: calls.append(1))
    assert told["reason"] == "the trace holds no GPU kernel event"
    assert len(calls) == step_trace.WARM + 1
    assert step_trace.timed(lambda: None, lambda: calls.append(1)) >= 0


def is_engine(item):
    return item["name"].startswith(step_trace.ENGINE) and "Sequence number" in item.get("args", {})
