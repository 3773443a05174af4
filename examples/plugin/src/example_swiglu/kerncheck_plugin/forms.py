"""How inputs are drawn, how the op is called, what the truth is. Only kerncheck's children import this."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses

Tensors = dict[str, torch.Tensor]
Plan = dict[str, Any]
LARGE = 12.0  # sigmoid is 1 - 6e-6 there: a kernel that drops its derivative still looks right for small gates


def draw(plan: Plan, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    """Draw gate and up, [seeds, tokens, D]."""
    shape = (plan["seeds"], sum(plan["lengths"]), plan["sizes"]["D"])
    gate, up = (torch.randn(shape, generator=generator) for _ in range(2))
    return {"gate": (gate * LARGE if plan["regime"] == "large" else gate).to(dtype), "up": up.to(dtype)}


def call(function: Any, inputs: Tensors, _plan: Plan) -> Tensors:  # noqa: ANN401
    """Call the op that is judged."""
    return {"y": function(inputs["gate"], inputs["up"])}


def reference(inputs: Tensors, _plan: Plan) -> Tensors:
    """Compute the truth for inputs in fp64, by the definition of the sigmoid."""
    return {"y": inputs["gate"] / (1 + (-inputs["gate"]).exp()) * inputs["up"]}


def eager(inputs: Tensors, _plan: Plan) -> Tensors:
    """What a model computes without the kernel: fp32 inside, the result in the dtype of the inputs."""
    return {"y": (F.silu(inputs["gate"].float()) * inputs["up"].float()).to(inputs["gate"].dtype)}


FORMS = {
    "swiglu": {
        "axes": {"gate": "std", "up": "std", "y": "std"},
        "draw": draw,
        "call": call,
        "reference": reference,
        "eagers": (eager,),
        "batched": True,
    },
}
