"""How causal-conv1d is called, as Qwen3.5's layers call it (transformers 5.24, modeling_qwen3_5.py). Children only.

The package takes [batch, channels, tokens]. The layers hand it a transposed view of [batch, tokens, channels], the
"channel last" layout, which the kernels that honour ``seq_idx`` and states need.
"""

from __future__ import annotations

from typing import Any

import torch

from kerncheck.kernels import _convolution
from kerncheck.kernels._forms import Form, Plan, Tensors

AXES = {"x": "std", "weight": "sdw", "bias": "sd", "h0": "sndw", "y": "std", "ht": "sndw"}


def given(inputs: Tensors, plan: Plan) -> dict[str, Any]:
    """Return what both functions take: weight, bias or None, activation."""
    activation = "silu" if plan["options"].get("activation") else None
    return {
        "weight": inputs["weight"][0],
        "bias": inputs["bias"][0] if "bias" in inputs else None,
        "activation": activation,
    }


def function(op: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call causal_conv1d_fn on one seed."""
    x = inputs["x"].transpose(1, 2)
    more: dict[str, Any] = {}
    if plan["options"].get("packed"):
        numbers = [number for number, length in enumerate(plan["lengths"]) for _ in range(length)]
        more["seq_idx"] = torch.tensor([numbers], dtype=torch.int32, device=x.device)
    if "h0" in inputs:
        state = inputs["h0"][0]
        more["initial_states"] = state.transpose(1, 2).contiguous().transpose(1, 2)
    if plan["options"]["states"]:
        out, final = op(x, return_final_states=True, **more, **given(inputs, plan))
        return {"y": out.transpose(1, 2), "ht": final[None]}
    return {"y": op(x, **more, **given(inputs, plan)).transpose(1, 2)}


def update(op: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call causal_conv1d_update on one seed; the state is updated in place, so it gets a copy, which is an output."""
    state = inputs["h0"][0].clone()
    out = op(inputs["x"].transpose(1, 2).contiguous(), state, **given(inputs, plan))
    return {"y": out.transpose(1, 2), "ht": state[None]}


FORMS = {
    "dao_conv": Form(
        axes=AXES,
        draw=_convolution.draw,
        call=function,
        reference=_convolution.reference,
        eagers=(_convolution.eager,),
        states=("ht",),
    ),
    "dao_conv_update": Form(
        axes=AXES,
        draw=_convolution.draw,
        call=update,
        reference=_convolution.reference,
        eagers=(_convolution.eager,),
        states=("ht",),
        constant=("x", "weight", "bias", "h0"),
    ),
}
