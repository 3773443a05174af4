"""Do not compile the same code twice: configurations that differ in nothing that reaches the back end. Children only.

``num_stages`` is read in ``make_ttgir`` alone (triton 3.7.1, 3.8.0 and 3.9.0, backends/nvidia/compiler.py). A kernel
without a loop to pipeline comes out of it the same for 2, 3 and 4 stages, and what follows (LLVM, PTX, ptxas, nine
tenths of the time) is a function of that text and the other options. So each of these steps is remembered by its input.
What is stored in Triton's cache is, byte for byte, what it would be without this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

STEPS = ("make_llir", "make_ptx", "make_cubin")
Step = Callable[[Any, Any, dict[str, Any], Any, Any], Any]


def remember() -> None:
    """Wrap the steps of the NVIDIA back end; one that this Triton does not have stays as it is."""
    from triton.backends.nvidia.compiler import CUDABackend

    for name in STEPS:
        step = getattr(CUDABackend, name, None)
        if step is not None and not hasattr(step, "__wrapped__"):
            setattr(CUDABackend, name, remembered(step))


def remembered(step: Step) -> Step:
    """Return a step that answers for an input that it has seen before with what it gave then, metadata included."""
    known: dict[tuple[str, ...], tuple[Any, dict[str, Any]]] = {}

    @functools.wraps(step)
    def wrapped(backend: Any, source: Any, metadata: dict[str, Any], options: Any, capability: Any) -> Any:
        rest = {name: value for name, value in vars(options).items() if name != "num_stages"}
        key = (str(source), str(sorted(rest.items(), key=str)), str(capability), str(backend.target))
        if key not in known:
            before = dict(metadata)
            made = step(backend, source, metadata, options, capability)
            noted = {name: value for name, value in metadata.items() if name not in before or before[name] is not value}
            known[key] = (made, noted)
        made, noted = known[key]
        metadata.update(noted)
        return made

    return wrapped
