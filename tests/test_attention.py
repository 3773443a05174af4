"""Softmax attention: the reference, and the form tried on torch's own kernels for the CPU, sound and wrong.

No GPU is here: the calls of flash-attn are tried on a stand-in with its signatures, which is not what is judged.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict

import msgspec
import pytest
from test_kernels import double, gradchecked

from kerncheck.checks.numerics_rule import margin
from kerncheck.kernels import all_specs, cells_of, find_spec
from kerncheck.model.base import Missing
from kerncheck.model.job import Job
from kerncheck.model.numerics import Cell
from kerncheck.stages import numerics
from kerncheck.stages.common import Ask

SDPA, DENSE, VARLEN = (spec.id for spec in all_specs() if spec.file == "attention")
SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24}


class Device:
    TORCH_DEVICE = "cpu"
    launches = staticmethod(lambda: contextlib.nullcontext([]))
    synchronize = staticmethod(lambda: None)


def observed(op, plan, function, lane="fp32"):
    from kerncheck.kernels import _attention_calls, _observe

    spec = find_spec(op)
    case = {**numerics.as_case(spec, plan, lane), "extension": "", "repeats": 0}
    seen = _observe.cell(_attention_calls.FORMS[spec.form], function, case, Device)
    about = {name: case[name] for name in ("op", "regime", "lengths", "seeds", "cuts")}
    return msgspec.convert({"kind": "cell", "name": case["cell"], **about, **seen}, Cell)


def plans(op):
    return {plan.name: plan for plan in cells_of(find_spec(op), "cuda", SMALL) if sum(plan.lengths) < 500}


def wrong(cell):
    return {tensor.name for tensor in cell.tensors if margin(tensor, cell.seeds).value > 1}


def largest(cell):
    return max(margin(tensor, cell.seeds).value for tensor in cell.tensors)


@pytest.fixture(autouse=True)
def one_thread():
    """Small products: more threads only wait for each other."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def attention():
    import torch

    return torch.nn.functional.scaled_dot_product_attention


def test_cells_take_the_models_heads_and_reach_every_backend():
    assert {spec.library for spec in (find_spec(SDPA), find_spec(DENSE), find_spec(VARLEN))} == {"cuda"}
    cells = cells_of(find_spec(SDPA), "cuda", {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512})
    assert cells[0].sizes == {"H": 8, "KV": 2, "D": 64}
    assert {cell.options["backend"] for cell in cells} == {"flash", "efficient", "cudnn", "math"}
    assert any(max(cell.lengths) >= 2048 and cell.repeats == 30 for cell in cells)
    assert find_spec(DENSE).unordered == ("dq",)


def test_without_a_gpu_they_are_named_and_not_judged():
    missing = Missing(reason="not part of this test")
    ask = Ask(job=Job(device="emulate"), catalog=None, environment=missing, devices=missing, timeout=10.0)
    ran = {case["op"] for run in numerics.runs(ask) for case in run.cases}
    assert not ran & {SDPA, DENSE, VARLEN}
    assert {SDPA, DENSE, VARLEN} <= {spec.id for spec in numerics.compiled(ask)}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("lengths", "past", "causal"), [([4], 0, True), ([3], 2, True), ([1, 3], 0, True), ([4], 2, False)]
)
def test_the_reference_passes_gradcheck(lengths, past, causal):
    from kerncheck.kernels import _attention

    rows = sum(lengths)
    inputs = {
        "q": double(1, rows, 2, 3),
        "k": double(1, rows + past, 1, 3, seed=1),
        "v": double(1, rows + past, 1, 3, seed=2),
    }
    assert gradchecked(_attention.reference, inputs, {"lengths": lengths, "options": {"causal": causal}})


@pytest.mark.torch
def test_the_truth_is_the_same_in_pieces(monkeypatch):
    from kerncheck.kernels import _attention

    inputs = {"q": double(1, 9, 2, 3), "k": double(1, 13, 1, 3, seed=1), "v": double(1, 13, 1, 3, seed=2)}
    plan = {"lengths": [9], "options": {"causal": True}}
    whole, other = _attention.reference(inputs, plan)["o"], _attention.eager(inputs, plan)["o"]
    monkeypatch.setattr(_attention, "ROWS", 4)
    assert (whole - _attention.reference(inputs, plan)["o"]).abs().max() < 1e-14
    assert (whole - other).abs().max() < 1e-6


