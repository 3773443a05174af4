"""Faults in flash-linear-attention: source patches on a copy of the installed fla 0.6.0.

``patched_fla(folder, name)`` makes the copy and returns the path to put on PYTHONPATH. Each patch must apply exactly
once: a fault that is not there proves nothing. Whether it is live (changes a bit of some result, in a kernel that is
launched) is for the caller to show, by the digests and launches of the numerics section.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Seen = Literal["caught", "unseen", "n.a."]
"""What a lane must make of a fault: flag it; nothing is asked, it is below the noise; it cannot be there."""

CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
RECURRENT = "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule"
L2NORM = "fla.modules.l2norm:l2norm"
GATED_NORM = "fla.modules:FusedRMSNormGated"
CONV = "fla.modules.conv:causal_conv1d"

RULE = "ops/gated_delta_rule/chunk.py"
STEP = "ops/gated_delta_rule/fused_recurrent.py"
OUTPUT = "ops/common/chunk_o.py"
STATE = "ops/common/chunk_delta_h.py"
NORM = "modules/norm/l2norm.py"
GATE = "modules/norm/fused_norm_gate.py"
CONVOLUTION = "modules/causal_conv1d/ops.py"


@dataclass(frozen=True)
class Fault:
    """One fault: the op that it is in, the file and the text to change, and what each lane must make of it.

    ``kernel`` is the kernel that must be launched for it to be live; "" for host code. ``table`` says that it stands
    in methods.md, 1.4 (the others are for other ops and other checks).
    """

    op: str
    file: str
    old: str
    new: str
    kernel: str = ""
    fp32: Seen = "caught"
    bf16: Seen = "caught"
    table: bool = True


MASK_O = """    m_A = (o_t[:, None] >= o_t[None, :]) & (m_t[:, None] & m_t)
    b_A = tl.where(m_A, b_A, 0)

    p_v = v + o_t[:, None] * (HV*V) + o_v[None, :]
    p_o ="""
STORE_O = "    tl.store(p_o, b_o.to(p_o.dtype.element_ty), mask=m_t[:, None] & (o_v < V)[None, :])\n"
ROWS_O = """    b_A = tl.zeros([BT, BT], dtype=tl.float32)

    o_t = i_t * BT + tl.arange(0, BT)
    m_t = o_t < T
    o_v = i_v * BV + tl.arange(0, BV)
    for i_k"""
DOTS_O = """        b_h = tl.load(p_h, mask=m_h, other=0.0)

        # [BT, BK] @ [BK, BV] -> [BT, BV]
        if STATE_V_FIRST:
            b_o"""
TF32 = """        b_h = tl.load(p_h, mask=m_h, other=0.0)
        if q.dtype.element_ty == tl.float32:
            b_q = ((b_q.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)
            b_k = ((b_k.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)
            b_h = ((b_h.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)

        # [BT, BK] @ [BK, BV] -> [BT, BV]
        if STATE_V_FIRST:
            b_o"""
TRUNCATE = """    if p_o.dtype.element_ty == tl.bfloat16:
        b_o = (b_o.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
"""
SCALE = "        scale = k.shape[-1] ** -0.5\n    o, final_state = ChunkGatedDeltaRuleFunction"
AFTER_CUMSUM = "    # obtain WY representation. u is actually the new v.\n"
RETURNED = "            dq.to(q), dk.to(k), dv.to(v), dg.to(g), db.to(beta_raw),\n"
LAST = "        last_idx = min((i_t + 1) * BT, T) - 1\n        if USE_G:\n            b_g_last = tl.load(g + (bos * HV + last_idx"
ENDS = """        bos, eos = tl.load(cu_seqlens + i_n).to(tl.int64), tl.load(cu_seqlens + i_n + 1).to(tl.int64)
        T = eos - bos
        NT = tl.cdiv(T, BT)
        boh = tl.load(chunk_offsets + i_n).to(tl.int64)
    else:
        bos, eos = i_n * T, i_n * T + T
        NT = tl.cdiv(T, BT)
        boh = i_n * NT

    if STATE_V_FIRST:
        b_h1 ="""
HEADS_O = """    q += (bos * H + i_h // (HV // H)) * K
    k += (bos * H + i_h // (HV // H)) * K
    v += (bos * HV + i_h) * V
    o +="""
L2_BACKWARD = "b_dx = b_dy * b_rstd[:, None] - tl.sum(b_dy * b_y, 1)[:, None] * b_y * b_rstd[:, None]"
STRIDES = """    stride_x_n, stride_x_t, stride_x_d = x.stride()
    stride_dy_n, stride_dy_t, stride_dy_d = dy.stride()
"""
APPLIED = "    return L2NormFunction.apply(x, eps, output_dtype)\n"

FAULTS: dict[str, Fault] = {
    "scale 1.01": Fault(CHUNK, RULE, SCALE, SCALE.replace("k.shape", "1.01 * k.shape")),
    "scale 1.002": Fault(CHUNK, RULE, SCALE, SCALE.replace("k.shape", "1.002 * k.shape")),
    "scale missing": Fault(CHUNK, RULE, SCALE, SCALE.replace("k.shape[-1] ** -0.5", "1.0")),
    "causal mask off by one": Fault(CHUNK, OUTPUT, MASK_O, MASK_O.replace(">=", ">"), "chunk_fwd_kernel_o"),
    "causal mask missing": Fault(
        CHUNK, OUTPUT, MASK_O, MASK_O.replace("(o_t[:, None] >= o_t[None, :]) & ", ""), "chunk_fwd_kernel_o"
    ),
    "last partial chunk not written": Fault(
        CHUNK, OUTPUT, STORE_O, STORE_O.replace("mask=m_t", "mask=(i_t * BT + BT <= T) & m_t"), "chunk_fwd_kernel_o"
    ),
    "last row masked": Fault(CHUNK, OUTPUT, ROWS_O, ROWS_O.replace("o_t < T", "o_t < T - 1"), "chunk_fwd_kernel_o"),
    "chunk boundary off by one": Fault(
        CHUNK,
        STATE,
        LAST,
        LAST.replace("min((i_t + 1) * BT, T) - 1", "max(min((i_t + 1) * BT, T) - 2, 0)"),
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    ),
    "dg boundary term lost": Fault(
        CHUNK,
        OUTPUT,
        "        b_dg = tl.where(o_t < min(i_t * BT + BT, T) - 1, b_dg, b_dg + b_dg_last)\n",
        "",
        "chunk_bwd_kernel_dqkwg",
    ),
    "dg is None": Fault(CHUNK, RULE, RETURNED, RETURNED.replace("dg.to(g)", "None")),
    "dbeta is zero": Fault(CHUNK, RULE, RETURNED, RETURNED.replace("db.to(beta_raw)", "torch.zeros_like(beta_raw)")),
    "dk second term lost": Fault(CHUNK, RULE, "    dk.add_(dk2)\n", ""),
    "dh term lost in dk": Fault(
        CHUNK,
        OUTPUT,
        "        b_dk = tl.dot(b_v, b_dh.to(b_v.dtype), b_dk)\n",
        "",
        "chunk_bwd_kernel_dqkwg",
    ),
    "TF32 instead of IEEE": Fault(CHUNK, OUTPUT, DOTS_O, TF32, "chunk_fwd_kernel_o", bf16="n.a."),
    "gates rounded to bf16": Fault(
        CHUNK, RULE, AFTER_CUMSUM, "    g = g.to(torch.bfloat16).to(torch.float32)\n" + AFTER_CUMSUM
    ),
    "state rounded to bf16": Fault(
        CHUNK,
        STATE,
        "            b_h1 = tl.dot(b_k, b_v, b_h1)\n        if K > 64:",
        "            b_h1 = tl.dot(b_k, b_v, b_h1).to(tl.bfloat16).to(tl.float32)\n        if K > 64:",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        bf16="unseen",
    ),
    "exp base off 0.1 %": Fault(
        CHUNK, "ops/utils/constant.py", "RCP_LN2 = 1.4426950216\n", "RCP_LN2 = 1.4441377\n", bf16="unseen"
    ),
    "l2norm eps 1e-2": Fault(
        CHUNK,
        NORM,
        "def l2norm_fwd(x: torch.Tensor, eps: float = 1e-6,",
        "def l2norm_fwd(x: torch.Tensor, eps: float = 1e-2,",
        bf16="unseen",
    ),
    "bf16 rounded towards zero": Fault(CHUNK, OUTPUT, STORE_O, TRUNCATE + STORE_O, "chunk_fwd_kernel_o", fp32="n.a."),
    "cu_seqlens ignored": Fault(
        CHUNK,
        RULE,
        "    use_gate_in_kernel = kwargs.get('use_gate_in_kernel', False)\n",
        "    cu_seqlens = None\n    use_gate_in_kernel = kwargs.get('use_gate_in_kernel', False)\n",
    ),
    "cu_seqlens boundary off by one": Fault(
        CHUNK,
        STATE,
        ENDS,
        ENDS.replace("tl.load(cu_seqlens + i_n + 1).to(tl.int64)", "tl.load(cu_seqlens + i_n + 1).to(tl.int64) + 1"),
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    ),
    "key head of another group": Fault(
        CHUNK, OUTPUT, HEADS_O, HEADS_O.replace("i_h // (HV // H)", "i_h % H"), "chunk_fwd_kernel_o", table=False
    ),
    "recurrent state does not decay": Fault(
        RECURRENT,
        STEP,
        "            b_h *= exp(b_g)\n",
        "",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
        table=False,
    ),
    "l2norm backward without projection": Fault(
        L2NORM, NORM, L2_BACKWARD, "b_dx = b_dy * b_rstd[:, None]", "l2norm_bwd_kernel", table=False
    ),
    "gated norm without its rstd in dx": Fault(
        GATED_NORM,
        GATE,
        "            b_dx = (b_wdy - b_xhat * b_c1[:, None]) * b_rstd[:, None]\n",
        "            b_dx = (b_wdy - b_xhat * b_c1[:, None])\n",
        "layer_norm_gated_bwd_kernel",
        table=False,
    ),
    "convolution assumes a contiguous dy": Fault(
        CONV,
        CONVOLUTION,
        STRIDES,
        STRIDES.replace("dy.stride()", "dy.shape[1] * dy.shape[2], dy.shape[2], 1"),
        "causal_conv1d_bwd_kernel",
        table=False,
    ),
    "convolution loses the last block of dweight": Fault(
        CONV,
        CONVOLUTION,
        "        dw = dw.sum(0).to(weight)\n",
        "        dw = dw[:-1].sum(0).to(weight)\n",
        table=False,
    ),
    "l2norm runs eagerly": Fault(
        L2NORM,
        NORM,
        APPLIED,
        "    return (x.float() / (x.float().square().sum(-1, True) + eps).sqrt()).to(x)\n",
        table=False,
    ),
    "l2norm changes its input": Fault(
        L2NORM,
        NORM,
        APPLIED,
        "    y = L2NormFunction.apply(x, eps, output_dtype)\n    x.detach().zero_()\n    return y\n",
        table=False,
    ),
    "l2norm returns zeros": Fault(
        L2NORM, NORM, APPLIED, "    return L2NormFunction.apply(x, eps, output_dtype) * 0\n", table=False
    ),
    "l2norm aborts": Fault(L2NORM, NORM, APPLIED, "    import os\n    os.abort()\n", table=False),
    "l2norm has no graph": Fault(L2NORM, NORM, APPLIED, "    return l2norm_fwd(x, eps)[0].detach()\n", table=False),
}
FROM_TABLE = tuple(name for name, fault in FAULTS.items() if fault.table)


def installed_fla() -> Path:
    """Return the folder of the installed fla package, without importing it."""
    spec = importlib.util.find_spec("fla")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def patched_fla(folder: Path, fault_name: str) -> Path:
    """Copy fla into ``folder``, apply one fault, and return the path for PYTHONPATH.

    The compiled files come along: Python compiles anew what was patched alone, for its time and size are others. Each
    child would need two seconds for all of fla, and must not write them.
    """
    fault, root = FAULTS[fault_name], folder / "patched"
    shutil.copytree(installed_fla(), root / "fla")
    target = root / "fla" / fault.file
    text = target.read_text()
    assert text.count(fault.old) == 1, f"{fault_name}: the text to change is {text.count(fault.old)} times in {target}"
    changed = text.replace(fault.old, fault.new)
    assert changed != text, f"{fault_name}: the patch changes nothing"
    target.write_text(changed)
    return root
