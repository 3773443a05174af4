"""Count what a model really runs: which layer enters which seam, what of it executes, which kernels that launches.

The bound function sits in a closure, so replacing a module's global reaches only the outside of a seam (what the model
passes); the inside (what is executed) is reached through the closure cell. Before 5.15 the layers keep the function.
Everything is put back when the block ends.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kerncheck.compat import flag_seams
from kerncheck.compat.transformers_seams import Seam, bound_to
from kerncheck.probes.worker import describe

OUTSIDE = -1
"""The index of "no layer"."""


@dataclass
class Entry:
    """All calls of one seam by one layer: how many, what ran, which kernels it launched, which arguments it got."""

    layer: int
    seam: str
    calls: int = 0
    ran: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None


@dataclass
class Record:
    """What one run of a model did. ``launched`` is the device's growing list of kernels, in order."""

    launched: list[str]
    layer: int = OUTSIDE
    entries: dict[tuple[int, str], Entry] = field(default_factory=dict)
    attention: dict[int, list[str]] = field(default_factory=dict)
    forward: dict[int, list[str]] = field(default_factory=dict)
    backward: dict[int, list[str]] = field(default_factory=dict)
    _since: int = 0
    _behind: int = OUTSIDE

    def entry(self, seam: str) -> Entry:
        """Return the entry of a seam for the layer that runs now."""
        return self.entries.setdefault((self.layer, seam), Entry(self.layer, seam))

    def attend(self, name: str) -> None:
        """Note that the layer that runs now attends with this function."""
        add(self.attention.setdefault(self.layer, []), [name])

    def enter(self, layer: int) -> None:
        """A layer's forward begins."""
        self.layer, self._since = layer, len(self.launched)

    def leave(self) -> None:
        """The forward of the layer that runs now has ended."""
        add(self.forward.setdefault(self.layer, []), self.launched[self._since :])
        self.layer = OUTSIDE

    def enter_backward(self, layer: int) -> None:
        """Give the kernels launched since the last boundary to the layer before; this layer's backward begins."""
        add(self.backward.setdefault(self._behind, []), self.launched[self._since :])
        self._since, self._behind = len(self.launched), layer

    def start_backward(self) -> None:
        """The backward begins: whatever was launched until now belongs to the forward."""
        self._since, self._behind = len(self.launched), OUTSIDE

    def end_backward(self) -> None:
        """The backward has ended."""
        self.enter_backward(OUTSIDE)
        self.backward = {layer: kernels for layer, kernels in self.backward.items() if kernels}


def add(known: list[str], names: list[str]) -> None:
    """Add the names that are not known yet, in order."""
    known.extend(name for name in dict.fromkeys(names) if name not in known)


@contextlib.contextmanager
def recording(model: Any, seams: list[Seam], launched: list[str]) -> Iterator[Record]:
    """Record the model's layers, seams and attention functions while the block runs."""
    record = Record(launched)
    with contextlib.ExitStack() as stack:
        for index, layer in enumerate(layers_of(model)):
            stack.callback(follow(layer, index, record))
        for seam in seams:
            stack.enter_context(kept(seam, model, record) if seam.declared.flag else watched(seam, record))
        stack.enter_context(attention_watched(seams, record))
        yield record


def layers_of(model: Any) -> list[Any]:
    """Return the model's decoder layers: the longest list of modules, the first of those that are equally long."""
    import torch

    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    count = getattr(model.config, "num_hidden_layers", 0)
    fitting = [item for item in lists if len(item) == count] or sorted(lists, key=len, reverse=True)
    return list(fitting[0]) if fitting else []


def follow(layer: Any, index: int, record: Record) -> Callable[[], None]:
    """Let the record know when a layer runs forward and backward; return what takes the hooks away."""

    def before(*_: Any) -> None:
        record.enter(index)

    def after(_module: Any, _inputs: Any, output: Any) -> None:
        record.leave()
        tensor = output[0] if isinstance(output, tuple) else output
        if getattr(tensor, "requires_grad", False):
            tensor.register_hook(lambda _gradient: record.enter_backward(index))

    hooks = [layer.register_forward_pre_hook(before), layer.register_forward_hook(after)]

    def remove() -> None:
        for hook in hooks:
            hook.remove()

    return remove


