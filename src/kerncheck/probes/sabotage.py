"""Probe: another probe, in a child where things are broken on purpose. Only ``kerncheck selftest`` asks for it.

Options: ``asked_by`` must be ``kerncheck selftest``, or nothing is run; ``probe`` and ``options`` are the other
probe's; ``witness`` is a folder where each sabotage leaves a file of its name once it has really had an effect;
``import`` names a sabotage of a whole import and its package. A case may hold ``sabotage``, the name of one that is in
place while that case runs, and ``op``, what it breaks; any other case runs as it is. Nothing outside of this process
is changed, and nothing is left behind but the witnesses.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import inspect
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

ASKED_BY = "kerncheck selftest"
SCALE = 1.02
SHARE_OF_NEXT = 0.1
"""How much of the next token's output an output gets that looks ahead."""
HIDDEN_LIBRARY = "libkerncheck_selftest_hides_this.so.1"
BOUNDARIES = ("cu_seqlens", "seq_idx")
FOREVER = 1e6  # seconds

Fire = Callable[[], None]


@dataclass
class State:
    """The other probe with its own state, and where the witnesses go."""

    probe: Any
    inner: Any
    witness: str
    weights: dict[str, Any] = field(default_factory=dict)


def setup(options: dict[str, Any]) -> State:
    """Put a sabotage of an import in place, if one is asked for, and set the other probe up."""
    if options.get("asked_by") != ASKED_BY:
        raise RuntimeError(f"sabotage is for `{ASKED_BY}` alone")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    broken = options.get("import")
    if broken:
        act = functools.partial(IMPORTS[broken["sabotage"]], witness(options["witness"], broken["sabotage"]))
        sys.meta_path.insert(0, Saboteur(broken["package"], act))
    probe = importlib.import_module("kerncheck.probes." + options["probe"])
    return State(probe, probe.setup(options["options"]), options["witness"])


def run(case: dict[str, Any], state: State) -> dict[str, Any]:
    """Run one case of the other probe, with a sabotage in place if the case names one."""
    if state.probe.__name__.endswith(".step"):
        as_at_first(state)
    kind = case.get("sabotage", "")
    if not kind:
        return dict(state.probe.run(case, state.inner))
    numerics = isinstance(state.inner, dict) and "ops" in state.inner
    place = in_the_package if numerics else at_the_seam  # what the probe itself calls, or what its model calls
    with place(kind, case["op"], state.inner, witness(state.witness, kind)):
        return dict(state.probe.run(case, state.inner))


def as_at_first(state: State) -> None:
    """Give a model that has trained a step the weights that it had before, and no gradients."""
    model = getattr(state.inner.scene.built, "model", None)
    if model is None:
        return
    if state.weights:
        model.load_state_dict(state.weights)
        model.zero_grad(set_to_none=True)
    else:
        state.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}


def witness(folder: str, kind: str) -> Fire:
    """Return what a sabotage calls once it has had its effect. The parent believes in none without it."""

    def fire() -> None:
        with open(os.path.join(folder, kind), "w"):
            pass

    return fire


# Where an op is broken


@contextlib.contextmanager
def in_the_package(kind: str, op: str, inner: dict[str, Any], fire: Fire) -> Iterator[None]:
    """Break the op in its own module, where the numerics probe imports it."""
    module_name, _, name = op.partition(":")
    module = importlib.import_module(module_name)
    sound = getattr(module, name)
    setattr(module, name, broken(kind, sound, fire))
    inner["ops"].clear()  # the probe remembers what it imported
    try:
        yield
    finally:
        setattr(module, name, sound)
        inner["ops"].clear()


@contextlib.contextmanager
def at_the_seam(kind: str, op: str, inner: Any, fire: Fire) -> Iterator[None]:
    """Break what the model's own code calls: in the seam's closure, or where its layers keep the op."""
    from kerncheck.compat import transformers_seams as seams

    model = (inner["scene"] if isinstance(inner, dict) else inner.scene).built.model
    found = seams.seams_of(seams.modules_behind({type(module) for module in model.modules()}))
    seam = next((item for item in found if item.op == op), None)
    if seam is None:
        raise RuntimeError(f"the model's code has no seam for {op} that could be broken")
    with contextlib.ExitStack() as stack:
        sound, put = place_of(seam, model, stack)
        put(harmful(kind.removeprefix("step_"), sound, seam.reference, fire))
        yield


Put = Callable[[Any], None]


def place_of(seam: Any, model: Any, stack: contextlib.ExitStack) -> tuple[Any, Put]:
    """Return what a seam is bound to, and how to put something in its place until the stack closes.

    Code before transformers 5.15 keeps the op in its layers and in its module: all get one and the same thing.
    """
    if seam.cell is not None:
        cell, sound = seam.cell, seam.cell.cell_contents
        stack.callback(setattr, cell, "cell_contents", sound)
        return sound, lambda value: setattr(cell, "cell_contents", value)
    if seam.held is None:
        raise RuntimeError(
            f"{seam.op} is not bound to anything in {seam.module.__name__}, so there is nothing to break"
        )
    from kerncheck.compat import flag_seams

    slots = flag_seams.slots(model, seam.module, seam.declared.name, seam.held, seam.reference)

    def put(value: Any) -> None:
        for slot in slots:
            if value is not seam.reference or slot.holder is not seam.module:  # the module stays bound to the package
                stack.enter_context(flag_seams.replaced(slot, value))

    return seam.held, put


def harmful(kind: str, sound: Any, reference: Any, fire: Fire) -> Any:
    """Return what takes the place of a seam's op: the model's eager reference, that inside of it, or a broken op."""
    if kind == "reference":
        if sound is not reference:
            fire()
        return reference
    return eager_inside(sound, reference, fire) if kind == "hollow" else broken(kind, sound, fire)


