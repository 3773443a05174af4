"""Seams of transformers before 5.15: read from modelling code of that form, in children, with fla's own ops.

The real releases cannot live in one environment with the newest: `nox -s matrix` judges them. Here the flags are those
of the installed transformers (cached, as since 5.0) or of the form that 4.57 had; its decorator is taken away.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import linecache
import subprocess
import sys
from pathlib import Path

import pytest
from faults.standins import CHUNK, clean_environment

from kerncheck.compat import flag_seams

pytestmark = pytest.mark.torch

NORM = "fla.modules:FusedRMSNormGated"
CONV = "causal_conv1d:causal_conv1d_fn"
NAME = "transformers.models.old.modeling_old"

COMMON = """
import importlib, json, sys, types
from pathlib import Path

source = Path({source!r})
told = {{}}

import torch
from kerncheck.compat import flag_seams, transformers_seams as found
from kerncheck.compat.interpose import interposed
from kerncheck.compat.seam_calls import recording
from kerncheck.compat.seam_reasons import explained
{before}
from transformers.integrations import hub_kernels
from transformers.utils import import_utils

del hub_kernels.use_kernel_func_from_hub_with_fallback
OLD_FLAG = '''
def is_flash_linear_attention_available():
    import torch
    if not torch.cuda.is_available():
        return False
    try:
        import fla
        return fla.__version__ >= "0.2.2"
    except Exception:
        return False
'''


