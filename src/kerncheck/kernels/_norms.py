"""The l2 norm and the gated RMS norm: inputs, the fp64 truth, and eager code. Children only.

Definitions as in fla 0.6.0 (modules/norm/l2norm.py, fused_norm_gate.py), eps inside the root:

    l2norm(x) = x / sqrt(sum_d x_d^2 + eps),    y = weight * x / sqrt(mean_d x_d^2 + eps) * gate * sigmoid(gate)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

L2_EPSILON = 1e-6  # the default of fla's l2norm, and what the delta rule's kernels use
RMS_EPSILON = 1e-6  # rms_norm_eps of Qwen3.5, which its layers hand to the norm


def scaled(shape: tuple[int, ...], regime: str, generator: torch.Generator) -> Tensor:
    """Draw rows; in ``small`` some are so short that eps decides, and one in eleven is zero."""
    x = torch.randn(shape, generator=generator)
    if regime == "small":
        x[:, ::3] *= 1e-3
        x[:, 5::11] = 0
    return x


def draw_l2(plan: dict[str, Any], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw x [S, T, H, D]."""
    sizes = plan["sizes"]
    shape = (plan["seeds"], sum(plan["lengths"]), sizes["H"], sizes["D"])
    return {"x": scaled(shape, plan["regime"], generator).to(dtype)}


def reference_l2(inputs: dict[str, Tensor], _plan: dict[str, Any]) -> dict[str, Tensor]:
    """The truth, row by row, for x in fp64."""
    rows = [row / ((row * row).sum(-1, keepdim=True) + L2_EPSILON).sqrt() for row in inputs["x"].unbind(1)]
    return {"y": torch.stack(rows, 1)}


def eager_l2(inputs: dict[str, Tensor], _plan: dict[str, Any]) -> dict[str, Tensor]:
    """What a model computes without the kernel: fp32 inside, the result in the dtype of x."""
    x = inputs["x"].float()
    return {"y": (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPSILON)).to(inputs["x"].dtype)}


def draw_rms(plan: dict[str, Any], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw x and gate [S, T, D], and a weight [S, D] around one."""
    shape = (plan["seeds"], sum(plan["lengths"]), plan["sizes"]["D"])
    return {
        "x": scaled(shape, plan["regime"], generator).to(dtype),
        "gate": (2 * torch.randn(shape, generator=generator)).to(dtype),
        "weight": (1 + 0.3 * torch.randn(shape[0], shape[2], generator=generator)).to(dtype),
    }


def reference_rms(inputs: dict[str, Tensor], _plan: dict[str, Any]) -> dict[str, Tensor]:
    """The truth, row by row, for inputs in fp64."""
    rows = []
    for x, gate in zip(inputs["x"].unbind(1), inputs["gate"].unbind(1), strict=True):
        size = ((x * x).mean(-1, keepdim=True) + RMS_EPSILON).sqrt()
        rows.append(inputs["weight"] * x / size * gate / (1 + (-gate).exp()))
    return {"y": torch.stack(rows, 1)}


def eager_rms(inputs: dict[str, Tensor], _plan: dict[str, Any]) -> dict[str, Tensor]:
    """What a model computes without the kernel: the normalised rows are rounded before the weight is applied."""
    dtype, x = inputs["x"].dtype, inputs["x"].float()
    normal = (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + RMS_EPSILON)).to(dtype)
    return {"y": (inputs["weight"][:, None] * normal * F.silu(inputs["gate"].float())).to(dtype)}
