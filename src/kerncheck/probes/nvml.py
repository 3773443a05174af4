"""The driver and its GPUs, as NVIDIA's management library (NVML) sees them. Runs under kerncheck's own interpreter."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def setup(_options: dict[str, Any]) -> Any:
    """Import the binding (distribution nvidia-ml-py, a dependency of kerncheck)."""
    return importlib.import_module("pynvml")


def run(_case: dict[str, Any], nvml: Any) -> dict[str, Any]:
    """Return driver and GPUs; ``{"absent": reason}`` without the library; ``problem`` when it cannot be started."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound as error:
        return {"absent": f"NVML library not found (libnvidia-ml.so.1): {error}"}
    except nvml.NVMLError as error:
        return {"problem": str(error)}
    try:
        found = [gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        return {
            "driver": asked(nvml, nvml.nvmlSystemGetDriverVersion) or "",
            "cuda": cuda_version(asked(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)),
            "gpus": [item for item in found if "lost" not in item],
            "problem": "; ".join(item["lost"] for item in found if "lost" in item),
        }
    finally:
        nvml.nvmlShutdown()


def asked(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """Ask NVML; None where this driver or GPU does not answer (older binding versions answer in bytes)."""
    try:
        answer = question(*arguments)
    except nvml.NVMLError:
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def cuda_version(number: int | None) -> str:
    """Return ``12.7`` for 12070, which is 1000 times the major plus 10 times the minor."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def gpu(nvml: Any, index: int) -> dict[str, Any]:
    """Describe one GPU, with the first part of its UUID; ``{"lost": reason}`` for one that cannot be reached."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"lost": f"GPU {index}: {error}"}
    capability = asked(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    mig = asked(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return {
        "index": index,
        "name": asked(nvml, nvml.nvmlDeviceGetName, handle) or "unknown",
        "uuid": (asked(nvml, nvml.nvmlDeviceGetUUID, handle) or "")[:12],
        "cc": f"{capability[0]}.{capability[1]}" if capability else "",
        "memory_total": int(memory.total) if memory else 0,
        "memory_free": int(memory.free) if memory else 0,
        "mig": bool(mig and mig[0]),
    }
