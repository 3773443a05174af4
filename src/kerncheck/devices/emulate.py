"""The emulated device: real Triton kernels in Triton's interpreter, on the CPU. Children only.

Call ``prepare`` before fla (or any module with Triton kernels) is imported. What it cannot show: races, repeatability,
TF32, shared memory, alignment, speed, and configurations other than the one that is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from kerncheck.devices.base import DeviceUnusableError

__all__ = ["DeviceUnusableError", "configurations", "inside", "launches", "prepare", "take_configuration"]

NAME = "emulate"
TORCH_DEVICE = "cpu"
_state: dict[str, Any] = {"depth": 0, "seen": [], "blocks": {}, "ready": None}


def prepare(options: dict[str, Any]) -> dict[str, Any]:
    """Repair the interpreter, prove it on kernels with known answers, and return facts about it.

    ``options["configuration"]`` is the index of the autotune configuration to take (0, the first, by default).
    Raises DeviceUnusableError, with the reason, where the device cannot be trusted: nothing is judged then.
    """
    take_configuration(int(options.get("configuration", 0)))
    if _state["ready"] is None:
        _state["ready"] = _prepare()
    return dict(_state["ready"])


def _prepare() -> dict[str, Any]:
    import numpy
    import torch

    torch.set_num_threads(1)
    from kerncheck.compat import triton_interpreter

    version = triton_interpreter.repair()
    count_launches()
    prove()
    return {"device": NAME, "triton": version, "numpy": numpy.__version__, "torch": str(torch.__version__)}


def prove() -> None:
    """Run the kernels with known answers; raise DeviceUnusableError if an answer is not exactly the known one."""
    from kerncheck.kernels import _known_answer

    try:
        wrong = _known_answer.wrong()
    except Exception as error:
        raise DeviceUnusableError(f"a kernel with a known answer failed: {type(error).__name__}: {error}") from error
    if wrong:
        raise DeviceUnusableError(f"kernels with known answers computed something else: {', '.join(wrong)}")


def take_configuration(index: int) -> None:
    """Take the index-th of the tile sizes that each autotuned kernel offers, from the next launch on."""
    from kerncheck.compat import triton_interpreter

    triton_interpreter.TUNING.index = index


def configurations() -> dict[str, str]:
    """Return the tiles that each autotuned kernel last ran with, by kernel name."""
    from kerncheck.compat import triton_interpreter

    return dict(triton_interpreter.TUNING.taken)


def count_launches() -> None:
    """Wrap ``InterpretedFunction.run``, through which every kernel entry goes (launch hooks are not called here)."""
    from triton.runtime.interpreter import InterpretedFunction

    original = InterpretedFunction.run

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        for seen in _state["seen"]:
            seen.append(kernel.__name__)
        with _inside():
            return original(kernel, *args, grid=_counted(kernel.__name__, grid), warmup=warmup, **kwargs)

    InterpretedFunction.run = run


def _counted(name: str, grid: Any) -> Callable[[Any], tuple[int, ...]]:
    def counted(meta: Any) -> tuple[int, ...]:
        shape = tuple(int(size) for size in (grid(meta) if callable(grid) else grid))
        blocks = 1
        for size in shape:
            blocks *= size
        _state["blocks"][name] = max(blocks, _state["blocks"].get(name, 0))
        return shape

    return counted


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    _state["depth"] += 1
    try:
        yield
    finally:
        _state["depth"] -= 1


def inside() -> bool:
    """Tell whether the interpreter runs a kernel now: tensor operations seen now are its own, not the model's."""
    return bool(_state["depth"])


@contextlib.contextmanager
def launches() -> Iterator[list[str]]:
    """Collect the names of the kernels launched in this block, in order. Blocks may be nested."""
    seen: list[str] = []
    _state["seen"].append(seen)
    try:
        yield seen
    finally:
        _state["seen"].remove(seen)


def blocks() -> dict[str, int]:
    """Return the largest grid (in blocks) that each kernel was launched with."""
    return dict(_state["blocks"])


def synchronize() -> None:
    """Do nothing: a kernel has run when its launch returns."""


def describe() -> dict[str, Any]:
    """Return what identifies this device in a result."""
    return {"name": "Triton interpreter", "capability": None, "memory": None}
