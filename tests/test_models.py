"""Models: what the user names becomes a request (nothing is downloaded or run), and a request becomes a tiny model."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest
from faults.standins import CATALOG, CHUNK, CONV, clean_environment

from kerncheck.errors import UsageError
from kerncheck.layer_types import layer_types
from kerncheck.model.layers import needs_seam
from kerncheck.models import LARGEST_CONFIG, resolve

PERIOD = ["linear_attention"] * 3 + ["full_attention"]
HYBRID = {"model_type": "qwen3_next", "num_hidden_layers": 48, "linear_num_value_heads": 32, "vocab_size": 512}


def written(folder, config, name="config.json"):
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize("name", ["qwen", "Qwen3.5", "QWEN"])
def test_a_known_name_is_its_profile(name):
    request = resolve(name, CATALOG)
    assert request.architecture == "Qwen3_5ForCausalLM"
    assert request.count("linear_attention") == 24
    assert len(request.layer_types) == 32


def test_a_file_and_its_folder_are_the_same_model(tmp_path):
    path = written(tmp_path, HYBRID)
    by_file, by_folder = resolve(str(path), CATALOG), resolve(str(tmp_path), CATALOG)
    assert by_file.config == by_folder.config == HYBRID
    assert by_file.origin == by_folder.origin == str(path)


def test_needed_ops_come_from_the_seams_of_the_folder_by_layer_type(tmp_path):
    request = resolve(str(written(tmp_path, HYBRID)), CATALOG)
    assert request.folder == "qwen3_next"
    assert request.count("linear_attention") == 36
    training = {op.op for op in request.required if op.training}
    assert training == {CHUNK, CONV}
    assert {op.op.rpartition(":")[2] for op in request.required if not op.training} == {
        "causal_conv1d_update",
        "fused_recurrent_gated_delta_rule",
    }
    assert {op.layer_type for op in request.required} == {"linear_attention"}


def test_a_model_without_recurrent_layers_needs_no_op(tmp_path):
    config = {**HYBRID, "layer_types": ["full_attention"] * 48}
    assert resolve(str(written(tmp_path, config)), CATALOG).required == ()


def test_a_nested_text_configuration_is_the_model(tmp_path):
    text = {"model_type": "qwen3_5_text", "num_hidden_layers": 8, "layer_types": PERIOD * 2, "hidden_size": 64}
    outer = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
    request = resolve(str(written(tmp_path, outer)), CATALOG)
    assert request.config == text
    assert request.folder == "qwen3_5"
    assert request.count("linear_attention") == 6
    assert CHUNK in {op.op for op in request.required}


def test_an_unknown_model_type_keeps_its_layer_types(tmp_path):
    config = {"model_type": "never-heard-of", "layer_types": PERIOD * 8, "architectures": ["Some"]}
    request = resolve(str(written(tmp_path, config)), CATALOG)
    assert request.count("linear_attention") == 24
    assert request.folder == "never_heard_of"
    assert request.required == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "is a JSON object, this is a list"),
        ("{}", "no model_type"),
        ('{"model_type": 3}', "no model_type"),
        ('{"model_type": ""}', "no model_type"),
        ("\ud83d", "not JSON"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError, match=words) as caught:
        resolve(str(path), CATALOG)
    assert "\n" not in caught.value.message


def test_a_gigantic_file_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_CONFIG + 1)
    with pytest.raises(UsageError, match="too many for a configuration"):
        resolve(str(path), CATALOG)


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        resolve(str(tmp_path), CATALOG)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("qwem", "no model of this name", "did you mean qwen"),
        ("zzz", "no model of this name", "known names: qwen"),
        ("./nowhere/config.json", "no such file", ""),
        ("x" * 5000, "no model of this name", ""),
        ("nul\0byte", "no model of this name", ""),
    ],
)
def test_what_nobody_knows_is_refused_with_a_hint(text, words, hint):
    with pytest.raises(UsageError, match=words) as caught:
        resolve(text, CATALOG)
    assert hint in caught.value.hint
    assert len(caught.value.message) < 200


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub" / "models--org--name"


def snapshot(cache, revision, **more):
    folder = cache / "snapshots" / revision
    folder.mkdir(parents=True)
    written(folder, {**HYBRID, **more})


def test_a_hub_name_is_read_from_the_local_cache_at_main(cache):
    snapshot(cache, "aaa", num_hidden_layers=4)
    snapshot(cache, "bbb", num_hidden_layers=8)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("aaa\n")
    assert len(resolve("org/name", CATALOG).layer_types) == 4
    (cache / "refs" / "main").write_text("bbb")
    assert len(resolve("org/name", CATALOG).layer_types) == 8


def test_without_main_the_newest_snapshot_counts_and_the_variables_are_followed(cache, monkeypatch):
    snapshot(cache, "aaa", num_hidden_layers=4)
    assert len(resolve("org/name", CATALOG).layer_types) == 4
    monkeypatch.setenv("HF_HUB_CACHE", str(cache.parent / "elsewhere"))
    with pytest.raises(UsageError, match="not in the local hub cache") as caught:
        resolve("org/name", CATALOG)
    assert "never downloads" in caught.value.hint


@pytest.mark.parametrize("name", ["../name", "org/../name", "org/name/more", "org/..", "/org/name"])
def test_a_hub_name_cannot_leave_the_cache(cache, name):
    with pytest.raises(UsageError):
        resolve(name, CATALOG)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"layer_types": PERIOD}, PERIOD),
        ({"layers_block_type": ["mamba", "attention"]}, ["linear_attention", "full_attention"]),
        ({"hybrid_override_pattern": "M*-E"}, ["linear_attention", "full_attention", "mlp", "moe"]),
        ({"num_hidden_layers": 4, "linear_attn_config": {"full_attn_layers": [4]}}, PERIOD),
        ({"num_hidden_layers": 4, "attn_layer_indices": [3]}, PERIOD),
        ({"num_hidden_layers": 3, "full_attn_idxs": [2]}, ["conv", "conv", "full_attention"]),
        ({"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 3}, PERIOD),
        ({"num_hidden_layers": 4, "full_attention_interval": 4}, PERIOD),
        ({"num_hidden_layers": 4, "linear_num_value_heads": 8}, PERIOD),
        ({"num_hidden_layers": 4, "layer_group_size": 4}, PERIOD),
        ({"num_hidden_layers": 2, "state_size": 16}, ["linear_attention"] * 2),
        ({"num_hidden_layers": 2, "mamba_d_state": 16, "num_attention_heads": 4}, ["hybrid"] * 2),
        ({"num_hidden_layers": 2, "num_attention_heads": 4}, []),
        ({"num_hidden_layers": 10**9, "full_attention_interval": 4}, []),
        ({"num_hidden_layers": 4, "full_attention_interval": 0}, []),
        ({"layer_types": "linear_attention"}, []),
        ({"layer_types": [1, 2]}, []),
    ],
)
def test_layer_types_are_read_however_they_are_written(config, expected):
    assert layer_types(config) == tuple(expected)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("linear_attention", True), ("conv", True), ("hybrid", True), ("something_new", True)]
    + [(kind, False) for kind in ("full_attention", "sliding_attention", "mlp", "moe", "layer")],
)
def test_unknown_kinds_of_layer_are_looked_at(kind, expected):
    assert needs_seam(kind) is expected


BUILD = """
import json, sys, warnings
warnings.simplefilter("ignore")
from kerncheck.probes import models

