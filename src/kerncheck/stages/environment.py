"""What is installed and set: one child of the judged interpreter that imports nothing of what it describes."""

from __future__ import annotations

from typing import Any

import msgspec

from kerncheck.model.base import Broken, Missing
from kerncheck.model.environment import Environment
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answer, Answers, ProbeRun, why

GROUPS: dict[str, tuple[str, ...]] = {
    "interpreter": ("glibc",),
    "distributions": ("torch", "shared_files"),
    "toolchain": ("ptxas", "ptxas_blackwell", "nvcc", "compiler", "libcuda"),
    "cache": ("triton_cache",),
    "machine": ("driver_module",),
    "last_mile": ("last_mile",),
    "plugins": ("plugins",),
}
"""The probe's cases, each with those of its facts that may be Missing."""

NAMES = (
    "torch", "triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm", "torchvision", "torchaudio",
    "transformers", "numpy", "einops", "cuda-toolkit", "xformers", "apex", "transformer-engine", "megatron-core",
    "transformer-engine-torch", "deepspeed", "bitsandbytes", "accelerate", "trl", "peft", "tilelang",
    "apache-tvm-ffi", "quack-kernels", "flash-kda",
)  # fmt: skip
"""Distributions of interest besides those of the kernel packages."""

PREFIXES = ("nvidia-",)
EXTRAS = ("cuda", "kernels", "torch")
"""Extras whose requirements a working installation has to meet where what they name is installed."""

LARGE = ("torch", "transformers")
"""Their lists of files are long, and no other distribution has been seen to write into them."""

MODULES = {
    "torch": ["torch"], "triton": ["triton"], "transformers": ["transformers"], "torchvision": ["torchvision"],
}  # fmt: skip

VARIABLES = (
    "CC", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "CUDA_DISABLE_PTX_JIT", "CUDA_FORCE_PTX_JIT", "CONDA_PREFIX", "DISABLE_KERNEL_MAPPING", "FLASH_ATTENTION_ARCH",
    "HF_HUB_OFFLINE", "KERNELS_CACHE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCAL_KERNELS", "LOCAL_WORLD_SIZE",
    "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_PRODUCT_NAME", "NVIDIA_PYTORCH_VERSION", "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_CUDA_ARCH_LIST", "TRANSFORMERS_OFFLINE", "USE_HUB_KERNELS", "VIRTUAL_ENV", "WORLD_SIZE",
)  # fmt: skip
VARIABLE_PREFIXES = ("FLA_", "TRITON_", "LIGER_", "CAUSAL_CONV1D_", "MAMBA_", "TORCHINDUCTOR_")


def runs(ask: Ask) -> list[ProbeRun]:
    """Plan the static probe: it needs the catalog only, and runs before everything else."""
    cases = tuple({"name": name} for name in GROUPS)
    return [ProbeRun(label="environment", probe="static", cases=cases, options=options(ask), limit=20.0)]


def options(ask: Ask) -> dict[str, Any]:
    """Return what the probe looks for."""
    packages = [item.package for item in ask.catalog.kernels.values()]
    shipped = {package.distributions[0]: list(package.modules) for package in packages}
    return {
        "profile": ask.job.profile,
        "names": sorted({*NAMES, *(name for package in packages for name in package.distributions)}),
        "prefixes": list(PREFIXES),
        "modules": {**MODULES, **shipped},
        "extras": list(EXTRAS),
        "unhashed": list(LARGE),
        "variables": list(VARIABLES),
        "variable_prefixes": list(VARIABLE_PREFIXES),
    }


def collect(_ask: Ask, answers: list[Answers]) -> Environment | Missing:
    """Join the groups. Without interpreter and distributions there is no section; any other group may be absent."""
    groups = dict(zip(GROUPS, answers[0].cases, strict=True))
    for name in ("interpreter", "distributions"):
        answer = groups[name]
        if not isinstance(answer, dict):
            return Missing(reason=f"the static probe could not read the {name}: {why(answer)}")
    facts: dict[str, Any] = {"kind": "environment"}
    for name, answer in groups.items():
        facts |= answer if isinstance(answer, dict) else absent(GROUPS[name], answer)
    return msgspec.convert(facts, Environment)


def absent(names: tuple[str, ...], answer: Answer) -> dict[str, Any]:
    """Return each of the facts as Missing, with the reason why its group did not answer."""
    reason = why(answer) if isinstance(answer, Missing | Broken) else ""
    return {name: {"kind": "missing", "reason": reason} for name in names}
