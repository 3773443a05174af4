"""`kerncheck.step_trace` in a real loop: real transformers models and the real profiler, on the CPU.

There is no GPU here. Where a test needs the kernels of one, they are planted into the profiler's own trace, a launch
and a kernel for each elementwise operator that really ran; model, hooks, ranges, reading and judging are the real ones.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

import kerncheck
from kerncheck.probes.recording import Schedule

CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
SHORT = {"wait": 0, "warmup": 1, "active": 1}
TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
ELEMENTWISE = {"aten::mul", "aten::add", "aten::pow", "aten::rsqrt", "aten::silu", "aten::sub", "aten::mean"}
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int)"
FUSED = (
    "chunk_gated_delta_rule_fwd_kkt_solve_kernel", "recompute_w_u_fwd_kernel",
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "chunk_fwd_kernel_o",
)  # fmt: skip

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: more threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **TINY))


@functools.cache
def qwen():
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    sizes = {"num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 1}
    heads = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(num_hidden_layers=4, **TINY, **sizes, **heads))


def trained(model, steps, trace=None, after=None):
    import torch

    tokens = torch.arange(20).reshape(1, 20)
    for step in range(steps):
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        model.zero_grad()
        if trace is not None:
            trace.step()
        if after is not None:
            after(step)


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.fixture
def planted(monkeypatch):
    """Let the exported trace hold what a GPU would have added. Returns the names of further kernels, to be filled."""
    import torch

    more: list[str] = []
    export = torch.profiler.profile.export_chrome_trace

    def with_gpu(profiler, path):
        export(profiler, path)
        trace = json.loads(Path(path).read_text())
        ran = [item for item in trace["traceEvents"] if item.get("cat") == "cpu_op" and item["name"] in ELEMENTWISE]
        names = [KERNEL] * len(ran)
        names[: len(more)] = more
        for number, (operator, name) in enumerate(zip(ran, names, strict=True)):
            trace["traceEvents"] += launched(number, operator, name)
        Path(path).write_text(json.dumps(trace))

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", with_gpu)
    return more


def launched(number, operator, name):
    ids = {"correlation": number, "External id": operator["args"]["External id"]}
    call = {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "ts": operator["ts"], "dur": 0.1, "args": ids}
    kernel = {"ph": "X", "cat": "kernel", "name": name, "ts": operator["ts"] + 5, "dur": 0.1, "pid": 0, "tid": 7}
    return [{**call, "pid": operator["pid"], "tid": operator["tid"]}, {**kernel, "args": {**ids, "stream": 7}}]


def codes(trace, status):
    return {outcome.code for outcome in trace.outcomes if outcome.status == status}


# What is recorded.


def test_a_loop_is_recorded_and_the_result_is_there_inside_of_it():
    model, seen = llama(), []
    with kerncheck.step_trace(model, wait=1, warmup=1, active=2) as trace:
        trained(model, 6, trace, lambda _: seen.append((trace.done, trace.report is not None, hooks(model) > 0)))
    no, recording, done = (False, False, False), (False, False, True), (True, True, False)
    assert seen == [recording, recording, recording, done, done, done]
    assert no not in seen
    report = trace.report
    assert (report.iterations, report.iterations_by, trace.reason, trace.path) == (2, "ProfilerStep", "", None)
    assert report.backward
    assert report.total.operators > 100


def test_without_a_gpu_nothing_is_passed():
    model = llama()
    with kerncheck.step_trace(model, **SHORT) as trace:
        trained(model, 2, trace)
    assert codes(trace, "passed") == set()
    assert trace.findings == ()
    with pytest.raises(kerncheck.NotJudgedError, match="KC620 trace: the trace holds no GPU kernel event") as caught:
        trace.raise_on_fallback()
    assert [finding.code for finding in caught.value.findings] == ["KC620"]


def test_the_modules_that_may_launch_chains_have_a_range(tmp_path):
    model, path = llama(), tmp_path / "trace.json"
    with kerncheck.step_trace(model, **SHORT, path=path) as trace:
        trained(model, 2, trace)
    assert trace.path == path
    assert trace.report.file == str(path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {item["name"] for item in events if item.get("cat") == "user_annotation"}
    ranges = {name.rpartition("::")[2] for name in names if name.startswith("kc::")}
    assert ranges == {
        "LlamaForCausalLM", "LlamaModel", "LlamaDecoderLayer", "LlamaAttention", "LlamaMLP", "LlamaRMSNorm",
        "LlamaRotaryEmbedding",
    }  # fmt: skip
    assert "kc::model.layers.1.mlp::LlamaMLP" in names
    assert not [item for item in events if item.get("cat") == "python_function"]
    assert not [item for item in events if "Input Dims" in item.get("args", {})]


def test_a_fallback_in_this_process_is_shown_by_the_trace(planted, monkeypatch):
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modelling

    model = qwen()
    reference = modelling.torch_chunk_gated_delta_rule.__wrapped__
    monkeypatch.setattr(modelling, "torch_chunk_gated_delta_rule", reference)
    with kerncheck.step_trace(model, **SHORT, required=[CHUNK]) as trace:
        trained(model, 2, trace)
    assert {"KC627"} <= {finding.code for finding in trace.findings}
    with pytest.raises(kerncheck.FallbackError, match="fell back: the eager reference ran in its place") as caught:
        trace.raise_on_fallback()
    assert not isinstance(caught.value, kerncheck.NotJudgedError)
    offenders = {item.module: item for item in trace.report.offenders if item.phase == "forward"}
    assert (offenders["Qwen3_5RMSNorm"].instances, offenders["Qwen3_5RMSNorm"].of) == (11, 11)
    assert {item.phase for item in trace.report.offenders} == {"forward", "backward"}
    assert "KC630" in codes(trace, "note")


def test_the_fused_kernels_pass(planted):
    planted += FUSED
    planted.append("chunk_bwd_kernel_dqkwg")
    model = llama()
    with kerncheck.step_trace(model, **SHORT, required=[CHUNK]) as trace:
        trained(model, 2, trace)
    assert {"KC620", "KC627", "KC628", "KC629"} <= codes(trace, "passed")
    trace.raise_on_fallback()


def test_neither_fused_nor_eager_is_not_judged(planted):
    model = llama()
    with kerncheck.step_trace(model, **SHORT, required=[CHUNK]) as trace:
        trained(model, 2, trace)
    with pytest.raises(kerncheck.NotJudgedError, match="neither its kernels nor its eager reference are seen"):
        trace.raise_on_fallback()


def test_a_model_that_needs_nothing_is_fine(planted):
    model = llama()
    with kerncheck.step_trace(model, **SHORT) as trace:
        trained(model, 2, trace)
    trace.raise_on_fallback()
    assert "KC620" in codes(trace, "passed")


# What was not recorded.


def refused(trace, words):
    assert trace.report is None
    assert words in trace.reason
    assert codes(trace, "passed") == set()
    with pytest.raises(kerncheck.NotJudgedError, match="KC620"):
        trace.raise_on_fallback()


def test_step_was_never_called(tmp_path):
    path = tmp_path / "trace.json"
    with kerncheck.step_trace(llama(), path=path) as trace:
        trained(llama(), 1)
    refused(trace, "step() was never called")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_loop_shorter_than_the_schedule(calls, tmp_path):
    model = llama()
    with kerncheck.step_trace(model, wait=1, warmup=1, active=2, path=tmp_path / "trace.json") as trace:
        trained(model, calls, trace)
    refused(trace, f"step() was called {calls} times, and wait=1, warmup=1, active=2 need 4 calls")
    assert hooks(model) == 0
    assert list(tmp_path.iterdir()) == []
    with kerncheck.step_trace(model, **SHORT) as again:  # the profiler of the first is gone
        trained(model, 2, again)
    assert again.report is not None


def test_outside_of_a_with_statement():
    model = llama()
    trace = kerncheck.step_trace(model, wait=1, warmup=1, active=1)
    trained(model, 3, trace)  # as many steps as the schedule needs: none begins a recording that nobody would end
    refused(trace, "belongs into a with statement")
    assert (trace.done, trace.report, trace.findings, hooks(model)) == (False, None, (), 0)


@pytest.mark.parametrize("wait", [0, 1])
def test_another_profiler_is_left_alone(wait):
    import torch

    model = llama()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as other:
        with kerncheck.step_trace(model, wait=wait, warmup=1, active=1) as trace:
            trained(model, 3, trace)
        (torch.ones(3) + 1).sinh()
    refused(trace, "another profiler is active in this process")
    assert hooks(model) == 0
    assert "aten::sinh" in {event.key for event in other.key_averages()}


def test_another_profiler_that_begins_during_the_warm_up_is_left_alone():
    import torch

    model = llama()
    with kerncheck.step_trace(model, wait=0, warmup=2, active=1) as trace:
        trained(model, 1, trace)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as other:
            trained(model, 2, trace)
            (torch.ones(3) + 1).sinh()
    refused(trace, "another profiler is active in this process")
    assert "aten::sinh" in {event.key for event in other.key_averages()}


class LoopError(Exception):
    pass


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_exception_in_the_loop_goes_its_way(at, tmp_path):
    def fail(step):
        if step == at:
            raise LoopError("mine")

    model = llama()
    with (
        pytest.raises(LoopError, match=r"^mine$") as caught,
        kerncheck.step_trace(model, wait=1, warmup=1, active=2, path=tmp_path / "trace.json") as trace,
    ):
        trained(model, 9, trace, fail)
    assert caught.value.__context__ is None
    refused(trace, "the loop ended with LoopError before the recording did")
    assert hooks(model) == 0
    assert list(tmp_path.iterdir()) == []


def test_an_exception_inside_of_a_forward_leaves_no_range_open(tmp_path):
    import torch

    model, path = llama(), tmp_path / "trace.json"
    with kerncheck.step_trace(model, wait=0, warmup=1, active=2, path=path) as trace:
        trained(model, 1, trace)
        with pytest.raises(IndexError):
            model(input_ids=torch.full((1, 4), 10_000))
        trained(model, 2, trace)
    events = [item for item in json.loads(path.read_text())["traceEvents"] if item.get("cat") == "user_annotation"]
    whole = sorted((item["ts"], item["dur"]) for item in events if item["name"] == "kc::model::LlamaForCausalLM")
    assert len(whole) == 3
    assert all(first[0] + first[1] <= second[0] for first, second in itertools.pairwise(whole))


def interrupted(model, trace):
    trained(model, 2, trace)
    raise LoopError


def test_an_exception_after_the_recording_keeps_it():
    model = llama()
    trace = kerncheck.step_trace(model, **SHORT)
    with pytest.raises(LoopError), trace:
        interrupted(model, trace)
    assert trace.report is not None
    assert trace.reason == ""


# The file, and what is asked for.


def test_an_existing_file_is_kept(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="would be overwritten"):
        kerncheck.step_trace(llama(), **SHORT, path=path)
    assert path.read_text() == "precious"
    with kerncheck.step_trace(llama(), **SHORT, path=path, overwrite=True) as trace:
        trained(llama(), 2, trace)
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "trace.json"
    with kerncheck.step_trace(llama(), **SHORT, path=path) as trace:
        path.write_text("precious")
        trained(llama(), 1, trace)
        with pytest.warns(UserWarning, match="the trace was not kept"):
            trained(llama(), 1, trace)
    assert path.read_text() == "precious"
    assert trace.path is None
    assert trace.report is not None


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        kerncheck.step_trace(llama(), path=tmp_path / "absent" / "trace.json")


@pytest.mark.parametrize("numbers", [{"wait": -1}, {"warmup": 0}, {"active": 0}])
def test_schedules_that_would_record_nothing_or_lose_kernels(numbers):
    with pytest.raises(ValueError, match="must be at least"):
        kerncheck.step_trace(llama(), **numbers)


def test_not_a_module():
    with pytest.raises(TypeError, match="wants a torch module, not a dict"):
        kerncheck.step_trace({})


def test_the_schedule_counts_as_torch_does():
    assert (Schedule().first, Schedule().last) == (3, 6)


def test_what_torch_compiles_gets_no_hooks():
    import torch

    from kerncheck.probes.ranges import chosen

    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.LayerNorm(4)), torch.nn.Sequential(torch.nn.LayerNorm(4)))
    assert [name for name, _ in chosen(model)] == ["", "1", "1.0", "0", "0.0"]
    model[1].compile(backend="eager")
    assert [name for name, _ in chosen(model)] == ["", "0", "0.0"]
    assert list(chosen(torch.compile(model, backend="eager"))) == []


def test_neither_the_command_line_nor_torch_is_imported_for_it():
    script = (
        "import sys, kerncheck; kerncheck.step_trace\n"
        "print([name for name in ('click', 'rich', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