models.force_eager("fla", "causal_conv1d", "mamba_ssm")
import torch
from transformers import CONFIG_MAPPING

CHANGES = {
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention"] * 10 + ["conv"] * 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
}
answers = {}
for name in sys.argv[1:]:
    config = CONFIG_MAPPING[name](**CHANGES.get(name, {})).get_text_config()
    real = models.layer_types(config)
    folder = type(config).__module__.split(".")[2]
    saved = json.loads(config.to_json_string(use_diff=False))  # as a config.json has it: infinity is a dict there
    fields = {**saved, "model_type": config.model_type, "auto_map": {"AutoModel": "evil--code"}}
    if name in ("mamba", "mamba2"):
        fields.pop("layer_types", None)
    built = models.build(
        {"config": fields, "folder": folder, "architecture": ""},
        shrink=True, dtype="float32", seed=0, device="emulate",
    )
    result = models.outputs(built.model(input_ids=torch.randint(1, 100, (1, 12)), use_cache=False))
    result.float().square().mean().backward()
    trained = sum(parameter.grad is not None for parameter in built.model.parameters())
    answers[name] = [sorted(set(real)), built.layer_types, built.parameters, trained, built.notes]
print(json.dumps(answers))
"""

FAMILIES = (
    "bailing_hybrid",
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "glm5_next",
    "granitemoehybrid",
    "inkling2",
    "inkling2_loop",
    "jamba",
    "kimi_linear",
    "lara_mini",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "mamba",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "qwen4_exp_text",
    "zamba",
    "zamba2",
    "llama",
    "gemma3_text",
    "deepseek_v3",
)


@functools.cache
def built():
    return child(BUILD, *FAMILIES)


def child(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**clean_environment(), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.torch
def test_every_family_with_seams_shrinks_and_trains_and_keeps_each_type_of_layer():
    answers = built()
    assert set(answers) == set(FAMILIES)
    for name, (real, types, parameters, trained, notes) in answers.items():
        assert set(types) == set(real), name
        assert len(types) <= 5, name
        assert parameters < 1_000_000, name
        assert trained > 0, name
        assert any("auto_map ignored" in note for note in notes), name


DETAILS = """
import json, warnings
warnings.simplefilter("ignore")
from kerncheck.probes import models

