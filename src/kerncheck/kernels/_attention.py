"""Softmax attention: inputs, the fp64 truth, and eager code. Children only.

    o_i = sum_j p_ij v_j,    p_ij = exp(scale q_i . k_j) / sum_j' exp(scale q_i . k_j'),    scale = D^-1/2

for queries [S, T, H, D], keys and values [S, T + past, KV, D]; KV key heads serve H / KV query heads each that stand
side by side. Causal attention is aligned at the end: query i sees keys up to i + past (so does FlashAttention from 2.1
on; torch's is_causal is aligned at the start, and serves past = 0 alone). Packed sequences are attended each alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROWS = 64  # queries whose scores the truth holds at a time


def draw(plan: dict[str, Any], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw q, k and v; in ``peaked`` most of a query's weight lies on few keys."""
    sizes, seeds, length = plan["sizes"], plan["seeds"], sum(plan["lengths"])
    keys = (seeds, length + sizes.get("past", 0), sizes["KV"], sizes["D"])
    sharpness = 3.0 if plan["regime"] == "peaked" else 1.0
    inputs = {
        "q": sharpness * torch.randn(seeds, length, sizes["H"], sizes["D"], generator=generator),
        "k": torch.randn(keys, generator=generator),
        "v": torch.randn(keys, generator=generator),
    }
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def heads_first(x: Tensor, heads: int) -> Tensor:
    """Turn [S, T, KV, D] into [S, H, T, D], each key head repeated for the query heads that it serves."""
    return x.transpose(1, 2).repeat_interleave(heads // x.shape[2], dim=1)


def visible(rows: int, keys: int, first: int, plan: dict[str, Any], device: Any) -> Tensor:
    """Return which keys each of some queries sees, [rows, keys]; the first query's last key is ``first``."""
    if not plan["options"].get("causal"):
        return torch.ones(rows, keys, dtype=torch.bool, device=device)
    reach = first + torch.arange(rows, device=device)
    return torch.arange(keys, device=device)[None] <= reach[:, None]


def direct(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attend [S, H, t, D] to [S, H, n, D] with the softmax written out."""
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    weights = (scores - scores.detach().max(-1, keepdim=True).values).exp()
    attended: Tensor = (weights @ v) / weights.sum(-1, keepdim=True)
    return attended


def truth(q: Tensor, k: Tensor, v: Tensor, plan: dict[str, Any]) -> Tensor:
    """Attend some queries at a time, whose scores are computed again for the backward."""
    outputs, past = [], k.shape[2] - q.shape[2]
    for start in range(0, q.shape[2], ROWS):
        rows = q[:, :, start : start + ROWS]
        seen = visible(rows.shape[2], k.shape[2], start + past, plan, q.device)
        outputs.append(checkpoint(direct, rows, k, v, seen, use_reentrant=False))
    return torch.cat(outputs, 2)


def as_layers(q: Tensor, k: Tensor, v: Tensor, plan: dict[str, Any]) -> Tensor:
    """Attend as transformers' eager attention does: products in the dtype given, the softmax in fp32."""
    seen = visible(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], plan, q.device)
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf)
    attended: Tensor = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v
    return attended


def by_sequence(rule: Any, inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """Attend each packed sequence alone; keys beyond the queries (``past``) come first, in a single sequence."""
    heads, outputs, start = inputs["q"].shape[2], [], 0
    past = inputs["k"].shape[1] - inputs["q"].shape[1]
    for length in plan["lengths"]:
        own = slice(start, start + length + past)
        keys, values = (heads_first(inputs[name][:, own], heads) for name in ("k", "v"))
        queries = inputs["q"][:, start : start + length].transpose(1, 2)
        outputs.append(rule(queries, keys, values, plan).transpose(1, 2))
        start += length
    return {"o": torch.cat(outputs, 1)}


def reference(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """The truth, for inputs in fp64."""
    return by_sequence(truth, inputs, plan)


def eager(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """What a model computes without the kernel, in the dtype of the inputs."""
    return by_sequence(as_layers, inputs, plan)


def eager_wide(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """The same in fp32, with the result in the dtype of the inputs: the kernels keep scores and sums in fp32."""
    found = by_sequence(as_layers, {name: x.float() for name, x in inputs.items()}, plan)
    return {"o": found["o"].to(inputs["q"].dtype)}
