"""How fla's Kimi delta attention is called, as Kimi Linear's layers call it (transformers 5.24.0). Children only.

modeling_kimi_linear.py, modeling_glm5_next.py and modeling_bailing_hybrid.py compute the gate themselves and hand over
its logarithm; the l2 norm of queries and keys is left to the kernel. None passes A_log, dt_bias or safe_gate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kerncheck.kernels import _kda
from kerncheck.kernels._fla_calls import DELTA_AXES, recurrence
from kerncheck.kernels._forms import Form, Plan, Tensors


def as_split(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Return q, k and v as the layer has them: views of one convolution's output [B, channels, T], turned."""
    mixed = torch.cat([x.flatten(2) for x in (q, k, v)], -1).transpose(1, 2).contiguous().transpose(1, 2)
    pieces = mixed.split([x.shape[2] * x.shape[3] for x in (q, k, v)], -1)
    return [piece.unflatten(-1, x.shape[2:]) for piece, x in zip(pieces, (q, k, v), strict=True)]


def kimi_delta(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
    """Call chunk_kda or fused_recurrent_kda, packed where the plan has several lengths."""

    def laid(given: Tensors) -> tuple[Tensor, ...]:
        return (*as_split(given["q"], given["k"], given["v"]), _kda.gate_of(plan, given["g"], given["v"].dtype))

    return recurrence(function, inputs, plan, laid)


AXES = {**DELTA_AXES, "g": "sthk"}
FORMS = {
    "chunk_kda": Form(
        axes=AXES,
        draw=_kda.draw,
        call=kimi_delta,
        reference=_kda.reference,
        eagers=(_kda.eager, _kda.eager_base2),
        natural=_kda.natural,
        batched=True,
        contract="io",
        states=("ht",),
        fp32=("g", "h0", "ht"),
    ),
    "recurrent_kda": Form(
        axes=AXES,
        draw=_kda.draw,
        call=kimi_delta,
        reference=_kda.reference,
        eagers=(_kda.eager_recurrent,),
        natural=_kda.natural,
        batched=True,
        states=("ht",),
        fp32=("g", "h0", "ht"),
    ),
}