@contextlib.contextmanager
def watched(seam: Seam, record: Record) -> Iterator[None]:
    """Watch one seam from outside and, where it has a closure, from inside."""
    kind, target = bound_to(seam)
    held, names = seam.held, vars(seam.module)
    name = seam.declared.name
    if not callable(held):
        yield
        return
    names[name] = outside(held, name, record, kind if seam.cell is None or kind == "hub" else "")
    cell = seam.cell
    if cell is not None:
        cell.cell_contents = inside(target, name, record, kind) if kind != "hub" else cell.cell_contents
    try:
        yield
    finally:
        names[name] = held
        if cell is not None and kind != "hub":
            cell.cell_contents = target


@contextlib.contextmanager
def kept(seam: Seam, model: Any, record: Record) -> Iterator[None]:
    """Watch each place where the layers keep an op or its reference."""
    kind, name = bound_to(seam)[0], seam.declared.name
    with contextlib.ExitStack() as stack:
        for slot in flag_seams.slots(model, seam.module, name, seam.held, seam.reference):
            watcher = outside(slot.value, name, record, "eager" if slot.eager else kind)
            stack.enter_context(flag_seams.replaced(slot, watcher))
        yield


def outside(held: Any, name: str, record: Record, kind: str) -> Any:
    """Wrap what the model calls: note what it passes; with a kind, nothing further inside can be seen."""

    @functools.wraps(held)
    def called(*args: Any, **kwargs: Any) -> Any:
        add(record.entry(name).passed, given(kwargs))
        return inside(held, name, record, kind)(*args, **kwargs) if kind else held(*args, **kwargs)

    return called


def inside(target: Any, name: str, record: Record, kind: str) -> Any:
    """Wrap what executes: count it, note its kernels and what it received, and the exception that it raises."""

    @functools.wraps(target)
    def executed(*args: Any, **kwargs: Any) -> Any:
        entry, start = record.entry(name), len(record.launched)
        entry.calls += 1
        add(entry.ran, [kind])
        add(entry.received, given(kwargs))
        try:
            return target(*args, **kwargs)
        except Exception as error:
            entry.error = describe(error)
            raise
        finally:
            add(entry.kernels, record.launched[start:])

    return executed


def given(kwargs: dict[str, Any]) -> list[str]:
    """Return the names of the arguments that hold something."""
    return [name for name, value in kwargs.items() if value is not None]


@contextlib.contextmanager
def attention_watched(seams: list[Seam], record: Record) -> Iterator[None]:
    """Watch the functions that full attention ends in, wherever the configuration says that it goes."""
    with contextlib.ExitStack() as stack:
        for holder, name, label in attention_functions({seam.module.__name__: seam.module for seam in seams}):
            stack.enter_context(noted(holder, name, label, record))
        yield


def attention_functions(modules: dict[str, Any]) -> list[tuple[Any, str, str]]:
    """Return (holder, attribute, label) of each function that computes attention."""
    import torch

    found = [(torch.nn.functional, "scaled_dot_product_attention", "sdpa")]
    found += [(module, "eager_attention_forward", "eager") for module in modules.values()]
    with contextlib.suppress(ImportError):
        from transformers.integrations import flash_attention

        found.append((flash_attention, "_flash_attention_forward", "flash_attention"))
    with contextlib.suppress(ImportError):
        from transformers.integrations import flex_attention

        found.append((flex_attention, "compile_friendly_flex_attention", "flex_attention"))
    return [(holder, name, label) for holder, name, label in found if callable(getattr(holder, name, None))]


@contextlib.contextmanager
def noted(holder: Any, name: str, label: str, record: Record) -> Iterator[None]:
    """Note each call of a function under a label."""
    original = getattr(holder, name)

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        record.attend(label)
        return original(*args, **kwargs)

    setattr(holder, name, called)
    try:
        yield
    finally:
        setattr(holder, name, original)
