"""kerncheck warm: what it refuses, what it plans, and that a second process compiles nothing and still times all."""

from __future__ import annotations

import msgspec
import pytest
from rehearse import CATALOG, calls, child, options

from kerncheck import warm
from kerncheck.cli import run
from kerncheck.errors import UsageError
from kerncheck.model.base import Missing
from kerncheck.model.compiled import Rehearsal, Result, Toolchain
from kerncheck.models import resolve
from kerncheck.stages import compile_plan as plan
from kerncheck.targets import parse_target

NORM = "fla.modules:FusedRMSNormGated"
GIVEN = {
    "dtype": ("bfloat16",),
    "tensor_parallel": (1, 2, 4, 8),
    "tokens": (4096,),
    "batch": (1,),
    "node_sets": (),
    "timeout": None,
    "keep_ir": False,
    "python": None,
}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TRITON_PTXAS_PATH", "/usr/local/cuda/bin/ptxas", "decides under which key"),
        ("TRITON_PTXAS_BLACKWELL_PATH", "/opt/ptxas", "decides under which key"),
        ("TRITON_DEFAULT_FP_FUSION", "0", "decides under which key"),
        ("FLA_USE_TMA", "1", "decides under which key"),
        ("TRITON_F32_DEFAULT", "ieee", "decides under which key"),
        ("TRITON_ALWAYS_COMPILE", "1", "reads no cache"),
        ("TRITON_CACHE_MANAGER", "my.module:Cache", "reads no cache"),
        ("TRITON_INTERPRET", "1", "reads no cache"),
    ],
)
def test_it_refuses_where_a_node_would_not_find_what_is_compiled_here(name, value, words):
    with pytest.raises(UsageError) as caught:
        warm.refuse_variables({name: value}, CATALOG, ())
    assert caught.value.message.startswith(f"{name}={value}")
    assert words in caught.value.message


def refusal(variables, *node_sets):
    try:
        warm.refuse_variables(variables, CATALOG, node_sets)
    except UsageError as error:
        return error.message
    return ""


