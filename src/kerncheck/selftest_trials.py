"""What `kerncheck selftest` runs: the small jobs that verify would run, each sound and broken, and what came of them.

The stages plan and read every run as they do for verify. A child runs the cases of several sides, one of which is
sound; a sabotage of an import needs a child of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from kerncheck.kernels import OpSpec, find_spec
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, ModelRequest
from kerncheck.selftest_sabotages import CONTROL, of_section
from kerncheck.stages import imports, numerics, packing, seams, step
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, ProbeRun, why

ASKED_BY = "kerncheck selftest"
STILL = 6.0
"""Seconds until an import that waits is called a standstill: three of them without a sign of life are enough."""
PACKING = "both"  # the one convention that keeps examples apart with transformers 5.24 (tests/faults/test_packing.py)
SMALL = {"seeds": 2, "wide": 4}
"""Half the seeds of a quick cell: over 20 draws of chunk_gated_delta_rule no margin was above 0.28 of its limit, and a
scale of 1.02 is 8500 times the limit (fp32; triton 3.9.0, fla 0.6.0)."""
FEW = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 16,  # the smallest side of a Triton dot
    "linear_value_head_dim": 16,
}


@dataclass(frozen=True)
class Trial:
    """One child: a run as its stage planned it, and the side that each of its cases is on.

    ``broken`` names the sabotage of an import that holds for the whole child.
    """

    section: str
    run: ProbeRun
    sides: tuple[str, ...]
    broken: str = ""

    @property
    def sound(self) -> bool:
        """Whether nothing at all is broken in this child, so that it runs as in verify."""
        return not self.broken and set(self.sides) == {CONTROL}


def target(job: Job) -> OpSpec | None:
    """Return the op to break: the first that the model's own code calls in training and that the device can run."""
    specs = [find_spec(op.op) for op in job.needed if op.role == "seam"]
    return next((spec for spec in specs if spec and spec.runs_emulated and spec.has_backward), None)


def smallest(model: ModelRequest) -> ModelRequest:
    """Return the model with one layer of each type and few heads; without sizes of its own, the child decides."""
    own = dict(model.shrink)
    kinds = list(dict.fromkeys(own.get("layer_types") or ()))
    if not kinds:
        return model
    few = {name: min(own[name], most) for name, most in FEW.items() if name in own}
    shrink = {**own, **few, "layer_types": kinds, "num_hidden_layers": len(kinds)}
    return msgspec.structs.replace(model, shrink=shrink, config={**model.config, "use_cache": False})


def narrowed(ask: Ask, spec: OpSpec, section: str) -> Ask:
    """Return what a section's job asks for: where ops and packages are looked at one by one, the broken one alone."""
    model = ask.job.model
    if model is None or section not in ("numerics", "imports"):
        return ask
    required = tuple(op for op in model.required if op.op == spec.id)
    return replace(ask, job=msgspec.structs.replace(ask.job, model=msgspec.structs.replace(model, required=required)))


def lanes(ask: Ask, spec: OpSpec) -> list[list[Trial]]:
    """Return all children, the costliest first; those of one lane run one after the other."""
    narrow = narrowed(ask, spec, "numerics")
    others = [*packed(ask, spec), *computed(narrow, spec), *bound(ask, spec), *imported(narrow, spec)]
    return [trained(ask, spec), *([item] for item in others)]


def trained(ask: Ask, spec: OpSpec) -> list[Trial]:
    """Run a training step with the eager references first, then fused ones that find its results; a crash comes last.

    The stage plans both to run side by side; in this order every fused step is compared, and with the same eager one.
    """
    fused, eager = step.runs(ask)
    (case,) = fused.cases
    broken = [(item.kind, {**case, "sabotage": item.kind, "op": spec.id}) for item in of_section("step")]
    alone = trial("step", eager, [(CONTROL, one) for one in eager.cases])
    return [alone, trial("step", fused, [(CONTROL, case), *broken])]


def computed(ask: Ask, spec: OpSpec) -> list[Trial]:
    """Compare the op with the truth in a cell of a quick run, and look for leaks in another; a crash comes last."""
    run = numerics.run_of(ask, ("fp32",), "")
    whole = msgspec.structs.replace(ask.job, quick=False)
    plain = [{**case, **SMALL} for case in run.cases if case["op"] == spec.id][:1]
    looking = [case for case in numerics.cases(spec, whole, "fp32") if case["cuts"]][:1]
    pairs = [(CONTROL, case) for case in (*plain, *looking)]
    for item in of_section("numerics"):
        own = looking if item.kind in ("future", "abort") else plain
        pairs += [(item.kind, {**case, "sabotage": item.kind}) for case in own]
    return [trial("numerics", run, pairs)]


def packed(ask: Ask, spec: OpSpec) -> list[Trial]:
    """Run a pack without boundaries (which must mix), with them, and with an op that ignores them."""
    (run,) = packing.runs(ask)
    kept = [case for case in run.cases if not case["use_cache"]]
    told = [case for case in kept if case["convention"] == PACKING]
    broken = [{**case, "sabotage": "boundaries", "op": spec.id} for case in told]
    pairs = [(CONTROL, case) for case in kept] + [("boundaries", case) for case in broken]
    return [trial("packing", run, pairs)]


