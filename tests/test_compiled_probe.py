"""Compile-ahead with real kernels: what fla decides for each target, what compiles, what does not, who is named."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import msgspec
import pytest
from rehearse import CATALOG, SURVEY, calls, child, options

from kerncheck.checks import compiled as checks
from kerncheck.checks.registry import Case
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.compiled import Call, Compiled, Configuration, Facts, Kernel, Phase, Rehearsal, Result, Toolchain
from kerncheck.model.job import Job, RequiredOp
from kerncheck.model.snapshot import Snapshot
from kerncheck.models import resolve
from kerncheck.stages import compile_plan as plan
from kerncheck.stages import compiled as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor
from kerncheck.targets import parse_target, parse_targets

pytestmark = pytest.mark.torch

CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
NORM = "fla.modules:FusedRMSNormGated"
DQKWG = "chunk_bwd_kernel_dqkwg"
DHU = "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64"
FWD_O = "chunk_fwd_kernel_o"
ALL = (checks.kernels_compile, checks.configurations_fit, checks.ptxas_knows, checks.registers_spill, checks.cold_cache)

DECISIONS = """
import fla.utils as u
told = {
    "flags": {name: bool(getattr(u, name)) for name in dir(u) if name.startswith("IS_")},
    "memory": {arch: [u.check_shared_mem(arch), u.check_shared_mem(arch, 0)] for arch in asked["archs"]},
    "multiprocessors": u.get_multiprocessor_count(),
    "counts": {name: [len(found), found[0].of] for name, found in launches.items()},
    "warps": {name: sorted({item.choice["num_warps"] for item in found}) for name, found in launches.items()},
    "constants": {name: found[0].constants for name, found in launches.items()},
    "types": {name: found[0].types for name, found in launches.items()},
    "problems": [phase["problem"] for call in state["calls"] for phase in call["phases"]],
}
"""
SHOW = "print(json.dumps(told))"
ARCHS = ["none", "ada", "ampere", "hopper"]


def decisions(target, folder, script="", **signature):
    asked = {"options": options(target, calls(CHUNK, **signature), {"private": str(folder)}), "archs": ARCHS}
    return child(SURVEY + DECISIONS + script + SHOW, asked)


@pytest.fixture(scope="module")
def hopper(tmp_path_factory):
    """What fla decides for an H200, and two of its kernels compiled, with what NVIDIA's own tool says of one."""
    folder = tmp_path_factory.mktemp("hopper")
    script = f"""
from kerncheck.compat import triton_target
pick = [x for x in launches["{DQKWG}"] if x.choice["num_warps"] == 4][:2] + [launches["{DHU}"][6]]
told["results"] = [triton_target.compile_launch(launch) for launch in pick]
pick[0].kernel.device_caches.clear()
told["again"] = triton_target.compile_launch(pick[0])
import glob, subprocess, triton, os
tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
file = glob.glob(asked["options"]["cache"]["private"] + "/*/{DQKWG}.cubin")[0]
told["dump"] = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True).stdout
"""
    return decisions("h200", folder, script), folder


def test_hopper_gets_the_tiles_and_configurations_of_an_h100_and_not_those_of_no_device(hopper):
    told, _ = hopper
    assert told["flags"]["IS_NVIDIA_HOPPER"]
    assert not told["flags"]["IS_NVIDIA_BLACKWELL"]
    assert told["flags"]["IS_TF32_SUPPORTED"]
    assert told["memory"] == {arch: [True, True] for arch in ARCHS}
    assert told["multiprocessors"] == 132
    assert told["problems"] == [None, None]
    assert told["counts"][DHU] == [12, 12]
    assert told["counts"][DQKWG] == [6, 6]
    assert told["warps"][DQKWG] == [2, 4]
    assert (told["constants"][DQKWG]["BK"], told["constants"][DQKWG]["BV"]) == (128, 128)


def test_constants_and_types_of_each_launch_are_recorded(hopper):
    told, _ = hopper
    constants = told["constants"][DQKWG]
    assert {name: constants[name] for name in ("H", "HV", "K", "V", "BT", "USE_G", "IS_VARLEN")} == {
        "H": 16,
        "HV": 32,
        "K": 128,
        "V": 128,
        "BT": 64,
        "USE_G": True,
        "IS_VARLEN": False,
    }
    assert told["types"][DQKWG]["q"] == "*bf16:16"
    assert told["types"][DQKWG]["dg"] == "*fp32:16"
    assert told["types"][DQKWG]["T"] == "i32"


def test_dqkwg_takes_the_shared_memory_of_a_hopper_and_its_registers_are_those_that_cuobjdump_reads(hopper):
    told, _ = hopper
    dqkwg, more_stages, dhu = told["results"]
    assert dqkwg["compiled"]
    assert 98304 <= dqkwg["shared"] <= 98400  # 98,308 with two warps in the spike; 16,388 where no device is assumed
    assert (more_stages["shared"], more_stages["bytes"]) == (dqkwg["shared"], dqkwg["bytes"])  # no loop to pipeline
    assert dhu["compiled"]
    assert dhu["shared"] <= 232448
    assert f"REG:{dqkwg['registers']} STACK:{dqkwg['local_memory']} " in told["dump"]


