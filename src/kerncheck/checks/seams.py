"""Seams: what the model's fused ops are bound to."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks.registry import Case, check
from kerncheck.checks.seams_common import (
    UNREAD,
    Need,
    binding_of,
    bindings,
    entered_or_none,
    evidence,
    executed,
    hidden_by_no_gpu,
    impossible_here,
    layer_types,
    needs,
    recurrent,
)
from kerncheck.checks.seams_remedies import found_text, remedy, why
from kerncheck.model.base import Broken, Missing, NotObservedError, seen
from kerncheck.model.layers import share
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.seams import Binding, Bindings, Entered


@check("KC301", "required ops are bound to fused kernels", needs=("seams",), also=("environment", "gpus"))
def eager_binding(case: Case, say: Say) -> Iterator[Outcome]:
    """Each op that the model's layers need is bound to its kernel package, not to the library's eager reference.

    What it checks
    In a clean process, what transformers' modelling code bound each required op to, and why where it is the reference.
    A compiled package that a CPU build of torch cannot have does not apply under profile ci, or without a GPU. Before
    5.15 flags ask torch for a GPU: in CI and in an image build they are asked as if one were there.

    Why it matters
    transformers catches any exception of the import, keeps its reference for as long as the process lives, and says
    at most once that the package "is not installed". Training goes on, several times slower.

    Example
    fla: 24 of 32 layers run the eager reference of chunk_gated_delta_rule: installed, but import fla raises
    ImportError: undefined symbol (transformers says "not installed", which misleads)

    How to fix
    Install the package, or mend its import (KC2xx names the cause), then start the process anew: a seam is never bound
    a second time.
    """
    bound, run = bindings(case), entered_or_none(case)
    fallen: dict[tuple[str, str], list[tuple[Need, Binding]]] = {}
    wanted = needs(case)
    if not wanted:
        yield say.not_applicable("seams", "this model's code calls no fused op through a seam")
    for need in wanted:
        item = binding_of(bound, need.op)
        if item is None or impossible_here(case, bound, item) or hidden_by_no_gpu(case, item):
            yield from set_aside(need, item, say)
        elif item.bound in ("package", "hub"):
            proof = evidence(run) if executed(run, need.op) else "inferred"
            flags = ", as if a GPU were there" if bound.believed else ""
            yield say.passed(need.op, f"bound to {item.target} ({item.bound}) for {need.layers}{flags}", proof)
        else:
            fallen.setdefault((item.package, why(item)), []).append((need, item))
    for (package, _), items in fallen.items():
        yield fallback(case, package, items, say)


def set_aside(need: Need, item: Binding | None, say: Say) -> Iterator[Outcome]:
    """Say why an op is not judged here; one without a seam is KC304's."""
    if item is not None and item.reason is not None and item.reason.kind == "no_gpu":
        reason = f"{item.reason.message}: no GPU is in sight here, so it is judged on the node, or emulated"
        yield say.not_judged(need.op, reason)
    elif item is not None:
        reason = f"{item.package} is compiled for CUDA, and this is a CPU build of torch, which cannot have it"
        yield say.not_applicable(need.op, reason)


def fallback(case: Case, package: str, items: list[tuple[Need, Binding]], say: Say) -> Outcome:
    """Return the finding for the ops of one package that fell back for one reason."""
    need, item = items[0]
    names = ", ".join(need.name for need, _ in items)
    most = max((need for need, _ in items), key=lambda need: need.count)
    how = f"do not call {names} of {package}" if item.bound == "replaced" else f"run the eager reference of {names}"
    return say.failed(
        package,
        f"{most.layers} {how}: {why(item)}",
        found=found_text(item),
        wanted=f"{names} bound to {need.op.partition(':')[0]}",
        remedy=remedy(item, case.catalog),
    )


