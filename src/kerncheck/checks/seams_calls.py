"""Seams: what a tiny run of the model really executed."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks.registry import Case, check
from kerncheck.checks.seams_common import (
    Need,
    binding_of,
    bindings,
    entered,
    evidence,
    impossible_here,
    launches,
    named,
    needs,
    on_a_device,
    recurrent,
)
from kerncheck.kernels import find_spec
from kerncheck.model.base import Broken, NotObservedError, seen
from kerncheck.model.job import VARIANTS, Convention
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.seams import Binding, Entered, Entry, Error

BOUNDARIES = ("cu_seqlens", "seq_idx")
"""What tells an op where one packed example ends: transformers 5.24.0 modelling code passes one, the other or both."""

SENT: dict[Convention, tuple[str, ...]] = {
    "position_ids": (),
    "cu_seq_lens": ("cu_seqlens",),
    "seq_idx": ("seq_idx",),
    **dict.fromkeys(("both", *VARIANTS), BOUNDARIES),
}
"""Which of them reach the seams, for each thing that a collator may send."""

TOKEN_BY_TOKEN = frozenset({"fla.modules:FusedRMSNormGated"})
"""Ops that look at one token alone, behind flags of transformers before 5.15: no boundary concerns them."""


def fused(case: Case) -> list[tuple[Need, Binding]]:
    """Return the needed ops that a clean process binds to a package or a hub kernel, with their seams."""
    bound = bindings(case)
    pairs = [(need, binding_of(bound, need.op)) for need in needs(case)]
    return [(need, item) for need, item in pairs if item is not None and item.bound in ("package", "hub")]


@check("KC302", "what is bound is what executes", needs=("seams",))
@on_a_device
def reference_executed(case: Case, say: Say) -> Iterator[Outcome]:
    """No layer executes the eager reference of an op whose seam is bound to its kernel package.

    What it checks
    Which function each layer of a tiny model executed behind each seam, in a real forward (and backward).

    Why it matters
    A seam can be bound to the package and pass by it all the same: a branch of the code, an export mode, a patch or
    another environment of the process that trains. Running both is twice the work.

    Example
    chunk_gated_delta_rule is bound to fla, but layers 0, 1, 2 of the 4 that were built executed the eager reference

    How to fix
    Find what differs between the clean process and the one that ran (environment variables, patches, import order).
    """
    run = entered(case)
    for need, item in fused(case):
        entries = run.of(need.op)
        other = tuple(entry for entry in entries if set(entry.ran) & {"eager", "replaced"})
        both = tuple(entry for entry in other if set(entry.ran) & {"package", "hub"})
        if other:
            what = "the eager reference" if any("eager" in entry.ran for entry in other) else "what took its place"
            yield say.failed(
                need.op,
                f"bound to {item.target}, but {named(run, other)} executed {what}"
                + (f"; {named(run, both)} executed both" if both else ""),
                found=f"executed: {', '.join(sorted({kind for entry in entries for kind in entry.ran}))}",
                wanted=f"executed: {item.bound}",
                remedy="compare the environment of a clean process with this one: variables, patches, import order",
                evidence=evidence(run),
            )
        elif entries and not stood_in(run, need):
            yield say.passed(need.op, f"the eager reference was not executed by {named(run, entries)}", evidence(run))


def stood_in(run: Entered, need: Need) -> bool:
    """Tell whether an eager stand-in took an op's place, since the device cannot run it."""
    return need.op in run.standins or any("standin" in entry.ran for entry in run.of(need.op))


@check("KC303", "bound kernels are entered and launched", needs=("seams",), also=("environment", "gpus"))
@on_a_device
def never_launched(case: Case, say: Say) -> Iterator[Outcome]:
    """Each layer that needs a fused op enters it, and the op launches kernels, in the forward and in the backward.

    What it checks
    A tiny run counts, for each layer, the calls of each bound op and the Triton kernels that they launch. Kernels of
    compiled extensions cannot be counted so: for them the call itself is the evidence. Compiled ops that the emulated
    device cannot run are named as not judged.

    Why it matters
    Available is not used. Only a launched kernel proves that the fused path is the one that trains.

    Example
    chunk_gated_delta_rule: bound to fla, entered by 0 of 3 layers that were built

    How to fix
    Look at the call that the model makes: a branch, a wrapper or a patch leads around the seam.
    """
    run = entered(case)
    able = [(need, item) for need, item in fused(case) if not stood_in(run, need)]
    for need, reason in set_aside(case, run):
        yield say.not_judged(need.op, reason, required=False if able else None)
    for need, item in able:
        yield judged_by_count(case, run, need, item, say)


def set_aside(case: Case, run: Entered) -> Iterator[tuple[Need, str]]:
    """Name the ops that this device cannot run, and what ran in their place. The verdict needs one that it can run."""
    bound = bindings(case)
    for need in needs(case):
        item = binding_of(bound, need.op)
        where = named(run, run.of(need.op)) if run.of(need.op) else "no layer"
        if stood_in(run, need):
            yield need, f"an eager stand-in ran in {where}: compiled CUDA code cannot run on the emulated device"
        elif item is not None and impossible_here(case, bound, item):
            yield need, f"the eager reference ran in {where}: {item.package} has no build for a CPU"


