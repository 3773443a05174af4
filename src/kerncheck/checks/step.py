"""KC6: whether a real training step runs the fused kernels, in every layer, instead of the eager work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kerncheck.checks import _step as read
from kerncheck.checks._step import OpRun
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Missing, seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.step import OnDevice, Run, Step

REPAIR = "see KC2 and KC3 for why the package's function is not bound; then install the build for this torch and rerun"


@check("KC601", "the step launches the required op's kernels", needs=("step",))
def op_ran(case: Case, say: Say) -> Iterator[Outcome]:
    """Each required op must launch its own kernels in a real training step.

    What it checks
        One training step of a small model of the same code, random weights. What an op launches is learned by running
        it alone on the model's own arguments in the same environment; at least one layer must launch all of that,
        forward and backward.
    Why it matters
        When an op cannot be used, the model library runs its eager reference and says at most one line in a log.
        Training goes on, several times slower. Being importable, or bound, is not yet being run.
    Example
        chunk_gated_delta_rule launched 0 of 16 kernels in each of 3 linear-attention layers.
    How to fix
        KC2 (imports) and KC3 (seams) name why the op is not bound. If it is bound and launches nothing even alone, the
        installed package itself falls back: update or reinstall it for this torch, and restart.
    """
    step = seen(case.snapshot.step)
    yield from read.without_ops(case.job, step, say)
    for item in read.ops_run(case.job, step):
        yield presence(case, say, step, item)


def presence(case: Case, say: Say, step: Step, item: OpRun) -> Outcome:
    """Judge whether one op ran at all."""
    if item.standin:
        reason = "a compiled CUDA op cannot run in the interpreter; a labelled eager stand-in ran in its place"
        return say.not_judged(item.subject, reason, required=False)
    if item.complete:
        forward, backward = (counts.total() for counts in item.expected)
        where = f"{len(item.complete)} of {len(item.layers)} {item.op.layer_type} layers".replace("  ", " ")
        message = f"launched {forward} kernels forward and {backward} backward in {where}"
        return say.passed(item.subject, message + read.stands_for(case.job, item.op), step.evidence)
    if all(use.bound in ("package", "hub") for use in item.uses) and (not item.uses or item.unseen):
        return say.not_judged(item.subject, item.unseen or "the step called no seam of this name; nothing was seen")
    if item.unknown and step.evidence == "emulated":
        reason = "kerncheck has no description of this op's package: whether the interpreter could run it is not known"
        return say.not_judged(item.subject, f"{reason}; {bound(item)}")
    return say.failed(
        item.subject,
        f"did not run in the training step: the eager reference ran in {len(item.layers)} layers without an error",
        found=f"{bound(item)}; {launched(item)}; {read.most(eager_work(item)) or 'no operator'} in its place",
        wanted=f"{wanted(item)} in each {item.op.layer_type} layer" + read.stands_for(case.job, item.op),
        remedy=remedy(item),
        evidence=step.evidence,
    )


def bound(item: OpRun) -> str:
    """Return what is bound."""
    return ", ".join(sorted({f"bound: {use.implementation} ({use.bound})" for use in item.uses}))


def launched(item: OpRun) -> str:
    """Return what the op's seams launched."""
    total = sum(forward.total() + backward.total() for forward, backward in map(item.actual, item.layers))
    return f"{total} kernels launched by its seam"


def wanted(item: OpRun) -> str:
    """Return what the op launches alone, or that it does not even do that."""
    forward, backward = item.expected
    if forward or backward:
        return f"{forward.total()} kernels forward and {backward.total()} backward, as the op launches alone"
    learned = item.learned
    reason = "it launches none even alone" if learned is None or not learned.raised else learned.raised
    return f"kernels of its own ({reason})"


def eager_work(item: OpRun) -> Counter[str]:
    """Return the operators that ran forward inside of the op's seam."""
    found: Counter[str] = Counter()
    for work in item.run.work:
        if work.seam == item.seam and work.phase == "forward":
            found.update(work.operations)
    return found


def remedy(item: OpRun) -> str:
    """Return the next step, by what is bound."""
    if any(use.bound in ("eager", "replaced") for use in item.uses):
        return REPAIR
    package = item.op.op.partition(".")[0].partition(":")[0]
    return f"the bound function launches no kernel of its own: reinstall {package} for this torch, unpatched, and rerun"


