"""How fla's ops are called, as Qwen3.5's layers call them (transformers 5.24, modeling_qwen3_5.py). Children only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kerncheck.kernels import _convolution, _delta_rule, _norms
from kerncheck.kernels._forms import Form, Plan, Tensors


def offsets(plan: Plan, seeds: int, device: Any) -> Tensor | None:
    """Return cu_seqlens of all seeds in one row, or None for sequences of one length, which form a batch.

    Always a new tensor: fla remembers chunk indices by the identity of this one.
    """
    if len(plan["lengths"]) == 1:
        return None
    lengths = torch.tensor([0, *plan["lengths"] * seeds], device=device)
    return lengths.cumsum(0)


def delta_rule(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call chunk_gated_delta_rule or fused_recurrent_gated_delta_rule, packed where the plan has several lengths."""
    return recurrence(function, inputs, plan, lambda given: tuple(given[name] for name in ("q", "k", "v", "g")))


def recurrence(function: Any, inputs: Tensors, plan: Plan, laid: Callable[[Tensors], tuple[Tensor, ...]]) -> Tensors:
    """Call a gated delta rule; ``laid`` returns q, k, v and g as the model's layer hands them over."""
    seeds, states = inputs["q"].shape[0], plan["options"].get("states", True)
    bounds = offsets(plan, seeds, inputs["q"].device)
    given = {name: x if bounds is None else x.flatten(0, 1)[None] for name, x in inputs.items() if name != "h0"}
    q, k, v, g = laid(given)
    output, final = function(
        q,
        k,
        v,
        g=g,
        beta=given["beta"],
        initial_state=inputs["h0"].flatten(0, 1) if "h0" in inputs else None,
        output_final_state=states,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=bounds,
    )
    found = {"o": output.reshape(inputs["v"].shape)}
    return {**found, "ht": by_seed(final, seeds, len(plan["lengths"]))} if states else found


def by_seed(final: Tensor, seeds: int, sequences: int) -> Tensor:
    """View the final states as [seeds, sequences, ...]; another number of states stays as it is, for all to see."""
    return final.unflatten(0, (seeds, sequences)) if len(final) == seeds * sequences else final


def recurrent_eager(inputs: Tensors, plan: Plan) -> Tensors:
    """What a model computes without the recurrent kernel: the recurrence in fp32."""
    wide = {name: x.float() for name, x in inputs.items()}
    found = _delta_rule.by_sequence(_delta_rule.recurrence, wide, plan)
    return {**found, "o": found["o"].to(inputs["v"].dtype)}


def l2norm(function: Any, inputs: Tensors, _plan: Plan) -> Tensors:
    """Call l2norm."""
    return {"y": function(inputs["x"], eps=_norms.L2_EPSILON)}


def gated_rms_norm(module: Any, inputs: Tensors, _plan: Plan) -> Tensors:
    """Build FusedRMSNormGated as the layer does, give it our weight, and call it on rows [T, D]."""
    weight = inputs["weight"][0]
    norm = module(len(weight), eps=_norms.RMS_EPSILON, activation="silu", device=weight.device, dtype=weight.dtype)
    parameters = {"weight": weight}
    return {"y": torch.func.functional_call(norm, parameters, (inputs["x"][0], inputs["gate"][0]))[None]}


def convolution(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call causal_conv1d with its Triton backend: packed, or with ``batch`` as rows of one length each."""
    rows = len(plan["lengths"]) if plan["options"].get("batch") else 1
    bounds = None if rows > 1 else offsets(plan, 1, inputs["x"].device)
    x = inputs["x"][0].unflatten(0, (rows, -1))[None].flatten(0, 1)
    output, final = function(
        x,
        weight=inputs["weight"][0],
        bias=inputs["bias"][0] if "bias" in inputs else None,
        residual=inputs["residual"][0] if "residual" in inputs else None,
        initial_state=inputs["h0"][0] if "h0" in inputs else None,
        output_final_state=True,
        activation="silu" if plan["options"].get("activation") else None,
        backend="triton",
        cu_seqlens=bounds,
    )
    return {"y": output.flatten(0, 1)[None], "ht": final[None]}


DELTA_AXES = {
    "q": "sthd",
    "k": "sthd",
    "v": "sthd",
    "beta": "sth",
    "g": "sth",
    "h0": "snhkv",
    "o": "sthd",
    "ht": "snhkv",
}
FORMS = {
    "chunk_delta_rule": Form(
        axes=DELTA_AXES,
        draw=_delta_rule.draw,
        call=delta_rule,
        reference=_delta_rule.reference,
        eagers=(_delta_rule.eager, _delta_rule.eager_base2),
        natural=_delta_rule.natural,
        batched=True,
        contract="io",
        states=("ht",),
        fp32=("g", "h0", "ht"),
    ),
    "recurrent_delta_rule": Form(
        axes=DELTA_AXES,
        draw=_delta_rule.draw,
        call=delta_rule,
        reference=_delta_rule.reference,
        eagers=(recurrent_eager,),
        natural=_delta_rule.natural,
        batched=True,
        states=("ht",),
        fp32=("g", "h0", "ht"),
    ),
    "l2norm": Form(
        axes={"x": "sthd", "y": "sthd"},
        draw=_norms.draw_l2,
        call=l2norm,
        reference=_norms.reference_l2,
        eagers=(_norms.eager_l2,),
        batched=True,
    ),
    "gated_rms_norm": Form(
        axes={"x": "std", "gate": "std", "weight": "sd", "y": "std"},
        draw=_norms.draw_rms,
        call=gated_rms_norm,
        reference=_norms.reference_rms,
        eagers=(_norms.eager_rms,),
    ),
    "fla_conv": Form(
        axes={"x": "std", "weight": "sdw", "bias": "sd", "residual": "std", "h0": "sndw", "y": "std", "ht": "sndw"},
        draw=_convolution.draw,
        call=convolution,
        reference=_convolution.reference,
        eagers=(_convolution.eager,),
        weigh=_convolution.weigh,
        states=("ht",),
    ),
}
