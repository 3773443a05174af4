"""What the checks of the seams share: which ops the verdict needs, of how many layers, and what was seen of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from kerncheck.checks.environment_torch import nvidia_in_sight
from kerncheck.checks.registry import Case, Judge
from kerncheck.kernels import all_specs, find_spec
from kerncheck.model.base import Broken, Evidence, Missing, NotObservedError, seen
from kerncheck.model.layers import needs_seam, share
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.seams import Binding, Bindings, Entered, Entry
from kerncheck.models import decodes

UNREAD = {
    "lazy": "its code of this model looks for kernel packages only when a layer is built: that is not read yet",
    "unknown": "its mechanism for fused ops is not known",
}
"""Why seams are not judged, by mechanism."""

NAMED_BY_THE_CALLER = "ops named by the caller"
"""Origin of a request whose required ops the caller of the guard listed."""


@dataclass(frozen=True)
class Need:
    """An op that this job's verdict needs, and how many of the real model's layers call it."""

    op: str
    count: int
    total: int

    @property
    def layers(self) -> str:
        """``24 of 32 layers``; ``layers`` where the configuration does not tell their types."""
        return share(self.count, self.total) if self.total else "layers"

    @property
    def name(self) -> str:
        """The op without its module."""
        return self.op.rpartition(":")[2]


def bindings(case: Case) -> Bindings:
    """Return what the seams are bound to; raise NotObservedError where there is nothing of the kind to judge."""
    bound = seen(case.snapshot.seams).bound
    if isinstance(bound, Broken):
        raise NotObservedError(f"the modelling code cannot be imported (KC305): {bound.exception}: {bound.message}")
    if seen(bound).mechanism in UNREAD:
        why = UNREAD[seen(bound).mechanism]
        raise NotObservedError(f"transformers {seen(bound).transformers}: {why} (KC305)")
    return seen(bound)


def entered(case: Case) -> Entered:
    """Return what was executed; raise NotObservedError where nothing was."""
    run = seen(case.snapshot.seams).entered
    if isinstance(run, Broken):
        raise NotObservedError(f"the tiny run broke: {run.exception or run.how}: {run.message}")
    return seen(run)


def on_a_device(judge: Judge) -> Judge:
    """Leave a check of what executes to the node when an image is built, since there is no GPU then."""

    @functools.wraps(judge)
    def judged(case: Case, say: Say) -> Iterator[Outcome]:
        if case.job.profile == "image":
            reason = "an image build has no GPU: what executes is judged on the node"
            yield say.not_judged("execution", reason, required=False)
        else:
            yield from judge(case, say)

    return judged


def entered_or_none(case: Case) -> Entered | None:
    """Return what was executed, or None."""
    run = seen(case.snapshot.seams).entered
    return None if isinstance(run, Missing | Broken) else run


def layer_types(case: Case) -> tuple[str, ...]:
    """Return the real model's layer types: those of the request, else what transformers reads in the configuration."""
    model, bound = case.job.model, seen(case.snapshot.seams).bound
    if model is not None and model.layer_types:
        return model.layer_types
    return bound.layer_types if isinstance(bound, Bindings) else ()


def needs(case: Case) -> list[Need]:
    """Return the ops that the verdict needs: those of the request, and what the model's own seams stand for.

    Code that binds another op than the one that is known (transformers 5.15 asks fla for
    ``recurrent_gated_delta_rule``) is judged by what it binds. A caller who named the ops gets these alone.
    """
    types = layer_types(case)
    wanted: dict[str, set[str]] = {}
    for op in case.job.needed:
        if op.role == "seam":
            wanted.setdefault(op.op, set()).update({op.layer_type} if op.layer_type else recurrent(types))
    for item in () if asked_for(case) else bindings(case).bindings:
        if not (case.job.training and decodes(item.op)):
            wanted.setdefault(item.op, recurrent(types))
    return [Need(op, sum(kind in kinds for kind in types), len(types)) for op, kinds in wanted.items()]


def asked_for(case: Case) -> bool:
    """Tell whether the caller named the ops that count."""
    return case.job.model is not None and case.job.model.origin == NAMED_BY_THE_CALLER


def recurrent(types: tuple[str, ...]) -> set[str]:
    """Return the kinds of layer that call seams."""
    return {kind for kind in types if needs_seam(kind)}


def binding_of(bound: Bindings, op: str) -> Binding | None:
    """Return the seam that stands for an op."""
    return next((item for item in bound.bindings if item.op == op), None)


def evidence(run: Entered | None) -> Evidence:
    """Return how strong a fact of this run is."""
    if run is None:
        return "inferred"
    return "measured" if run.device == "cuda" else "emulated"


def executed(run: Entered | None, op: str) -> bool:
    """Tell whether every call of an op ran the package or a hub kernel, and there was one."""
    entries = run.of(op) if run else ()
    return bool(entries) and all(set(entry.ran) <= {"package", "hub"} and not entry.error for entry in entries)


def launches(op: str) -> bool:
    """Tell whether an op's kernels go through Triton, where they can be counted: as its package's other ops do."""
    root = op.partition(":")[0].partition(".")[0]
    libraries = {spec.library for spec in all_specs() if spec.import_name == root}
    return libraries == {"triton"}


def impossible_here(case: Case, bound: Bindings, item: Binding) -> bool:
    """Tell whether an absent package is a compiled one, which a CPU build of torch cannot have.

    Only under profile ci, or where no GPU is in sight: beside one the CPU build is wrong, and this follows from it.
    """
    absent = item.reason is not None and item.reason.kind == "absent"
    where = case.job.profile == "ci" or without_gpu(case)
    return where and absent and not bound.torch_gpu and compiled(case, item)


def hidden_by_no_gpu(case: Case, item: Binding) -> bool:
    """Tell whether an op is not bound for the sole reason that this machine, as it was looked at, has no GPU."""
    return item.reason is not None and item.reason.kind == "no_gpu" and without_gpu(case)


def without_gpu(case: Case) -> bool:
    """Tell whether this machine was looked at and holds no GPU, and none was declared as a target."""
    environment = case.snapshot.environment
    return not isinstance(environment, Missing) and not environment.amd and not nvidia_in_sight(case, environment)


def compiled(case: Case, item: Binding) -> bool:
    """Tell whether a package has compiled code of its own, as its kernel file or the catalog says."""
    spec = find_spec(item.op)
    files = [file.package for file in case.catalog.kernels.values() if item.package in file.package.modules]
    return not spec.runs_emulated if spec else any(package.extension for package in files)


def named(run: Entered, entries: tuple[Entry, ...]) -> str:
    """Name the built layers of some entries: ``layers 0, 1, 2 of the built model``."""
    indices = sorted({entry.layer for entry in entries})
    inside = [str(index) for index in indices if index >= 0]
    return f"layer{'' if len(inside) == 1 else 's'} {', '.join(inside)} of the {len(run.layer_types)} that were built"
