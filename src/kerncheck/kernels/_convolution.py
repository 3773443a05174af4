"""The causal depthwise convolution: inputs, the fp64 truth, and eager code. Children only.

    y[t, d] = act(bias[d] + sum_w weight[d, w] x[t - (W - 1) + w, d]) + residual[t, d],    act silu or nothing,

where x before the start of a sequence is the initial state (its last W - 1 columns), or zero. The final state is the
last W inputs, initial state included (fla 0.6.0, modules/causal_conv1d/ops.py), or the last W - 1 (causal-conv1d).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor


def draw(plan: dict[str, Any], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw x [S, T, D], weight [S, D, W], and where the plan has them bias [S, D], h0 [S, N, D, state], residual."""
    sizes, seeds = plan["sizes"], plan["seeds"]
    inputs = {
        "x": torch.randn(seeds, sum(plan["lengths"]), sizes["D"], generator=generator),
        "weight": 0.5 * torch.randn(seeds, sizes["D"], sizes["W"], generator=generator),
    }
    if plan["options"].get("bias"):
        inputs["bias"] = 0.5 * torch.randn(seeds, sizes["D"], generator=generator)
    if plan["initial_state"]:
        state = plan["options"].get("state", sizes["W"])
        inputs["h0"] = torch.randn(seeds, len(plan["lengths"]), sizes["D"], state, generator=generator)
    if plan["options"].get("residual"):
        inputs["residual"] = torch.randn(inputs["x"].shape, generator=generator)
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def taps(padded: Tensor, weight: Tensor, length: int) -> Tensor:
    """Sum the taps one by one: padded [S, W - 1 + T, D], weight [S, D, W]; returns [S, T, D]."""
    products = [padded[:, w : w + length] * weight[:, None, :, w] for w in range(weight.shape[-1])]
    return torch.stack(products).sum(0)


def depthwise(padded: Tensor, weight: Tensor, _length: int) -> Tensor:
    """The same with torch's convolution, which eager models call, in the dtype given."""
    seeds, _, channels = padded.shape
    rows = padded.transpose(1, 2).reshape(1, seeds * channels, -1)
    out = F.conv1d(rows, weight.reshape(seeds * channels, 1, -1), groups=seeds * channels)
    return out.view(seeds, channels, -1).transpose(1, 2)


def by_sequence(rule: Any, inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """Convolve each packed sequence alone. Returns ``y`` [S, T, D] and ``ht`` [S, N, D, state]."""
    weight, width = inputs["weight"], inputs["weight"].shape[-1]
    size = plan["options"].get("state", width)
    outputs, states, start = [], [], 0
    for number, length in enumerate(plan["lengths"]):
        x = inputs["x"][:, start : start + length]
        before = max(size, width - 1)
        history = (
            inputs["h0"][:, number].transpose(1, 2) if "h0" in inputs else x.new_zeros(len(x), before, x.shape[-1])
        )
        whole = torch.cat((history, x), 1)
        y = rule(whole[:, whole.shape[1] - length - width + 1 :], weight, length)
        y = y + inputs["bias"][:, None] if "bias" in inputs else y
        y = F.silu(y) if plan["options"].get("activation") else y
        outputs.append(y + inputs["residual"][:, start : start + length] if "residual" in inputs else y)
        states.append(whole[:, -size:].transpose(1, 2))
        start += length
    found = {"y": torch.cat(outputs, 1), "ht": torch.stack(states, 1)}
    return found if plan["options"].get("states", True) else {"y": found["y"]}


def reference(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """The truth, for inputs in fp64."""
    return by_sequence(taps, inputs, plan)


def eager(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """What a model computes without the kernel: torch's convolution and silu, in the dtype of the inputs."""
    return by_sequence(depthwise, inputs, plan)


def weigh(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the oldest column of the final state no upstream gradient.

    fla stores W columns, of which a convolution of width W can read W - 1; it stores the oldest and gives it no
    gradient. Nothing reads it, so nothing is wrong with that.
    """
    weights["ht"][..., 0] = 0
    return weights