def bound(ask: Ask, spec: OpSpec) -> list[Trial]:
    """Read what the model's code binds, with and without the package; run the model as it is, and passing the op by."""
    reading, running = seams.runs(ask)
    (case,) = running.cases
    eager = [(kind, {**case, "sabotage": kind, "op": spec.id}) for kind in ("reference", "hollow")]
    return [
        trial("seams", running, [(CONTROL, case), *eager]),
        trial("seams", reading, [(CONTROL, one) for one in reading.cases]),
        trial("seams", reading, [("unimportable", one) for one in reading.cases], broken="unimportable"),
    ]


def imported(ask: Ask, spec: OpSpec) -> list[Trial]:
    """Import torch and the package: as they are, and once for each thing that can go wrong on the way."""
    found = []
    for run in imports.runs(ask):
        found.append(trial("imports", run, [(CONTROL, case) for case in run.cases]))
        if run.label == f"import {spec.import_name}":
            for item in of_section("imports"):
                short = replace(run, limit=STILL) if item.kind == "standstill" else run
                found.append(trial("imports", short, [(item.kind, one) for one in run.cases], broken=item.kind))
    return found


def trial(section: str, run: ProbeRun, pairs: Sequence[tuple[str, dict[str, Any]]], broken: str = "") -> Trial:
    """Return a child that runs these cases, each on its side."""
    return Trial(
        section, replace(run, cases=tuple(case for _, case in pairs)), tuple(side for side, _ in pairs), broken
    )


def disguised(item: Trial, spec: OpSpec, folder: str) -> ProbeRun:
    """Return what is really run: a sound child as verify runs it, any other by way of the probe that does harm."""
    if item.sound:
        return item.run
    options: dict[str, Any] = {
        "asked_by": ASKED_BY,
        "probe": item.run.probe,
        "options": item.run.options,
        "witness": folder,
        "import": {"sabotage": item.broken, "package": spec.import_name} if item.broken else None,
    }
    label = f"{item.run.label}, {item.broken.replace('_', ' ')}" if item.broken else f"{item.run.label}, also broken"
    return replace(item.run, probe="sabotage", options=options, label=label)


@dataclass(frozen=True)
class Told:
    """A child, and what it answered."""

    trial: Trial
    answers: Answers

    def on(self, side: str) -> Answers:
        """Return the answers to the cases of one side."""
        return self.where([own == side for own in self.trial.sides])

    def where(self, keep: Sequence[bool]) -> Answers:
        """Return the answers to some cases, as if these alone had been run, and as the stage planned them."""
        chosen = [index for index, wanted in enumerate(keep) if wanted]
        run = replace(self.trial.run, cases=tuple(self.trial.run.cases[index] for index in chosen))
        return replace(self.answers, run=run, cases=tuple(self.answers.cases[index] for index in chosen))


def section_of(ask: Ask, told: Sequence[Told], section: str, side: str) -> Any:  # noqa: ANN401 - any section
    """Return a section of the snapshot as it is on one side."""
    own = [item for item in told if item.trial.section == section]
    stages: dict[str, Any] = {
        "numerics": numerics,
        "packing": packing,
        "seams": seams,
        "step": step,
        "imports": imports,
    }
    return stages[section].collect(ask, READERS[section](own, side))


def alone(told: list[Told], side: str) -> list[Answers]:
    """Return the answers of a side as they are."""
    return [item.on(side) for item in told]


def beside_the_mixing_pack(told: list[Told], side: str) -> list[Answers]:
    """Return the answers of a side, with the positive control, which is the same on all of them."""
    (item,) = told
    pairs = zip(item.trial.sides, item.trial.run.cases, strict=True)
    return [item.where([own == side or case["convention"] == "nothing" for own, case in pairs])]


def bindings_first(told: list[Told], side: str) -> list[Answers]:
    """Return what is bound, then what is executed; where the package breaks, only what is bound."""
    running, reading, without = told
    if side == "unimportable":
        return [without.on(side)]
    return [reading.on(CONTROL), running.on(side)]


def beside_the_eager_step(told: list[Told], side: str) -> list[Answers]:
    """Return the fused step of a side, then the eager one, which is the same on all of them."""
    eager, fused = told
    return [fused.on(side), eager.on(CONTROL)]


def with_the_rest(told: list[Told], side: str) -> list[Answers]:
    """Return the answers of all children, those of the broken package in the place of the sound one."""
    broken = [item for item in told if side and item.trial.broken == side]
    taken = {item.trial.run.label for item in broken}
    sound = [item for item in told if not item.trial.broken and item.trial.run.label not in taken]
    return [item.where([True] * len(item.trial.sides)) for item in (*sound, *broken)]


READERS: dict[str, Callable[[list[Told], str], list[Answers]]] = {
    "numerics": alone,
    "packing": beside_the_mixing_pack,
    "seams": bindings_first,
    "step": beside_the_eager_step,
    "imports": with_the_rest,
}


def trouble(told: Iterable[Told], section: str, side: str) -> str:
    """Return what kept the cases of a side from an answer for a reason outside of them, or nothing."""
    for item in told:
        if item.trial.section == section and side in item.trial.sides:
            if item.answers.setup is not None:
                return why(item.answers.setup)
            missing = [answer.reason for answer in item.on(side).cases if isinstance(answer, Missing)]
            if missing:
                return missing[0]
    return ""
