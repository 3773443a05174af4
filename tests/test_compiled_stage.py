"""The stage of compile-ahead: what it plans for a job, and how it reads what came back. No torch needed."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from kerncheck.catalog import load
from kerncheck.model.base import Broken, Missing
from kerncheck.model.compiled import Compiled
from kerncheck.model.job import Job
from kerncheck.models import resolve
from kerncheck.probes import cubin
from kerncheck.stages import compile_plan as plan
from kerncheck.stages import compiled as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, ProbeRun, Supervisor
from kerncheck.targets import parse_target, parse_targets

CATALOG = load()
QWEN = resolve("qwen", CATALOG)
MISSING = Missing(reason="not looked")


def ask(*targets, **changes):
    named = parse_targets(targets, CATALOG)
    job = Job(**{"profile": "image", "model": QWEN, "targets": named, **changes})
    return Ask(job=job, catalog=CATALOG, environment=MISSING, devices=MISSING)


def test_every_triton_op_of_the_model_is_called_at_its_real_sizes():
    found = plan.planned_calls(ask("h200").job)
    assert [(call["op"].partition(":")[2], call["layout"]) for call in found] == [
        ("chunk_gated_delta_rule", "plain"),
        ("chunk_gated_delta_rule", "varlen"),
        ("fused_recurrent_gated_delta_rule", "plain"),
        ("l2norm", "plain"),
        ("FusedRMSNormGated", "plain"),
        ("causal_conv1d", "plain"),
        ("causal_conv1d", "varlen"),
    ]
    assert all(call["sizes"] == {"H": 16, "HV": 32, "K": 128, "V": 128, "W": 4, "D": 8192} for call in found)
    assert all(call["dtype"] == "bfloat16" for call in found)


def test_training_differentiates_and_asks_for_no_state_and_inference_the_reverse():
    chunk = plan.planned_calls(ask("h200").job)[0]
    assert (chunk["backward"], chunk["final_state"]) == (True, False)
    chunk = plan.planned_calls(ask("h200", training=False).job)[0]
    assert (chunk["backward"], chunk["final_state"]) == (False, True)
    decoding = plan.planned_calls(ask("h200").job)[2]
    assert (decoding["tokens"], decoding["initial_state"], decoding["backward"]) == (1, True, False)


def test_each_child_takes_its_shares_and_together_they_take_all(monkeypatch):
    monkeypatch.setattr(plan.os, "cpu_count", lambda: 2)
    runs = stage.runs(ask("h200", "sm_120"))
    assert [run.label for run in runs] == [
        "compile for h200 (1 of 2)",
        "compile for h200 (2 of 2)",
        "compile for sm_120 (1 of 2)",
        "compile for sm_120 (2 of 2)",
    ]
    assert runs[0].cases[0] == plan.SURVEY
    names = [case["name"] for run in runs[:2] for case in run.cases if case["what"] == "compile"]
    assert sorted(names) == sorted(case["name"] for case in plan.shares(runs[0].options["calls"]))
    assert "chunk_gated_delta_rule varlen backward, configurations 3/8" in names
    notes = [case["note"] for run in runs for case in run.cases if case["what"] == "compile"]
    assert len(notes) == len(set(notes))


def test_children_see_no_gpu_no_interpreter_and_write_no_timings(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (run, *_) = stage.runs(ask("h200"))
    wanted = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0", "FLA_CACHE_RESULTS": "0"}
    assert wanted.items() <= run.environment.items()


def test_nothing_is_planned_without_targets_a_model_or_sizes():
    assert stage.runs(ask()) == []
    assert stage.runs(ask("h200", model=None)) == []
    bare = msgspec.structs.replace(QWEN, config={"hidden_size": 64})
    assert stage.runs(ask("h200", model=bare)) == []
    answer = stage.collect(ask("h200", model=bare), [])
    assert isinstance(answer, Missing)
    assert "linear_num_key_heads" in answer.reason
    assert stage.collect(ask("h200", model=None), []) == Missing(reason="no model was named (--model)")
    other = msgspec.structs.replace(QWEN, required=())
    assert "requires no op" in stage.collect(ask("h200", model=other), []).reason


def test_a_target_without_known_limits_is_named():
    section = stage.collect(ask("p100"), [])
    assert isinstance(section, Compiled)
    assert section.unplanned == {"p100": "gpus.toml holds no limits of capability 6.0"}
    assert stage.runs(ask("p100")) == []


@pytest.mark.parametrize(
    ("text", "name", "arch", "memory", "assumed"),
    [
        ("h200", "NVIDIA H200", 90, 232448, ""),
        ("sm_90", "NVIDIA sm_90", 90, 232448, "132 multiprocessors"),
        ("a30", "NVIDIA A30", 80, 166912, "108 multiprocessors"),
        ("t4", "NVIDIA T4", 75, 65536, ""),
        ("rtx4090", "NVIDIA GeForce RTX 4090", 89, 101376, "142 multiprocessors"),
        ("b200", "NVIDIA B200", 100, 232448, ""),
        ("gb10", "NVIDIA GB10", 121, 101376, ""),
    ],
)
def test_what_fla_is_told_comes_from_the_matrix(text, name, arch, memory, assumed):
    facts = plan.facts_of(parse_target(text, CATALOG), CATALOG)
    assert (facts.name, facts.arch, facts.shared_memory, facts.assumed) == (name, arch, memory, assumed)


def test_every_gpu_from_volta_on_has_limits():
    unknown = {gpu.cc for gpu in CATALOG.gpus.gpu if CATALOG.limits(gpu.cc) is None}
    assert all(float(cc) < 7.5 for cc in unknown)


def item(number):
    return {"id": f"k{number}", "number": number, "choice": {"num_warps": number}}


def survey(count=4):
    kernel = {"name": "k", "module": "m", "of": count, "grid": [1], "constants": {}, "types": {}}
    kernel["configurations"] = [item(number) for number in range(1, count + 1)]
    ids = [[one["id"]] for one in kernel["configurations"]]
    phase = {"phase": "forward", "kernels": [kernel], "own": ids, "problem": None}
    tool = {"triton": "3.9.0", "version": "13.4.59", "release": "13.4", "knows": True, "message": "", "variables": {}}
    return {"toolchain": tool, "calls": [{"phases": [phase], "elsewhere": {}}], "seconds": 0.1}


def answered(tmp_path, *answers, quick=False):
    target = parse_target("h200", CATALOG)
    facts = plan.facts_of(target, CATALOG)
    call = plan.calls(
        [spec for spec in plan.triton_ops(ask().job) if spec.form == "l2norm"],
        plan.sizes(QWEN.config),
        plan.Signature(),
    )
    shares = [
        {"name": f"share {part}", "what": "compile", "call": 0, "phase": "forward", "part": part, "parts": 2}
        for part in (0, 1)
    ]
    cases = (plan.SURVEY, *({**case, "note": str(tmp_path / f"note{number}")} for number, case in enumerate(shares)))
    run = ProbeRun(
        label="compile for h200 (1 of 1)", probe="compile", cases=cases, options={"calls": call, "quick": quick}
    )
    return stage.rehearsal(target, facts, [Answers(run=run, setup=None, cases=answers)])


def result(number):
    return {"id": f"k{number}", "compiled": True, "shared": 1024, "seconds": 0.5}


def test_results_of_all_shares_are_put_together(tmp_path):
    both = ({"results": [result(1), result(3)]}, {"results": [result(2), result(4)]})
    found = answered(tmp_path, survey(), *both)
    assert sorted(one.id for one in found.results) == ["k1", "k2", "k3", "k4"]
    assert found.lost == ()
    assert found.calls[0].phases[0].kernels[0].configurations[2].label == "num_warps=3"


def test_a_lost_share_names_its_compilations_and_the_one_that_it_was_in(tmp_path):
    (tmp_path / "note1").write_text("k[num_warps=4]")
    broken = Broken(how="signal", message="killed by SIGABRT", detail="UNREACHABLE\n" + "module {}\n" * 900, signal=6)
    (lost,) = answered(tmp_path, survey(), {"results": [result(1), result(3)]}, broken).lost
    assert (lost.ids, lost.at, lost.name) == (("k2", "k4"), "k[num_warps=4]", "share 1")
    (slow,) = answered(tmp_path, survey(), {"results": []}, Missing(reason="not finished after 900 s")).lost
    assert slow.at == ""


def test_a_quick_share_is_made_of_first_configurations(tmp_path):
    broken = Broken(how="signal", message="killed by SIGABRT", signal=6)
    first, second = answered(tmp_path, survey(), broken, broken, quick=True).lost
    assert (first.ids, second.ids) == (("k1",), ())


def test_a_survey_that_was_not_answered_leaves_everything_open(tmp_path):
    lost = Missing(reason="the probe could not start: no torch")
    found = answered(tmp_path, lost, lost, lost)
    assert (found.survey, found.calls) == (lost, ())


def test_a_pass_that_raised_is_kept_as_what_broke(tmp_path):
    told = survey()
    problem = {"exception": "RuntimeError", "message": "see #640", "chain": ["RuntimeError: see #640"], "detail": "..."}
    told["calls"][0]["phases"].append({"phase": "backward", "kernels": [], "own": [], "problem": problem})
    found = answered(tmp_path, told, {"results": []}, {"results": []})
    assert found.calls[0].phases[1].problem.message == "see #640"


PRINTS = """
import os
from kerncheck.compat.triton_target import Printed

