"""The GPU that CUDA_VISIBLE_DEVICES left visible. Children only; nothing touches the GPU on import.

The same functions as ``devices/emulate.py``. Kernels of compiled extensions do not pass through Triton's launch hook:
``launches`` sees Triton kernels only, and says so by what it is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kerncheck.devices.base import DeviceUnusableError

__all__ = ["DeviceUnusableError", "configurations", "inside", "launches", "prepare", "take_configuration"]

NAME = "cuda"
TORCH_DEVICE = "cuda"
_taken: dict[str, str] = {}
_blocks: dict[str, int] = {}


def prepare(_options: dict[str, Any]) -> dict[str, Any]:
    """Initialise the GPU and return facts about it. Raises DeviceUnusableError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise DeviceUnusableError("torch sees no CUDA device")
    if torch.version.hip:
        raise DeviceUnusableError("this is a ROCm build of torch, which kerncheck does not support yet")
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    versions = {"torch": str(torch.__version__), "triton": ""}
    with contextlib.suppress(ImportError):
        import triton

        versions["triton"] = str(triton.__version__)
        note_configurations()
    return {"device": NAME, **versions, **describe()}


def take_configuration(index: int) -> None:
    """Refuse: on a GPU the autotuner measures, and the configuration that it took is recorded."""
    if index:
        raise ValueError("the autotune configuration cannot be chosen on a GPU")


def note_configurations() -> None:
    """Wrap ``Autotuner.run`` to note the configuration that was taken (``best_config``)."""
    from triton.runtime.autotuner import Autotuner

    original = Autotuner.run
    if hasattr(original, "kerncheck_wrapped"):
        return

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tuner, *args, **kwargs)
        config = getattr(tuner, "best_config", None)
        if config is not None:
            _taken[getattr(tuner.base_fn, "__name__", "?")] = str(config)
        return result

    run.kerncheck_wrapped = True  # type: ignore[attr-defined]
    Autotuner.run = run


def configurations() -> dict[str, str]:
    """Return the autotune configuration that each kernel last ran with, by kernel name."""
    return dict(_taken)


def inside() -> bool:
    """Tell that no interpreter runs: every tensor operation seen is the model's own."""
    return False


@contextlib.contextmanager
def launches() -> Iterator[list[str]]:
    """Collect the names of the Triton kernels launched in this block, in order."""
    try:
        from triton import knobs
    except ImportError:
        with entered() as seen:  # Triton before 3.4 has no such hook, and without Triton there is nothing to see
            yield seen
        return
    seen = []

    def note(metadata: Any) -> None:
        seen.append(str(metadata.get()["name"]))

    knobs.runtime.launch_enter_hook.add(note)
    try:
        yield seen
    finally:
        knobs.runtime.launch_enter_hook.remove(note)


@contextlib.contextmanager
def entered() -> Iterator[list[str]]:
    """Collect the names of the kernels whose ``JITFunction.run`` is entered in this block, in order."""
    seen: list[str] = []
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield seen
        return
    original = JITFunction.run

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if not warmup:
            seen.append(kernel.fn.__name__)
        return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    JITFunction.run = run
    try:
        yield seen
    finally:
        JITFunction.run = original


def blocks() -> dict[str, int]:
    """Return the largest grid of each kernel; unknown here, since the launch hook does not tell grids."""
    return dict(_blocks)


def synchronize() -> None:
    """Wait for the GPU, so that an error of a kernel is raised here and not in the next case."""
    import torch

    torch.cuda.synchronize()


def describe() -> dict[str, Any]:
    """Return name, compute capability and memory in bytes of the visible GPU."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    capability = f"{properties.major}.{properties.minor}"
    return {"name": properties.name, "capability": capability, "memory": properties.total_memory}