def test_what_was_compiled_is_found_again_and_no_timings_are_stored(hopper):
    told, folder = hopper
    assert not told["results"][0]["cached"]
    assert told["again"]["cached"]
    assert list(folder.rglob("*.autotune.json")) == []


@pytest.mark.parametrize(
    ("target", "dhu", "warps", "tiles", "flag"),
    [
        pytest.param("a100", 12, [2, 4, 8], (128, 128), None, marks=pytest.mark.slow),
        pytest.param("b200", 12, [2, 4, 8], (128, 128), "IS_NVIDIA_SM100", marks=pytest.mark.slow),
        ("rtx5090", 4, [2, 4, 8], (64, 64), "IS_NVIDIA_SM120"),
    ],
)
def test_every_other_target_gets_its_own(target, dhu, warps, tiles, flag, tmp_path):
    told = decisions(target, tmp_path)
    assert told["counts"][DHU][1] == dhu
    assert told["warps"][DQKWG] == warps
    assert (told["constants"][DQKWG]["BK"], told["constants"][DQKWG]["BV"]) == tiles
    assert flag is None or told["flags"][flag]
    assert not told["flags"]["IS_NVIDIA_HOPPER"]


def test_a_kernel_of_which_no_configuration_fits_is_reported(tmp_path):
    """On a GPU with 16 KB for a block. fla 0.6.0 fits its tiles to every real one: 24,576 bytes on a T4 at K=V=256."""
    script = f"""
from kerncheck.compat import triton_target
picked = launches["{FWD_O}"]
told["results"] = [triton_target.compile_launch(launch) for launch in picked]
told["choices"] = [[launch.id, launch.number, launch.choice] for launch in picked]
"""
    asked = options("h200", calls(CHUNK, training=False), {"private": str(tmp_path)})
    asked["target"]["shared_memory"] = 16384
    told = child(SURVEY + DECISIONS + script + SHOW, {"options": asked, "archs": ARCHS})
    assert told["memory"] == {arch: [False, False] for arch in ARCHS}
    items = tuple(Configuration(id=one, number=number, choice=choice) for one, number, choice in told["choices"])
    kernel = Kernel(name=FWD_O, of=len(items), configurations=items)
    outcomes = {}
    for limit in (16384, 232448):
        tried = Rehearsal(
            target=parse_target("h200", CATALOG),
            facts=msgspec.convert({**asked["target"], "shared_memory": limit}, Facts),
            toolchain=Toolchain(knows=True, target="sm_90a"),
            calls=(Call(op=CHUNK, phases=(Phase(phase="forward", kernels=(kernel,)),)),),
            results=tuple(msgspec.convert(told["results"], list[Result])),
        )
        outcomes[limit] = said(Compiled(rehearsals=(tried,)), job("h200"))
    (finding,) = [outcome for outcome in outcomes[16384] if outcome.status == "failed"]
    assert (finding.code, finding.subject) == ("KC702", f"h200: {FWD_O}")
    assert "no configuration fits the 16,384 bytes" in finding.message
    assert not any(outcome.status == "failed" for outcome in outcomes[232448])


def job(*targets, required=(CHUNK, NORM), **changes):
    model = resolve("qwen", CATALOG)
    ops = tuple(RequiredOp(op=op, layer_type="linear_attention") for op in required)
    model = msgspec.structs.replace(model, required=ops)
    return Job(**{"profile": "image", "model": model, "targets": parse_targets(targets, CATALOG), **changes})


def said(section, asked):
    missing = Missing(reason="not looked")
    snapshot = Snapshot(job=asked, compiled=section, gpus=missing)
    outcomes, crashes = judge(Case(asked, snapshot, CATALOG), ALL)
    assert crashes == ()
    return outcomes


def observed(asked, monkeypatch, **variables):
    """Run the stage's own children, one for each target, and judge what they saw."""
    monkeypatch.setattr(plan, "MOST_CHILDREN", 1)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    missing = Missing(reason="not looked")
    ask = Ask(job=asked, catalog=CATALOG, environment=missing, devices=missing)
    supervisor = Supervisor(sys.executable)
    section = stage.collect(ask, [supervisor.run(run) for run in stage.runs(ask)])
    assert isinstance(section, Compiled)
    return section, said(section, asked)


@pytest.fixture
def fla_copy(tmp_path):
    """A copy of fla, as links to the real files, to be broken in one file."""
    import importlib.util

    spec = importlib.util.find_spec("fla")
    real = Path(spec.submodule_search_locations[0])
    copy = tmp_path / "site" / "fla"
    shutil.copytree(real, copy, copy_function=os.symlink)

    def change(name, old, new):
        path = copy / name
        text = path.read_text()
        assert text.count(old) >= 1
        path.unlink()
        path.write_text(text.replace(old, new, 1))

    return copy.parent, change