@check("KC602", "every layer of the type runs the op", needs=("step",))
def every_layer(case: Case, say: Say) -> Iterator[Outcome]:
    """A required op must run in all layers of its type, not in some of them.

    What it checks
        The number of layers that launched the op's full set of kernels, forward and backward, against the number of
        layers of that type in the configuration.
    Why it matters
        One layer that falls back (a patched instance, an unsupported size in one place, a backward that is eager)
        hides behind the others in every total.
    Example
        2 of 3 linear-attention layers ran the op; layer 1 ran linalg_solve_triangular instead.
    How to fix
        Look at what the named layers have bound, and at what differs in their configuration.
    """
    step = seen(case.snapshot.step)
    yield from read.without_ops(case.job, step, say)
    for item in read.ops_run(case.job, step):
        missing = [layer for layer in item.layers if layer not in item.complete]
        if not item.complete:
            yield say.not_applicable(item.subject, "it ran in no layer, or was not judged (KC601)")
        elif missing:
            yield partly(case, say, step, item, missing)
        else:
            message = f"{len(item.layers)} of {len(item.layers)} layers" + read.stands_for(case.job, item.op)
            yield say.passed(item.subject, message, step.evidence)


def partly(case: Case, say: Say, step: Step, item: OpRun, missing: list[int]) -> Outcome:
    """Say which layers did not run the op, and what they ran."""
    forward, backward = item.expected
    lacking = [
        f"layer {layer}: {read.most(lack) or 'nothing'} missing"
        for layer in missing
        for lack in [(forward - item.actual(layer)[0]) + (backward - item.actual(layer)[1])]
    ]
    return say.failed(
        item.subject,
        f"ran in {len(item.complete)} of {len(item.layers)} layers; not in {read.layer_list(missing)}",
        found="; ".join(lacking),
        wanted=f"{forward.total()} kernels forward and {backward.total()} backward in each layer"
        + read.stands_for(case.job, item.op),
        remedy="compare what these layers have bound with the others (their modules, patches, sizes)",
        evidence=step.evidence,
    )


@check("KC603", "no eager work beside the fused op", needs=("step",))
def nothing_twice(case: Case, say: Say) -> Iterator[Outcome]:
    """Where the fused op runs, the eager reference must not run too, nor the op twice.

    What it checks
        Operators that only the eager reference uses (learned from the eager run) are absent from the blocks that
        launch the op, and each layer launches the op's kernels as often as the op does alone.
    Why it matters
        A wrapper that computes both, "to compare", or a patch that calls the original again, costs more than either.
    Example
        linalg_solve_triangular ran twice in layer 0 although the fused kernels ran there.
    How to fix
        Find the wrapper or patch around the op (KC3 shows what is bound) and remove the second computation.
    """
    step = seen(case.snapshot.step)
    yield from read.without_ops(case.job, step, say)
    for item in read.ops_run(case.job, step):
        if not item.complete:
            yield say.not_applicable(item.subject, "the fused op ran in no layer, or was not judged (KC601)")
        else:
            yield once(say, step, item)


def once(say: Say, step: Step, item: OpRun) -> Outcome:
    """Judge one op for double work."""
    signature = read.eager_signature(item)
    expected = item.expected[0] + item.expected[1]
    found = []
    for layer in item.complete:
        ran = read.signature_seen(item, layer, signature)
        extra = (item.actual(layer)[0] + item.actual(layer)[1]) - expected
        found += [f"layer {layer}: {read.most(counts)}" for counts in (ran, extra) if counts]
    if found:
        return say.failed(
            item.subject,
            "runs beside other work for the same result",
            found="; ".join(found),
            wanted="only the op's own kernels, once a layer",
            remedy="remove the wrapper or patch that computes the same again (KC3 shows what is bound)",
            evidence=step.evidence,
        )
    if not signature:
        return say.not_judged(item.subject, "the eager run did not show which operators are its own", required=False)
    return say.passed(item.subject, f"eager only: {read.most(signature)}; fused: 0 of these", step.evidence)


@check("KC604", "the fused step does less work", needs=("step",))
def less_work(case: Case, say: Say) -> Iterator[Outcome]:
    """The step as configured must launch as much less as its fused ops save.

    What it checks
        Operators and launches of forward and backward, as configured and with the eager references. The saving must
        be at least nine tenths of what the ops save alone, times their layers: learned here, no magic ratio.
    Why it matters
        It is the sum that shows what no single name does: work that came back somewhere else.
    Example
        1163 operations eager; 716 + 48 launches fused: 399 fewer, 408 expected.
    How to fix
        Compare the two runs by module in the snapshot (kerncheck verify --format json, section step).
    """
    step = seen(case.snapshot.step)
    yield from read.without_ops(case.job, step, say)
    for device in step.devices:
        items = [item for item in read.ops_run(case.job, step) if item.device is device]
        if items:
            yield economy(say, step, device, items)