def setup(options):
    return None

def run(case, state):
    os.write(2, b"before\\n")
    printed = Printed()
    os.write(2, b"x.py:9:3: error: said by C++\\n")
    return {"said": printed.since()}
"""


def test_what_the_compiler_prints_past_python_is_read_back(tmp_path):
    package = tmp_path / "printing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "probe.py").write_text(PRINTS)
    run = ProbeRun(
        label="prints", probe="printing.probe", cases=({"name": "one"},), environment={"PYTHONPATH": str(tmp_path)}
    )
    (answer,) = Supervisor(sys.executable).run(run).cases
    assert answer == {"said": "x.py:9:3: error: said by C++"}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF" + bytes(200), b"PK\x03\x04" + bytes(80)])
def test_a_file_that_is_no_cubin_tells_nothing(data):
    assert cubin.usage(data) == (None, None)


def test_no_truncated_or_mutated_cubin_raises():
    import random

    image = Path(sys.executable).resolve().read_bytes()[:20000]  # an ELF file of the same kind
    chance = random.Random(7)
    for _ in range(2000):
        data = bytearray(image[: chance.randrange(64, len(image))])
        for _ in range(8):
            data[chance.randrange(len(data))] = chance.randrange(256)
        data[:4] = cubin.MAGIC
        cubin.usage(bytes(data))


def test_a_step_of_the_back_end_is_made_once_for_what_differs_in_stages_alone():
    from types import SimpleNamespace

    from kerncheck.compat.triton_repeats import remembered

    made = []

    def make_llir(backend, source, metadata, options, capability):
        made.append((source, options.num_stages, options.num_warps))
        metadata["shared"] = len(source)
        return f"llvm of {source}"

    step, backend = remembered(make_llir), SimpleNamespace(target="cuda:90")
    first, again, other = {"num_stages": 2}, {"num_stages": 3}, {"num_stages": 3}
    assert step(backend, "ir", first, SimpleNamespace(num_stages=2, num_warps=4), 90) == "llvm of ir"
    assert step(backend, "ir", again, SimpleNamespace(num_stages=3, num_warps=4), 90) == "llvm of ir"
    assert again == {"num_stages": 3, "shared": 2}
    assert made == [("ir", 2, 4)]
    step(backend, "ir", other, SimpleNamespace(num_stages=3, num_warps=8), 90)
    step(backend, "ir2", other, SimpleNamespace(num_stages=3, num_warps=4), 90)
    step(backend, "ir", other, SimpleNamespace(num_stages=3, num_warps=4), 80)
    step(SimpleNamespace(target="cuda:80"), "ir", other, SimpleNamespace(num_stages=3, num_warps=4), 90)
    assert len(made) == 5
