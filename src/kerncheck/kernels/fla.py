"""flash-linear-attention: the ops that gated delta net models call. Standard library only; see ``_fla_calls``.

The ids were imported with fla 0.5.2 and 0.6.0 (2026-08): 0.6.0 moved the definitions and kept the old names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kerncheck.kernels import CellPlan, OpSpec

COMMON: dict[str, Any] = {
    "package": "flash-linear-attention",
    "import_name": "fla",
    "distributions": ("flash-linear-attention", "fla-core"),
    "library": "triton",
    "needs": ("torch", "triton", "einops"),
    "file": "fla",
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

PACKED = (1, 3, 64, 65, 130)
"""Packed lengths that give power (methods.md, 1.3): one token, under and over a chunk of 64, three chunks."""
ONE = 150  # two chunks and a part of a third
TWO = 70  # one chunk and a part of a second
SMALL = {"H": 1, "HV": 2, "K": 32, "V": 32}
ODD = {"H": 2, "HV": 4, "K": 60, "V": 100}  # neither is a power of two, and two value heads share a key head
BROAD = {"H": 1, "HV": 1, "K": 200, "V": 20}  # more than three blocks of 64 keys, each of which has code of its own
SILU = {"activation": True}
WIDE = 12  # further seeds for the eager yardstick (see kernels/_observe.py)
AS_TRAINED = {"states": False}  # a training step asks for no final state

ONCE = ("gradient checkpointing", "autocast")
PACKED_TWICE = "cu_seqlens at a reused address"
TRACED = "torch.compile"  # on a GPU only: Triton's interpreter is not what it would trace
IN_JOBS = "as jobs run it"
LEAST = {"H": 1, "HV": 1, "K": 16, "V": 16}
PAIR = (3, 65)  # turned around, the second layout has other chunks

EMULATED = {
    "chunk_delta_rule": (
        CellPlan("weak gates", "weak", (ONE,), SMALL, wide=WIDE, quick=True, short=(TWO,)),
        CellPlan("weak gates, packed", "weak", PACKED, SMALL, configuration=1, initial_state=True, wide=WIDE),
        CellPlan("model gates, packed", "model", PACKED, SMALL, configuration=2, options=AS_TRAINED, wide=WIDE),
        CellPlan("extreme gates, packed", "extreme", PACKED[:4], SMALL, wide=WIDE),
        CellPlan("edge values", "edge", (70,), SMALL, wide=WIDE),
        CellPlan("odd sizes", "weak", (70,), ODD, seeds=2, configuration=2, upstream="sum", wide=WIDE),
        # fp32 alone: in bf16 the last block of dg has two tokens, whose rounding two seeds cannot tell from an error
        # (of 20 null seeds one lay at 1.05 of its limit, two more above 0.85)
        CellPlan("wide keys", "weak", (66,), BROAD, seeds=2, wide=WIDE, lanes=("fp32",)),
        CellPlan("causality", "weak", (100,), SMALL, seeds=1, cuts=(40, 70)),
        CellPlan(IN_JOBS, "weak", PAIR, LEAST, seeds=1, contexts=(*ONCE, PACKED_TWICE), lanes=("fp32",)),
    ),
    "recurrent_delta_rule": (
        CellPlan("weak gates, packed", "weak", (1, 3, 17), {**SMALL, "K": 16, "V": 20}, initial_state=True, quick=True),
        CellPlan("model gates", "model", (19,), {**SMALL, "K": 30, "V": 16}),
        CellPlan("edge values", "edge", (18,), {**SMALL, "K": 16, "V": 16}, initial_state=True),
        CellPlan("short rows", "short", (12,), {**SMALL, "K": 16, "V": 16}),
        CellPlan("causality", "weak", (16,), {**SMALL, "K": 16, "V": 16}, seeds=1, cuts=(5,)),
    ),
    "l2norm": (
        CellPlan("short rows", "small", (67,), {"H": 2, "D": 60}, quick=True),
        CellPlan("summed", "plain", (40,), {"H": 2, "D": 32}, configuration=2, upstream="sum"),
        CellPlan(IN_JOBS, "plain", (5,), {"H": 2, "D": 32}, seeds=1, contexts=ONCE, lanes=("fp32",)),
    ),
    "gated_rms_norm": (
        CellPlan("short rows", "small", (67,), {"D": 60}, quick=True),
        CellPlan("summed", "plain", (40,), {"D": 32}, configuration=1, upstream="sum"),
        CellPlan(IN_JOBS, "plain", (5,), {"D": 32}, seeds=1, contexts=ONCE, lanes=("fp32",)),
    ),
    "fla_conv": (
        CellPlan(
            "a slice of a concatenation", "plain", (70,), {"D": 20, "W": 4}, upstream="cat", options=SILU, quick=True
        ),
        CellPlan("summed", "plain", (70,), {"D": 40, "W": 4}, configuration=1, upstream="sum", options={"bias": True}),
        CellPlan(
            "packed, with states",
            "plain",
            (1, 2, 5, 64, 65),
            {"D": 20, "W": 4},
            configuration=1,
            initial_state=True,
            options=SILU,
        ),
        CellPlan("a batch", "plain", (35, 35), {"D": 20, "W": 4}, initial_state=True, options={**SILU, "batch": True}),
        CellPlan("with a residual", "plain", (3, 66), {"D": 20, "W": 4}, options={**SILU, "residual": True}),
        CellPlan("causality", "plain", (70,), {"D": 20, "W": 4}, seeds=1, cuts=(3, 66), options=SILU),
        CellPlan(
            IN_JOBS,
            "plain",
            PAIR,
            {"D": 20, "W": 4},
            seeds=1,
            contexts=(*ONCE, PACKED_TWICE),
            options=SILU,
            lanes=("fp32",),
        ),
    ),
}

LONG = 2114
"""Over 2048 tokens, in 34 chunks: with 32 heads over 1024 blocks, from which on fla#913 gave NaN. Not a multiple of
the chunk."""
REPEATS = 30  # sees a race that happens in one run of ten with 95 % (methods.md, 1.6)


def heads(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the head numbers and sizes of the model's linear attention (those of Qwen3.5 where it names none)."""
    return {
        "H": int(config.get("linear_num_key_heads", 16)),
        "HV": int(config.get("linear_num_value_heads", 32)),
        "K": int(config.get("linear_key_head_dim", 128)),
        "V": int(config.get("linear_value_head_dim", 128)),
    }


