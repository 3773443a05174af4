"""Liger: references, its real kernels sound and with a wrong line each, and which modules of a model its patches reach.

The parts with real kernels need liger-kernel and are skipped without it; it is no dependency of kerncheck.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from kernel_patches import ENTROPY, NORM, SWIGLU, apply, patched
from kernel_trials import found, job_of, judged, observed
from test_kernels import double, gradchecked

from kerncheck.checks.numerics_rule import margin
from kerncheck.checks.registry import Case
from kerncheck.checks.seams_patches import patched_modules
from kerncheck.compat import liger_patches
from kerncheck.judge import judge
from kerncheck.kernels import cells_of, find_spec
from kerncheck.model.base import Missing
from kerncheck.model.job import RequiredOp
from kerncheck.model.numerics import Numerics
from kerncheck.model.seams import Bindings, ModulePatch, Seams
from kerncheck.model.snapshot import Snapshot

real = pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed")
JOB = job_of(*(RequiredOp(op=op) for op in (NORM, SWIGLU, ENTROPY)))
GEMMA, LLAMA = {"offset": 1.0, "casting": "gemma"}, {"offset": 0.0, "casting": "llama"}


def test_cells_of_a_gpu_take_the_widths_of_the_model():
    config = {"hidden_size": 2560, "intermediate_size": 9216, "vocab_size": 151936}
    sizes = [cells_of(find_spec(op), "cuda", config)[0].sizes for op in (NORM, SWIGLU, ENTROPY)]
    assert sizes == [{"D": 2560}, {"D": 9216}, {"V": 65539}]
    assert cells_of(find_spec(ENTROPY), "cuda", {"vocab_size": 50000})[0].sizes == {"V": 32003}


@pytest.mark.torch
def test_references_pass_gradcheck():
    from kerncheck.kernels import _liger_calls as calls

    rows = {"x": double(1, 3, 4), "weight": double(1, 4)}
    assert gradchecked(calls.reference_rms, rows, {"options": GEMMA})
    assert gradchecked(calls.reference_swiglu, {"gate": double(1, 3, 4), "up": double(1, 3, 4, seed=1)}, {})
    target = double(1, 5).abs().round().clamp(max=3)
    target[:, 2] = calls.IGNORED
    for reduction in ("mean", "none", "sum"):
        plan = {"options": {"reduction": reduction}}
        reference = lambda given, plan: calls.reference_entropy({**given, "target": target}, plan)  # noqa: E731
        assert gradchecked(reference, {"logits": double(1, 5, 4)}, plan)


@pytest.mark.torch
@pytest.mark.parametrize("reduction", ["mean", "none", "sum"])
def test_the_truth_of_cross_entropy_is_torchs(reduction):
    from kerncheck.kernels import _liger_calls as calls

    plan = {"seeds": 2, "lengths": [9], "sizes": {"V": 11}, "regime": "sharp", "options": {"reduction": reduction}}
    import torch

    drawn = calls.draw_entropy(plan, torch.float64, torch.Generator().manual_seed(1))
    assert (drawn["target"] == calls.IGNORED).any()
    truth, other = calls.reference_entropy(drawn, plan)["loss"], calls.eager_entropy(drawn, plan)["loss"]
    assert truth.shape == other.shape
    assert (truth - other).abs().max() < 1e-12


@pytest.mark.torch
@pytest.mark.parametrize("options", [GEMMA, LLAMA])
def test_the_eager_norms_are_near_the_truth(options):
    import torch

    from kerncheck.kernels import _liger_calls as calls

    plan = {"seeds": 2, "lengths": [9], "sizes": {"D": 11}, "regime": "small", "options": options}
    drawn = calls.draw_rms(plan, torch.float32, torch.Generator().manual_seed(1))
    truth = calls.reference_rms({name: x.double() for name, x in drawn.items()}, plan)["y"]
    assert (calls.eager_rms(drawn, plan)["y"].double() - truth).abs().max() < 1e-5


@real
@pytest.mark.slow
@pytest.mark.torch
def test_healthy_kernels_are_right_in_both_lanes():
    section = observed(JOB)
    outcomes = judged(JOB, section)
    assert found(outcomes) == set()
    passed = {(one.code, one.subject) for one in outcomes if one.status == "passed"}
    assert passed >= {(code, op) for code in ("KC401", "KC402", "KC404", "KC406") for op in (NORM, SWIGLU, ENTROPY)}
    cells = [cell for lane in section.lanes for cell in lane.cells]
    assert len(cells) == 6
    assert max(margin(tensor, cell.seeds).value for cell in cells for tensor in cell.tensors) < 0.7


@real
@pytest.mark.slow
@pytest.mark.torch
def test_one_wrong_line_in_each_is_found_in_both_lanes(tmp_path):
    root = patched(tmp_path, "liger norm without its projection in dx")
    apply(root, "liger swiglu with another activation")
    apply(root, "liger entropy loses the target's gradient")
    section = observed(JOB, root)
    for lane in section.lanes:
        outcomes = judged(JOB, Numerics(evidence="emulated", lanes=(lane,)))
        assert found(outcomes) == {("KC402", NORM), ("KC401", SWIGLU), ("KC402", ENTROPY)}, lane.name


def patch(target, how):
    return ModulePatch(package="liger_kernel", name="Qwen3_5RMSNorm", target=target, how=how, modules=9)


def patches(*items):
    bound = Bindings(transformers="5.24.0", mechanism="seam", module="m", layer_types=(), bindings=(), patches=items)
    snapshot = Snapshot(seams=Seams(bound=bound, entered=Missing(reason="nothing was run")))
    outcomes, crashes = judge(Case(JOB, snapshot, None), (patched_modules,))
    assert not crashes
    return [(one.code, one.status, one.severity, one.subject, one.message) for one in outcomes]


def test_kc311_tells_a_patch_that_came_too_late_from_one_that_is_there():
    late = patch("LigerRMSNormForQwen3Next", "missed")
    (told,) = patches(late)
    assert told[:4] == ("KC311", "failed", "warning", "Qwen3_5RMSNorm")
    assert told[4] == "9 modules were built before liger_kernel was applied, and run their own code"
    there = patch("LigerRMSNorm.forward", "forward")
    (told,) = patches(there)
    assert told[1:2] == ("passed",)
    assert told[4] == "9 modules run LigerRMSNorm.forward (liger_kernel replaced their forward)"
    assert patches()[0][1] == "not_applicable"


APPLIED = """
import json, warnings
import torch
import kerncheck
from kerncheck.compat.liger_patches import patches_of
from liger_kernel.transformers import apply_liger_kernel_to_qwen3_5
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as modelling

