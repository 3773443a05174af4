"""Probe ``seams``: what the model's fused ops are bound to, and what a tiny run of the model really executes.

Options: ``mode`` is ``bound`` (import the modelling code as the environment is, read the bindings) or ``entered``
(build the model, run it on the device, count); ``request`` is the ModelRequest; ``device`` is ``emulate`` or ``cuda``.
``elsewhere`` says that the GPU is on another machine: flags of transformers before 5.15 then see one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from typing import Any

from kerncheck.compat import flag_seams, liger_patches
from kerncheck.compat import transformers_seams as found
from kerncheck.compat.seam_calls import Record, recording
from kerncheck.compat.seam_reasons import explained
from kerncheck.probes import models, scene
from kerncheck.probes.worker import describe

TOKENS = {"emulate": 24, "cuda": 512}
SEED = 20
CACHED_KINDS = ("models", "kernels")
"""How the hub cache names the folder of a kernel: as a model, or (newer) as a kernel."""

State = dict[str, Any]


def setup(options: dict[str, Any]) -> State:
    """Prepare the device and build the model, if it is to run. Says why, if nothing can be looked at."""
    state = {**options, "missing": "", "scene": None}
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        return {**state, "missing": "torch and transformers are not both installed in this environment"}
    if options["mode"] == "entered":
        state["scene"] = scene.prepare({**options, "seed": SEED})
        state["missing"] = state["scene"].missing
    return state


def run(case: dict[str, Any], state: State) -> dict[str, Any]:
    """Answer one case: ``bindings``, ``training`` or ``decoding``."""
    if state["missing"]:
        return missing(state["missing"])
    try:
        return bindings(state) if case["name"] == "bindings" else entered(case["name"], state)
    except models.CannotBuildError as error:
        return missing(str(error))


def missing(reason: str) -> dict[str, Any]:
    """Return "we could not look", in the form of the parent's Missing."""
    return {"kind": "missing", "reason": reason}


def bindings(state: State) -> dict[str, Any]:
    """Import the modelling code and read what each seam is bound to, and why where it is the eager reference."""
    import torch

    mechanism = found.mechanism()
    believed = bool(state.get("elsewhere")) and mechanism["mechanism"] == "flags" and flag_seams.see_a_gpu()
    module, types = modelling(state["request"])
    modules = found.modules_behind(found.layer_classes(module))
    return {
        "kind": "bound",
        **mechanism,
        "mechanism": found.mechanism_of(modules, mechanism["mechanism"]),
        "believed": believed,
        "module": module.__name__,
        "layer_types": types,
        "bindings": explained(found.seams_of(modules), root_only=mechanism["root_only"]),
        "torch": str(torch.__version__),
        "torch_gpu": str(torch.version.cuda or torch.version.hip or ""),
        "attention": attention_packages(state["request"]),
    }


def modelling(request: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return the modelling module of the request's model class, and the real layer types, without building."""
    fields, _ = models.usable_fields(request["config"], "cpu", None)
    config, model_class = models.resolve(request, fields)
    return sys.modules[model_class.__module__], models.layer_types(config)


def attention_packages(request: dict[str, Any]) -> dict[str, Any]:
    """Return which attention the configuration asks for, and what of it lies on this machine."""
    asked = str(request["config"].get("attn_implementation") or request["config"].get("_attn_implementation") or "")
    packages = {name: importlib.util.find_spec(name) is not None for name in ("flash_attn", "flash_attn_interface")}
    return {"asked": asked, "packages": packages, "cached": in_hub_cache(asked)}


def in_hub_cache(asked: str) -> bool:
    """Tell whether the hub kernel that an attention implementation names (``org/name@revision:function``) is here."""
    name = asked.partition("@")[0].partition(":")[0]
    if "/" not in name:
        return False
    folders = [f"{kind}--{name.replace('/', '--')}" for kind in CACHED_KINDS]
    return any(os.path.isdir(os.path.join(hub_cache(), folder)) for folder in folders)


def hub_cache() -> str:
    """Return the folder of the hub cache, as huggingface_hub finds it."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return os.path.expanduser(os.environ[variable])
    home = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.join(os.path.expanduser(os.environ.get("HF_HOME") or home), "hub")


def entered(phase: str, state: State) -> dict[str, Any]:
    """Build the model, run one phase on the device, and return what was entered and executed."""
    started = time.monotonic()
    where, built = state["scene"].device, state["scene"].built
    seams = found.seams_of(found.modules_behind({type(module) for module in built.model.modules()}))
    problem = None
    with where.launches() as launched, recording(built.model, seams, launched) as record:
        try:
            PHASES[phase](built.model, TOKENS[state["device"]], where, record)
        except Exception as error:
            problem = describe(error)
    return {
        "kind": "entered",
        "phase": phase,
        "device": state["device"],
        "layer_types": built.layer_types,
        "bindings": [{**found.binding(seam), "reason": None} for seam in seams],
        **recorded(record),
        "asked": str(getattr(built.config, "_attn_implementation", "") or ""),
        "standins": list(state["scene"].standins),
        "shrunk": {name: [str(value) for value in pair] for name, pair in built.shrunk.items()},
        "notes": built.notes,
        "patches": liger_patches.patches_of(built.model),
        "problem": problem,
        "seconds": round(time.monotonic() - started, 2),
    }


def recorded(record: Record) -> dict[str, Any]:
    """Return a record as plain data."""
    return {
        "entries": [vars(entry) for entry in record.entries.values()],
        "attention": [{"layer": layer, "functions": names} for layer, names in sorted(record.attention.items())],
        "forward": [{"layer": layer, "kernels": names} for layer, names in sorted(record.forward.items())],
        "backward": [{"layer": layer, "kernels": names} for layer, names in sorted(record.backward.items())],
    }


def train(model: Any, tokens: int, where: Any, record: Record) -> None:
    """One forward and backward."""
    model.train()
    result = models.outputs(model(input_ids=some_ids(model, tokens), use_cache=False))
    loss = result.float().square().mean()
    record.start_backward()
    loss.backward()
    where.synchronize()
    record.end_backward()


def decode(model: Any, tokens: int, where: Any, _record: Record) -> None:
    """A prompt, then one more token from the cache."""
    import torch

    model.eval()
    ids = some_ids(model, tokens)
    with torch.no_grad():
        first = model(input_ids=ids, use_cache=True)
        name = "past_key_values" if getattr(first, "past_key_values", None) is not None else "cache_params"
        model(input_ids=ids[:, :1], use_cache=True, **{name: getattr(first, name)})
    where.synchronize()


PHASES = {"training": train, "decoding": decode}


def some_ids(model: Any, tokens: int) -> Any:
    """Return token ids (1, tokens), the same in each run."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    top = min(100, model.config.vocab_size)
    return torch.randint(1, top, (1, tokens), generator=generator).to(model.device)
