"""What the probe needs to know about a form of op: how to draw, to call, to compute the truth. Children only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tensors = dict[str, Any]
Plan = dict[str, Any]


def nothing(_outputs: Tensors, _upstream: Tensors, _plan: Plan) -> Tensors:
    """Tell that no gradient of this form has a true value that cancels."""
    return {}


def as_drawn(weights: Tensors) -> Tensors:
    """Leave the upstream gradients as they were drawn."""
    return weights


@dataclass(frozen=True)
class Form:
    """One form of op. All tensors have a leading axis of seeds; shapes are those of the reference.

    ``axes`` names the axes of each tensor, inputs and outputs (see ``_errors.arranged``). ``call`` takes the imported
    op, the inputs and the plan, and returns the outputs; ``batched`` says that it takes all seeds in one call (else it
    is called with one seed at a time). ``contract`` is ``io`` where the kernel rounds the operands of its matrix
    products to the dtype of its inputs, ``ieee`` where it computes in fp32. ``states`` names outputs that are states,
    ``fp32`` the tensors that stay fp32 in a 16-bit lane, ``constant`` inputs that have no gradient.
    ``operators`` are names of torch's own operators that count as launches where the kernels are torch's. ``weigh``
    may change the upstream gradients. Of several ``eagers`` the largest error is the yardstick.
    """

    axes: dict[str, str]
    draw: Callable[[Plan, Any, Any], Tensors]
    call: Callable[[Any, Tensors, Plan], Tensors]
    reference: Callable[[Tensors, Plan], Tensors]
    eagers: tuple[Callable[[Tensors, Plan], Tensors], ...]
    natural: Callable[[Tensors, Tensors, Plan], Tensors] = nothing
    batched: bool = False
    contract: str = "ieee"
    states: tuple[str, ...] = ()
    fp32: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    weigh: Callable[[Tensors], Tensors] = as_drawn
