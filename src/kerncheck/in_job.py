"""The guard for the process that trains: judge the seams of a live model, in this very process.

A clean process and the one that trains can differ: a seam is bound once, when the modelling code is imported, so import
order, a hidden package, a patch or a stale cache decide. The rules and the words are those of KC301, KC304, KC305, and
of KC311 for modules that Liger patches.
Only bindings are judged here: nothing is run, no GPU is needed, and nothing is changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kerncheck import catalog as catalogs
from kerncheck.catalog import Catalog
from kerncheck.checks.registry import Case
from kerncheck.checks.seams import eager_binding, no_seam, unreadable
from kerncheck.checks.seams_common import NAMED_BY_THE_CALLER
from kerncheck.checks.seams_patches import patched_modules
from kerncheck.compat import liger_patches
from kerncheck.compat import transformers_seams as found
from kerncheck.compat.seam_reasons import explained
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.outcome import Outcome
from kerncheck.model.seams import Bindings, Seams
from kerncheck.model.snapshot import Snapshot
from kerncheck.models import required_ops

CHECKS = (eager_binding, no_seam, unreadable, patched_modules)
NOTHING_RUN = Missing(reason="the guard runs nothing")

RECURRENT_PARAMETERS = ("A_log", "dt_bias")
"""Names of parameters that only recurrent layers have: the decay of a delta rule or of a state space."""


class FallbackError(RuntimeError):
    """A layer of this model would run the eager reference of an op that it needs. ``findings`` says which, and why."""

    def __init__(self, message: str, findings: tuple[Outcome, ...]) -> None:
        super().__init__(message)
        self.findings = findings


class NotJudgedError(FallbackError):
    """It could not be told what the layers of this model would run. ``findings`` says why. Never taken for fine."""


def guard(model: Any, *, training: bool = True, required: Iterable[str] | None = None) -> tuple[Outcome, ...]:  # noqa: ANN401
    """Return what was judged and is right; raise where a needed op would run its eager reference in this process.

    ``model`` is a live model (wrapped ones too). ``required`` names ops (``module:name``) that are needed; without it
    they follow from the kinds of the model's layers. Call it after the model is built, before the first step. Modules
    that Liger was applied to too late are worth a UserWarning.

    Raises:
        FallbackError: a needed op is bound to its eager reference, or its seam was replaced.
        NotJudgedError: a FallbackError too; the seams cannot be read (of another mechanism, or code without seams).
        TypeError: not a torch module.

    """
    if not callable(getattr(model, "modules", None)):
        raise TypeError(f"guard wants a torch module, not a {type(model).__name__}")
    known = catalogs.load()
    request = request_of(model, known, required)
    job = Job(profile="node", device="none", model=request, training=training)
    seams = Seams(bound=bindings_of(model, request), entered=NOTHING_RUN)
    outcomes, crashes = judge(Case(job, Snapshot(job=job, seams=seams), known), CHECKS)
    if crashes:
        raise NotJudgedError(f"kerncheck itself failed: {crashes[0].message}", ())
    refuse(tuple(outcome for outcome in outcomes if outcome.severity == "error"))
    late = tuple(outcome for outcome in outcomes if outcome.status == "failed")
    if late:
        warnings.warn(told("a patch does not reach this model", late), stacklevel=2)
    return tuple(outcome for outcome in outcomes if outcome.status in ("passed", "not_applicable"))


def refuse(
    outcomes: tuple[Outcome, ...],
    *,
    wrong: str = "this process would not run the fused kernels",
    unknown: str = "it cannot be told what this process would run",
) -> None:
    """Raise for what is wrong, else for what is not known. ``wrong`` and ``unknown`` head the messages."""
    failed = tuple(outcome for outcome in outcomes if outcome.status == "failed")
    open_ = tuple(outcome for outcome in outcomes if outcome.status == "not_judged" and outcome.required)
    if failed:
        raise FallbackError(told(wrong, failed), failed)
    if open_:
        raise NotJudgedError(told(unknown, open_), open_)


def told(what: str, outcomes: tuple[Outcome, ...]) -> str:
    """Return findings as lines of text."""
    lines = [
        f"  {item.code} {item.subject}: {item.message}{f'. Do: {item.remedy}' if item.remedy else ''}"
        for item in outcomes
    ]
    return "\n".join([f"kerncheck: {what}", *lines])


def request_of(model: Any, known: Catalog, required: Iterable[str] | None) -> ModelRequest:  # noqa: ANN401
    """Return the live model as a request: its layer types and the ops that they need."""
    config = text_config(model)
    layers = layer_types(model, config)
    model_types = tuple(dict.fromkeys(filter(None, (type_of(config), type_of(getattr(model, "config", None))))))
    wanted = [RequiredOp(op=op) for op in required] if required is not None else []
    return ModelRequest(
        name=type(model).__name__,
        folder="",
        architecture=type(model).__name__,
        config={},
        layer_types=layers,
        required=tuple(wanted) if required is not None else required_ops(model_types, layers, known),
        origin="this process" if required is None else NAMED_BY_THE_CALLER,
    )


def text_config(model: Any) -> Any:  # noqa: ANN401
    """Return the configuration of the part that has the layers; None for a model without one."""
    configs = [own for module in model.modules() if (own := vars(module).get("config")) is not None]
    texts = [own.get_text_config() if hasattr(own, "get_text_config") else own for own in configs]
    return next((own for own in texts if getattr(own, "num_hidden_layers", None)), None)


def type_of(config: Any) -> str:  # noqa: ANN401
    """Return the model type of a configuration; nothing without one."""
    return str(getattr(config, "model_type", "") or "")


def layer_types(model: Any, config: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Return the kinds of the model's layers: as its configuration names them, else as its modules show them."""
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if types:
        return tuple(str(kind) for kind in types)
    count = int(getattr(config, "num_hidden_layers", 0) or 0)
    seen = min(len(list(recurrent_modules(model))), count) if count else len(list(recurrent_modules(model)))
    return ("linear_attention",) * seen + ("layer",) * (count - seen)


def recurrent_modules(model: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the modules that hold a recurrence, whatever their names: they own a decay parameter."""
    for module in model.modules():
        if any(name in RECURRENT_PARAMETERS for name, _ in module.named_parameters(recurse=False)):
            yield module


def bindings_of(model: Any, request: ModelRequest) -> Bindings | Missing:  # noqa: ANN401
    """Read the seams of the model's modelling code in this process."""
    try:
        mechanism = found.mechanism()
    except ImportError as error:
        return Missing(reason=f"transformers cannot be imported in this process: {error}")
    modules = found.modules_behind({type(module) for module in model.modules()})
    return msgspec.convert(
        {
            "kind": "bound",
            **mechanism,
            "mechanism": found.mechanism_of(modules, mechanism["mechanism"]),
            "module": ", ".join(module.__name__ for module in modules) or type(model).__module__,
            "layer_types": request.layer_types,
            "bindings": explained(found.seams_of(modules), root_only=mechanism["root_only"]),
            "patches": liger_patches.patches_of(model),
        },
        Bindings,
    )
