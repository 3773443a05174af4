"""Run an op as jobs run it: under gradient checkpointing, autocast and torch.compile, after other boundaries.

Each context is compared with the plain run on the same inputs. Where a context only changes when and how often the op
runs, nothing may differ. Children only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kerncheck.kernels._forms import Form, Plan, Tensors
from kerncheck.kernels._fused import Fused, Run

Call = Callable[[Any, Tensors, Plan], Tensors]


def checkpointed(form: Form, _device: Any) -> Call:
    """Forget what the forward saved and compute it again in the backward, as activation checkpointing does."""

    def call(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
        found: Tensors = checkpoint(form.call, function, inputs, plan, use_reentrant=False)
        return found

    return call


def autocast(form: Form, device: Any) -> Call:
    """Run under torch.autocast to bf16, as mixed-precision training loops do."""

    def call(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
        with torch.autocast(device.TORCH_DEVICE, dtype=torch.bfloat16):
            return form.call(function, inputs, plan)

    return call


def compiled(form: Form, _device: Any) -> Call:
    """Run through torch.compile (backend aot_eager: the tracing is judged, not the code generator)."""

    def call(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
        return form.call(torch.compile(function, backend="aot_eager"), inputs, plan)

    return call


def turned(bounds: Tensor) -> Tensor:
    """Return the boundaries of the same sequences in reverse order: as many, and as many tokens."""
    return (bounds[-1] - bounds).flip(0)


def reused(form: Form, _device: Any) -> Call:
    """Run other boundaries, free them, and make the right ones: often at the same address, by which helpers are kept.

    Refilling one tensor in place is not tried: fla 0.6.0 keeps chunk indices by the tensor's identity, and with stale
    ones its kernels write out of bounds (seen in the interpreter: SIGABRT, a corrupted heap).
    """

    def call(function: Any, inputs: Tensors, plan: Plan) -> Tensors:
        def again(*args: Any, **kwargs: Any) -> Any:
            right = kwargs.pop("cu_seqlens")
            entries, kind, place = right.tolist(), right.dtype, right.device
            with torch.no_grad():
                function(*args, **kwargs, cu_seqlens=turned(right))
            return function(*args, **kwargs, cu_seqlens=torch.tensor(entries, dtype=kind, device=place))

        return form.call(again, inputs, plan)

    return call


CONTEXTS = {
    "gradient checkpointing": checkpointed,
    "autocast": autocast,
    "torch.compile": compiled,
    "cu_seqlens at a reused address": reused,
}


def observed(fused: Fused, inputs: Tensors, plan: Plan, weights: Tensors) -> list[dict[str, Any]]:
    """Run each context of the plan; return what it raised, or by how much each tensor differs from the plain run."""
    plain = fused.all(inputs, plan, weights)
    return [{"name": name, **one(name, fused, inputs, plan, weights, plain)} for name in plan["contexts"]]


def one(name: str, fused: Fused, inputs: Tensors, plan: Plan, weights: Tensors, plain: Run) -> dict[str, Any]:
    """Run one context."""
    form = dataclasses.replace(fused.form, call=CONTEXTS[name](fused.form, fused.device))
    try:
        run = Fused(form, fused.function, fused.device).all(inputs, plan, weights)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise  # says nothing about the op
        return {"raised": f"{type(error).__name__}: {error}"[:500]}
    if run.backward != plain.backward:
        return {"raised": f"backward: {run.error or run.backward}"}
    before, after = values(plain), values(run)
    sizes = {key: difference(x, after[key]) for key, x in before.items()}
    return {"differs": {key: size if math.isfinite(size) else None for key, size in sizes.items() if size}}


def values(run: Run) -> Tensors:
    """Return outputs and gradients by name."""
    outputs = {name: x if x is None else x.detach() for name, x in run.outputs.items()}
    return {**outputs, **{f"d{name}": x for name, x in run.gradients.items()}}


def difference(plain: Tensor | None, other: Tensor | None) -> float:
    """Return rms(other - plain) / rms(plain): 0 for the same numbers, infinite where one is absent or not finite."""
    if plain is None or other is None:
        return 0.0 if plain is other else math.inf
    if plain.shape != other.shape:
        return math.inf
    if torch.equal(plain, other):
        return 0.0
    wide = plain.double()
    size = float((other.double() - wide).square().mean().sqrt() / wide.square().mean().sqrt())
    return size if math.isfinite(size) else math.inf