@check("KC304", "the layers have seams", needs=("seams",))
def no_seam(case: Case, say: Say) -> Iterator[Outcome]:
    """A model whose layers need fused ops has places where they are bound, or is seen to launch kernels without.

    What it checks
    That the modelling code of a model with linear-attention, convolution or hybrid layers has a seam for each required
    op. Where one has none, the kernels that each such layer launches in a tiny run decide.

    Why it matters
    Code without a seam (a fork, remote code, another version of transformers) may call the kernels directly, or never.
    Nothing that was not seen is a pass.

    Example
    3 of 4 layers are linear_attention, and the modelling code has no seam at all

    How to fix
    Use a transformers release whose code of this model has seams (5.15 or later), or let kerncheck run the model on a
    device, so that launched kernels can be counted.
    """
    bound, run, types = bindings(case), entered_or_none(case), layer_types(case)
    kinds = recurrent(types)
    without = [need for need in needs(case) if binding_of(bound, need.op) is None]
    if not kinds and not without:
        yield say.not_applicable("seams", "no layer of this model needs a seam")
    elif not bound.bindings:
        problem = f"{share(sum(kind in kinds for kind in types), len(types))}: no seam in {bound.module}"
        yield decided_by_launches(problem, run, say)
    elif without:
        names = ", ".join(need.name for need in without)
        yield say.not_judged("seams", f"{without[0].layers}: {bound.module} has seams, but none for {names}")
    else:
        yield say.passed("seams", f"{bound.module} has a seam for each required op")


def decided_by_launches(problem: str, run: Entered | None, say: Say) -> Outcome:
    """Judge layers without a seam by the kernels that they launch."""
    if run is None or run.problem is not None:
        return say.not_judged("seams", f"{problem}, and nothing was executed that could show kernels")
    silent = silent_layers(run)
    if not silent:
        return say.passed("seams", f"{problem}, but each of its layers launches Triton kernels", evidence(run))
    return say.failed(
        "seams",
        problem,
        found=f"no Triton kernel launched by built layers {', '.join(map(str, silent))}",
        wanted="a fused kernel in each such layer",
        remedy="use a transformers release whose code of this model has seams (5.15 or later)",
        evidence=evidence(run),
    )


def silent_layers(run: Entered) -> list[int]:
    """Return the built layers that need fused ops and launched no kernel."""
    loud = {item.layer for item in run.forward if item.kernels}
    kinds = recurrent(run.layer_types)
    return [index for index, kind in enumerate(run.layer_types) if kind in kinds and index not in loud]


@check("KC305", "the model's code can be read", needs=("seams",))
def unreadable(case: Case, say: Say) -> Iterator[Outcome]:
    """The installed transformers has this model, its code can be imported, and its seams are of a kind that we know.

    What it checks
    That transformers knows the model type or the architecture, that the modelling code imports, and that it binds its
    fused ops in a way that is known: with the decorator of transformers 5.15 and later, or before that by imports
    behind availability flags at the top of its module.

    Why it matters
    Where the seams cannot be read, nothing is known about what the layers would run, whatever is installed.

    Example
    transformers 5.6.0: its code of this model looks for kernel packages only when a layer is built

    How to fix
    Install a release of transformers that has the model, 5.15 or later where this one cannot be read; mend whatever
    breaks its import.
    """
    bound = seen(case.snapshot.seams).bound
    if isinstance(bound, Broken):
        yield say.failed(
            "transformers",
            f"the modelling code cannot be imported: {bound.exception or bound.how}: {bound.message}",
            found=" < ".join(bound.chain) or bound.message,
            wanted="an import that succeeds",
            remedy="mend the module that the last exception of the chain names, then run kerncheck again",
        )
    elif isinstance(bound, Missing):
        raise NotObservedError(bound.reason)
    elif bound.mechanism in UNREAD:
        remedy_text = "use transformers 5.15 or later, or wait for a kerncheck that reads this one"
        yield say.not_judged(f"transformers {bound.transformers}", UNREAD[bound.mechanism], remedy=remedy_text)
    else:
        yield say.passed(f"transformers {bound.transformers}", read(bound))


def read(bound: Bindings) -> str:
    """Return what was read, and under which assumption."""
    told = f"{bound.module}: {len(bound.bindings)} seams read"
    if bound.mechanism == "seam":
        return told
    flags = f"{told}: imports behind flags, which ask torch for a GPU"
    return f"{flags}; there is none here, and they were asked as if there were" if bound.believed else flags
