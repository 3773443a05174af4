"""y = gate * sigmoid(gate) * up, computed in fp32 whatever the dtype of its inputs.

No ``from __future__ import annotations``: Triton reads the annotations of kernels as objects.
"""

# ruff: noqa: ANN001, ANN201, ANN205, D102, D103, N803, PLR0913, PLR0917

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def swiglu_fwd_kernel(gate, up, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < N
    b_gate = tl.load(gate + at, mask=mask, other=0.0).to(tl.float32)
    b_up = tl.load(up + at, mask=mask, other=0.0).to(tl.float32)
    b_out = b_gate * tl.sigmoid(b_gate) * b_up
    tl.store(out + at, b_out.to(out.dtype.element_ty), mask=mask)


@triton.jit
def swiglu_bwd_kernel(gate, up, dout, dgate, dup, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < N
    b_gate = tl.load(gate + at, mask=mask, other=0.0).to(tl.float32)
    b_up = tl.load(up + at, mask=mask, other=0.0).to(tl.float32)
    b_dout = tl.load(dout + at, mask=mask, other=0.0).to(tl.float32)
    b_sig = tl.sigmoid(b_gate)
    b_dgate = b_dout * b_up * b_sig * (1 + b_gate * (1 - b_sig))
    b_dup = b_dout * b_gate * b_sig
    tl.store(dgate + at, b_dgate.to(dgate.dtype.element_ty), mask=mask)
    tl.store(dup + at, b_dup.to(dup.dtype.element_ty), mask=mask)


class SwiGLU(torch.autograd.Function):
    """The op as autograd sees it."""

    @staticmethod
    def forward(ctx, gate, up):
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        swiglu_fwd_kernel[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, out, gate.numel(), BLOCK=BLOCK)
        return out

    @staticmethod
    def backward(ctx, dout):
        gate, up = ctx.saved_tensors
        dout = dout.contiguous()
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        swiglu_bwd_kernel[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, dout, dgate, dup, gate.numel(), BLOCK=BLOCK)
        return dgate, dup


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return gate * sigmoid(gate) * up; both [..., D] of one shape and dtype."""
    return SwiGLU.apply(gate, up)
