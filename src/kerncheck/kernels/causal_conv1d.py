"""causal-conv1d (Dao-AILab): a compiled CUDA extension. Standard library only; see ``_causal_conv1d_calls``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncheck.kernels import CellPlan, OpSpec

COMMON: dict[str, Any] = {
    "package": "causal-conv1d",
    "import_name": "causal_conv1d",
    "distributions": ("causal-conv1d",),
    "module_candidates": ("causal_conv1d.causal_conv1d_interface",),
    "library": "cuda",
    "extension": "causal_conv1d_cuda",
    "needs": ("torch",),
    "file": "causal_conv1d",
    "code": "_causal_conv1d_calls",
    # csrc/causal_conv1d_bwd.cu adds these up with atomics unless torch asks for deterministic algorithms.
    "unordered": ("dweight", "dbias"),
}

SPECS = (
    OpSpec(id="causal_conv1d:causal_conv1d_fn", has_backward=True, form="dao_conv", **COMMON),
    OpSpec(id="causal_conv1d:causal_conv1d_update", has_backward=False, form="dao_conv_update", **COMMON),
)

PACKED = (1, 3, 64, 65, 130)
LONG = 2114  # over 2048 tokens, and no multiple of the kernel's block
REPEATS = 30  # sees a race that happens in one run of ten with 95 % (methods.md, 1.6)


def channels(config: Mapping[str, Any]) -> dict[str, int]:
    """Return channels and width of the model's convolution over queries, keys and values (Qwen3.5's as defaults).

    Kimi Linear and its like name one number and one size for all heads.
    """
    number, size = config.get("linear_num_heads"), config.get("linear_head_dim", 128)
    keys = int(config.get("linear_num_key_heads", number or 16)) * int(config.get("linear_key_head_dim", size))
    values = int(config.get("linear_num_value_heads", number or 32)) * int(config.get("linear_value_head_dim", size))
    return {"D": 2 * keys + values, "W": int(config.get("linear_conv_kernel_dim", 4))}


def cells(form: str, _device: str, config: Mapping[str, Any]) -> tuple[CellPlan, ...]:
    """Return the cells of a form for a GPU: bias None and silu as Qwen3.5 calls it, and each other way once."""
    sizes = channels(config)
    plain, packed = {"activation": True, "states": False}, {"activation": True, "states": False, "packed": True}
    stateful = {"activation": True, "states": True, "state": sizes["W"] - 1}
    if form == "dao_conv_update":
        state = {"activation": True, "states": True, "state": sizes["W"]}
        return (
            CellPlan(
                "one token",
                "plain",
                (1,),
                sizes,
                seeds=8,
                initial_state=True,
                options=state,
                repeats=REPEATS,
                quick=True,
            ),
            CellPlan(
                "one token, bias", "plain", (1,), sizes, seeds=8, initial_state=True, options={**stateful, "bias": True}
            ),
        )
    return (
        CellPlan("a slice of a concatenation", "plain", (LONG,), sizes, upstream="cat", options=plain, repeats=REPEATS),
        CellPlan("packed", "plain", PACKED, sizes, options=packed, quick=True),
        CellPlan(
            "summed, bias", "plain", (150,), sizes, upstream="sum", options={**plain, "bias": True, "activation": False}
        ),
        CellPlan("with states", "plain", (70,), sizes, initial_state=True, options=stateful),
        CellPlan("causality", "plain", (150,), sizes, seeds=1, cuts=(3, 66), options=plain),
    )