models.standin_causal_conv1d()
models.force_eager("fla")
import torch
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

fields = {"model_type": "qwen3_5_text", "quantization_config": {"bits": 4}, "attn_implementation": "flash_attention_2"}
request = {"config": fields, "folder": "qwen3_5", "architecture": "Qwen3_5ForCausalLM"}
how = {"shrink": True, "dtype": "float32", "seed": 3, "device": "cpu"}
first, second = models.build(request, **how), models.build(request, **how)
other = models.build(request, **{**how, "seed": 4, "dtype": "bfloat16", "attention": "eager"})
same = all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
before = first.model.lm_head.weight.detach().clone()
answers = {
    "same": same,
    "differs": not torch.equal(other.model.lm_head.weight.float(), before),
    "dtype": str(next(other.model.parameters()).dtype),
    "rope": str(other.model.model.rotary_emb.inv_freq.dtype),
    "attention": [first.config._attn_implementation, other.config._attn_implementation],
    "notes": first.notes,
    "shrunk": first.shrunk["num_hidden_layers"],
    "gates": models.weaken_gates(first.model),
    "scaled": models.scale_matrices(first.model) > 0 and torch.equal(first.model.lm_head.weight, before * 10),
    "standin": models.is_standin(first.modelling.causal_conv1d_fn.__closure__[2].cell_contents),
}


