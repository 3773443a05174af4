"""How torch's scaled_dot_product_attention and flash-attn 2 are called, as transformers calls them. Children only.

transformers 5.24.0, integrations/sdpa_attention.py (heads before tokens, enable_gqa, is_causal for as many keys as
queries, else a boolean mask) and modeling_flash_attention_utils.py (tokens before heads, causal, cu_seqlens in int32).
"""

from __future__ import annotations

from typing import Any

import torch

from kerncheck.kernels import _attention
from kerncheck.kernels._forms import Form, Plan, Tensors

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
OPERATORS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_softmax",
    "_safe_softmax",
    "_softmax_backward_data",
)
"""What torch's attention comes down to: its fused kernels, or (math) a softmax between products."""


def sdpa(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call scaled_dot_product_attention with one backend first, and math where that one cannot take these inputs."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))
    square, causal = q.shape[2] == k.shape[2], bool(plan["options"].get("causal"))
    mask = None
    if causal and not square:
        mask = _attention.visible(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], plan, q.device)[None, None]
    wanted = [getattr(SDPBackend, BACKENDS[plan["options"]["backend"]]), SDPBackend.MATH]
    with sdpa_kernel(list(dict.fromkeys(wanted)), set_priority=True):
        out = function(
            q, k, v, attn_mask=mask, is_causal=causal and square, scale=q.shape[-1] ** -0.5, enable_gqa=grouped(inputs)
        )
    return {"o": out.transpose(1, 2)}


def grouped(inputs: Tensors) -> bool:
    """Tell whether several query heads share a key head."""
    return bool(inputs["q"].shape[2] != inputs["k"].shape[2])


def dense(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call flash_attn_func on a batch of all seeds."""
    scale, causal = inputs["q"].shape[-1] ** -0.5, bool(plan["options"].get("causal"))
    return {"o": function(inputs["q"], inputs["k"], inputs["v"], softmax_scale=scale, causal=causal)}


def varlen(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call flash_attn_varlen_func with the sequences of all seeds in one row."""
    seeds, longest = inputs["q"].shape[0], max(plan["lengths"])
    bounds = torch.tensor([0, *plan["lengths"] * seeds], device=inputs["q"].device).cumsum(0).to(torch.int32)
    out = function(
        *(inputs[name].flatten(0, 1) for name in ("q", "k", "v")),
        cu_seqlens_q=bounds,
        cu_seqlens_k=bounds,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        softmax_scale=inputs["q"].shape[-1] ** -0.5,
        causal=bool(plan["options"].get("causal")),
    )
    return {"o": out.reshape(inputs["q"].shape)}


def form(call: Any, operators: tuple[str, ...] = ()) -> Form:
    """Return the form of a way to call attention."""
    return Form(
        axes={"q": "sthd", "k": "sthd", "v": "sthd", "o": "sthd"},
        draw=_attention.draw,
        call=call,
        reference=_attention.reference,
        eagers=(_attention.eager, _attention.eager_wide),
        batched=True,
        contract="io",
        operators=operators,
    )


FORMS = {"sdpa": form(sdpa, OPERATORS), "flash_attention": form(dense), "flash_attention_varlen": form(varlen)}
