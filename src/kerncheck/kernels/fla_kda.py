"""flash-linear-attention: Kimi delta attention, which Kimi Linear, GLM 5 (next) and Bailing hybrid models call.

Standard library only; see ``_fla_kda_calls``. The ids were imported with fla 0.6.0; they are those of the seams of
transformers 5.24.0 (matrices/transformers.toml).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncheck.kernels import CellPlan, OpSpec
from kerncheck.kernels.fla import (
    AS_TRAINED,
    IN_JOBS,
    LEAST,
    ONCE,
    PACKED,
    PACKED_TWICE,
    PAIR,
    REPEATS,
    TRACED,
    WIDE,
    long_enough,
)
from kerncheck.kernels.fla import COMMON as FLA

COMMON: dict[str, Any] = {**FLA, "file": "fla_kda", "code": "_fla_kda_calls"}
SPECS = (
    OpSpec(
        id="fla.ops.kda:chunk_kda",
        module_candidates=("fla.ops.kda.chunk",),
        has_backward=True,
        form="chunk_kda",
        **COMMON,
    ),
    OpSpec(
        id="fla.ops.kda:fused_recurrent_kda",
        module_candidates=("fla.ops.kda.fused_recurrent",),
        has_backward=False,
        form="recurrent_kda",
        **COMMON,
    ),
)

SMALL = {"H": 2, "HV": 2, "K": 32, "V": 32}  # the models have as many key heads as value heads
TINY = {**SMALL, "K": 16, "V": 16}
ODD = {"H": 1, "HV": 2, "K": 20, "V": 36}
LOW_GATE = {"low_gate": True}

# chunk_kda_fwd_kernel_intra_token_parallel has a program for each token, of 14 ms in the interpreter: lengths are as
# short as power allows (blocks of 16, chunks of 64), and some regimes run in one lane only. From configuration 1 on a
# program takes several heads at once.
EMULATED = {
    "chunk_kda": (
        CellPlan("weak gates", "weak", (130,), SMALL, configuration=1, wide=WIDE, quick=True, short=(67,)),
        CellPlan("weak gates, packed", "weak", (1, 17, 66), SMALL, configuration=2, initial_state=True, wide=WIDE),
        CellPlan(
            "model gates, packed",
            "model",
            (15, 66),
            SMALL,
            configuration=3,
            options=AS_TRAINED,
            wide=WIDE,
            lanes=("bf16",),
        ),
        CellPlan("extreme gates", "extreme", (66,), SMALL, configuration=1, wide=WIDE, lanes=("fp32",)),
        CellPlan("bounded gates", "bounded", (64,), SMALL, configuration=1, options=LOW_GATE, wide=WIDE),
        CellPlan("edge values", "edge", (40,), SMALL, configuration=1, wide=WIDE, lanes=("fp32",)),
        CellPlan("odd sizes", "weak", (20,), ODD, seeds=2, upstream="sum", wide=WIDE),
        CellPlan("causality", "weak", (70,), SMALL, seeds=1, configuration=1, cuts=(20, 66), lanes=("fp32",)),
        CellPlan(IN_JOBS, "weak", PAIR, LEAST, seeds=1, contexts=(*ONCE, PACKED_TWICE), lanes=("fp32",)),
    ),
    "recurrent_kda": (
        CellPlan("one token", "model", (1,), SMALL, initial_state=True, quick=True),
        CellPlan("weak gates, packed", "weak", (1, 3, 17), {**TINY, "V": 20}, initial_state=True),
        CellPlan("bounded gates", "bounded", (19,), {**TINY, "H": 1, "K": 30}, options=LOW_GATE),
        CellPlan("edge values", "edge", (18,), TINY, initial_state=True),
        CellPlan("causality", "weak", (16,), TINY, seeds=1, cuts=(5,)),
    ),
}


def heads(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the head numbers and sizes of the model's linear attention (those of Kimi Linear where it names none)."""
    number, size = int(config.get("linear_num_heads", 32)), int(config.get("linear_head_dim", 128))
    return {"H": number, "HV": number, "K": size, "V": size}


def measured(form: str, config: Mapping[str, Any]) -> tuple[CellPlan, ...]:
    """Return the cells for a GPU: the model's head sizes, one case at the size of a training step, repeats."""
    sizes = heads(config)
    if form == "recurrent_kda":
        return (
            CellPlan("one token", "model", (1,), sizes, initial_state=True, repeats=REPEATS, quick=True),
            CellPlan("weak gates, packed", "weak", (1, 3, 64), sizes, initial_state=True),
            CellPlan("bounded gates", "bounded", (70,), sizes, options=LOW_GATE),
            CellPlan("causality", "weak", (70,), sizes, seeds=1, cuts=(40,)),
        )
    return (
        CellPlan("weak gates, packed", "weak", PACKED, sizes, initial_state=True, repeats=REPEATS, quick=True),
        CellPlan("weak gates, long", "weak", (long_enough(sizes),), sizes, seeds=1, repeats=REPEATS, quick=True),
        CellPlan("model gates, packed", "model", PACKED, sizes, options=AS_TRAINED),
        CellPlan("extreme gates, packed", "extreme", PACKED, sizes),
        CellPlan("bounded gates", "bounded", (150,), sizes, options=LOW_GATE),
        CellPlan("edge values", "edge", (150,), sizes, upstream="sum"),
        CellPlan("causality", "weak", (150,), sizes, seeds=1, cuts=(40, 70)),
        CellPlan(IN_JOBS, "weak", PACKED, sizes, seeds=1, contexts=(*ONCE, TRACED, PACKED_TWICE)),
    )


def cells(form: str, device: str, config: Mapping[str, Any]) -> tuple[CellPlan, ...]:
    """Return the cells of a form for a device."""
    return EMULATED[form] if device == "emulate" else measured(form, config)