def test_a_variable_that_the_nodes_set_too_is_no_reason_to_refuse():
    ptxas = {"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}
    assert refusal(ptxas, "TRITON_PTXAS_PATH") == ""
    assert refusal(ptxas).startswith("TRITON_PTXAS_PATH=")
    assert refusal(ptxas, "TRITON_OVERRIDE_DIR").startswith("TRITON_PTXAS_PATH=")
    assert refusal({"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": "/cache", "HOME": "/root"}) == ""


def test_what_makes_the_cache_unread_is_refused_whatever_the_nodes_set():
    with pytest.raises(UsageError):
        warm.refuse_variables({"TRITON_ALWAYS_COMPILE": "1"}, CATALOG, ("TRITON_ALWAYS_COMPILE",))


def test_the_command_refuses_with_one_line_and_exit_2(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/usr/local/cuda/bin/ptxas")
    code = run(["warm", "--model", "qwen", "--target", "h200", "--cache-dir", str(tmp_path)])
    told = capsys.readouterr().err
    assert code == 2
    assert "TRITON_PTXAS_PATH" in told
    assert "--node-sets TRITON_PTXAS_PATH" in told


@pytest.mark.parametrize("missing", ["--model", "--target"])
def test_model_and_target_are_needed(missing, capsys):
    words = {"--model": ["--model", "qwen"], "--target": ["--target", "h200"]}
    given = [word for name, pair in words.items() if name != missing for word in pair]
    assert run(["warm", *given]) == 2
    assert "warm needs --model and --target" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError):
        warm.refuse_folder(file / "cache")
    warm.refuse_folder(tmp_path / "cache" / "deep")
    assert list((tmp_path / "cache" / "deep").iterdir()) == []


def test_the_folder_is_the_one_that_triton_reads():
    assert str(warm.cache_folder("/a/b", {"TRITON_CACHE_DIR": "/c"})) == "/a/b"
    assert str(warm.cache_folder(None, {"TRITON_CACHE_DIR": "/c"})) == "/c"
    assert str(warm.cache_folder(None, {"TRITON_HOME": "/d"})) == "/d/.triton/cache"
    assert warm.cache_folder(None, {}).parts[-2:] == (".triton", "cache")


def planned(**changes):
    model = resolve("qwen", CATALOG)
    job = warm.Job(profile="image", model=model, targets=(parse_target("h200", CATALOG),))
    return warm.signatures(plan.triton_ops(job), plan.sizes(model.config), {**GIVEN, **changes})


def test_the_stated_signatures_hold_what_a_gate_compiles_and_more():
    model = resolve("qwen", CATALOG)
    found = planned()
    job = warm.Job(profile="image", model=model)
    assert all(call in found for call in plan.planned_calls(job))
    chunk = [call for call in found if call["form"] == "chunk_delta_rule" and call["sizes"]["HV"] == 4]
    forms = {
        (call["layout"], call["offsets"], call["backward"], call["initial_state"], call["final_state"])
        for call in chunk
    }
    assert forms == {
        ("plain", "int32", True, False, False),
        ("varlen", "int32", True, False, False),
        ("varlen", "int64", True, False, False),
        ("plain", "int32", False, False, True),
        ("plain", "int32", False, True, True),
    }
    assert {call["sizes"]["HV"] for call in found} == {32, 16, 8, 4}
    assert {call["sizes"]["D"] for call in found} == {8192, 4096, 2048, 1024}


def test_heads_that_cannot_be_divided_are_left_out_and_repeats_too():
    assert planned(tensor_parallel=(3,)) == []
    assert planned(tensor_parallel=(1, 1)) == planned(tensor_parallel=(1,))
    assert len(planned(batch=(1, 4), tensor_parallel=(1,))) > len(planned(tensor_parallel=(1,)))


def warmed(filled, found=()):
    target = parse_target("h200", CATALOG)
    tool = Toolchain(triton="3.9.0", version="13.4.59", knows=True, target="sm_90a")
    base = Rehearsal(target=target, facts=plan.facts_of(target, CATALOG), toolchain=tool, results=filled)
    return warm.Warmed(base, msgspec.structs.replace(base, results=found))


def test_the_summary_says_how_many_and_what_a_second_process_found():
    made = Result(id="a", compiled=True, bytes=1_000_000)
    again = msgspec.structs.replace(made, cached=True)
    lines = warm.told(warmed((made,), (again,)))
    assert any("1 configurations of 0 kernels, 0 of which were there already" in line for line in lines)
    assert any("a second process found 1 of 1 in the cache" in line for line in lines)
    assert warm.code_of(warmed((made,), (again,))) == 0


def test_what_is_not_found_again_or_does_not_compile_is_exit_1():
    made = Result(id="a", compiled=True)
    assert warm.code_of(warmed((made,), (made,))) == 1
    failed = Result(id="b", compiled=False, exception="PTXASError", error="fatal")
    item = warmed((made, failed), (msgspec.structs.replace(made, cached=True),))
    assert warm.code_of(item) == 1
    assert any("did not compile: PTXASError: fatal" in line for line in warm.told(item))


def test_what_could_not_be_surveyed_is_exit_3():
    item = warmed(())
    lost = msgspec.structs.replace(item.filled, survey=Missing(reason="triton is absent"))
    assert warm.code_of(warm.Warmed(lost, lost)) == 3


def test_the_closing_lines_say_what_it_does_not_save(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "k.autotune.json").write_text("{}")
    lines = warm.closing(tmp_path)
    assert any("1 files of timings" in line for line in lines)
    assert any("does not save: autotuning" in line for line in lines)


NODE = """
import os
os.environ.pop("FLA_CACHE_RESULTS", None)  # as on a node, where fla stores timings
from kerncheck.devices import target
target.prepare(asked["options"]["target"])
from kerncheck.compat import triton_target
from triton import knobs
from triton.runtime import autotuner, jit

counts = {"compiled": 0, "found": 0, "timed": 0}

def heard(*, cache_hit, **rest):
    counts["found" if cache_hit else "compiled"] += 1

def timed(call, quantiles=None):
    call()
    counts["timed"] += 1
    return [1.0, 1.0, 1.0]

autotuner.Autotuner._bench = asked_bench
autotuner.Autotuner.check_disk_cache = asked_check
autotuner.Autotuner.do_bench = property(lambda tuner: timed)
knobs.runtime.jit_cache_hook = None
knobs.compilation.listener = heard
from kerncheck.probes import compile_calls
for call in asked["options"]["calls"]:
    output = compile_calls.prepare(call)()
    if call["backward"]:
        compile_calls.backward(output)
print(json.dumps(counts))
"""
REAL = """
from triton.runtime import autotuner
asked_bench, asked_check = autotuner.Autotuner._bench, autotuner.Autotuner.check_disk_cache
"""


@pytest.mark.torch
def test_afterwards_a_node_compiles_nothing_and_times_everything(tmp_path, monkeypatch):
    """Filled by the command's own children; then the real autotuner of another process walks all configurations."""
    import sys

    from kerncheck.supervise import Supervisor

    monkeypatch.setattr(plan, "MOST_CHILDREN", 1)
    folder = tmp_path / "cache"
    target = parse_target("h200", CATALOG)
    asked = calls(NORM, tokens=64)
    one = plan.Errand(
        target=target,
        facts=plan.facts_of(target, CATALOG),
        calls=asked,
        cache={"fill": str(folder)},
    )
    item = warm.warm(one, GIVEN, Supervisor(sys.executable))
    assert [result.compiled for result in item.filled.results] == [True] * 18
    assert warm.absent(item) == []
    assert warm.code_of(item) == 0
    assert list(folder.rglob(warm.TIMINGS)) == []
    assert list(folder.rglob("*.ttir")) == []
    counts = child(REAL + NODE, {"options": options("h200", asked, {})}, TRITON_CACHE_DIR=str(folder))
    assert counts == {"compiled": 0, "found": 18, "timed": 18}
