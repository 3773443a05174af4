"""Faults in kernels beside the gated delta rule's: one wrong line each, on a copy of the installed package.

Like ``fla_patches``, whose faults ``nox -s power`` tries; these are tried by ``benchmarks/power_more.py``.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from fla_patches import Fault

KDA = "fla.ops.kda:chunk_kda"
STEP = "fla.ops.kda:fused_recurrent_kda"
NORM = "liger_kernel.ops:LigerRMSNormFunction"
SWIGLU = "liger_kernel.ops:LigerSiLUMulFunction"
ENTROPY = "liger_kernel.ops:LigerCrossEntropyFunction"

FAULTS: dict[str, Fault] = {
    "kda scale 1.01": Fault(
        KDA, "ops/kda/chunk.py", "        scale = K ** -0.5\n", "        scale = 1.01 * K ** -0.5\n"
    ),
    "kda gates rounded to bf16": Fault(
        KDA,
        "ops/kda/chunk_fwd.py",
        "    # qg = None if disable_recompute is False\n",
        "    g = g.to(torch.bfloat16).to(torch.float32)\n",
    ),
    "kda loses its last decay in dg": Fault(
        KDA,
        "ops/kda/chunk_bwd.py",
        "b_q * b_dq - b_kdk + m_last[:, None] * b_dgk + b_kg",
        "b_q * b_dq - b_kdk + b_kg",
        "chunk_kda_bwd_kernel_wy_dqkg_fused",
    ),
    "kda loses the keys' share between blocks": Fault(
        KDA,
        "ops/kda/chunk_intra.py",
        "            b_dkt = tl.dot(b_dAkk, b_kbg, b_dkt)\n",
        "",
        "chunk_kda_bwd_kernel_intra",
    ),
    "kda decays between blocks from the wrong token": Fault(
        KDA,
        "ops/kda/chunk_intra.py",
        "            b_Aqk10 = tl.dot(b_q1 * b_gqn, b_kgt, b_Aqk10)\n",
        "            b_Aqk10 = tl.dot(b_q1, b_kgt, b_Aqk10)\n",
        "chunk_kda_fwd_kernel_inter_solve_fused",
    ),
    "kda step does not scale": Fault(
        STEP, "ops/kda/fused_recurrent.py", "        b_q = b_q * scale\n", "", "fused_recurrent_kda_fwd_kernel"
    ),
    "kda step does not decay": Fault(
        STEP,
        "ops/kda/fused_recurrent.py",
        "            b_h *= exp(b_gk[:, None])\n",
        "            b_h *= 1.0\n",
        "fused_recurrent_kda_fwd_kernel",
    ),
    "liger norm without its projection in dx": Fault(
        NORM,
        "ops/rms_norm.py",
        "        dX_row += (rstd_row) * (-(1 / n_cols) * rstd_row * rstd_row * tl.sum(m * X_row, axis=0) * X_row)\n",
        "",
        "_rms_norm_backward_kernel",
    ),
    "liger norm ignores the offset": Fault(
        NORM,
        "ops/rms_norm.py",
        "        Y_row = X_row * (offset + W_row)\n",
        "        Y_row = X_row * W_row\n",
        "_rms_norm_forward_kernel",
    ),
    "liger norm eps 1e-5": Fault(
        NORM,
        "ops/rms_norm.py",
        "    rstd = rsqrt(mean_square + eps)\n\n    # We can save time by caching rms with minimal memory overhead\n"
        "    # because rms is much smaller compared to X_row, as rms is for each row.\n"
        "    # However, on the computation side, it can save 4 operations (*, sum, /, sqrt).\n"
        "    tl.store(rstd_base, rstd)\n",
        "    rstd = rsqrt(mean_square + 1e-5)\n    tl.store(rstd_base, rstd)\n",
        "_rms_norm_forward_kernel",
    ),
    "liger swiglu with another activation": Fault(
        SWIGLU,
        "ops/swiglu.py",
        "    return x * tl.sigmoid(x)\n",
        "    return x * tl.sigmoid(1.1 * x)\n",
        "_swiglu_forward_kernel",
    ),
    "liger swiglu swaps its gradients": Fault(
        SWIGLU, "ops/swiglu.py", "        return a, b, None, None\n", "        return b, a, None, None\n"
    ),
    "liger entropy counts ignored targets": Fault(
        ENTROPY,
        "ops/cross_entropy.py",
        "    n_non_ignore = target_mask.sum().item()\n",
        "    n_non_ignore = target.numel()\n",
    ),
    "liger entropy loses the target's gradient": Fault(
        ENTROPY,
        "ops/cross_entropy.py",
        "            dx_y += -(1 - label_smoothing)\n",
        "",
        "liger_cross_entropy_kernel",
    ),
    "liger entropy writes no gradient of the last word": Fault(
        ENTROPY,
        "ops/cross_entropy.py",
        "            tl.store(X_ptr + X_offsets, X_block, mask=X_offsets < n_cols)\n",
        "            tl.store(X_ptr + X_offsets, X_block, mask=X_offsets < n_cols - 1)\n",
        "liger_cross_entropy_kernel",
    ),
}


def installed(package: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def patched(folder: Path, name: str) -> Path:
    """Copy the fault's package into ``folder``, apply the fault, and return the path for PYTHONPATH."""
    package = FAULTS[name].op.partition(".")[0]
    root = folder / "patched"
    shutil.copytree(installed(package), root / package)
    return apply(root, name)


def apply(root: Path, name: str) -> Path:
    """Apply a fault to a copy that lies under ``root`` already; return ``root``."""
    fault = FAULTS[name]
    target = root / fault.op.partition(".")[0] / fault.file
    text = target.read_text()
    assert text.count(fault.old) == 1, f"{name}: the text to change is {text.count(fault.old)} times in {target}"
    target.write_text(text.replace(fault.old, fault.new))
    return root