LINE = "    b_x = tl.load(p_x, mask=m_x, other=0.0).to(tl.float32)"


@pytest.mark.parametrize("broken", [True, False])
def test_a_kernel_with_an_error_is_named_with_the_compilers_message(broken, fla_copy, monkeypatch):
    site, change = fla_copy
    new = LINE.replace("m_x, other", "m_y, other") if broken else LINE
    change("modules/norm/fused_norm_gate.py", LINE, new)
    section, outcomes = observed(job("h200", required=(NORM,), quick=True), monkeypatch, PYTHONPATH=str(site))
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if not broken:
        assert failed == []
        assert {outcome.code for outcome in outcomes if outcome.status == "passed"} >= {"KC701", "KC702", "KC703"}
        return
    (finding,) = failed
    assert (finding.code, finding.subject) == ("KC701", "h200: layer_norm_gated_fwd_kernel")
    assert "m_y is not defined" in finding.found
    assert finding.found.startswith("[BT=16, num_warps=4")
    assert section.rehearsals[0].lost == ()


def test_a_compiler_that_dies_is_named_by_the_kernel_it_died_in(tmp_path, monkeypatch):
    """ptxas is a script that ends the process which called it, like an abort inside the compiler."""
    import triton

    real = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    script = tmp_path / "ptxas"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *nothing.ptx*|--version) exec ' + f'"{real}" "$@";; esac\n'
        'echo "UNREACHABLE executed at HoistTMEMAlloc.cpp:418" >&2\nkill -ABRT $PPID\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    variables = {"TRITON_PTXAS_BLACKWELL_PATH": str(script), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    _, outcomes = observed(job("h200", required=(NORM,), quick=True), monkeypatch, **variables)
    names = {outcome.subject for outcome in outcomes if outcome.status == "failed"}
    assert names == {"h200: layer_norm_gated_fwd_kernel", "h200: layer_norm_gated_bwd_kernel"}
    assert all("killed by SIGABRT" in outcome.message for outcome in outcomes if outcome.status == "failed")
    assert not any(outcome.status == "passed" and outcome.code == "KC701" for outcome in outcomes)


def test_a_target_that_ptxas_does_not_know_is_refused_once(monkeypatch):
    """sm_101 has another name since CUDA 13 (sm_110): the ptxas 13.4 of triton 3.9 does not know it any more."""
    section, outcomes = observed(job("sm_101", required=(NORM,), quick=True), monkeypatch)
    (finding,) = [outcome for outcome in outcomes if outcome.status == "failed"]
    assert finding.code == "KC703"
    assert "Value 'sm_101a' is not defined" in finding.found
    assert section.rehearsals[0].results == ()


TOOLS = """
from kerncheck.compat import triton_toolchain
print(json.dumps([triton_toolchain.toolchain(arch) for arch in asked["archs"]]))
"""


def test_ptxas_is_asked_about_each_architecture_itself():
    hopper, nonsense, turing = child(TOOLS, {"archs": [90, 99, 75]})
    assert (hopper["knows"], hopper["target"]) == (True, "sm_90a")
    assert hopper["version"].startswith(hopper["release"] + ".")
    assert nonsense["knows"] is False
    assert "sm_99a" in nonsense["message"]
    assert (turing["knows"], turing["target"]) == (True, "sm_75")


def test_a_call_that_another_backend_would_take_is_noted_and_an_unknown_op_is_told(tmp_path):
    """An installed FlashQLA takes chunk_gated_delta_rule on Hopper; its code needs nvcc and a GPU and is not run."""
    (tmp_path / "flash_qla").mkdir()
    (tmp_path / "flash_qla" / "__init__.py").write_text("def chunk_gated_delta_rule(**given): raise SystemExit(9)\n")
    planned = calls(CHUNK)
    unknown = {**planned[0], "op": "fla.ops.gated_delta_rule:no_such_rule", "modules": []}
    script = """
print(json.dumps([[call["elsewhere"], [[p["phase"], len(p["launches"]), p["problem"]] for p in call["phases"]]]
                  for call in state["calls"]]))
"""
    asked = {"options": options("h200", [*planned, unknown], {"private": str(tmp_path / "cache")})}
    taken, absent = child(SURVEY + script, asked, PYTHONPATH=str(tmp_path))
    assert taken[0] == {"chunk_gated_delta_rule": "flash_qla"}
    assert [(phase, count > 50, problem) for phase, count, problem in taken[1]] == [
        ("forward", True, None),
        ("backward", True, None),
    ]
    ((phase, count, problem),) = absent[1]
    assert (phase, count, problem["exception"]) == ("forward", 0, "UnknownOpError")
