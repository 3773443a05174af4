"""liger-kernel: RMS norm, SwiGLU and cross entropy. Standard library only; see ``_liger_calls``.

The ids are the autograd functions that Liger's modules and patches call; they were imported with liger-kernel 0.8.5. A
model needs them only where somebody patches it: no profile and no seam requires them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncheck.kernels import CellPlan, OpSpec

COMMON: dict[str, Any] = {
    "package": "liger-kernel",
    "import_name": "liger_kernel",
    "distributions": ("liger-kernel", "liger-kernel-nightly"),
    "library": "triton",
    "has_backward": True,
    "needs": ("torch", "triton"),
    "file": "liger",
    "code": "_liger_calls",
}

SPECS = (
    OpSpec(
        id="liger_kernel.ops:LigerRMSNormFunction",
        module_candidates=("liger_kernel.ops.rms_norm",),
        form="rms_norm",
        **COMMON,
    ),
    OpSpec(
        id="liger_kernel.ops:LigerSiLUMulFunction",
        module_candidates=("liger_kernel.ops.swiglu",),
        form="swiglu",
        **COMMON,
    ),
    OpSpec(
        id="liger_kernel.ops:LigerCrossEntropyFunction",
        module_candidates=("liger_kernel.ops.cross_entropy",),
        form="cross_entropy",
        backward_launches=False,
        **COMMON,
    ),
)

GEMMA = {"casting": "gemma", "offset": 1.0}  # LigerRMSNormForQwen3Next, which the patch of Qwen3.5 takes
LLAMA = {"casting": "llama", "offset": 0.0}  # LigerRMSNorm, which the patch of Qwen3 and Llama takes
MEAN, EACH, SUM = ({"reduction": name} for name in ("mean", "none", "sum"))
LONG = 2114  # over 2048 tokens, as in a training step
REPEATS = 30  # sees a race that happens in one run of ten with 95 % (methods.md, 1.6)


def plans(sizes: Mapping[str, Mapping[str, int]], long: int, repeats: int) -> dict[str, tuple[CellPlan, ...]]:
    """Return the cells of each form: ``long`` tokens in the first, whose repeats count; sizes are per form.

    Widths are powers of two where the gradient is expanded, and none elsewhere.
    """
    rows, wide, words = sizes["rms_norm"], sizes["swiglu"], sizes["cross_entropy"]
    return {
        "rms_norm": (
            CellPlan("as in Qwen3.5", "small", (long,), rows, options=GEMMA, repeats=repeats, quick=True, wide=12),
            CellPlan("as in Llama", "small", (70,), rows, options=LLAMA, wide=12),
            CellPlan("summed", "plain", (33,), {"D": 64}, options=GEMMA, upstream="sum"),
        ),
        "swiglu": (
            CellPlan("plain", "plain", (long,), wide, repeats=repeats, quick=True),
            CellPlan("summed", "plain", (33,), {"D": 64}, upstream="sum"),
            CellPlan("a slice of a concatenation", "plain", (33,), wide, upstream="cat"),
        ),
        "cross_entropy": (
            CellPlan("mean", "plain", (long,), words, options=MEAN, repeats=repeats, quick=True, wide=12),
            CellPlan("each token", "sharp", (40,), words, options=EACH, wide=12),
            CellPlan("summed", "plain", (33,), {"V": 128}, options=SUM, upstream="sum", wide=12),
        ),
    }


EMULATED = plans({"rms_norm": {"D": 60}, "swiglu": {"D": 100}, "cross_entropy": {"V": 300}}, 70, 0)


def cells(form: str, device: str, config: Mapping[str, Any]) -> tuple[CellPlan, ...]:
    """Return the cells of a form for a device; on a GPU with the widths of the model (those of Qwen3.5 as defaults).

    Of a large vocabulary 32,003 words are enough: the kernel walks it in blocks of 32,768 at most, and more would need
    gigabytes for the truth. So two blocks of it are walked with 65,539.
    """
    if device == "emulate":
        return EMULATED[form]
    sizes = {
        "rms_norm": {"D": int(config.get("hidden_size", 4096))},
        "swiglu": {"D": int(config.get("intermediate_size", 12288))},
        "cross_entropy": {"V": 65539 if int(config.get("vocab_size", 248320)) > 65539 else 32003},
    }
    return plans(sizes, LONG if form != "cross_entropy" else 514, REPEATS)[form]
