"""Names of the ranges that kerncheck puts into a profile, and the hooks that open a range for each module's forward.

One kernel under a module of its own is no chain of anything: torch's own layers that launch one, and activations, get
no range, and their kernels belong to the module around them. So activation and product in an MLP stay one chain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

LABEL = "kc::"
STEP = "kerncheck step"
"""Names the plain step in the profile of `kerncheck verify`, which also runs each op alone."""


def seam_label(layer: int, seam: str) -> str:
    """Return the name of the range that a seam of a layer runs in."""
    return f"{LABEL}{layer}::{seam}"


def module_label(name: str, module: Any) -> str:
    """Return the name of the range that a module's forward runs in."""
    return f"{LABEL}{name or 'model'}::{type(module).__name__}"


def worth_a_range(module: Any) -> bool:
    """Tell whether a module may launch several kernels: it has children, is a norm, or somebody's own with state."""
    kind = type(module)
    if any(True for _ in module.children()) or "Norm" in kind.__name__:
        return True
    state = any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))
    return state and not kind.__module__.startswith("torch.nn.")


def compiled(module: Any) -> bool:
    """Tell whether torch compiles a module's forward: a hook there would change what is compiled."""
    import torch

    wrapped = type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith("torch._dynamo")
    return (
        wrapped
        or getattr(module, "_compiled_call_impl", None) is not None
        or isinstance(module, torch.jit.ScriptModule)
    )


def chosen(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and module of all that get a range; nothing inside of what is compiled."""
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen or compiled(module):
            continue
        seen.add(id(module))
        if worth_a_range(module):
            yield name, module
        waiting += [(f"{name}.{child}" if name else child, item) for child, item in module.named_children()]


class ModuleRanges:
    """Opens a range for each forward of a model's modules while hooked. No hook changes a value."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._handles: list[Any] = []
        self._threads = threading.local()  # recomputation runs on the autograd engine's threads

    def hook(self) -> None:
        """Hook the modules."""
        for name, module in chosen(self._model):
            label = module_label(name, module)
            self._handles.append(module.register_forward_pre_hook(self._enters(label)))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))

    def unhook(self) -> None:
        """Remove the hooks, and close what an interrupted forward left open on this thread."""
        while self._handles:
            self._handles.pop().remove()
        self._close_from(0)

    def _open(self) -> list[tuple[Any, Any]]:
        if not hasattr(self._threads, "open"):
            self._threads.open = []
        return self._threads.open  # type: ignore[no-any-return]

    def _enters(self, label: str) -> Callable[..., None]:
        import torch
        from torch.profiler import record_function

        def enter(module: Any, *_: Any) -> None:
            if not torch.compiler.is_compiling():
                entered = record_function(label)
                entered.__enter__()
                self._open().append((module, entered))

        return enter

    def _leave(self, module: Any, *_: Any) -> None:
        """Close the module's range, and those inside of it that an exception left open."""
        import torch

        if torch.compiler.is_compiling():
            return
        at = [at for at, (inside, _) in enumerate(self._open()) if inside is module]
        if at:
            self._close_from(at[-1])

    def _close_from(self, position: int) -> None:
        opened = self._open()
        while len(opened) > position:
            opened.pop()[1].__exit__(None, None, None)