def refused(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


answers["late"] = refused(lambda: models.force_eager("fla"))
answers["unknown"] = refused(lambda: models.build({"config": {"model_type": "x"}, "architecture": "Y"}, **how))
answers["invalid"] = refused(lambda: models.build({**request, "config": {**fields, "hidden_act": "no"}}, **how))
full = models.build({**request, "shrink": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}}, **how)
answers["lossy"] = [full.layer_types, full.notes[-1]]
large = {"vocab_size": 128, "num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
answers["large"] = refused(lambda: models.build({**request, "config": {**fields, **large}}, **{**how, "shrink": False}))

x, weight, bias = torch.randn(2, 6, 20), torch.randn(6, 4), torch.randn(6)
whole = torch.nn.functional.conv1d(x, weight[:, None], bias, padding=3, groups=6)[..., :20]
conv = models.standin_causal_conv1d()
answers["conv"] = float((conv.causal_conv1d_fn(x, weight, bias) - whole).abs().max())
active = conv.causal_conv1d_fn(x, weight, bias, activation="silu")
answers["silu"] = float((active - torch.nn.functional.silu(whole)).abs().max())
index = torch.tensor([[0] * 8 + [1] * 12] * 2, dtype=torch.int32)
parts = torch.cat([conv.causal_conv1d_fn(part, weight, bias) for part in (x[..., :8], x[..., 8:])], -1)
answers["packed"] = float((conv.causal_conv1d_fn(x, weight, bias, seq_idx=index) - parts).abs().max())
padded = conv.causal_conv1d_fn(x, weight, bias, seq_idx=torch.where(index == 1, -1, index))
answers["padding"] = float(padded[..., 8:].abs().max())
state = torch.zeros(2, 6, 4)
steps = torch.stack([conv.causal_conv1d_update(x[..., t], state, weight, bias) for t in range(20)], -1)
answers["update"] = [float((steps - whole).abs().max()), float((state - x[..., -4:]).abs().max())]
answers["ring"] = refused(lambda: conv.causal_conv1d_update(x[..., 0], state, weight, cache_seqlens=index))
answers["activation"] = refused(lambda: conv.causal_conv1d_fn(x, weight, activation="relu"))
last = conv.causal_conv1d_fn(x, weight, return_final_states=True)[1]
answers["final"] = torch.equal(last, x[..., -3:])
print(json.dumps(answers))
"""


@functools.cache
def details():
    return child(DETAILS)


@pytest.mark.torch
def test_weights_follow_from_the_seed_and_the_dtype_leaves_rotary_tables_alone():
    seen = details()
    assert seen["same"]
    assert seen["differs"]
    assert (seen["dtype"], seen["rope"]) == ("torch.bfloat16", "torch.float32")


@pytest.mark.torch
def test_what_was_replaced_is_said():
    seen = details()
    assert seen["attention"] == ["sdpa", "eager"]
    assert [note.split(" ")[0] for note in seen["notes"]] == ["quantization_config", "flash_attention_2"]
    assert seen["shrunk"] == [32, 2]
    assert seen["standin"]


@pytest.mark.torch
def test_packing_tests_can_keep_a_leak_visible():
    seen = details()
    assert seen["gates"] == ["model.layers.0.linear_attn.A_log"]
    assert seen["scaled"]


@pytest.mark.torch
def test_hiding_after_the_modelling_code_is_refused():
    assert details()["late"].startswith("RuntimeError: transformers.models.")


@pytest.mark.torch
def test_what_cannot_be_built_says_why():
    seen = details()
    assert seen["unknown"].startswith("CannotBuildError: transformers ")
    assert "'x'" in seen["unknown"]
    assert "'Y'" in seen["unknown"]
    assert seen["invalid"].startswith("CannotBuildError")
    assert "too many for the emulated device" in seen["large"]


@pytest.mark.torch
def test_a_profile_that_loses_a_type_of_layer_is_not_followed():
    types, note = details()["lossy"]
    assert set(types) == {"linear_attention", "full_attention"}
    assert "no full_attention layer is left" in note


@pytest.mark.torch
def test_the_stand_in_computes_what_the_package_computes():
    seen = details()
    assert max(seen["conv"], seen["silu"], seen["packed"], *seen["update"]) < 1e-5
    assert seen["padding"] == 0.0
    assert seen["final"]
    assert seen["ring"].startswith("ValueError")
    assert seen["activation"].startswith("ValueError")
