"""flash-linear-attention: the ops that gated delta net models call. Standard library only; see ``_fla_calls``.

The ids were imported with fla 0.5.2 and 0.6.0 (2026-08): 0.6.0 moved the definitions and kept the old names.
"""

from __future__ import annotations

from typing import Any

from kerncheck.kernels import OpSpec

COMMON: dict[str, Any] = {
    "package": "flash-linear-attention",
    "import_name": "fla",
    "distributions": ("flash-linear-attention", "fla-core"),
    "library": "triton",
    "needs": ("torch", "triton", "einops"),
    "code": "_fla_calls",
}

SPECS = (
    OpSpec(
        id="fla.ops.gated_delta_rule:chunk_gated_delta_rule",
        module_candidates=("fla.ops.gated_delta_rule.chunk",),
        has_backward=True,
        form="chunk_delta_rule",
        **COMMON,
    ),
    OpSpec(
        id="fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule",
        module_candidates=("fla.ops.gated_delta_rule.fused_recurrent",),
        has_backward=False,
        form="recurrent_delta_rule",
        **COMMON,
    ),
    OpSpec(
        id="fla.modules.l2norm:l2norm",
        module_candidates=("fla.modules.norm.l2norm", "fla.modules.l2norm"),
        has_backward=True,
        form="l2norm",
        **COMMON,
    ),
    OpSpec(
        id="fla.modules:FusedRMSNormGated",
        module_candidates=("fla.modules.norm.fused_norm_gate", "fla.modules.fused_norm_gate"),
        has_backward=True,
        form="gated_rms_norm",
        **COMMON,
    ),
    OpSpec(
        id="fla.modules.conv:causal_conv1d",
        module_candidates=("fla.modules.causal_conv1d.ops", "fla.modules.conv.causal_conv1d"),
        has_backward=True,
        form="fla_conv",
        **COMMON,
    ),
)
