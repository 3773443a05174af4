"""What the probes that run the model itself share: the device, the stand-ins, the model, and why it cannot run."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from typing import Any

from kerncheck.compat import flag_seams, transformers_seams
from kerncheck.devices.base import DeviceUnusableError
from kerncheck.kernels import all_specs
from kerncheck.probes import models

__all__ = ["Scene", "failure", "finite", "prepare", "routes_tokens", "without_dropout"]

OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")  # Python's and torch's: the supervisor reads both as "missing"


@dataclass
class Scene:
    """A model on a device. ``missing`` says why there is none: then nothing can be looked at."""

    device: Any
    built: Any = None
    facts: dict[str, Any] = field(default_factory=dict)
    standins: tuple[str, ...] = ()
    missing: str = ""


def prepare(options: dict[str, Any]) -> Scene:
    """Prepare the device (``emulate`` or ``cuda``) and build the request's model on it.

    ``options["eager"]`` hides every kernel package first, so that the model binds its own eager references.
    """
    device = importlib.import_module("kerncheck.devices." + options["device"])
    scene = Scene(device)
    try:
        if options.get("eager"):
            models.force_eager(*sorted({spec.import_name for spec in all_specs() if not spec.in_torch}))
        if device.NAME == "cuda" or not options.get("eager"):
            scene.facts = device.prepare({})
        if device.NAME == "emulate" and not options.get("eager") and transformers_seams.decorator_function() is None:
            flag_seams.see_a_gpu()
        if not options.get("eager"):
            scene.standins = bind_standins(device.NAME, options["request"])
        scene.built = build(options, device)
    except (DeviceUnusableError, models.CannotBuildError) as error:
        scene.missing = str(error)
    return scene


def build(options: dict[str, Any], device: Any) -> Any:
    """Build the model; a model on the CPU computes in float32, which shows the smallest faults."""
    dtype = "float32" if device.NAME == "emulate" else options.get("dtype", "bfloat16")
    place = "cuda:0" if device.NAME == "cuda" else "cpu"
    return models.build(options["request"], shrink=True, dtype=dtype, seed=options.get("seed", 0), device=place)


def bind_standins(device: str, request: dict[str, Any]) -> tuple[str, ...]:
    """Put stand-ins in the place of required compiled ops that the emulated device cannot run; return their ids.

    A package that is absent from a CUDA build of torch stays absent: there the environment is judged as it is. A CPU
    build cannot have it, so the stand-in speaks for the GPU build of the same environment.
    """
    required = {op["op"] for op in request.get("required", ()) if op.get("training", True)}
    compiled = [spec for spec in all_specs() if spec.import_name == "causal_conv1d" and spec.id in required]
    if device != "emulate" or not compiled:
        return ()
    import torch

    if torch.version.cuda is not None and importlib.util.find_spec("causal_conv1d") is None:
        return ()
    models.standin_causal_conv1d()
    return tuple(spec.id for spec in compiled)


def without_dropout(model: Any) -> None:
    """Switch dropout off and leave the model in training mode: two runs must be able to agree."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in [name for name, value in vars(module).items() if "dropout" in name and isinstance(value, float)]:
            setattr(module, name, 0.0)


def routes_tokens(config: Any) -> bool:
    """Tell whether a model routes tokens to experts, by its configuration."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, 0) for name in names)


def finite(value: Any) -> float | None:
    """Return a number of a tensor as plain data: None where it is not finite."""
    import math

    number = float(value)
    return number if math.isfinite(number) else None


def failure(error: Exception) -> dict[str, Any]:
    """Return an exception that the model raised as data; raise it again where memory ran out, which proves nothing."""
    if type(error).__name__ in OUT_OF_MEMORY:
        raise error
    from kerncheck.probes.worker import describe

    return describe(error)
