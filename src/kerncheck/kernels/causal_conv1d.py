"""causal-conv1d (Dao-AILab): a compiled CUDA extension. Standard library only; see ``_causal_conv1d_calls``."""

from __future__ import annotations

from typing import Any

from kerncheck.kernels import OpSpec

COMMON: dict[str, Any] = {
    "package": "causal-conv1d",
    "import_name": "causal_conv1d",
    "distributions": ("causal-conv1d",),
    "module_candidates": ("causal_conv1d.causal_conv1d_interface",),
    "library": "cuda",
    "extension": "causal_conv1d_cuda",
    "needs": ("torch",),
    "code": "_causal_conv1d_calls",
}

SPECS = (
    OpSpec(id="causal_conv1d:causal_conv1d_fn", has_backward=True, form="dao_conv", **COMMON),
    OpSpec(id="causal_conv1d:causal_conv1d_update", has_backward=False, form="dao_conv_update", **COMMON),
)