def judged_by_count(case: Case, run: Entered, need: Need, item: Binding, say: Say) -> Outcome:
    """Judge one op by the layers that entered it and by what that launched."""
    every = run.of(need.op)
    entries = tuple(entry for entry in every if set(entry.ran) & {"package", "hub"})
    if run.problem is not None:
        return say.not_judged(need.op, f"the run ended early (KC310): {run.problem.exception}: {run.problem.message}")
    if every and not entries:
        return say.not_judged(need.op, "something else was executed in its place (KC302)", required=False)
    if not every and replaced_by_sibling(run, item):
        return say.note(need.op, f"{item.package} is entered through another of its ops in this phase", evidence(run))
    absent = sorted(due_layers(case, run, need) - {entry.layer for entry in every})
    if absent:
        return missing(need, item, f"never entered by built layers {', '.join(map(str, absent))}", run, say)
    if launches(need.op) and item.bound == "package" and not countable(run):
        return say.not_judged(need.op, "entered, but no Triton kernel can be counted here (that needs triton 3.4)")
    silent = silent_entries(case, run, need, entries) if item.bound == "package" else ""
    if silent:
        return missing(need, item, silent, run, say)
    return say.passed(need.op, proof(case, run, need, entries), evidence(run))


def due_layers(case: Case, run: Entered, need: Need) -> set[int]:
    """Return the built layers that must enter an op: those of the types that the request names, else all recurrent."""
    model = case.job.model
    named_types = {op.layer_type for op in (model.required if model else ()) if op.op == need.op and op.layer_type}
    kinds = named_types or recurrent(run.layer_types)
    return {index for index, kind in enumerate(run.layer_types) if kind in kinds}


def replaced_by_sibling(run: Entered, item: Binding) -> bool:
    """Tell whether the layers entered another op of the same package instead (some models have two ways)."""
    siblings = {other.name for other in run.bindings if other.package == item.package and other.op != item.op}
    return any(entry.seam in siblings and set(entry.ran) & {"package", "hub"} for entry in run.entries)


def silent_entries(case: Case, run: Entered, need: Need, entries: tuple[Entry, ...]) -> str:
    """Return what did not launch a kernel although it should have, or nothing."""
    if not launches(need.op):
        return ""
    quiet = tuple(entry for entry in entries if not entry.kernels)
    if quiet:
        return f"entered, but no kernel launched in the forward of {named(run, quiet)}"
    if not case.job.training or run.phase != "training":
        return ""
    loud = {item.layer for item in run.backward if item.kernels}
    still = tuple(entry for entry in entries if entry.layer not in loud)
    return f"no kernel launched in the backward of {named(run, still)}" if still else ""


def countable(run: Entered) -> bool:
    """Tell whether kernels can be counted: on a GPU by Triton's launch hook, which shows nothing where it is absent."""
    return run.device == "emulate" or any(item.kernels for item in (*run.forward, *run.backward))


def missing(need: Need, item: Binding, problem: str, run: Entered, say: Say) -> Outcome:
    """Return the finding for an op that is bound and not used."""
    return say.failed(
        need.op,
        f"bound to {item.target} for {need.layers}, but {problem}",
        found=problem,
        wanted="entered, and its kernels launched, in each such layer",
        remedy=f"look at how {item.module} calls {item.name}: a branch, a wrapper or a patch leads around it",
        evidence=evidence(run),
    )


def proof(case: Case, run: Entered, need: Need, entries: tuple[Entry, ...]) -> str:
    """Return in words what was seen of an op."""
    kernels = {name for entry in entries for name in entry.kernels}
    calls = sum(entry.calls for entry in entries)
    text = f"{calls} call{'' if calls == 1 else 's'} by {named(run, entries)}, for {need.layers} of the real model"
    if not kernels:
        return text
    more = ", others in the backward" if case.job.training and run.phase == "training" else ""
    return f"{text}; {len(kernels)} different Triton kernels launched in the forward{more}"


@check("KC308", "boundaries of packed examples reach the kernels", needs=("seams",))
def boundary_dropped(case: Case, say: Say) -> Iterator[Outcome]:
    """Each bound op takes cu_seqlens or seq_idx, when the job declares that its collator sends such boundaries.

    What it checks
    The signature of what each seam is bound to. transformers drops every keyword that it does not name, silently.

    Why it matters
    An op that takes no boundary mixes packed examples, and neither an error nor a warning says so.

    Example
    causal_conv1d_fn: bound, takes neither cu_seqlens nor seq_idx, and the job sends seq_idx

    How to fix
    Install a release of the package whose op takes the boundary, or do not pack.
    """
    sent = SENT[case.job.packing] if case.job.packing else ()
    if not sent:
        sends = "sends no boundaries to the seams" if case.job.packing else "is not declared (--packing)"
        yield say.not_applicable("packing", f"packing {sends}")
        return
    for need, item in fused(case):
        if need.op in TOKEN_BY_TOKEN:
            yield say.not_applicable(need.op, "it computes each token alone")
        elif not item.parameters:
            yield say.not_judged(need.op, f"the signature of {item.target} cannot be read", required=False)
        elif set(item.parameters) & set(BOUNDARIES):
            yield say.passed(need.op, f"takes {', '.join(name for name in BOUNDARIES if name in item.parameters)}")
        else:
            yield deaf(case, item, sent, say)