def fresh():
    "Import the modelling code anew, as a process would that has not done so yet."
    spec = importlib.util.spec_from_file_location({name!r}, source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[{name!r}] = module
    spec.loader.exec_module(module)
    return module


def forget():
    "Let the flags forget what they answered."
    for name in ("is_torch_cuda_available", *flag_seams.FLAGS):
        getattr(getattr(import_utils, name), "cache_clear", lambda: None)()


def bound(module):
    def told(item):
        return [item["bound"], (item["reason"] or {{}}).get("kind", ""), item["parameters"]]
    return {{item["op"]: told(item) for item in explained(found.seams_of([module]), root_only=False)}}


{body}
print(json.dumps(told))
"""

BODIES = {
    # No GPU, nobody told the flags of one: this is what such a machine binds.
    "no gpu": {"body": "told['bound'] = bound(fresh())"},
    "believed": {
        "before": "import transformers.models.mamba.modeling_mamba as today",
        "body": """
told["needed"] = flag_seams.see_a_gpu()
told["torch"] = torch.cuda.is_available()
told["again"] = flag_seams.see_a_gpu()
module = fresh()
told["bound"] = bound(module)
told["mechanism"] = found.mechanism_of([module], "flags")
told["decorated"] = found.mechanism_of([today], "flags")
try:
    torch.cuda.current_device()
    told["device"] = "answered"
except Exception as error:
    told["device"] = type(error).__name__
sys.modules["fla"], fla = None, sys.modules["fla"]
forget()
told["hidden"] = bound(fresh())
sys.modules["fla"] = fla
told["late"] = bound(sys.modules[NAME])
forget()
import_utils._is_package_available = lambda name, **_: (name == "fla", "0.1.0")
told["refused"] = bound(fresh())
""",
    },
    "4.57": {
        "body": """
exec(OLD_FLAG, vars(import_utils))
told["plain"] = bound(fresh())
flag_seams.see_a_gpu()
told["believed"] = bound(fresh())
"""
    },
    "stale": {
        "before": "import transformers.utils.import_utils as early\nearly.is_torch_cuda_available()",
        "body": """
real = torch.cuda.is_available
forget()
import_utils.is_torch_cuda_available()  # asked while the GPU was hidden
module = fresh()
torch.cuda.is_available = lambda: True  # and now it is seen
told["stale"] = bound(module)
""",
    },
    "run": {
        "before": "from kerncheck.devices import emulate\nemulate.prepare({})\nfrom kerncheck.probes import standins\n"
        "standins.standin_causal_conv1d()",
        "body": """
flag_seams.see_a_gpu()
module = fresh()
told["standin"] = bound(module)[CONV][0]
model = module.Model(types.SimpleNamespace(dtype=torch.float32, num_hidden_layers=2, _attn_implementation="eager"))
model.layers[1].mixer.scan = module.torch_chunk_gated_delta_rule  # one layer falls back
before = {key: id(value) for key, value in vars(model.layers[0].mixer).items()}
x = torch.randn(1, 16, 16, requires_grad=True)
seams = found.seams_of([module])
with emulate.launches() as launched, recording(model, seams, launched) as record:
    out = model(x)
    record.start_backward()
    out.sum().backward()
    record.end_backward()
told["entries"] = [
    [entry.layer, entry.seam, entry.calls, entry.ran, len(entry.kernels), entry.passed]
    for entry in record.entries.values()
]
told["backward"] = sorted(record.backward)
calls = []


def around(bound, function):
    def call(*args, **kwargs):
        calls.append([bound.op, bound.kind])
        return function(*args, **kwargs)
    return call


with interposed(model, around):
    with torch.no_grad():
        model(x)
told["interposed"] = calls
told["restored"] = {key: id(value) for key, value in vars(model.layers[0].mixer).items()} == before
told["forward"] = "forward" in vars(model.layers[0].mixer.norm)
""",
    },
}


@functools.cache
def told(name):
    """Return what a child of this kind told."""
    parts = {"before": "", **BODIES[name]}
    script = COMMON.format(source=str(Path(__file__).with_name("old_modelling.py")), name=NAME, **parts)
    script = script.replace("NAME]", f"{NAME!r}]").replace("[CONV]", f"[{CONV!r}]")
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**clean_environment(), "HF_HUB_OFFLINE": "1", "TRITON_INTERPRET": "1" if name == "run" else "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def kinds(answer):
    """Return what is bound, and why not more, by op."""
    return {op: (bound, reason) for op, (bound, reason, _) in answer.items()}


def test_without_a_gpu_the_flags_are_the_reason():
    assert kinds(told("no gpu")["bound"]) == {
        CONV: ("eager", "absent"),
        CHUNK: ("eager", "no_gpu"),
        NORM: ("eager", "no_gpu"),
    }


def test_the_flags_alone_are_told_of_a_gpu_elsewhere():
    answer = told("believed")
    assert (answer["needed"], answer["torch"], answer["again"]) == (True, False, True)
    assert answer["device"] != "answered"
    assert kinds(answer["bound"]) == {CONV: ("eager", "absent"), CHUNK: ("package", ""), NORM: ("package", "")}


def test_only_boundaries_that_the_code_passes_count_as_parameters():
    found = told("believed")["bound"]
    assert "cu_seqlens" in found[CHUNK][2]
    assert "beta" in found[CHUNK][2]
    assert "cu_seqlens" not in found[NORM][2]


def test_the_mechanism_of_a_module_is_told():
    assert told("believed")["mechanism"] == "flags"
    assert told("believed")["decorated"] == "unknown", "closures that a decorator made are no flags"


LAZY = """
def load():
    return lazy_load_kernel("causal-conv1d")
"""
PASSES = """
class Mixer:
    def __init__(self):
        self.scan = chunk or torch_chunk
        self.norm = Norm(1) if FusedNorm is None else FusedNorm(1)
        kind = Conv if Conv is not None else TorchConv

    def forward(self, x, **kwargs):
        vision(cu_seqlens=x)
        return self.scan(x, {call})
"""


def written(folder, text):
    path = folder / "modeling_written.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("modeling_written", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_that_loads_packages_later_is_told(tmp_path):
    assert flag_seams.loads_lazily(written(tmp_path, LAZY))
    assert not flag_seams.loads_lazily(written(tmp_path, LAZY.replace("lazy_load_kernel", "load_kernel")))


@pytest.mark.parametrize(
    ("call", "passed"),
    [
        ("seq_idx=None", set()),
        ("seq_idx=kwargs.get('seq_idx')", {"seq_idx"}),
        ("cu_seqlens=x, seq_idx=None", {"cu_seqlens"}),
        ("**kwargs", {"cu_seqlens", "seq_idx"}),
    ],
)
def test_what_an_op_is_passed_is_read_from_its_own_calls(tmp_path, call, passed):
    linecache.clearcache()
    module = written(tmp_path, PASSES.replace("{call}", call))
    assert flag_seams.boundaries_passed(module, "chunk") == passed
    assert flag_seams.boundaries_passed(module, "never_called") == {"cu_seqlens", "seq_idx"}


def test_references_are_read_from_each_form_of_choice(tmp_path):
    module = written(tmp_path, PASSES.replace("{call}", "seq_idx=None"))
    assert flag_seams.fallbacks(flag_seams.syntax(module)) == {
        "chunk": "torch_chunk",
        "FusedNorm": "Norm",
        "Conv": "TorchConv",
    }


def test_each_other_reason_is_told_apart():
    answer = told("believed")
    assert kinds(answer["hidden"])[CHUNK] == ("eager", "hidden")
    assert kinds(answer["late"])[CHUNK] == ("eager", "late")
    assert kinds(answer["refused"])[CHUNK] == ("eager", "refused")


def test_flags_of_the_older_form_are_told_too():
    assert kinds(told("4.57")["plain"])[CHUNK] == ("eager", "no_gpu")
    assert kinds(told("4.57")["believed"])[CHUNK] == ("package", "")


def test_an_answer_that_was_kept_while_the_gpu_was_hidden_is_stale():
    assert kinds(told("stale")["stale"])[CHUNK] == ("eager", "late")


def test_each_layer_is_counted_with_what_it_executed():
    answer = told("run")
    assert answer["standin"] == "standin"
    seen = {(layer, seam): (calls, ran, kernels > 0) for layer, seam, calls, ran, kernels, _ in answer["entries"]}
    assert seen == {
        (0, "causal_conv1d_fn"): (1, ["standin"], False),
        (0, "chunk_gated_delta_rule"): (1, ["package"], True),
        (0, "FusedRMSNormGated"): (1, ["package"], True),
        (1, "causal_conv1d_fn"): (1, ["standin"], False),
        (1, "chunk_gated_delta_rule"): (1, ["eager"], False),
        (1, "FusedRMSNormGated"): (1, ["package"], True),
    }
    assert set(answer["backward"]) >= {0, 1}


def test_interposing_reaches_every_place_and_leaves_nothing_behind():
    answer = told("run")
    conv = [CONV, "standin"]
    assert answer["interposed"] == [
        conv, [CHUNK, "package"], [NORM, "package"], conv, [CHUNK, "eager"], [NORM, "package"],
    ]  # fmt: skip
    assert answer["restored"]
    assert not answer["forward"]