def long_enough(sizes: Mapping[str, int]) -> int:
    """Return a length of at least LONG that launches at least 1024 blocks (a block for each chunk of 64 and head)."""
    chunks = -(-1024 // sizes["HV"])
    return max(LONG, 64 * chunks + 2)


def measured(form: str, config: Mapping[str, Any]) -> tuple[CellPlan, ...]:
    """Return the cells for a GPU: the model's head sizes, one case at the size of a training step, repeats."""
    sizes = heads(config)
    rows = {"H": sizes["HV"], "D": sizes["V"]}
    conv = {
        "D": 2 * sizes["H"] * sizes["K"] + sizes["HV"] * sizes["V"],
        "W": int(config.get("linear_conv_kernel_dim", 4)),
    }
    plans = {
        "chunk_delta_rule": (
            CellPlan("weak gates, packed", "weak", PACKED, sizes, initial_state=True, repeats=REPEATS, quick=True),
            CellPlan("weak gates, long", "weak", (long_enough(sizes),), sizes, seeds=1, repeats=REPEATS, quick=True),
            CellPlan("model gates, packed", "model", PACKED, sizes, options=AS_TRAINED),
            CellPlan("extreme gates, packed", "extreme", PACKED, sizes),
            CellPlan("edge values", "edge", (ONE,), sizes, upstream="sum"),
            CellPlan("causality", "weak", (ONE,), sizes, seeds=1, cuts=(40, 70)),
            CellPlan(IN_JOBS, "weak", PACKED, sizes, seeds=1, contexts=(*ONCE, TRACED, PACKED_TWICE)),
        ),
        "recurrent_delta_rule": (
            CellPlan("weak gates, packed", "weak", (1, 3, 64), sizes, initial_state=True, repeats=REPEATS, quick=True),
            CellPlan("model gates", "model", (ONE,), sizes),
            CellPlan("causality", "weak", (ONE,), sizes, seeds=1, cuts=(40,)),
        ),
        "l2norm": (
            CellPlan("short rows", "small", (LONG,), rows, repeats=REPEATS, quick=True),
            CellPlan(IN_JOBS, "plain", (ONE,), rows, seeds=1, contexts=(*ONCE, TRACED)),
        ),
        "gated_rms_norm": (
            CellPlan("short rows", "small", (LONG,), {"D": sizes["V"]}, repeats=REPEATS, quick=True),
            CellPlan(IN_JOBS, "plain", (ONE,), {"D": sizes["V"]}, seeds=1, contexts=ONCE),
        ),
        "fla_conv": (
            CellPlan(
                "a slice of a concatenation", "plain", (LONG,), conv, upstream="cat", options=SILU, repeats=REPEATS
            ),
            CellPlan("summed", "plain", (ONE,), conv, upstream="sum", options=SILU, quick=True),
            CellPlan("packed, with states", "plain", PACKED, conv, initial_state=True, options=SILU),
            CellPlan("causality", "plain", (ONE,), conv, seeds=1, cuts=(3, 66), options=SILU),
            CellPlan(IN_JOBS, "plain", PACKED, conv, seeds=1, contexts=(*ONCE, TRACED, PACKED_TWICE), options=SILU),
        ),
    }
    return (*plans[form], *walked(form, sizes, conv))


CONFIGURATIONS = {"chunk_delta_rule": 25, "l2norm": 25, "gated_rms_norm": 9, "fla_conv": 64}
"""The most that a kernel of the op offers its autotuner: fla 0.6.0 for sm_90, docs/compile-ahead-tables.md."""


def walked(form: str, sizes: Mapping[str, int], conv: Mapping[str, int]) -> list[CellPlan]:
    """Return a short cell for each autotune configuration: any of them may be the fastest, or seem so once."""
    plan = {
        "chunk_delta_rule": CellPlan("", "weak", (TWO,), sizes, seeds=2),
        "l2norm": CellPlan("", "small", (TWO,), {"H": sizes["HV"], "D": sizes["V"]}, seeds=2),
        "gated_rms_norm": CellPlan("", "small", (TWO,), {"D": sizes["V"]}, seeds=2),
        "fla_conv": CellPlan("", "plain", (TWO,), conv, seeds=2, options=SILU),
    }
    count = CONFIGURATIONS.get(form, 0)
    return [replace(plan[form], name=f"configuration {n}", configuration=n) for n in range(1, count + 1)]


def cells(form: str, device: str, config: Mapping[str, Any]) -> tuple[CellPlan, ...]:
    """Return the cells of a form for a device."""
    return EMULATED[form] if device == "emulate" else measured(form, config)
