"""Softmax attention: torch's scaled_dot_product_attention, and flash-attn 2. Standard library only.

Compiled code, which Triton's interpreter cannot run: on the emulated device it is named as not judged, for torch's
kernels for the CPU say nothing of those for a GPU. No profile requires these ops yet: they are judged where no model is
named, or where one requires them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncheck.kernels import CellPlan, OpSpec

COMMON: dict[str, Any] = {
    "library": "cuda",
    "has_backward": True,
    "needs": ("torch",),
    "file": "attention",
    "code": "_attention_calls",
}
TORCH: dict[str, Any] = {
    **COMMON,
    "package": "torch",
    "import_name": "torch",
    "distributions": ("torch",),
    # Flash and cuDNN add dq up with atomics, the memory-efficient kernel all three (torch's notes on reproducibility).
    "unordered": ("dq", "dk", "dv"),
}
FLASH: dict[str, Any] = {
    **COMMON,
    "package": "flash-attn",
    "import_name": "flash_attn",
    "distributions": ("flash-attn",),
    "module_candidates": ("flash_attn.flash_attn_interface",),
    "extension": "flash_attn_2_cuda",
    # dq is added up with atomics unless deterministic=True (Dao-AILab/flash-attention#414, #988).
    "unordered": ("dq",),
}

SPECS = (
    OpSpec(
        id="torch.nn.functional:scaled_dot_product_attention",
        module_candidates=("torch._C._nn",),
        form="sdpa",
        **TORCH,
    ),
    OpSpec(id="flash_attn:flash_attn_func", form="flash_attention", **FLASH),
    OpSpec(id="flash_attn:flash_attn_varlen_func", form="flash_attention_varlen", **FLASH),
)

PACKED = (1, 3, 64, 127, 130)  # around the blocks of 64 and 128 queries
LONG = 2114  # over 2048 tokens, and no multiple of a block
REPEATS = 30  # sees a race that happens in one run of ten with 95 % (methods.md, 1.6)
PAST = 61  # keys before the first query, as while a prompt is continued from a cache
CAUSAL = {"causal": True}


def sizes_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Return head numbers and size of the model's full attention (those of Qwen3.5 where it names none)."""
    heads = int(config.get("num_attention_heads", 16))
    size = int(config.get("head_dim") or int(config.get("hidden_size", 4096)) // heads)
    return {"H": heads, "KV": int(config.get("num_key_value_heads") or heads), "D": size}


def with_torch(sizes: Mapping[str, int]) -> tuple[CellPlan, ...]:
    """Return the cells of torch's attention: each backend with what models ask of it."""
    cells = []
    for backend in ("flash", "efficient", "cudnn", "math"):
        options, first = {**CAUSAL, "backend": backend}, backend == "flash"
        cells += [
            CellPlan(f"{backend} if it can, causal", "plain", (150,), sizes, options=options, quick=first),
            CellPlan(f"{backend} if it can, peaked", "peaked", (130,), sizes, options=options, upstream="cat"),
            CellPlan(
                f"{backend} if it can, after other keys", "plain", (70,), {**sizes, "past": PAST}, options=options
            ),
        ]
        if backend != "math":
            cells.append(
                CellPlan(
                    f"{backend} if it can, long", "plain", (LONG,), sizes, seeds=1, options=options, repeats=REPEATS
                )
            )
    options = {**CAUSAL, "backend": "flash"}
    cells.append(CellPlan("not causal", "plain", (100,), sizes, options={"backend": "flash"}, upstream="sum"))
    cells.append(CellPlan("causality", "plain", (150,), sizes, seeds=1, options=options, cuts=(40, 130)))
    return tuple(cells)


def with_flash(form: str, sizes: Mapping[str, int]) -> tuple[CellPlan, ...]:
    """Return the cells of flash-attn 2: dense or packed."""
    if form == "flash_attention_varlen":
        return (
            CellPlan("packed, causal", "plain", PACKED, sizes, options=CAUSAL, repeats=REPEATS, quick=True),
            CellPlan("packed, peaked", "peaked", PACKED, sizes, options=CAUSAL, upstream="cat"),
            CellPlan("packed, not causal", "plain", PACKED, sizes, upstream="sum"),
            CellPlan("causality", "plain", (150,), sizes, seeds=1, options=CAUSAL, cuts=(40, 130)),
        )
    return (
        CellPlan("causal", "plain", (150,), sizes, options=CAUSAL, quick=True),
        CellPlan("peaked", "peaked", (130,), sizes, options=CAUSAL, upstream="cat"),
        CellPlan("after other keys", "plain", (70,), {**sizes, "past": PAST}, options=CAUSAL),
        CellPlan("long", "plain", (LONG,), sizes, seeds=1, options=CAUSAL, repeats=REPEATS),
        CellPlan("not causal", "plain", (100,), sizes, upstream="sum"),
        CellPlan("causality", "plain", (150,), sizes, seeds=1, options=CAUSAL, cuts=(40, 130)),
    )


def cells(form: str, _device: str, config: Mapping[str, Any]) -> tuple[CellPlan, ...]:
    """Return the cells of a form for a GPU."""
    sizes = sizes_of(config)
    return with_torch(sizes) if form == "sdpa" else with_flash(form, sizes)
