"""The GPU that CUDA_VISIBLE_DEVICES left visible. Children only; nothing touches the GPU on import.

The same functions as ``devices/emulate.py``. Kernels of compiled extensions do not pass through Triton's launch hook:
``launches`` sees Triton kernels only, and says so by what it is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from kerncheck.devices.base import DeviceUnusableError

__all__ = ["DeviceUnusableError", "configurations", "inside", "launches", "prepare", "take_configuration"]

NAME = "cuda"
TORCH_DEVICE = "cuda"
_taken: dict[str, str] = {}
_asked = {"configuration": 0}
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
    """Take the index-th configuration of each autotuned kernel from the next launch on: counted from 1, over and over.

    0 leaves the choice to the autotuner, which measures. Either way the configuration that ran is recorded.
    """
    _asked["configuration"] = index


def in_one_configuration(original: Callable[..., Any], tuner: Any, args: Any, kwargs: Any) -> Any:
    """Launch with the configuration that is asked for; with the autotuner's own choice where the GPU refuses that one.

    Only those that are left for these arguments count (``prune_configs``), as when the autotuner measures. It drops
    one that needs too much shared memory or too many registers by the same error.
    """
    from triton.runtime.errors import OutOfResources

    every, tuner.nargs = tuner.configs, dict(zip(tuner.arg_names, args, strict=False))
    kept = tuner.prune_configs(kwargs) or every
    tuner.configs = [kept[(_asked["configuration"] - 1) % len(kept)]]
    try:
        return original(tuner, *args, **kwargs)
    except OutOfResources:
        tuner.configs = every
        return original(tuner, *args, **kwargs)
    finally:
        tuner.configs = every


def note_configurations() -> None:
    """Wrap ``Autotuner.run`` to take the configuration that is asked for and to note the one that ran."""
    from triton.runtime.autotuner import Autotuner

    original = Autotuner.run
    if hasattr(original, "kerncheck_wrapped"):
        return

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if _asked["configuration"] and len(tuner.configs) > 1:
            result = in_one_configuration(original, tuner, args, kwargs)
        else:
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
