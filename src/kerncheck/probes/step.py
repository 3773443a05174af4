"""One real training step of the model, watched: which layer ran what, what it launched, and what came out.

The same step runs in two children: as configured ("fused"), and with every kernel package hidden, so that the model
binds its own eager references ("eager"). Same weights, batch and seed. Each op is then run once alone, on the
arguments that the model really passed, to learn what it launches here; nothing about a package is assumed.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kerncheck.compat.interpose import Around, Bound, interposed
from kerncheck.probes import exchange, models, ranges, scene, step_trace
from kerncheck.probes.places import OUTSIDE, Follower, Ledger, Place, Watch, counting, tensors_in
from kerncheck.probes.scene import finite

TOKENS = {"emulate": 66, "cuda": 2048}
"""Tokens of the batch: one chunk of 64 and two more, so that a state is carried; a real grid on a GPU."""
RATE = 1e-3  # of AdamW; one step, whose result nobody keeps


@dataclass
class Use:
    """The calls of one seam in one layer. ``differentiable``: an output can be differentiated, as an input asks."""

    layer: int
    seam: str
    op: str
    bound: str
    implementation: str
    calls: int = 0
    differentiable: bool | None = None


@dataclass
class Seen:
    """What one step left behind. ``arguments`` are those of the first call of each seam."""

    ledger: Ledger
    uses: dict[tuple[int, str], Use] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, tuple[Bound, Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    phase: str = "forward"
    loss: float | None = None
    raised: dict[str, Any] | None = None
    where: Place = OUTSIDE


@dataclass
class State:
    """What the run needs besides the model."""

    scene: scene.Scene
    options: dict[str, Any]


def setup(options: dict[str, Any]) -> State:
    """Build the model, fused or eager, on the device; with weak gates, or the gates' gradients drown in rounding."""
    state = State(scene.prepare(options), options)
    if not state.scene.missing:
        models.weaken_gates(state.scene.built.model)
        scene.without_dropout(state.scene.built.model.train())
    return state


def run(_case: dict[str, Any], state: State) -> dict[str, Any]:
    """Run the step. Answers plain data, also when the step raised."""
    if state.scene.missing:
        return {"missing": state.scene.missing}
    import torch

    torch.manual_seed(1)
    model, built = state.scene.built.model, state.scene.built
    warm(state, model, batch(state))
    started, busy = time.perf_counter(), time.process_time()
    seen = watched_step(state, model, batch(state))
    told = {
        "layer_types": list(built.layer_types),
        "shrunk": {name: str(pair) for name, pair in built.shrunk.items()},
        "device": {"device": state.scene.device.NAME, **state.scene.device.describe()},
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "tokens": TOKENS[state.scene.device.NAME],
        "standins": list(state.scene.standins),
        "experts": scene.routes_tokens(built.config),
        "phase": seen.phase,
        "loss": seen.loss,
        "raised": seen.raised and {**seen.raised, "layer": seen.where.layer, "seam": seen.where.seam},
        "work": work(seen.ledger),
        "uses": [vars(use) for use in seen.uses.values()],
        **gradients_seen(model),
        "seconds": round(time.perf_counter() - started, 3),
        "cpu_seconds": round(time.process_time() - busy, 3),
    }
    told["alone"] = alone(state, seen)
    told["comparison"] = compared(state, model, seen)
    if state.scene.device.NAME == "cuda" and seen.phase == "done":
        told["profile"] = profiled_or_why(state, model, seen)
    return told


def profiled_or_why(state: State, model: Any, seen: Seen) -> dict[str, Any]:
    """Profile the step; what goes wrong there says nothing about the step, which has run."""
    try:
        return profiled(state, model, seen)
    except Exception as error:
        return {"reason": f"the step could not be profiled ({type(error).__name__}: {error})"}


def warm(state: State, model: Any, inputs: dict[str, Any]) -> None:
    """On a GPU, let kernels be compiled and timed before anything is counted. The watched step tells what it raises."""
    if state.scene.device.NAME != "cuda":
        return
    try:
        plain_step(model, inputs)
    except Exception as error:
        scene.failure(error)
    model.zero_grad(set_to_none=True)


def batch(state: State) -> dict[str, Any]:
    """Return the step's inputs; the same for every run."""
    return inputs_of(state.scene.built.model, TOKENS[state.scene.device.NAME])


