"""Liger's RMS norm, SwiGLU and cross entropy: inputs, calls, the fp64 truth, and eager code. Children only.

Definitions as in liger-kernel 0.8.5 (ops/rms_norm.py, ops/swiglu.py, ops/cross_entropy.py), row by row:

    y = x / sqrt(mean_d x_d^2 + eps) * (offset + weight),    y = gate * sigmoid(gate) * up,
    loss = log sum_v exp(logit_v) - logit_target,  0 where the target is -100; mean: over the other targets

SwiGLU and cross entropy write their gradients over what they were given, by design: the layers hand over results of
their projections that nothing else reads. So do the calls here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kerncheck.kernels import _norms
from kerncheck.kernels._forms import Form, Plan, Tensors

EPSILON = 1e-6  # rms_norm_eps of Qwen3.5, and the default of Liger's modules
IGNORED = -100  # ignore_index of torch, transformers and Liger


def draw_rms(plan: Plan, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    """Draw x [S, T, D] and a weight [S, D] around one minus the offset."""
    shape = (plan["seeds"], sum(plan["lengths"]), plan["sizes"]["D"])
    middle = 1 - plan["options"]["offset"]
    weight = middle + 0.3 * torch.randn(shape[0], shape[2], generator=generator)
    return {"x": _norms.scaled(shape, plan["regime"], generator).to(dtype), "weight": weight.to(dtype)}


def rms_norm(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call LigerRMSNormFunction on one seed; in_place False, as Qwen3.5's patch sets it: dy stays as it was."""
    options = plan["options"]
    x, weight = inputs["x"], inputs["weight"][0]
    return {"y": function.apply(x, weight, EPSILON, options["offset"], options["casting"], False, None)}  # noqa: FBT003


def reference_rms(inputs: Tensors, plan: Plan) -> Tensors:
    """The truth, row by row, for inputs in fp64."""
    weight = inputs["weight"] + plan["options"]["offset"]
    rows = [x / ((x * x).mean(-1, keepdim=True) + EPSILON).sqrt() * weight for x in inputs["x"].unbind(1)]
    return {"y": torch.stack(rows, 1)}


def eager_rms(inputs: Tensors, plan: Plan) -> Tensors:
    """What the layer computes without Liger: Qwen3.5's norm applies the weight in fp32, Llama's in the dtype of x."""
    x, weight = inputs["x"].float(), inputs["weight"][:, None]
    normal = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON)
    if plan["options"]["casting"] == "gemma":
        return {"y": (normal * (plan["options"]["offset"] + weight.float())).to(inputs["x"].dtype)}
    return {"y": (plan["options"]["offset"] + weight) * normal.to(inputs["x"].dtype)}


def draw_swiglu(plan: Plan, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    """Draw gate and up [S, T, D]."""
    shape = (plan["seeds"], sum(plan["lengths"]), plan["sizes"]["D"])
    return {name: (2 * torch.randn(shape, generator=generator)).to(dtype) for name in ("gate", "up")}


def swiglu(function: Any, inputs: Tensors, _plan: Plan) -> Tensors:
    """Call LigerSiLUMulFunction on copies, which it may write to."""
    return {"y": function.apply(inputs["gate"] * 1, inputs["up"] * 1)}


def reference_swiglu(inputs: Tensors, _plan: Plan) -> Tensors:
    """The truth, row by row, for inputs in fp64."""
    rows = [gate / (1 + (-gate).exp()) * up for gate, up in zip(*(x.unbind(1) for x in inputs.values()), strict=True)]
    return {"y": torch.stack(rows, 1)}


def eager_swiglu(inputs: Tensors, _plan: Plan) -> Tensors:
    """What the layer computes without Liger."""
    return {"y": F.silu(inputs["gate"]) * inputs["up"]}


def draw_entropy(plan: Plan, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    """Draw logits [S, T, V] and targets [S, T], one in seven ignored; in ``sharp`` most are nearly certain."""
    seeds, length, words = plan["seeds"], sum(plan["lengths"]), plan["sizes"]["V"]
    logits = 3 * torch.randn(seeds, length, words, generator=generator)
    target = torch.randint(words, (seeds, length), generator=generator)
    if plan["regime"] == "sharp":
        logits.scatter_add_(2, target[..., None], torch.full((seeds, length, 1), 12.0))
    target[:, 2::7] = IGNORED
    return {"logits": logits.to(dtype), "target": target.float()}


def entropy(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call LigerCrossEntropyFunction on a copy of one seed's logits, which it writes the gradient to."""
    logits, target = inputs["logits"][0] * 1, inputs["target"][0].long()
    loss = function.apply(logits, target, None, IGNORED, 0.0, 0.0, plan["options"]["reduction"])[0]
    return {"loss": loss.reshape(1, -1)}


def reduced(losses: Tensor, counted: Tensor, reduction: str) -> Tensor:
    """Reduce losses [S, T] to [S, T] or [S, 1]."""
    if reduction == "none":
        return losses
    total = losses.sum(1, keepdim=True)
    return total / counted.sum(1, keepdim=True) if reduction == "mean" else total


def reference_entropy(inputs: Tensors, plan: Plan) -> Tensors:
    """The truth, token by token, for logits in fp64."""
    targets, losses = inputs["target"].long(), []
    for logits, target in zip(inputs["logits"].unbind(1), targets.unbind(1), strict=True):
        top = logits.detach().max(-1, keepdim=True).values
        size = (logits - top).exp().sum(-1).log() + top[:, 0]
        loss = size - logits.gather(1, target.clamp(min=0)[:, None])[:, 0]
        losses.append(loss * (target != IGNORED))
    return {"loss": reduced(torch.stack(losses, 1), targets != IGNORED, plan["options"]["reduction"])}


def eager_entropy(inputs: Tensors, plan: Plan) -> Tensors:
    """What a model computes without Liger: torch's cross entropy in the dtype of the logits, seed by seed."""
    reduction = plan["options"]["reduction"]
    losses = [
        F.cross_entropy(logits, target.long(), ignore_index=IGNORED, reduction=reduction).reshape(-1)
        for logits, target in zip(inputs["logits"], inputs["target"], strict=True)
    ]
    return {"loss": torch.stack(losses)}


FORMS = {
    "rms_norm": Form(
        axes={"x": "std", "weight": "sd", "y": "std"},
        draw=draw_rms,
        call=rms_norm,
        reference=reference_rms,
        eagers=(eager_rms,),
    ),
    "swiglu": Form(
        axes={"gate": "std", "up": "std", "y": "std"},
        draw=draw_swiglu,
        call=swiglu,
        reference=reference_swiglu,
        eagers=(eager_swiglu,),
    ),
    "cross_entropy": Form(
        axes={"logits": "std", "target": "st", "loss": "st"},
        draw=draw_entropy,
        call=entropy,
        reference=reference_entropy,
        eagers=(eager_entropy,),
        fp32=("target",),
        constant=("target",),
    ),
}
