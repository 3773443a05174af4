"""A GPU that is not there: torch answers as if it were, tensors say that they are on it, nothing runs. Children only.

fla decides tiles and configurations by what it is told of the device: by Triton's driver, by ``torch.cuda``, and by
``tensor.device.index``. On a machine without a GPU the last two say 0 devices and None, and fla then picks what no
GPU of that kind would use. Here every such question is answered for the target. A question that is not answered
raises where torch raises on such a machine, so that no decision is taken on a silent default.

Call ``prepare`` before fla (or any module with Triton kernels) is imported; it lasts as long as the process.
"""

from __future__ import annotations

from typing import Any

from kerncheck.devices.base import DeviceUnusableError

__all__ = ["DeviceUnusableError", "prepare"]

NAME = "target"
_entered: list[Any] = []


def prepare(facts: dict[str, Any]) -> dict[str, Any]:
    """Put the target in place: ``name``, ``arch`` (90), ``shared_memory`` and ``memory`` (bytes), ``multiprocessors``.

    Raises DeviceUnusableError for a Triton that compile-ahead cannot work with, or a ROCm build of torch.
    """
    import torch

    from kerncheck.compat import triton_target

    if torch.version.hip:
        raise DeviceUnusableError("this is a ROCm build of torch, which kerncheck does not support yet")
    answer_for(torch, facts)
    claim_tensors(torch)
    _entered.append(redirection(torch))
    _entered[-1].__enter__()
    try:
        triton_target.stand_in(facts)
    except triton_target.UnsupportedTritonError as error:
        raise DeviceUnusableError(str(error)) from error
    return facts


def answers(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what each function of ``torch.cuda`` answers about the only GPU."""
    major, minor = divmod(facts["arch"], 10)
    properties = described(facts)
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "synchronize": lambda _device=None: None,
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "get_device_name": lambda _device=None: facts["name"],
        "get_device_capability": lambda _device=None: (major, minor),
        "get_device_properties": lambda _device=None: properties,
        "is_bf16_supported": lambda _including_emulation=True: major >= 8,
        "mem_get_info": lambda _device=None: (facts["memory"], facts["memory"]),
        "_exchange_device": lambda _device: 0,
        "_maybe_exchange_device": lambda _device: 0,
        "_lazy_init": lambda: None,
    }


def described(facts: dict[str, Any]) -> Any:
    """Return the properties that torch would tell. Other names raise AttributeError."""
    import types

    major, minor = divmod(facts["arch"], 10)
    return types.SimpleNamespace(
        name=facts["name"],
        major=major,
        minor=minor,
        multi_processor_count=facts["multiprocessors"],
        total_memory=facts["memory"],
        shared_memory_per_block=min(49152, facts["shared_memory"]),  # what a kernel has without asking for more
        shared_memory_per_block_optin=facts["shared_memory"],
        warp_size=32,
    )


def answer_for(torch: Any, facts: dict[str, Any]) -> None:
    """Replace the functions of ``torch.cuda``."""
    for name, function in answers(facts).items():
        if hasattr(torch.cuda, name):
            setattr(torch.cuda, name, function)


def claim_tensors(torch: Any) -> None:
    """Make every tensor say that it is on ``cuda:0``; their memory stays the CPU's."""
    here = torch.device("cuda", 0)
    torch.Tensor.device = property(lambda _tensor: here)
    torch.Tensor.is_cuda = property(lambda _tensor: True)
    torch.Tensor.is_cpu = property(lambda _tensor: False)
    torch.Tensor.get_device = lambda _tensor: 0
    torch.Tensor.cuda = lambda tensor, *_ignored, **_options: tensor


def redirection(torch: Any) -> Any:
    """Return a mode under which what is asked for on a GPU is made on the CPU, in a backward pass too."""
    from torch.utils._python_dispatch import TorchDispatchMode

    cpu = torch.device("cpu")

    class OnCpu(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            placed = dict(kwargs or {})
            asked = placed.get("device")
            if asked is not None and torch.device(asked).type == "cuda":
                placed["device"] = cpu
            return function(*args, **placed)

    return OnCpu()