def inputs_of(model: Any, count: int) -> dict[str, Any]:
    """Return token ids (1, count) as inputs and labels, always the same for a vocabulary."""
    import torch

    table = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, table.shape[0], (1, count), generator=generator).to(table.device)
    known = inspect.signature(model.forward).parameters  # a bare decoder takes no labels
    return {"input_ids": tokens, "use_cache": False, **({"labels": tokens} if "labels" in known else {})}


def watched_step(state: State, model: Any, inputs: dict[str, Any]) -> Seen:
    """Run forward, backward and optimiser under watch. What the step raises is noted, with its place."""
    device = state.scene.device
    with device.launches() as launched:
        seen = Seen(Ledger(launched, device.inside))
        watch = Watch(model, len(state.scene.built.layer_types), seen.ledger)
        with watch.hooked(), interposed(model, recorder(seen, watch)), counting(seen.ledger):
            try:
                step(model, inputs, seen, watch)
            except Exception as error:
                seen.where = seen.ledger.place
                seen.raised = scene.failure(error)
        seen.ledger.settle()
    device.synchronize()
    return seen


def step(model: Any, inputs: dict[str, Any], seen: Seen, watch: Watch) -> None:
    """One training step: loss, backward, AdamW."""
    import torch

    loss = loss_of(model, inputs)
    with seen.ledger.pause():
        seen.loss = finite(loss.detach())
    seen.phase = "backward"
    with watch.backward(loss):
        loss.backward()
    seen.phase = "optimizer"
    seen.ledger.go(replace(OUTSIDE, phase="optimizer"))
    torch.optim.AdamW(model.parameters(), lr=RATE).step()
    seen.phase = "done"


def loss_of(model: Any, inputs: dict[str, Any]) -> Any:
    """Return the model's loss, or the mean square of a bare decoder's outputs."""
    result = model(**inputs)
    loss = getattr(result, "loss", None)
    return models.outputs(result).float().square().mean() if loss is None else loss


def plain_step(model: Any, inputs: dict[str, Any]) -> None:
    """Forward and backward without watching."""
    loss_of(model, inputs).backward()


