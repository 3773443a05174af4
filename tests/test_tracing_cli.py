"""`kerncheck trace` and `kerncheck trace compare`, as a user calls them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "faults"))

from plain_trace import RULES
from test_traces import eager, eager_and_gpu_bound, good, steps

from kerncheck.cli import run, traces
from kerncheck.judge import FAMILIES
from kerncheck.tracing.names import Rules, family, known, plain


@pytest.fixture
def fused(tmp_path):
    return str(good().write(tmp_path / "fused.json.gz"))


@pytest.fixture
def slow(tmp_path):
    return str(steps(lambda maker, layers: eager(maker, layers, small=400)).write(tmp_path / "eager.json"))


def told(capsys, *arguments):
    code = run(["trace", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_good_trace(capsys, fused):
    code, out, _ = told(capsys, fused, "--model", "qwen")
    assert code == 0
    assert out.splitlines()[0].endswith("trace fused.json.gz · model qwen")
    assert "GPU 0: NVIDIA H200 · 4 steps by ProfilerStep" in out
    assert "KC626 bottleneck: GPU-bound" in out
    assert out.splitlines()[-1] == ("passed as a trace: the required kernels are seen; nothing was run here: exit 0")
    assert len(out.splitlines()) < 50  # one screen


def test_a_fallback_fails_in_every_format_alike(capsys, slow):
    code, out, _ = told(capsys, slow, "--model", "qwen")
    assert code == 1
    assert "KC627 error: fell back: the eager reference ran in its place" in out
    assert "KC621 warning: CPU-bound: the GPU waits for launches" in out
    code, out, _ = told(capsys, "--model", "qwen", "--format", "json", slow)
    document = json.loads(out)
    assert (code, document["exit_code"], document["verdict"]) == (1, 1, "failed")
    assert document["snapshot"]["trace"]["report"]["total"]["operators"] > 1000
    assert {item["code"][:3] for item in document["outcomes"]} == {"KC6"}
    assert document["left_out"] == []


def test_a_warning_fails_only_where_it_is_asked(capsys, slow):
    assert told(capsys, slow)[0] == 0
    assert told(capsys, slow, "--fail-on", "warning")[0] == 1
    assert told(capsys, slow, "--fail-on", "warning", "--ignore", "KC621")[0] == 0
    assert told(capsys, slow, "--fail-on", "warning", "--waive", "KC621=a profile of the loader")[0] == 0
    code, out, _ = told(capsys, slow, "--select", "KC620", "--model", "qwen")
    assert code == 0
    assert "not judged: the required kernels" in out.splitlines()[-1]


def test_no_gpu_work_is_inconclusive(capsys, tmp_path):
    maker = good()
    maker.events = [event for event in maker.events if event["cat"] == "cpu_op"]
    code, out, _ = told(capsys, str(maker.write(tmp_path / "cpu.json")), "--model", "qwen")
    assert code == 3
    assert "needed: KC620 trace: the trace holds no GPU kernel event" in out


def test_compare_and_its_gates(capsys, fused, slow):
    gates = ("--min-op-reduction", "5x", "--max-cpu-gpu-ratio", "1.0", "--max-step-time-ratio", "1.05")
    code, out, _ = told(capsys, "compare", slow, fused, *gates, "--model", "qwen")
    assert code == 0
    assert "trace eager.json -> fused.json.gz" in out
    assert re.search(r"GPU operations +\d[\d,]* +\d+ +\d+\.\dx", out)
    assert "KC638 kernels: fused replaced elementwise" in out
    assert "appeared: cutlass" not in out
    assert re.search(r"appeared: (causal_conv1d|chunk|prepare|recompute)", out)
    code, out, _ = told(capsys, "compare", fused, slow, *gates)
    assert code == 1
    assert [name for name in ("KC635", "KC636", "KC637") if f"{name} error" in out] == ["KC635", "KC636", "KC637"]


def test_compare_gives_all_its_numbers_as_json(capsys, fused, slow):
    _, out, _ = told(capsys, "compare", slow, fused, "--format", "json")
    comparison = json.loads(out)["snapshot"]["trace"]["comparison"]
    assert comparison["per_step"] is True
    assert comparison["gpu_operations"]["ratio"] > 5
    operators = {item["name"]: item for item in comparison["operators"]}
    assert operators["aten::mul"]["after"] == 0
    assert [item["name"] for item in comparison["modules"]] == ["Qwen3_5GatedDeltaNet (forward)"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.json"], "No such file"),
        (["FILE", "--with", "fla"], "not a package and its version"),
        (["FILE", "--with", "fla==newest"], "not a package and its version"),
        (["FILE", "--model", "nobody"], "no model of this name"),
        (["FILE", "--output", "/nowhere/x.txt"], "absent or not writable"),
        (["compare", "FILE", "FILE", "--min-op-reduction", "many"], "not a number such as 5x"),
        (["compare", "FILE", "absent.json"], "No such file"),
        (["FILE", "--max-cpu-gpu-ratio", "0"], "--max-cpu-gpu-ratio"),
        (["FILE", "--select", "KC999"], "no check has the code"),
        (["compare", "FILE"], "AFTER"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(capsys, fused, arguments, words):
    code, out, err = told(capsys, *[fused if item == "FILE" else item for item in arguments])
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_a_version_speaks_for_the_package(capsys, tmp_path):
    trace = str(steps(eager_and_gpu_bound).write(tmp_path / "a.json"))
    code, out, _ = told(capsys, trace, "--model", "qwen", "--with", "flash-linear-attention==0.6.0")
    assert code == 1
    assert "the kernels of the fused op in version 0.6.0" in " ".join(out.split())


def test_help_names_both_commands(capsys):
    code, out, _ = told(capsys, "--help")
    assert code == 0
    assert "compare" in out


def test_the_snapshot_of_a_trace_can_be_judged_again(capsys, tmp_path, slow):
    path = tmp_path / "report.json"
    assert told(capsys, slow, "--model", "qwen", "--format", "json", "--output", str(path))[0] == 1
    assert run(["judge", str(path)]) == 1
    out = capsys.readouterr().out
    assert "KC627 error" in out
    assert "Environment" not in out


def test_verify_never_speaks_of_traces(capsys):
    assert run(["verify", "--dry-run", "--device", "none", "--model", "qwen"]) == 0
    assert "KC62" not in capsys.readouterr().out


def test_the_library_imports_no_command_line():
    unwanted = "('click', 'rich', 'kerncheck.cli', 'torch')"
    script = f"import sys, kerncheck.tracing\nprint([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# The data.


def test_every_row_has_its_source_and_a_pattern_that_compiles():
    data = known()
    rows = (*data.family, *data.call, *data.range, *data.expected, *data.eager)
    assert all(row.source.strip() for row in rows)
    assert [re.compile(row.pattern) for row in (*data.family, *data.call, *data.range)]
    assert len(RULES["family"]) == len(data.family)
    assert FAMILIES["KC6"]


@pytest.mark.parametrize(
    ("kernel", "by_driver", "name", "expected"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", False,
         "at::native::vectorized_elementwise_kernel", "elementwise"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(int)>(int)", False,
         "at::native::unrolled_elementwise_kernel", "copy and cast"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(float*)", False,
         "at::native::(anonymous namespace)::CatArrayBatchedCopy", "copy and cast"),
        ("void at::native::reduce_kernel<512, 1>(int)", False, "at::native::reduce_kernel", "reduce"),
        ("void at::native::index_elementwise_kernel<128>(int)", False, "at::native::index_elementwise_kernel", "index"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn", False,
         "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn", "gemm"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", True, "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "gemm"),
        ("Cijk_Alik_Bljk_SB_Bias_AS", True, "Cijk_Alik_Bljk_SB_Bias_AS", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Traits<128>>(int)", False,
         "pytorch_flash::flash_fwd_kernel", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", False,
         "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("triton_poi_fused_add_cos_sin_0", True, "triton_poi_fused_add_cos_sin_0", "fused"),
        ("chunk_fwd_kernel_o", True, "chunk_fwd_kernel_o", "fused"),
        ("_rms_norm_forward_kernel", True, "_rms_norm_forward_kernel", "fused"),
        ("my_own_kernel", True, "my_own_kernel", "fused"),
        ("my_own_kernel", False, "my_own_kernel", "other"),
        ("void causal_conv1d_fwd_kernel<Traits<128, 4>>(ConvParamsBase)", False, "causal_conv1d_fwd_kernel", "fused"),
    ],
)  # fmt: skip
def test_names_and_families(kernel, by_driver, name, expected):
    assert plain(kernel) == name
    assert family(kernel, Rules(known().family), by_driver=by_driver) == expected


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("file", "file model training versions max_cpu_gpu_ratio select ignore waive fail_on form output verbose"),
        (
            "compare",
            (
                "before after model training versions max_cpu_gpu_ratio min_op_reduction max_step_time_ratio"
                " select ignore waive fail_on form output verbose"
            ),
        ),
        (
            "record",
            "model output force device steps warmup tokens python timeout select ignore waive fail_on form verbose",
        ),
    ],
)
def test_options_do_not_creep_in(command, options):
    assert sorted(one.name for one in traces.commands[command].params) == sorted(options.split())