def economy(say: Say, step: Step, device: OnDevice, items: list[OpRun]) -> Outcome:
    """Judge one device's saving."""
    subject = read.named("step", step, device)
    fused, (eager, reason) = items[0].run, read.run_or_reason(device.eager)
    if eager is None:
        return say.not_judged(subject, f"the eager step was not observed: {reason}")
    if not all(item.complete == item.layers for item in items if not item.standin and not item.unseen):
        return say.not_applicable(subject, "not every layer ran its fused ops (KC601, KC602)")
    expected = sum(saving(item, eager) for item in items)
    actual = eager.cost - fused.cost
    launches = fused.cost - fused.operations
    numbers = f"{eager.operations} operations eager, {fused.operations} + {launches} launches fused"
    if expected <= 0:
        return say.not_judged(subject, f"the ops save nothing when run alone ({numbers})", required=False)
    if actual >= 0.9 * expected:
        return say.passed(subject, f"{numbers}: {actual} fewer, {expected} expected", step.evidence)
    return say.failed(
        subject,
        "the fused step does not save the work that its ops save alone",
        found=f"{numbers}: {actual} fewer",
        wanted=f"at least {0.9 * expected:.0f} fewer (nine tenths of {expected})",
        remedy="compare the two runs by module in the snapshot (--format json, section step, work)",
        evidence=step.evidence,
    )


def saving(item: OpRun, eager: Run) -> int:
    """Return how many launches one op saves in all of its layers, by what both forms do alone."""
    reference, learned = eager.lonely(item.op.op), item.learned
    if reference is None or learned is None or reference.raised or learned.raised:
        return 0
    return (reference.cost - learned.cost) * len(item.layers)


@check("KC608", "what is left to fuse", needs=("step",))
def left_to_fuse(case: Case, say: Say) -> Iterator[Outcome]:
    """Which modules still run long rows of small operators. Notes, never findings.

    What it checks
        Elementwise, reducing and copying operators outside of the fused ops, counted by class of module over its
        layers.
    Why it matters
        Each is a kernel launch. On a small batch the GPU waits for launches; these are the places that a fused norm,
        activation or rotary kernel would empty.
    Example
        RMSNorm: 56 small operators in 4 layers (mul 16, _to_copy 16, pow 8, mean 8).
    How to fix
        Nothing is wrong. Consider fused forms of the named modules, or torch.compile.
    """
    step = seen(case.snapshot.step)
    runs = [device.fused for device in step.devices if isinstance(device.fused, Run) and device.fused.phase == "done"]
    if not runs:
        yield say.not_judged("step", "no step was observed to its end", required=False)
        return
    for name, layers, total, counts in read.offenders(runs[0])[:3]:
        message = f"{total} small operators forward in {layers} layers, outside of fused ops ({read.most(counts)})"
        yield say.note(name, message, step.evidence)


@check("KC609", "every visible GPU ran the step", needs=("step",))
def every_gpu(case: Case, say: Say) -> Iterator[Outcome]:
    """On a node, each GPU must have run the step.

    What it checks
        The number of GPUs on which a step was observed, against those visible to jobs.
    Why it matters
        One bad GPU of eight, or one that is busy, is not seen by a test on the first.
    Example
        7 of 8 GPUs judged; GPU 3: out of memory.
    How to fix
        Free the named GPUs and rerun, or take them away from jobs (CUDA_VISIBLE_DEVICES).
    """
    step = seen(case.snapshot.step)
    if step.evidence != "measured":
        yield say.not_applicable("GPUs", "the step ran in Triton's interpreter, on no GPU")
        return
    reasons = [f"{device.device}: {run.reason}" for device in step.devices if isinstance(run := device.fused, Missing)]
    total = max(step.visible, len(step.devices))
    judged = len(step.devices) - len(reasons)
    if judged < total:
        yield say.not_judged("GPUs", "; ".join([f"{judged} of {total} GPUs judged", *reasons]))
    else:
        yield say.passed("GPUs", f"{judged} of {total} GPUs judged", step.evidence)