def recorder(seen: Seen, watch: Watch) -> Around:
    """Return a wrapper that counts what runs inside of each seam, and keeps its arguments and outputs."""

    def around(bound: Bound, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = (args, kwargs)
            use = used(seen, watch.place.layer, bound)
            with seen.ledger.pause():
                seen.arguments.setdefault(bound.name, (bound, function, *detached(given)))
            with watch.seam(bound.name, given) as outputs:
                result = function(*args, **kwargs)
                outputs.append(result)
            keep(seen, use, given, result)
            return result

        return call

    return around


def used(seen: Seen, layer: int, bound: Bound) -> Use:
    """Count one call."""
    new = Use(layer, bound.name, bound.op, bound.kind, bound.target)
    use = seen.uses.setdefault((layer, bound.name), new)
    use.calls += 1
    return use


def keep(seen: Seen, use: Use, given: Any, result: Any) -> None:
    """Keep the seam's first output, and note whether it can be differentiated."""
    output = next(tensors_in(result), None)
    if output is None:
        return
    with seen.ledger.pause():
        seen.outputs.setdefault(f"output of {use.seam} in layer {use.layer}", exchange.kept(output))
    if any(tensor.requires_grad for tensor in tensors_in(given)):
        use.differentiable = bool(output.requires_grad)


def detached(given: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy a call's arguments as leaves that ask for gradients where the originals did.

    Strides stay: an op that makes its inputs contiguous copies slices of a projection (Kimi Linear), and alone it must
    be seen to do so too. Of an expanded tensor, whose elements share memory, the copy is a plain one.
    """
    import torch

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if 0 in value.stride():
            return value.detach().clone().requires_grad_(value.requires_grad)
        alike = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return alike.copy_(value.detach()).requires_grad_(value.requires_grad)

    args, kwargs = given
    return tuple(copied(value) for value in args), {name: copied(value) for name, value in kwargs.items()}


def work(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the counts by place as plain data."""
    return [
        {
            **vars(place),
            "operations": dict(ledger.operations.get(place, {})),
            "launches": dict(ledger.launches.get(place, {})),
        }
        for place in dict.fromkeys([*ledger.operations, *ledger.launches])
    ]


def gradients_seen(model: Any) -> dict[str, Any]:
    """Return the names of parameters without a gradient, with one that is exactly zero, and with one not finite."""
    found: dict[str, list[str]] = {"without": [], "zero": [], "not_finite": []}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            found["without"].append(name)
        elif not bool(gradient.isfinite().all()):
            found["not_finite"].append(name)
        elif not bool(gradient.any()):
            found["zero"].append(name)
    return {"gradients": found}


def compared(state: State, model: Any, seen: Seen) -> dict[str, Any] | None:
    """Leave outputs and gradients for the other run; compare if it has left its own. Nothing to compare: None."""
    if seen.phase != "done":
        return None
    gradients = {
        f"gradient of {name}": exchange.kept(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    own = "eager" if state.options.get("eager") else "fused"
    return exchange.compare(state.options["exchange"], own, {**seen.outputs, **gradients})


def profiled(state: State, model: Any, seen: Seen) -> dict[str, Any]:
    """Time plain steps on a GPU; as configured, also profile one, and each op alone (under layer -1). Needs a GPU.

    The trace lies in the folder in which both runs meet; the parent reads and removes it.
    """
    inputs, synchronize = batch(state), state.scene.device.synchronize
    told = {"seconds": step_trace.timed(lambda: plain_step(model, inputs), synchronize)}
    if state.options.get("eager"):
        return told
    ops = [op.partition(":")[2] for op in state.options["ops"]]
    calls = [(name, *seen.arguments[name]) for name in ops if name in seen.arguments]

    def once() -> None:
        model.zero_grad(set_to_none=True)
        with named(ranges.STEP):
            plain_step(model, inputs)
        for name, _, function, args, kwargs in calls:
            with named(ranges.seam_label(-1, name)):
                output = next(tensors_in(function(*args, **kwargs)))
            if output.requires_grad:
                output.backward(output.detach())

    follower = Follower(model, len(state.scene.built.layer_types))
    with follower.hooked(), interposed(model, labels(follower)):
        path = os.path.join(state.options["exchange"], step_trace.TRACE)
        return {**told, **step_trace.profile(once, synchronize, path)}


def labels(follower: Follower) -> Around:
    """Return a wrapper that names each seam's range in the profile."""

    def around(bound: Bound, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with named(ranges.seam_label(follower.layer, bound.name)):
                return function(*args, **kwargs)

        return call

    return around


def named(label: str) -> Any:
    """Open a range of the profiler."""
    from torch.profiler import record_function

    return record_function(label)


# Each op alone: what it launches here


def alone(state: State, seen: Seen) -> list[dict[str, Any]]:
    """Run each op once alone, forward and backward, on the model's own arguments; count what it does.

    In the eager run this is the reference that was bound, and a hub kernel is itself; else the package's op, imported
    by its id, whatever the model has bound.
    """
    found = []
    for op in state.options["ops"]:
        name = op.partition(":")[2]
        if name in seen.arguments:
            bound, function, *given = seen.arguments[name]
            own = state.options.get("eager") or bound.kind == "hub"
            found.append({"op": op, "seam": name, **lonely(state, op, function if own else None, given)})
    return found


def lonely(state: State, op: str, function: Any, given: Any) -> dict[str, Any]:
    """Run a function, or if None the one that the op's id names, alone; an exception is an answer."""
    try:
        if function is None:
            function = getattr(importlib.import_module(op.partition(":")[0]), op.partition(":")[2])
        counts = dict(phases(state.scene.device, function, given))
    except Exception as error:
        told = scene.failure(error)
        return {"raised": f"{told['exception']}: {told['message']}"}
    return {**counts, "standin": models.is_standin(function)}


def phases(device: Any, function: Any, given: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the op does forward, then backward from a gradient of ones."""
    import torch

    args, kwargs = given
    with counted(device) as counts:
        output = next(tensors_in(function(*args, **kwargs)))
    yield "forward", counts()
    if output.requires_grad:
        with counted(device) as counts:
            torch.autograd.backward(output, torch.ones_like(output))
        yield "backward", counts()


@contextlib.contextmanager
def counted(device: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Count operations and launches in this block; call what it yields afterwards."""
    with device.launches() as launched:
        ledger = Ledger(launched, device.inside)

        def counts() -> dict[str, Any]:
            operations: Counter[str] = sum(ledger.operations.values(), Counter())
            launches: Counter[str] = sum(ledger.launches.values(), Counter())
            return {"operations": dict(operations), "launches": dict(launches)}

        with counting(ledger):
            yield counts
        ledger.settle()