@pytest.mark.torch
@pytest.mark.parametrize("lane", ["fp32", "bf16"])
@pytest.mark.parametrize("backend", ["flash", "math"])
def test_torchs_own_attention_on_the_cpu_is_right(backend, lane):
    for name, plan in plans(SDPA).items():
        if plan.options["backend"] != backend:
            continue
        cell = observed(SDPA, plan, attention(), lane)
        if plan.cuts:
            assert cell.leaks == (), name
            continue
        assert largest(cell) < 0.7, (name, [(tensor.name, margin(tensor, cell.seeds)) for tensor in cell.tensors])
        assert cell.backward == "ok"
        fused = "_scaled_dot_product_flash_attention_for_cpu"
        assert (fused in cell.launched_forward) == (backend == "flash"), name
        assert cell.launched_backward


def scaled(*args, scale, **kwargs):
    return attention()(*args, scale=1.01 * scale, **kwargs)


def unmasked(*args, is_causal, attn_mask, **kwargs):
    del is_causal, attn_mask
    return attention()(*args, **kwargs)


def aligned_at_the_start(*args, is_causal, attn_mask, **kwargs):
    return attention()(*args, is_causal=is_causal or attn_mask is not None, **kwargs)


def detached(q, k, v, **kwargs):
    return attention()(q, k.detach(), v, **kwargs)


@pytest.mark.torch
@pytest.mark.parametrize("lane", ["fp32", "bf16"])
def test_wrong_attention_is_found_in_both_lanes(lane):
    made = plans(SDPA)
    causal, after = made["flash if it can, causal"], made["flash if it can, after other keys"]
    assert wrong(observed(SDPA, causal, scaled, lane)) & {"o", "dq"}
    assert "o" in wrong(observed(SDPA, causal, unmasked, lane))
    assert observed(SDPA, made["causality"], unmasked, lane).leaks == (40, 130)
    assert "o" in wrong(observed(SDPA, after, aligned_at_the_start, lane))
    assert wrong(observed(SDPA, causal, aligned_at_the_start, lane)) == set()
    absent = [tensor.name for tensor in observed(SDPA, causal, detached, lane).tensors if tensor.absent]
    assert absent == ["dk"]


def flash_attn_func(q, k, v, *, softmax_scale, causal):
    """Attend tokens before heads, causal from the end, as flash-attn since 2.1."""
    import torch

    rows, keys = q.shape[1], k.shape[1]
    seen = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows) if causal else None
    turned = (x.transpose(1, 2) for x in (q, k, v))
    return attention()(*turned, attn_mask=seen, scale=softmax_scale, enable_gqa=True).transpose(1, 2)


def flash_attn_varlen_func(q, k, v, *, cu_seqlens_q, max_seqlen_q, **kwargs):
    """Attend each sequence of a row."""
    import torch

    assert cu_seqlens_q.dtype == torch.int32
    assert torch.equal(cu_seqlens_q, kwargs.pop("cu_seqlens_k"))
    assert max_seqlen_q == kwargs.pop("max_seqlen_k") == int((cu_seqlens_q[1:] - cu_seqlens_q[:-1]).max())
    pieces = zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist(), strict=True)
    found = [flash_attn_func(*(x[None, a:b] for x in (q, k, v)), **kwargs)[0] for a, b in pieces]
    return torch.cat(found)


def boundaries_ignored(q, k, v, *, softmax_scale, causal, **_bounds):
    return flash_attn_func(q[None], k[None], v[None], softmax_scale=softmax_scale, causal=causal)[0]


@pytest.mark.torch
@pytest.mark.parametrize(("op", "function"), [(DENSE, flash_attn_func), (VARLEN, flash_attn_varlen_func)])
def test_flash_attn_is_called_as_it_is_meant(op, function):
    for name, plan in plans(op).items():
        cell = observed(op, plan, function)
        assert cell.leaks == ()
        assert plan.cuts or largest(cell) < 0.7, name
        assert asdict(plan)["sizes"]["KV"] < plan.sizes["H"]


@pytest.mark.torch
def test_packed_boundaries_that_do_not_reach_the_kernel_are_found():
    made = plans(VARLEN)["packed, causal"]
    assert wrong(observed(VARLEN, made, boundaries_ignored)) >= {"o", "dk", "dv"}