def eager_inside(sound: Any, reference: Any, fire: Fire) -> Any:
    """Return what looks like the package's op and runs the model's eager reference instead of its kernels."""
    known = inspect.signature(reference).parameters

    @functools.wraps(sound)
    def call(*args: Any, **kwargs: Any) -> Any:
        fire()
        return reference(*args, **{name: value for name, value in kwargs.items() if name in known})

    return call


def broken(kind: str, sound: Callable[..., Any], fire: Fire) -> Callable[..., Any]:
    """Return an op that runs the sound one and does one thing wrong, under its name and with its signature."""
    wrong = OPS[kind]

    @functools.wraps(sound)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrong(sound, args, kwargs, fire)

    return call


# What is done wrong


def scaled(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Return SCALE times the output."""
    return changed(sound(*args, **kwargs), lambda out: out * SCALE, fire)


def looks_ahead(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Add a part of the next token's output to each output: [batch, tokens, ...]."""
    return changed(sound(*args, **kwargs), lambda out: out + SHARE_OF_NEXT * out.roll(-1, 1), fire)


def zeroed(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Return zeros."""
    return changed(sound(*args, **kwargs), lambda out: out * 0, fire)


def with_a_hole(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Return fresh memory in which the last token was never written."""

    def copied(out: Any) -> Any:
        import torch

        fresh = torch.empty_like(out)
        fresh[:, :-1] = out[:, :-1]
        return fresh

    return changed(sound(*args, **kwargs), copied, fire)


def without_graph(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Return outputs that cannot be differentiated."""
    result = sound(*args, **kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    if any(getattr(out, "requires_grad", False) for out in outputs):
        fire()
    found = tuple(out.detach() if hasattr(out, "detach") else out for out in outputs)
    return found if isinstance(result, tuple) else found[0]


def cut(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Cut the last of the inputs that want a gradient from the graph."""
    return cut_off(wanting(sound, args, kwargs)[-1:], sound, (args, kwargs), fire)


def cut_more(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Cut all of them but the first: a weight that feeds several inputs loses its gradient too."""
    return cut_off(wanting(sound, args, kwargs)[1:], sound, (args, kwargs), fire)


def wanting(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the inputs that want a gradient, in the order of the op's parameters."""
    given = inspect.signature(sound).bind(*args, **kwargs).arguments
    return [value for value in given.values() if getattr(value, "requires_grad", False)]


def cut_off(lost: list[Any], sound: Any, given: tuple[tuple[Any, ...], dict[str, Any]], fire: Fire) -> Any:
    """Run the op with some inputs cut from the graph."""
    if lost:
        fire()

    def loose(value: Any) -> Any:
        return value.detach() if any(value is item for item in lost) else value

    args, kwargs = given
    return sound(*map(loose, args), **{name: loose(value) for name, value in kwargs.items()})


def writing(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Change the first input after it was used."""
    result = sound(*args, **kwargs)
    first = next(value for value in (*args, *kwargs.values()) if hasattr(value, "detach"))
    first.detach().mul_(2)
    fire()
    return result


def aborting(_sound: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], fire: Fire) -> Any:
    """End the process as an assertion in C++ does."""
    fire()
    os.abort()


def without_boundaries(sound: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fire: Fire) -> Any:
    """Drop what tells packed examples apart."""
    if any(kwargs.get(name) is not None for name in BOUNDARIES):
        fire()
    return sound(*args, **{name: None if name in BOUNDARIES else value for name, value in kwargs.items()})


def changed(result: Any, change: Callable[[Any], Any], fire: Fire) -> Any:
    """Change the first output of an op, and tell if that changed any number of it."""
    first, *rest = result if isinstance(result, tuple) else (result,)
    other = change(first)
    if not bool((other.detach() == first.detach()).all()):
        fire()
    return (other, *rest) if isinstance(result, tuple) else other


OPS: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any], Fire], Any]] = {
    "scale": scaled,
    "future": looks_ahead,
    "zero": zeroed,
    "hole": with_a_hole,
    "no_graph": without_graph,
    "gradient": cut,
    "weights": cut_more,
    "writes": writing,
    "abort": aborting,
    "boundaries": without_boundaries,
}


# How an import is broken


def without_library(fire: Fire) -> None:
    """Let the dynamic loader refuse, in its own words, a library that is not there."""
    fire()
    try:
        ctypes.CDLL(HIDDEN_LIBRARY)
    except OSError as error:
        raise ImportError(str(error)) from None


def unimportable(fire: Fire) -> None:
    """Raise what a package raises that does not fit."""
    fire()
    raise ImportError("kerncheck selftest makes this import fail")


def standing_still(fire: Fire) -> None:
    """Wait for something that does not come."""
    fire()
    time.sleep(FOREVER)


def crashing(fire: Fire) -> None:
    """End the process as an assertion in C++ does."""
    fire()
    os.abort()


IMPORTS: dict[str, Callable[[Fire], None]] = {
    "hidden_library": without_library,
    "unimportable": unimportable,
    "standstill": standing_still,
    "crash": crashing,
}


class Saboteur:
    """Lets a package be found as it is, and acts when it is executed, as code at its top would."""

    def __init__(self, package: str, act: Callable[[], None]) -> None:
        self.package, self.act = package, act

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """Return the spec of the package, as the other finders know it, with a loader of ours; leave all others."""
        if name != self.package:
            return None
        others: list[Any] = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is not None:
            spec.loader = self
        return spec

    def create_module(self, _spec: Any) -> None:
        """Let Python make the module."""

    def exec_module(self, _module: Any) -> None:
        """Do harm where the package's own code would run."""
        self.act()