def deaf(case: Case, item: Binding, sent: tuple[str, ...], say: Say) -> Outcome:
    """Return the finding for an op that no boundary reaches."""
    remedy = f"install a release of {item.package} whose {item.function} takes it, or do not pack examples"
    message = f"bound to {item.target}, which takes neither cu_seqlens nor seq_idx: both are dropped silently"
    if bindings(case).mechanism == "flags":
        message = f"bound to {item.target}, to which {item.module} passes neither cu_seqlens nor seq_idx"
        remedy = "use transformers 5.15 or later, whose code passes them on, or do not pack examples"
    return say.failed(
        item.op,
        message,
        found=f"parameters: {', '.join(item.parameters)}",
        wanted=f"a parameter for what the job sends: {', '.join(sent)}",
        remedy=remedy,
    )


@check("KC309", "no forward-only op in a training step", needs=("seams",))
@on_a_device
def forward_only(case: Case, say: Say) -> Iterator[Outcome]:
    """A training step enters no op that has no backward.

    What it checks
    The ops that the layers of a tiny model entered in a training step, against what is known about their backward.

    Why it matters
    Such an op raises in the backward, or detaches its outputs without a word: some parameters are then never trained.

    Example
    fused_recurrent_gated_delta_rule has no backward, and layers 0, 1 of the 2 that were built entered it

    How to fix
    Use the chunked form of the op for training; do not force the recurrent one.
    """
    if not case.job.training:
        yield say.not_applicable("training step", "the job is inference")
        return
    run = entered(case)
    guilty = [item for item in run.bindings if without_backward(case, item) and run.of(item.op)]
    for item in guilty:
        entries = run.of(item.op)
        yield say.failed(
            item.op,
            f"has no backward, and a training step entered it in {named(run, entries)}",
            found=f"{sum(entry.calls for entry in entries)} calls in a training step",
            wanted="only ops that have a backward",
            remedy="use the chunked form of the op for training; do not force the recurrent one",
            evidence=evidence(run),
        )
    if not guilty:
        bindings(case)  # seams that cannot be read were not watched either
        yield say.passed("training step", "no op without a backward was entered", evidence(run))


def without_backward(case: Case, item: Binding) -> bool:
    """Tell whether an op is known to have no backward."""
    spec = find_spec(item.op)
    known = {row.op for file in case.catalog.kernels.values() for row in file.no_backward if not row.backend}
    return item.bound in ("package", "hub") and (item.op in known or (spec is not None and not spec.has_backward))


@check("KC310", "the model's calls fit the bound ops", needs=("seams",))
@on_a_device
def call_refused(case: Case, say: Say) -> Iterator[Outcome]:
    """What the model passes to a seam is accepted by what is bound there.

    What it checks
    That no bound op raises when the layers of a tiny model call it as they do in a step.

    Why it matters
    Hub kernel, package and reference take their arguments in different orders: a package can work alone and fail only
    through the model's call.

    Example
    causal_conv1d_fn raises TypeError: got multiple values for argument 'seq_idx', called by layer 0

    How to fix
    Use releases of the model library and of the kernel package that were made for each other.
    """
    run = seen(case.snapshot.seams).entered
    if isinstance(run, Broken):
        yield broken_run(run, say)
        return
    bad = [entry for entry in seen(run).entries if entry.error is not None]
    for entry in bad:
        yield refused(seen(run), entry, say)
    if not bad and seen(run).problem is not None:
        raise NotObservedError(f"the tiny run ended outside of any seam: {text(seen(run).problem)}")
    if not bad:
        bindings(case)  # as above
        yield say.passed("calls", "no bound op refused a call of the model", evidence(seen(run)))


def broken_run(run: Broken, say: Say) -> Outcome:
    """Return the finding for a run that ended its process."""
    return say.failed(
        "tiny run",
        f"a tiny run of the model broke its process: {run.exception or run.how}: {run.message}",
        found=" < ".join(run.chain) or run.detail[-300:] or run.message,
        wanted="a run that ends",
        remedy="see the checks of the step and of the kernels (KC4xx, KC6xx) for the op that does it",
    )


def refused(run: Entered, entry: Entry, say: Say) -> Outcome:
    """Return the finding for a call that raised."""
    item = run.binding(entry.seam)
    return say.failed(
        item.op if item else entry.seam,
        f"raises {text(entry.error)}, called by {named(run, (entry,))}",
        found=" < ".join(entry.error.chain) if entry.error else "",
        wanted="a call that is accepted",
        remedy="use releases of transformers and of the kernel package that were made for each other",
        evidence=evidence(run),
    )


def text(error: Error | None) -> str:
    """Return an exception as one line."""
    return f"{error.exception}: {error.message}" if error else ""
