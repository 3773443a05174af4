"""Stand between a model and the functions bound at its seams, without changing which ones are bound.

What transformers bound lies in a closure cell; a wrapper put there receives exactly the arguments that the bound
function would have received, since the decorator goes on choosing them by the signature of what it bound. Where a
seam has no such cell (a hub kernel, or somebody replaced the function), the module's global is wrapped instead. Before
5.15 the layers themselves keep the function, or a module of the op's class: these are wrapped.
Attention goes through a mapping from the configuration's ``_attn_implementation`` to a function.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kerncheck.compat import flag_seams
from kerncheck.compat import transformers_seams as seams

__all__ = ["ATTENTION", "Around", "Bound", "bound_seams", "interposed"]

ATTENTION = "attention"


@dataclass(frozen=True)
class Bound:
    """What is bound at one seam: the op's id and name, hub/package/standin/eager/replaced, and the function.

    ``parameters`` are the arguments that reach it; ``target`` is its dotted name.
    """

    op: str
    name: str
    kind: str
    call: Any
    target: str
    parameters: tuple[str, ...] = ()


Around = Callable[[Bound, Callable[..., Any]], Callable[..., Any]]


def model_seams(model: Any) -> list[seams.Seam]:
    """Return the seams in the modelling code of a model's modules."""
    return seams.seams_of(seams.modules_behind({type(module) for module in model.modules()}))


def described(seam: seams.Seam) -> Bound:
    """Return what one seam is bound to."""
    kind, target = seams.bound_to(seam)
    parameters = tuple(seams.accepted(seam, target))
    return Bound(seam.op, seam.declared.function, kind, target, seams.dotted(target), parameters)


def bound_seams(model: Any) -> list[Bound]:
    """Return what each seam of a model is bound to."""
    return [described(seam) for seam in model_seams(model)]


@contextlib.contextmanager
def interposed(model: Any, around: Around) -> Iterator[None]:
    """Let the model call ``around(bound, function)`` in the place of each bound function while the block runs."""
    with contextlib.ExitStack() as stack:
        for seam in model_seams(model):
            stack.enter_context(kept(seam, model, around) if seam.declared.flag else one(seam, around))
        stack.enter_context(attention(model, around))
        yield


@contextlib.contextmanager
def one(seam: seams.Seam, around: Around) -> Iterator[None]:
    """Interpose at one seam: in its closure, or at the module's global where that would not be reached."""
    bound, names, name = described(seam), vars(seam.module), seam.declared.name
    held, cell = seam.held, seam.cell
    if cell is not None and bound.kind != "hub":
        cell.cell_contents = around(bound, bound.call)
    elif callable(held):
        names[name] = around(bound, held)
    try:
        yield
    finally:
        if cell is not None and bound.kind != "hub":
            cell.cell_contents = bound.call
        elif callable(held):
            names[name] = held


@contextlib.contextmanager
def kept(seam: seams.Seam, model: Any, around: Around) -> Iterator[None]:
    """Interpose in each place where the layers keep an op or its reference."""
    bound = described(seam)
    with contextlib.ExitStack() as stack:
        for slot in flag_seams.slots(model, seam.module, seam.declared.name, seam.held, seam.reference):
            kind = "eager" if slot.eager else bound.kind
            there = replace(bound, kind=kind, call=slot.value, target=seams.dotted(slot.value))
            stack.enter_context(flag_seams.replaced(slot, around(there, slot.value)))
        yield


@contextlib.contextmanager
def attention(model: Any, around: Around) -> Iterator[None]:
    """Interpose at the attention function that the configuration selects, if the model has such a choice."""
    modelling = sys.modules[type(model).__module__]
    mapping = getattr(modelling, "ALL_ATTENTION_FUNCTIONS", None)
    chosen = getattr(model.config, "_attn_implementation", None)
    eager = getattr(modelling, "eager_attention_forward", None)
    function = None if mapping is None or chosen is None else mapping.get(chosen, eager)
    if mapping is None or function is None:
        yield
        return
    kind = "eager" if function is eager else "package"
    parameters = tuple(inspect.signature(function).parameters)
    bound = Bound(f"transformers:{chosen}", ATTENTION, kind, function, seams.dotted(function), parameters)
    mapping[chosen] = around(bound, function)  # a public, local override
    try:
        yield
    finally:
        del mapping[chosen]
