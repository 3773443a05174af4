"""Specs, cells and references of the kernel packages."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import types

import pytest

from kerncheck.kernels import all_specs, cells_of, find_spec
from kerncheck.kernels.fla import heads, long_enough

SPECS = all_specs()
QWEN = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128}


def test_ids_are_unique_and_well_formed():
    assert len({spec.id for spec in SPECS}) == len(SPECS) == 15
    assert all(spec.module and spec.name and ":" in spec.id for spec in SPECS)
    assert find_spec("fla.modules.l2norm:l2norm").form == "l2norm"
    assert find_spec("torch:compile") is None


def test_only_triton_ops_run_emulated_and_compiled_ones_name_their_extension():
    assert {spec.package for spec in SPECS if spec.runs_emulated} == {"flash-linear-attention", "liger-kernel"}
    assert {spec.extension for spec in SPECS if not (spec.runs_emulated or spec.in_torch)} == {
        "causal_conv1d_cuda",
        "flash_attn_2_cuda",
    }


@pytest.mark.torch
def test_ids_are_importable_with_the_installed_fla():
    wanted = {spec.id: list(spec.module_candidates) for spec in SPECS if spec.import_name == "fla"}
    code = (
        "import importlib, json, sys\n"
        "found = {}\n"
        "for op in json.loads(sys.argv[1]):\n"
        "    module, _, name = op.partition(':')\n"
        "    found[op] = getattr(importlib.import_module(module), name).__module__\n"
        "print(json.dumps(found))\n"
    )
    command = [sys.executable, "-B", "-W", "ignore", "-c", code, json.dumps(list(wanted))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(found[op] in candidates for op, candidates in wanted.items()), found


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("device", ["emulate", "cuda"])
def test_every_op_has_cells_that_compare_and_a_quick_one(spec, device):
    if device == "emulate" and not spec.runs_emulated:
        return
    cells = cells_of(spec, device, QWEN)
    assert len({cell.name for cell in cells}) == len(cells)
    assert any(cell.quick and not cell.cuts for cell in cells)
    assert all(cell.seeds >= 1 and cell.lengths for cell in cells)


def test_cells_of_the_delta_rule_reach_what_hides_faults():
    cells = cells_of(find_spec("fla.ops.gated_delta_rule:chunk_gated_delta_rule"), "emulate", {})
    assert {cell.regime for cell in cells} == {"weak", "model", "extreme", "edge"}
    lengths = {length for cell in cells for length in cell.lengths}
    assert {1, 3, 64, 65, 130} <= lengths
    assert any(cell.sizes["H"] > 1 and cell.sizes["HV"] > cell.sizes["H"] for cell in cells)
    assert any(cell.sizes["K"] & (cell.sizes["K"] - 1) for cell in cells)
    assert {cell.configuration for cell in cells} == {0, 1, 2}


@pytest.mark.parametrize(("values", "length"), [(32, 2114), (16, 4098), (8, 8194), (64, 2114)])
def test_a_gpu_gets_a_case_of_training_size(values, length):
    sizes = heads({**QWEN, "linear_num_value_heads": values})
    assert sizes == {"H": 16, "HV": values, "K": 128, "V": 128}
    assert long_enough(sizes) == length
    assert values * -(-length // 64) >= 1024
    assert length >= 2048


def test_gpu_cells_repeat_and_take_the_models_sizes():
    for spec in SPECS:
        assert any(cell.repeats == 30 for cell in cells_of(spec, "cuda", QWEN))
    conv = cells_of(find_spec("causal_conv1d:causal_conv1d_fn"), "cuda", QWEN)
    assert {cell.sizes["D"] for cell in conv} == {2 * 16 * 128 + 32 * 128}


torch = pytest.importorskip("torch") if importlib.util.find_spec("torch") else None


def double(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def delta_inputs(length=6, heads_=2):
    return {
        "q": double(1, length, 1, 3),
        "k": double(1, length, 1, 3, seed=1),
        "v": double(1, length, heads_, 2),
        "beta": double(1, length, heads_).sigmoid(),
        "g": -double(1, length, heads_, seed=2).exp(),
        "h0": double(1, 2, heads_, 3, 2),
    }


def gradchecked(reference, inputs, plan):
    names = list(inputs)

    def run(*values):
        return tuple(reference(dict(zip(names, values, strict=True)), plan).values())

    leaves = [inputs[name].clone().requires_grad_() for name in names]
    return torch.autograd.gradcheck(run, leaves, fast_mode=False)


@pytest.mark.torch
def test_reference_of_the_delta_rule_passes_gradcheck():
    from kerncheck.kernels import _delta_rule

    assert gradchecked(_delta_rule.reference, delta_inputs(), {"lengths": [2, 4], "options": {}})


@pytest.mark.torch
def test_references_of_norms_pass_gradcheck():
    from kerncheck.kernels import _norms

    assert gradchecked(_norms.reference_l2, {"x": double(1, 3, 2, 4)}, {})
    rows = {"x": double(1, 3, 4), "gate": double(1, 3, 4, seed=1), "weight": double(1, 4)}
    assert gradchecked(_norms.reference_rms, rows, {})


@pytest.mark.torch
@pytest.mark.parametrize("options", [{"activation": True}, {"state": 3}, {"states": False}])
def test_reference_of_the_convolution_passes_gradcheck(options):
    from kerncheck.kernels import _convolution

    state = options.get("state", 4)
    inputs = {
        "x": double(1, 7, 2),
        "weight": double(1, 2, 4),
        "bias": double(1, 2),
        "h0": double(1, 2, 2, state),
    }
    assert gradchecked(_convolution.reference, inputs, {"lengths": [2, 5], "options": options})


@pytest.mark.torch
def test_a_recurrence_that_keeps_few_states_has_the_same_gradients(monkeypatch):
    from kerncheck.kernels import _delta_rule

    found = []
    for large in (_delta_rule.LARGE, 0):
        monkeypatch.setattr(_delta_rule, "LARGE", large)
        inputs = {name: x.clone().requires_grad_() for name, x in delta_inputs(40).items()}
        out = _delta_rule.reference(inputs, {"lengths": [3, 37], "options": {}})
        found.append(torch.autograd.grad(out["o"].square().sum() + out["ht"].sum(), list(inputs.values())))
    assert all(torch.allclose(one, other, rtol=1e-12) for one, other in zip(*found, strict=True))


@pytest.mark.torch
def test_chunked_form_is_the_recurrence():
    from kerncheck.kernels import _delta_rule

    plan = {"lengths": [1, 66, 130], "options": {}}
    inputs = delta_inputs(197)
    inputs = {**inputs, "h0": double(1, 3, 2, 3, 2)}
    truth = _delta_rule.reference(inputs, plan)
    single = {name: x.float() for name, x in inputs.items()}
    for eager in (_delta_rule.eager, _delta_rule.eager_base2):
        found = eager(single, plan)
        assert torch.allclose(found["o"].double(), truth["o"], atol=2e-5)
        assert torch.allclose(found["ht"].double(), truth["ht"], atol=2e-5)


@pytest.mark.torch
def test_gradient_of_the_triangular_inverse():
    from kerncheck.kernels._delta_rule import UnitLowerInverse

    lower = double(2, 4, 4).tril(-1).requires_grad_()
    inverse = UnitLowerInverse.apply(lower)
    assert torch.allclose(inverse @ (torch.eye(4) + lower), torch.eye(4).double().expand(2, 4, 4))
    assert torch.autograd.gradcheck(lambda x: UnitLowerInverse.apply(x.tril(-1)), lower)


@pytest.mark.torch
def test_rounding_mode_rounds_operands_of_products_forward_and_backward():
    from kerncheck.kernels._precision import Round

    a, b = torch.full((1, 1), 1 + 2.0**-10, requires_grad=True), torch.ones(1, 1)
    with Round(torch.bfloat16):
        product = a @ b
        (slope,) = torch.autograd.grad(product, a, torch.full((1, 1), 1 + 2.0**-10))
    assert product.item() == 1.0
    assert slope.item() == 1.0
    assert (a @ b).item() > 1.0


def test_entries_into_an_extension_are_counted_and_it_is_restored(monkeypatch):
    from kerncheck.kernels._entries import entries

    module = types.ModuleType("some_extension")
    module.forward = original = lambda x: x + 1
    monkeypatch.setitem(sys.modules, "some_extension", module)
    with entries("some_extension") as seen:
        assert module.forward(1) == 2
    assert seen == ["forward"]
    assert module.forward is original
    with entries("") as nothing:
        assert nothing == []


@pytest.mark.torch
@pytest.mark.parametrize(
    ("axes", "shape", "arranged"),
    [
        ("sthd", (2, 5, 3, 4), (2, 5, 3, 4)),
        ("sth", (2, 5, 3), (2, 5, 3, 1)),
        ("std", (2, 5, 4), (2, 5, 1, 4)),
        ("snhkv", (2, 7, 3, 4, 6), (14, 4, 3, 6)),
        ("sd", (2, 4), (2, 4, 1, 1)),
        ("sdw", (2, 4, 3), (2, 4, 1, 3)),
        ("sndw", (2, 7, 4, 3), (14, 4, 1, 3)),
    ],
)
def test_tensors_are_arranged_as_rows_tokens_heads_sizes(axes, shape, arranged):
    from kerncheck.kernels._errors import arranged as arrange

    assert arrange(torch.zeros(shape), axes).shape == arranged


@pytest.mark.torch
def test_error_sizes_are_those_of_known_errors():
    from kerncheck.kernels import _errors

    truth = torch.ones(2, 32, 1, 4, dtype=torch.float64)
    off = truth.clone()
    off[1, 16:] += 0.5
    sizes = _errors.sizes(off, [truth * 1.01], truth, "sthd", None)
    assert sizes["rms_reference"] == 1
    assert sizes["rms_fused"] == pytest.approx(0.25)
    assert sizes["block_fused"] == pytest.approx(0.5)
    assert sizes["gain_fused"] == pytest.approx(0.125)
    assert sizes["gain_error"] == pytest.approx(0.125)
    assert sizes["gain_eager"] == [pytest.approx(0.01)]
    assert sizes["block_eager"] == [pytest.approx(0.01)]


@pytest.mark.torch
def test_a_truth_that_cancels_is_judged_at_its_natural_scale():
    from kerncheck.kernels import _errors

    truth, terms = torch.zeros(1, 16, 1), torch.full((1, 16, 1), 2.0)
    sizes = _errors.sizes(truth + 1e-3, [truth], truth.double(), "sth", terms.double())
    assert sizes["natural"] == 2
    assert sizes["block_fused"] == pytest.approx(5e-4)
    assert sizes["gain_fused"] is None


@pytest.mark.torch
def test_flags_say_what_is_wrong_before_numbers():
    from kerncheck.kernels import _errors

    truth = torch.ones(2, 3, dtype=torch.float64)
    right = truth.float()
    assert _errors.flags(right, truth, torch.float32) == {"nonfinite": 0, "zero": False, "dtype": ""}
    assert _errors.flags(None, truth, torch.float32) == {"absent": True}
    assert _errors.flags(right[:1], truth, torch.float32) == {"shape": "[1, 3], wanted [2, 3]"}
    assert _errors.flags(right * 0, truth, torch.float32)["zero"]
    assert not _errors.flags(right * 0, truth * 0, torch.float32)["zero"]
    assert _errors.flags(right / 0, truth, torch.float32)["nonfinite"] == 6
    assert _errors.flags(truth, truth, torch.float32)["dtype"] == "float64, wanted float32"


@pytest.mark.torch
def test_digests_tell_bits_apart():
    from kerncheck.kernels._errors import digest

    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    assert digest(x) == digest(x.clone()) != digest(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
