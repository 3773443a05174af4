"""The guard in the user's own process: real models of the transformers under test, in processes of their own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest
from faults.standins import CHUNK, clean_environment

import kerncheck

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

COMMON = """
import json, sys
{before}
import torch
from torch import nn
{masked}
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as modelling
{unmasked}
import kerncheck

CHUNK, RECURRENT = {chunk!r}, {chunk!r}.replace("chunk", "fused_recurrent")
model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{tiny!r}))
answers = {{}}


def ask(name, asked=model, required=(CHUNK,), **more):
    try:
        said = kerncheck.guard(asked, required=required, **more)
        answers[name] = ["fine", [item.status for item in said], [item.message for item in said]]
    except Exception as error:
        found = [item.subject for item in getattr(error, "findings", ())]
        answers[name] = [type(error).__name__, found, str(error)]

{body}
print(json.dumps(answers))
"""

HEALTHY = """
ask("healthy")
ask("derived", required=None)
ask("inference", required=[RECURRENT], training=False)


class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


ask("wrapped", Wrapper(model), required=None)
ask("not a module", object())
ask("no such op", required=["fla.ops.gated_delta_rule:unheard_of"])
ask("llama", LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
)), required=None)

held = modelling.torch_chunk_gated_delta_rule
modelling.torch_chunk_gated_delta_rule = held.__wrapped__
ask("patched with the reference")
modelling.torch_chunk_gated_delta_rule = lambda *args, **kwargs: None
ask("patched with something")
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
modelling.torch_chunk_gated_delta_rule = chunk_gated_delta_rule
ask("patched with the op itself")
modelling.torch_chunk_gated_delta_rule = held
ask("patch taken away")


class OwnLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(2))


ask("recurrent layers without seams", Wrapper(OwnLayer()), required=None)
from transformers.integrations import hub_kernels
decorator = hub_kernels.use_kernel_func_from_hub_with_fallback
del hub_kernels.use_kernel_func_from_hub_with_fallback
ask("another mechanism")
hub_kernels.use_kernel_func_from_hub_with_fallback = decorator
ask("the mechanism again")
"""

PROCESSES = {
    "healthy": {"body": HEALTHY},
    "hidden": {"before": "sys.modules['fla'] = None", "body": "ask('hidden')\nask('hidden, derived', required=None)"},
    "masked": {
        "masked": "real = torch.cuda.is_available\ntorch.cuda.is_available = lambda: False",
        "unmasked": "torch.cuda.is_available = real",
        "body": "ask('masked')",
    },
}


@functools.cache
def answers(process):
    parts = {"before": "", "masked": "", "unmasked": "", **PROCESSES[process]}
    script = COMMON.format(chunk=CHUNK, tiny=TINY, **parts)
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**clean_environment(), "HF_HUB_OFFLINE": "1"},
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.torch
@pytest.mark.parametrize("name", ["healthy", "inference", "patched with the op itself", "patch taken away", "llama"])
def test_what_is_right_is_returned(name):
    verdict, statuses, _ = answers("healthy")[name]
    assert verdict == "fine"
    assert "passed" in statuses
    assert set(statuses) <= {"passed", "not_applicable"}


@pytest.mark.torch
def test_the_mechanism_is_looked_for_each_time():
    assert answers("healthy")["another mechanism"][0] == "NotJudgedError"
    assert answers("healthy")["the mechanism again"][0] == "fine"


@pytest.mark.torch
@pytest.mark.parametrize("name", ["derived", "wrapped"])
def test_needed_ops_follow_from_the_layers_also_through_a_wrapper(name):
    verdict, subjects, message = answers("healthy")[name]
    assert (verdict, subjects) == ("FallbackError", ["causal_conv1d"])
    assert "3 of 4 layers run the eager reference of causal_conv1d_fn" in message


@pytest.mark.torch
@pytest.mark.parametrize(
    ("process", "name", "words"),
    [
        ("hidden", "hidden", "fla is hidden in this process"),
        ("healthy", "patched with the reference", "was replaced after the import"),
        ("healthy", "patched with something", "replaced by __main__.<lambda>"),
    ],
)
def test_a_seam_that_would_not_run_the_kernel_raises(process, name, words):
    verdict, subjects, message = answers(process)[name]
    assert (verdict, subjects) == ("FallbackError", ["fla"])
    assert words in message
    assert "3 of 4 layers" in message
    assert "start the process anew" in message


@pytest.mark.torch
def test_every_package_that_fell_back_is_named():
    verdict, subjects, _ = answers("hidden")["hidden, derived"]
    assert (verdict, sorted(subjects)) == ("FallbackError", ["causal_conv1d", "fla"])


@pytest.mark.torch
def test_a_masked_gpu_does_not_matter_to_the_seams_of_today():
    assert answers("masked")["masked"][0] == "fine"


@pytest.mark.torch
@pytest.mark.parametrize("name", ["recurrent layers without seams", "another mechanism", "no such op"])
def test_what_cannot_be_told_is_never_fine(name):
    verdict, subjects, message = answers("healthy")[name]
    assert verdict == "NotJudgedError"
    assert subjects
    assert "cannot be told" in message


@pytest.mark.torch
def test_the_guard_wants_a_torch_module():
    assert answers("healthy")["not a module"][0] == "TypeError"


def test_the_errors_are_one_family_and_lazy():
    assert issubclass(kerncheck.NotJudgedError, kerncheck.FallbackError)
    assert issubclass(kerncheck.FallbackError, RuntimeError)
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        _ = kerncheck.unheard_of
    script = "import sys, kerncheck; print('kerncheck.in_job' in sys.modules, 'msgspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