CONFIG = Qwen3_5TextConfig(**{tiny!r})
OP = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
answers = {{}}


def ask(name, model):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcomes = kerncheck.guard(model, required=[OP])
    answers[name] = {{
        "patches": {{(p["name"] + " " + p["how"]): p["modules"] for p in patches_of(model)}},
        "told": [one.message for one in outcomes if one.code == "KC311"],
        "warned": [str(one.message) for one in caught if "KC311" in str(one.message)],
    }}


before = Qwen3_5ForCausalLM(CONFIG)
ask("never", before)
apply_liger_kernel_to_qwen3_5()
ask("too late", before)
ask("before the model", Qwen3_5ForCausalLM(CONFIG))
apply_liger_kernel_to_qwen3_5(model=before)
ask("on the model", before)
print(json.dumps(answers))
"""


@real
@pytest.mark.torch
def test_the_guard_sees_which_modules_run_ligers_code():
    from test_guard import TINY

    command = [sys.executable, "-B", "-W", "ignore", "-c", APPLIED.format(tiny=TINY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers["never"]["patches"] == {}
    assert answers["never"]["warned"] == []
    late = answers["too late"]
    assert late["patches"]["Qwen3_5RMSNorm missed"] >= 9
    assert late["patches"]["Qwen3_5MLP missed"] == 4
    assert "were built before liger_kernel was applied" in late["warned"][0]
    early = answers["before the model"]
    assert early["patches"]["LigerQwen3MoeSwiGLUMLP class"] == 4
    assert early["patches"]["LigerRMSNormForQwen3Next class"] >= 9
    assert early["warned"] == []
    there = answers["on the model"]
    assert there["patches"]["Qwen3_5MLP forward"] == 4
    assert there["warned"] == []
    assert any("replaced their forward" in words for words in there["told"])


@pytest.mark.torch
def test_a_model_without_liger_has_no_patches():
    from torch import nn

    assert liger_patches.patches_of(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))) == []
