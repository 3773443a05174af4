"""Build the model under test from its configuration alone: random weights, no download, no remote code.

Everything here runs in the judged interpreter. The order matters: ``force_eager`` and ``standin_causal_conv1d`` must
run before the first import of transformers' modelling code, because its seams are bound for good while it is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kerncheck.compat import transformers_seams
from kerncheck.probes import shrink as rules
from kerncheck.probes.standins import is_standin, standin_causal_conv1d

__all__ = [
    "Built",
    "CannotBuildError",
    "build",
    "force_eager",
    "is_standin",
    "outputs",
    "scale_matrices",
    "standin_causal_conv1d",
    "weaken_gates",
]

REPLACED = ("auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version", "architectures")
"""Fields of a config.json that name code to download, or that decide weights and dtype, which the caller decides."""

SPECIAL_FLOATS = ("Infinity", "-Infinity", "NaN")
LARGEST_ON_CPU = 500_000_000
"""Parameters. 2 GB in float32, and as much again for gradients: more does not fit on a small runner."""


class CannotBuildError(Exception):
    """This transformers cannot build the model. Says nothing about kernels: answer "missing", not "broken"."""


@dataclass
class Built:
    """A model ready to run, and how it differs from the real one.

    ``layer_types`` are those of the built model, one for each layer. ``shrunk`` maps a field to [real, built].
    ``notes`` says in plain words what was ignored or replaced.
    """

    model: Any
    config: Any
    modelling: Any
    layer_types: list[str]
    shrunk: dict[str, list[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    parameters: int = 0


def build(
    request: dict[str, Any], *, shrink: bool, dtype: str, seed: int, device: str, attention: str | None = None
) -> Built:
    """Build the model of a request (a ModelRequest as JSON) with random weights.

    ``device`` is where the model lies. ``cuda`` and ``cuda:N`` with ``shrink`` keep the real widths and head
    dimensions and take one period of layers, a small vocabulary and few experts; any other name means the CPU and,
    with ``shrink``, a tiny model that keeps a layer of each type (the request's own ``shrink`` wins). ``dtype`` is a
    name such as ``bfloat16``; ``attention`` an attention implementation of transformers. Raises CannotBuildError.
    """
    place = device if device.startswith("cuda") else "cpu"
    fields, notes = usable_fields(request["config"], place, attention)
    full, model_class = resolve(request, fields)
    failures: list[str] = []
    for changes in plans(request.get("shrink") or {}, full, shrink=shrink, place=place):
        try:
            config = shrunk_config(full, fields, changes)
            settle_dtype(config, full, dtype)
            check_size(model_class, config, place)
            model = materialize(model_class, config, dtype, seed, place)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
            continue
        return describe(model, config, full, notes + skipped_plans(failures))
    raise CannotBuildError(f"{model_class.__name__} cannot be built from this configuration: {'; '.join(failures)}")


def usable_fields(given: dict[str, Any], place: str, attention: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration's fields without those that we must not follow, and a note for each of these."""
    fields = {name: decoded(value) for name, value in given.items() if name not in REPLACED}
    notes = []
    if "auto_map" in given:
        notes.append("auto_map ignored: kerncheck never runs remote code, the model is built from transformers itself")
    if "quantization_config" in given:
        notes.append("quantization_config ignored: the weights are random and not quantised")
    asked = attention or fields.pop("attn_implementation", None) or fields.pop("_attn_implementation", None)
    if place == "cpu" and str(asked).startswith("flash_attention"):
        notes.append(f"{asked} needs a GPU: built with transformers' default attention")
    elif asked is not None:
        fields["attn_implementation"] = asked
    return fields, notes


def decoded(value: Any) -> Any:
    """Return a value with floats where transformers 5 saves what JSON has no word for: {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        special = value.get("__float__") if len(value) == 1 else None
        return float(special) if special in SPECIAL_FLOATS else {name: decoded(item) for name, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list) else value


def resolve(request: dict[str, Any], fields: dict[str, Any]) -> tuple[Any, Any]:
    """Return the real configuration as an object and the class of the model. Raises CannotBuildError."""
    modelling = modelling_module(request.get("folder", ""))
    named = getattr(modelling, request.get("architecture") or "-", None) or exported(request.get("architecture", ""))
    config_class = config_class_for(fields.get("model_type", ""), modelling) or getattr(named, "config_class", None)
    if config_class is None:
        import transformers

        raise CannotBuildError(
            f"transformers {transformers.__version__} knows neither the model type {fields.get('model_type')!r} "
            f"nor the architecture {request.get('architecture')!r}"
        )
    config = config_class(**{name: value for name, value in fields.items() if name != "model_type"})
    config = config.get_text_config(decoder=True)
    if named is not None and getattr(named, "config_class", None) is type(config):
        return config, named
    return config, model_class_for(config)


def modelling_module(folder: str) -> Any:
    """Import the modelling code of a model folder; None if this transformers has no such folder."""
    if not folder:
        return None
    name = f"transformers.models.{folder}"
    try:
        return importlib.import_module(f"{name}.modeling_{folder}")
    except ModuleNotFoundError as error:
        if error.name in (name, f"{name}.modeling_{folder}"):
            return None
        raise


def exported(architecture: str) -> Any:
    """Return a class that transformers exports under this name; None if it has none."""
    import transformers

    return getattr(transformers, architecture, None) if architecture else None


def config_class_for(model_type: str, modelling: Any) -> Any:
    """Return the configuration class of a model type: the registered one, else one that the modelling code uses."""
    from transformers import CONFIG_MAPPING

    if model_type in CONFIG_MAPPING:
        return CONFIG_MAPPING[model_type]
    own = [getattr(item, "config_class", None) for item in vars(modelling).values()] if modelling else []
    return next((found for found in own if found is not None and found.model_type == model_type), None)


def model_class_for(config: Any) -> Any:
    """Return the class for causal language modelling with this configuration, or else its bare decoder."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING):
        with contextlib.suppress(KeyError):
            return mapping[type(config)]
    package = type(config).__module__.replace(".configuration_", ".modeling_")
    module = importlib.import_module(package)
    fitting = [
        item
        for name, item in vars(module).items()
        if getattr(item, "config_class", None) is type(config) and name.endswith(("ForCausalLM", "TextModel", "Model"))
        if not name.endswith("PreTrainedModel")
    ]
    if not fitting:
        raise CannotBuildError(f"{module.__name__} has no model for {type(config).__name__}")
    return min(fitting, key=lambda item: not item.__name__.endswith("ForCausalLM"))


def layer_types(config: Any) -> list[str]:
    """Return the type of each layer as transformers names it; "layer" where a configuration tells no types."""
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return [str(kind) for kind in types] if types else [rules.UNTYPED] * int(getattr(config, "num_hidden_layers", 0))


def plans(own: dict[str, Any], full: Any, *, shrink: bool, place: str) -> Iterator[dict[str, Any]]:
    """Yield sets of changes to the configuration, the preferred one first."""
    if not shrink:
        yield {}
        return
    on_gpu = place != "cpu"
    if own and not on_gpu:
        yield own
    types, fields = layer_types(full), full.to_dict()
    kinds = rules.layer_kinds(fields, types)
    base = {**rules.small_vocabulary(fields), **rules.few_experts(fields, 8 if on_gpu else 4)}
    dimensions = [{}] if on_gpu else [rules.small_dimensions(fields), {}]
    for tiny in dimensions:
        for keep in rules.choices(kinds, period=on_gpu):
            yield {**base, **rules.fewer_layers(fields, types, keep), **tiny}


def shrunk_config(full: Any, fields: dict[str, Any], changes: dict[str, Any]) -> Any:
    """Return a new configuration with these changes. Raises ValueError if a type of layer got lost."""
    allowed, names = settable(type(full)), getattr(type(full), "attribute_map", {})
    usable = {names.get(name, name): value for name, value in changes.items()}
    usable = {name: value for name, value in usable.items() if name in allowed}
    own = {
        names.get(name, name): value
        for name, value in source_fields(full, fields).items()
        if not computed(full, name, value)
    }
    config = type(full)(**{**own, **usable})
    lost = set(layer_types(full)) - set(layer_types(config))
    if lost:
        raise ValueError(f"no {' and no '.join(sorted(lost))} layer is left")
    return config


def source_fields(full: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the text model was made of, whether they stood at the top or under text_config."""
    nested = fields.get("text_config")
    return dict(nested) if isinstance(nested, dict) and nested.get("model_type") == full.model_type else fields


def computed(full: Any, name: str, value: Any) -> bool:
    """Tell whether the class itself computes this field from others, so that its real value must not be passed on."""
    allowed = settable(type(full))
    derived = isinstance(value, (int, list)) and name not in allowed
    return name == "model_type" or (derived and hasattr(type(full)(), name))


def settable(config_class: Any) -> set[str]:
    """Return the names of the fields that a configuration class takes, those that it computes left out."""
    aliases = getattr(config_class, "attribute_map", {})
    declared = getattr(config_class, "__dataclass_fields__", None)
    names = set(declared or inspect.signature(config_class.__init__).parameters)
    known = (names | set(aliases) | set(aliases.values())) - {"self", "kwargs"}
    return {name for name in known if not isinstance(getattr(config_class, name, None), property)}


def settle_dtype(config: Any, full: Any, dtype: str) -> None:
    """Tell the configuration the dtype of the weights, as loading a model does: layers before 5.15 ask for it there."""
    if transformers_seams.decorator_function() is None:
        import torch

        config.dtype = full.dtype = getattr(torch, dtype)


def check_size(model_class: Any, config: Any, place: str) -> None:
    """Count the parameters without allocating them. Raises MemoryError above LARGEST_ON_CPU on the CPU."""
    import torch

    if place != "cpu":
        return
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in model_class(config).parameters())
    if count > LARGEST_ON_CPU:
        raise MemoryError(f"{count:,} parameters are too many for the emulated device")


def materialize(model_class: Any, config: Any, dtype: str, seed: int, place: str) -> Any:
    """Make the model with random weights in a dtype; buffers that the model wants in float32 stay so."""
    import torch

    before = torch.get_default_dtype()
    torch.manual_seed(seed)
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(place):
            return model_class(config)
    finally:
        torch.set_default_dtype(before)


def describe(model: Any, config: Any, full: Any, notes: list[str]) -> Built:
    """Pack what was built."""
    return Built(
        model=model,
        config=config,
        modelling=sys.modules[type(model).__module__],
        layer_types=layer_types(config),
        shrunk=rules.differences(full.to_dict(), config.to_dict()),
        notes=notes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def skipped_plans(failures: list[str]) -> list[str]:
    """Return a note for each way to shrink that did not work."""
    return [f"a smaller form did not build ({failure})" for failure in failures]


def force_eager(*packages: str) -> None:
    """Hide packages from every later import, so that seams bind their eager references (the "B" run).

    Raises RuntimeError if modelling code of transformers is loaded already: its seams are frozen, hiding is too late.
    """
    loaded = [name for name in sys.modules if name.startswith("transformers.models.") and ".modeling_" in name]
    if loaded:
        raise RuntimeError(f"{loaded[0]} is imported already: its seams cannot be forced to eager any more")
    for package in packages:
        for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
            sys.modules[name] = None  # type: ignore[assignment]
        sys.modules[package] = None  # type: ignore[assignment]


def weaken_gates(model: Any, value: float = -3.0) -> list[str]:
    """Set every A_log, so that the recurrent state decays slowly and a leak between examples stays visible.

    With transformers' initial values the state has decayed to 3e-6 after three tokens. Returns the parameters' names.
    """
    names = [name for name, _ in model.named_parameters() if name.rsplit(".", 1)[-1] == "A_log"]
    for name in names:
        model.get_parameter(name).data.fill_(value)
    return names


def scale_matrices(model: Any, factor: float = 10.0) -> int:
    """Multiply every weight of two or more dimensions, so that no signal drowns; return how many were scaled."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    for parameter in matrices:
        parameter.data.mul_(factor)
    return len(matrices)


def outputs(result: Any) -> Any:
    """Return the logits of a model's output, or the last hidden state of a model without a head."""
    logits = getattr(result, "logits", None)
    return result.last_hidden_state if logits is None else logits
