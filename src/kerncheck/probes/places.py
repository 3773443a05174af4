"""Attribute every tensor operation and kernel launch of a training step to a phase, a layer, a module and a seam.

Forward: hooks keep a stack of the modules that run. Backward: after each module's forward, the autograd nodes that
it made are marked with its place, and a pre-hook on each node restores that place when the engine runs it; so work of
the backward pass belongs to the layer whose forward caused it. Nothing here judges, and no hook changes a value.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["OUTSIDE", "Follower", "Ledger", "Place", "Watch", "counting", "launches_work", "tensors_in"]

NO_KERNEL = frozenset(
    {
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted",
        "_local_scalar_dense", "lift_fresh", "is_same_size", "set_", "resize_", "_unsafe_view", "_reshape_alias",
    }
)  # fmt: skip
"""Operators of ATen that allocate, read one number back or change only metadata: none of them launches a kernel."""


@dataclass(frozen=True)
class Place:
    """Where work happens.

    ``layer`` is -1 outside of the decoder's layers; ``block`` the class of the layer's child that runs (a token mixer,
    an MLP, a norm); ``module`` the class of the innermost module; ``seam`` an op's name.
    """

    phase: str = "forward"
    layer: int = -1
    block: str = ""
    module: str = ""
    seam: str = ""


OUTSIDE = Place()


class Ledger:
    """Counts operations and launches by place. ``launched`` is the device's growing list of kernel names."""

    def __init__(self, launched: list[str], busy: Callable[[], bool]) -> None:
        self.operations: dict[Place, Counter[str]] = {}
        self.launches: dict[Place, Counter[str]] = {}
        self.place = OUTSIDE
        self.paused = False
        self._launched, self._counted, self._busy = launched, 0, busy

    def go(self, place: Place) -> None:
        """Move to another place; what was launched up to now belongs to the old one."""
        self.settle()
        self.place = place

    def settle(self) -> None:
        """Book the launches seen since the last call under the current place."""
        new = self._launched[self._counted :]
        self._counted = len(self._launched)
        if new and not self.paused:
            self.launches.setdefault(self.place, Counter()).update(new)

    def note(self, operator: Any) -> None:
        """Count one operator call, unless the interpreter made it while running a kernel."""
        if not self.paused and not self._busy() and launches_work(operator):
            name = operator_name(operator)
            self.operations.setdefault(self.place, Counter())[name] += 1

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Count nothing in this block."""
        self.settle()
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.settle()
            self.paused = before


def operator_name(operator: Any) -> str:
    """Return an ATen operator's name without its namespace and overload."""
    return str(operator.name()).partition("::")[2].partition(".")[0]


def launches_work(operator: Any) -> bool:
    """Tell whether an ATen operator would launch a kernel on a GPU: views and allocations do not."""
    return operator_name(operator) not in NO_KERNEL and not getattr(operator, "is_view", False)


def counting(ledger: Ledger) -> Any:
    """Return a dispatch mode that notes every ATen operator in a ledger."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ledger.note(func)
            return func(*args, **(kwargs or {}))

    return Counting()


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists and mappings."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


class Watch:
    """Keeps the ledger's place up to date while a model runs forward and backward."""

    def __init__(self, model: Any, layers: int, ledger: Ledger) -> None:
        self.ledger = ledger
        self._stack: list[Place] = [OUTSIDE]
        self._marked: dict[Any, Place] = {}
        self._handles: list[Any] = []
        self._homes = homes(model, layers)
        self._classes = {module: type(module).__name__ for module in model.modules()}

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Hook every module of the model for the length of this block."""
        for module in self._classes:
            self._handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            self.ledger.settle()
            for handle in self._handles:
                handle.remove()

    @property
    def place(self) -> Place:
        """Where the forward pass is now."""
        return self._stack[-1]

    def _enter(self, module: Any, inputs: Any, named: Any) -> None:
        self.mark((inputs, named), self.place)  # made by the caller, not by this module
        layer, block = self._homes.get(module, (-1, ""))
        self._push(Place(layer=layer, block=block, module=self._classes[module]))

    def _leave(self, _module: Any, _inputs: Any, outputs: Any) -> None:
        self.mark(outputs, self.place)
        self._pop()

    def _push(self, place: Place) -> None:
        self._stack.append(place)
        self.ledger.go(place)

    def _pop(self) -> None:
        self._stack.pop()
        self.ledger.go(self.place)

    @contextlib.contextmanager
    def seam(self, name: str, inputs: Any) -> Iterator[list[Any]]:
        """Count what happens in this block under a seam; the caller puts the outputs into the list."""
        self.mark(inputs, self.place)
        outputs: list[Any] = []
        self._push(replace(self.place, seam=name))
        try:
            yield outputs
            self.mark(outputs, self.place)
        finally:
            self._pop()

    def mark(self, outputs: Any, place: Place) -> None:
        """Mark the autograd nodes behind these tensors that are not marked yet."""
        with self.ledger.pause():
            waiting = [tensor.grad_fn for tensor in tensors_in(outputs)]
            while waiting:
                node = waiting.pop()
                if node is not None and node not in self._marked:
                    self._marked[node] = place
                    waiting += [before for before, _ in node.next_functions]

    @contextlib.contextmanager
    def backward(self, loss: Any) -> Iterator[None]:
        """Let the engine's nodes set the place for the length of this block."""
        self.mark(loss, OUTSIDE)
        self.ledger.go(replace(OUTSIDE, phase="backward"))
        handles = [node.register_prehook(self._runs(place)) for node, place in self._marked.items()]
        try:
            yield
        finally:
            self.ledger.settle()
            for handle in handles:
                handle.remove()
            self._marked.clear()

    def _runs(self, place: Place) -> Callable[[Any], None]:
        there = replace(place, phase="backward")
        return lambda _gradients: self.ledger.go(there)


def homes(model: Any, layers: int) -> dict[Any, tuple[int, str]]:
    """Map each module inside of a decoder layer to the layer's index and the class of the layer's child it is in."""
    found: dict[Any, tuple[int, str]] = {}
    for index, layer in enumerate(decoder_layers(model, layers)):
        found[layer] = (index, "")
        for child in layer.children():
            found.update({module: (index, type(child).__name__) for module in child.modules()})
    return found


def decoder_layers(model: Any, layers: int) -> list[Any]:
    """Return the decoder's layers: the first list of modules with as many entries as the configuration has layers."""
    import torch

    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == layers]
    return list(lists[0]) if lists else []


class Follower:
    """Knows which decoder layer runs forward now; cheaper than a Watch, and holds nothing of the graph."""

    def __init__(self, model: Any, layers: int) -> None:
        self.layer = -1
        self._layers = decoder_layers(model, layers)

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Follow the layers for the length of this block."""
        handles = [
            hook
            for index, layer in enumerate(self._layers)
            for hook in (
                layer.register_forward_pre_hook(self._goes_to(index)),
                layer.register_forward_hook(self._goes_to(-1), always_call=True),
            )
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _goes_to(self, index: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            self.layer = index

        return note
