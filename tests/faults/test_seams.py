"""Fallback, made for real: each environment is judged by real children, with the smallest repair as its control."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from standins import (
    CATALOG,
    CHECKS,
    CHUNK,
    CONV,
    FAKE_CONV,
    MODELLING,
    RECURRENT,
    after_import,
    clean_environment,
    codes,
    job,
    judged,
    observed,
    place,
    the,
)

from kerncheck.model.base import Missing
from kerncheck.models import resolve
from kerncheck.plan import make_plan

pytestmark = pytest.mark.torch

UNDEFINED = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
HIDE = "import sys; sys.modules['fla'] = None"

FAILS_ONCE = """
import importlib.abc, sys


class NotYet(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "fla" and not hasattr(sys.modules.get(MODELLING), "Qwen3_5ForCausalLM"):
            raise ImportError("fla is being installed")
        return None


MODELLING = "transformers.models.qwen3_5.modeling_qwen3_5"
sys.meta_path.insert(0, NotYet())
"""

CUDA_TORCH = after_import("torch", "module.version.cuda = '12.8'")

BINDINGS = {
    "clean": {},
    "hidden": {"sitecustomize": HIDE},
    "broken": {"fla__init": f'raise ImportError("libx.so: undefined symbol: {UNDEFINED}")'},
    "no_op": {"fla__init": "", "fla__ops__init": "", "fla__ops__gated_delta_rule__init": ""},
    "late": {"sitecustomize": FAILS_ONCE},
    "cuda_torch": {"sitecustomize": CUDA_TORCH},
    "old_conv": {"causal_conv1d__init": FAKE_CONV.replace("{more}", "")},
    "new_conv": {"causal_conv1d__init": FAKE_CONV.replace("{more}", "seq_idx=None, ")},
    "replaced": {
        "sitecustomize": after_import(MODELLING, "module.torch_chunk_gated_delta_rule = lambda *a, **k: None")
    },
    "broken_model": {
        "sitecustomize": after_import(MODELLING, "raise ImportError('cannot import name GenerationMixin')")
    },
}


@functools.cache
def bound(name):
    """Return the seams that a clean child reads in an environment. Nothing is executed."""
    with tempfile.TemporaryDirectory() as folder:
        extra = place(Path(folder), **BINDINGS[name])
        if name == "clean":
            extra = {"USE_HUB_KERNELS": "NO"}
        return observed(job(), bound=extra)


def test_the_clean_environment_is_the_control_of_all():
    report = judged(job(), bound("clean"))
    assert codes(report) == []
    (chunk,) = [item for item in report.of("passed") if item.code == "KC301"]
    assert (chunk.subject, chunk.evidence) == (CHUNK, "inferred")
    assert "fla.ops.gated_delta_rule.chunk.chunk_gated_delta_rule" in chunk.message
    assert report.exit_code == 3, "bound is not yet entered"
    assert [item.message for item in report.of("note")] == ["set in this environment: USE_HUB_KERNELS=NO"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hidden", "fla is hidden in this process"),
        ("broken", UNDEFINED),
        ("no_op", "fla imports, but fla.ops.gated_delta_rule has no chunk_gated_delta_rule"),
        ("late", "the modelling code was imported before fla could be"),
    ],
)
def test_a_fallback_names_its_cause_and_its_layers(name, words):
    report = judged(job(), bound(name))
    assert codes(report) == ["KC301"]
    assert report.exit_code == 1
    found = the(report, "KC301")
    assert found.subject == "fla"
    assert found.message.startswith("24 of 32 layers run the eager reference of chunk_gated_delta_rule: ")
    assert words in found.message
    if name == "broken":
        assert 'not installed", which misleads' in found.message
        assert f"ImportError: libx.so: undefined symbol: {UNDEFINED}" in found.found
        assert "pip install" not in found.remedy


def test_a_seam_that_was_replaced_is_found_in_the_module_and_not_in_the_closure():
    found = the(judged(job(), bound("replaced")), "KC301")
    assert "do not call chunk_gated_delta_rule of fla" in found.message


def test_an_absent_compiled_package_fails_on_a_cuda_build_of_torch_only():
    assert codes(judged(job(), bound("cuda_torch"))) == ["KC301"]
    found = the(judged(job(), bound("cuda_torch")), "KC301")
    assert (
        found.message == "24 of 32 layers run the eager reference of causal_conv1d_fn: causal_conv1d is not installed"
    )
    on_a_cpu = judged(job(), bound("clean"))
    assert [item.subject for item in on_a_cpu.of("not_applicable") if item.code == "KC301"] == [CONV]


def test_a_package_that_drops_the_boundaries_is_found_when_the_job_packs():
    assert codes(judged(job(packing="both"), bound("old_conv"))) == ["KC308"]
    assert codes(judged(job(packing="both"), bound("new_conv"))) == []
    assert codes(judged(job(), bound("old_conv"))) == []


def test_modelling_code_that_does_not_import_is_one_finding():
    report = judged(job(), bound("broken_model"))
    assert codes(report) == ["KC305"]
    assert "cannot import name GenerationMixin" in the(report, "KC305").message


EMULATED = {
    "good": {},
    "reference": {
        "sitecustomize": after_import(
            MODELLING, "module.torch_chunk_gated_delta_rule = module.torch_chunk_gated_delta_rule.__wrapped__"
        )
    },
    "silent": {
        "sitecustomize": after_import(
            "fla.ops.gated_delta_rule",
            """
            def chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=False, cu_seqlens=None, **more):
                return v * (q * k).sum(-1, keepdim=True).repeat_interleave(2, 2) * beta[..., None] * g[..., None], None

            chunk_gated_delta_rule.__module__ = "fla.ops.gated_delta_rule"
            module.chunk_gated_delta_rule = chunk_gated_delta_rule
            """,
        )
    },
    "around": {
        "sitecustomize": after_import(
            MODELLING,
            """
            gated = module.Qwen3_5GatedDeltaNet
            gated.forward = lambda self, hidden_states, **more: self.out_proj(self.in_proj_z(hidden_states))
            """,
        )
    },
    "recurrent": {
        "sitecustomize": after_import(
            MODELLING, "module.torch_chunk_gated_delta_rule = module.torch_recurrent_gated_delta_rule"
        )
    },
    "refuses": {
        "sitecustomize": after_import(
            "fla.ops.gated_delta_rule",
            """
            def chunk_gated_delta_rule(q, k, v, beta, g):
                raise TypeError("chunk_gated_delta_rule() got multiple values for argument 'g'")

            chunk_gated_delta_rule.__module__ = "fla.ops.gated_delta_rule"
            module.chunk_gated_delta_rule = chunk_gated_delta_rule
            """,
        )
    },
}


@functools.cache
def executed(name):
    """Return the seams whose bindings are the clean ones and whose run happens in an environment."""
    with tempfile.TemporaryDirectory() as folder:
        seen = observed(job(), run=place(Path(folder), **EMULATED[name]))
    return msgspec.structs.replace(bound("clean"), entered=seen.entered)


def test_real_kernels_are_entered_and_launched_forward_and_backward():
    report = judged(job(), executed("good"))
    assert codes(report) == []
    assert report.exit_code == 0
    run = executed("good").entered
    assert "chunk_fwd_kernel_o" in run.of(CHUNK)[0].kernels
    assert "chunk_bwd_kernel_dqkwg" in run.backward[0].kernels
    assert {item.evidence for item in report.of("passed") if item.subject == CHUNK} == {"emulated"}
    assert run.of(CONV)[0].ran == ("standin",)
    assert [item.functions for item in run.attention] == [("sdpa",)]


@pytest.mark.parametrize(
    ("name", "expected", "words"),
    [
        ("reference", ["KC302"], "executed the eager reference"),
        ("silent", ["KC303"], "no kernel launched in the forward of layer 0"),
        ("around", ["KC303"], "never entered by built layers 0"),
        ("refuses", ["KC310"], "multiple values for argument 'g'"),
    ],
)
def test_what_a_layer_really_does_outranks_what_is_bound(name, expected, words):
    report = judged(job(), executed(name))
    assert codes(report) == expected
    assert report.exit_code == 1
    assert words in the(report, expected[0]).message


def test_a_forward_only_op_in_a_training_step_is_named():
    report = judged(job(), executed("recurrent"))
    assert codes(report) == ["KC302", "KC309"]
    assert "what took its place" in the(report, "KC302").message
    assert the(report, "KC309").subject == RECURRENT


UNKNOWN = {
    "model_type": "kerncheck_never_heard_of",
    "num_hidden_layers": 32,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
}


def test_linear_layers_under_an_unknown_model_type_are_planned_and_never_pass(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(UNKNOWN))
    model = resolve(str(config), CATALOG)
    asked = job(model=model)
    planned = {check.code for check in make_plan(asked, CHECKS, ("KC3",), ()).checks}
    assert {"KC301", "KC303", "KC304"} <= planned
    seen = observed(asked)
    assert isinstance(seen.bound, Missing)
    assert "kerncheck_never_heard_of" in seen.bound.reason
    assert judged(asked, seen).exit_code == 3


def test_an_unknown_model_type_with_a_known_architecture_is_read_by_its_seams(tmp_path):
    config = tmp_path / "config.json"
    fields = {**CATALOG.model("qwen").config, **UNKNOWN, "architectures": ["Qwen3_5ForCausalLM"]}
    config.write_text(json.dumps(fields))
    asked = job(model=resolve(str(config), CATALOG))
    report = judged(asked, observed(asked), only="KC301")
    assert CHUNK in {item.subject for item in report.of("passed")}
    assert "for 24 of 32 layers" in report.of("passed")[0].message


FAKE_OP_AFTERWARDS = """
import sys, types
sys.modules["fla"] = None
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

config = Qwen3_5TextConfig(**{tiny})
model = Qwen3_5ForCausalLM(config)
calls = []
fake = types.ModuleType("fla")
fake.chunk_gated_delta_rule = lambda *a, **k: calls.append(1)
sys.modules["fla"] = fake
model(input_ids=torch.ones(1, 8, dtype=torch.long), use_cache=False)
import kerncheck
try:
    kerncheck.guard(model)
except kerncheck.FallbackError as error:
    found = [item.message for item in error.findings if item.subject == "fla"]
print(len(calls), *found, sep="|")
"""


def test_fla_that_comes_after_the_modelling_code_is_never_called_and_the_guard_says_so():
    tiny = {
        **CATALOG.model("qwen").shrink,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
    }
    script = FAKE_OP_AFTERWARDS.replace("{tiny}", repr(tiny))
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    calls, message = done.stdout.strip().split("|")
    assert calls == "0"
    assert "the modelling code was imported before fla could be" in message
    assert "1 of 2 layers run the eager reference" in message
