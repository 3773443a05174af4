"""KC001 and KC401 to KC405: each kernel runs, and computes the right thing, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks.numerics_reading import Op, Sighting, ops, right, running, versions, worst_of
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Broken, Missing, seen
from kerncheck.model.numerics import Lane
from kerncheck.model.outcome import Outcome, Say
from kerncheck.supervise import why

UNUSABLE = "DeviceUnusableError"


def other_release(op: Op) -> str:
    """Return the remedy for a kernel that computes the wrong thing."""
    return (
        f"do not train with this op as it is installed: take another release of {op.spec.distributions[0]}, or of the "
        "torch that brings its triton, and verify again; compare with a snapshot of a machine where it passes"
    )


@check("KC001", "the emulated device can be trusted", needs=("numerics",))
def device_usable(case: Case, say: Say) -> Iterator[Outcome]:
    """The emulated device must compute what a GPU computes, or nothing is judged on it.

    What it checks
        Before any op runs, small kernels with known answers (add, dot, cast, reduce, loop; fp32 and bf16) run in
        Triton's interpreter after our repairs. Versions of Triton that were not tried are refused by name.
    Why it matters
        Triton's interpreter computes bf16 on bit patterns and truncates where hardware rounds. Numbers from a device
        like that are wrong by 1e11 and would be blamed on the kernels.
    Example
        triton 3.6.0 cannot be emulated: its interpreter calls int() on one-element arrays, which numpy 2.4 refuses.
    How to fix
        Install one of the triton versions that the message names, in an environment for CI. On a GPU node run without
        --device emulate.
    """
    if case.job.device != "emulate":
        yield say.not_applicable("emulated device", "nothing is emulated in this job")
        return
    lanes = seen(case.snapshot.numerics).lanes
    reasons = [why(lane.unusable) for lane in lanes if lane.unusable is not None]
    if reasons:
        remedy = "install a triton version that can be emulated (the reason names them), or run on a GPU"
        yield say.not_judged("emulated device", reasons[0], required=True, remedy=remedy)
    elif lanes:
        message = f"kernels with known answers are right in fp32 and bf16 ({versions(case)})"
        yield say.passed("emulated device", message, "emulated")


@check("KC401", "outputs are right", needs=("numerics",))
def outputs_right(case: Case, say: Say) -> Iterator[Outcome]:
    """Every output and every returned state must be as close to the truth as eager code is.

    What it checks
        The op runs on inputs whose truth is computed in fp64 by another algorithm. Its error is compared with the error
        of eager code in the same dtype and in the kernel's own precision: root mean square (3 times), worst block of 16
        tokens of a head (6 times), and gain over several seeds. Weak, model and extreme gates, packed and not.
    Why it matters
        A wrong forward still trains. Public cases: causal-conv1d built by nvcc 13 is off by 0.5 on B300
        (Dao-AILab/causal-conv1d#105), and NaN from 1024 blocks on (fla-org/flash-linear-attention#913).
    Example
        chunk_gated_delta_rule: o wrong, relative error 0.41, limit 0.013; ht right.
    How to fix
        Do not train with the op as it is installed. Take another release of the package, or of the torch that brings
        its Triton, and verify again. Compare with a snapshot of a machine where it passes.
    """
    for op in running(case):
        bad = op.wrong_outputs
        if bad:
            yield tensors_wrong(case, say, op, bad, op.outputs)
        elif compared(op, op.outputs):
            yield say.passed(op.id, passed_words(op, op.outputs), op.evidence)
        else:
            yield say.not_applicable(op.id, "its outputs are malformed (KC405, KC408)")


@check("KC402", "gradients are right", needs=("numerics",))
def gradients_right(case: Case, say: Say) -> Iterator[Outcome]:
    """Every input's gradient must come, and be as close to the truth as eager code's.

    What it checks
        The gradient of each input, of the weights and of the initial state, through the public function as the model
        calls it, with contiguous, sliced and expanded upstream gradients; by the rule of KC401. A gradient that is
        None or zero is compared with the slope of the op's own forward.
    Why it matters
        A right forward says nothing about the backward. Triton 3.4 to 3.7.0 on Hopper gives right outputs and wrong
        gate gradients (fla-org/flash-linear-attention#640), and the loss still falls.
    Example
        chunk_gated_delta_rule: dk, dbeta wrong; dq, dv, dg right (dk: relative error 0.54, limit 0.013).
    How to fix
        Do not train with the op as it is installed. Take another release of the package, or of the torch that brings
        its Triton, and verify again.
    """
    for op in running(case):
        bad = op.wrong_gradients
        gone = worst_of([item for item in op.gradients if item.missing])
        if not case.job.training:
            yield say.not_applicable(op.id, "inference needs no gradient")
        elif not op.has_backward:
            yield say.not_applicable(op.id, "it has no backward (KC403)")
        elif bad and not op.outputs_sound:
            names = ", ".join(bad)
            yield say.note(op.id, f"gradients differ too ({names}); its outputs are wrong (KC401, KC405)", op.evidence)
        elif gone:
            yield gradients_missing(say, op, gone)
        elif bad:
            yield tensors_wrong(case, say, op, bad, op.gradients)
        elif compared(op, op.gradients):
            yield say.passed(op.id, passed_words(op, op.gradients), op.evidence)
        else:
            yield say.not_applicable(op.id, "its gradients are malformed (KC405, KC408)")


def compared(op: Op, sightings: tuple[Sighting, ...]) -> bool:
    """Tell whether every tensor has a margin, so that a pass speaks of all of them."""
    usable = all(item.margin is not None and item.tensor.name not in op.malformed for item in sightings)
    return bool(sightings) and usable


def passed_words(op: Op, sightings: tuple[Sighting, ...]) -> str:
    """Return the words of a pass: the worst margin of each tensor, then lanes and cells."""
    worst = worst_of(list(sightings))
    margins = ", ".join(f"{name} {item.value:.2f}" for name, item in worst.items())
    return f"margins {margins} (1 is the limit) {op.where}"


def tensors_wrong(case: Case, say: Say, op: Op, bad: dict[str, Sighting], sightings: tuple[Sighting, ...]) -> Outcome:
    """Say which tensors are wrong, by how much and where, and which are right."""
    good = right(sightings)
    message = f"{', '.join(bad)} wrong" + (f"; {', '.join(good)} right" if good else "")
    found = "; ".join(f"{name}: {item.margin.words} in {item.place}" for name, item in bad.items() if item.margin)
    worst = max(item.value for item in bad.values())
    severity = op.severity_of(worst)
    uncalibrated = "; limits are not calibrated on a GPU" if severity != op.severity else ""
    return say.failed(
        op.id,
        message + uncalibrated,
        found=f"{found} ({versions(case)}; {configurations(bad)})",
        wanted="errors within 3 times those of eager code in the same precision (6 times for the worst block)",
        remedy=other_release(op),
        evidence=op.evidence,
        severity=severity,
    )


def configurations(bad: dict[str, Sighting]) -> str:
    """Name the autotune configurations of the worst cell: a fault may belong to one of them only."""
    cell = next(iter(bad.values())).cell
    chosen = ", ".join(f"{kernel}: {value}" for kernel, value in sorted(cell.configurations.items()))
    return f"configurations {chosen}" if chosen else "no autotuned kernel"


def gradients_missing(say: Say, op: Op, gone: dict[str, Sighting]) -> Outcome:
    """Say which gradients did not come."""
    good = [name for name in right(op.gradients) if name not in gone]
    words = [f"{name} {'did not come' if item.tensor.absent else 'is all zero'}" for name, item in gone.items()]
    slopes = {name: value for item in gone.values() for name, value in item.cell.slopes.items() if value}
    seen_slopes = ", ".join(f"{value:.2g} along {name}" for name, value in slopes.items())
    return say.failed(
        op.id,
        "; ".join(words) + (f"; {', '.join(good)} right" if good else ""),
        found=f"in {next(iter(gone.values())).place}"
        + (f"; the op's own forward has the slope {seen_slopes}" if slopes else ""),
        wanted="a gradient for every input that the outputs depend on",
        remedy=other_release(op),
        evidence=op.evidence,
        severity=op.severity,
    )


@check("KC403", "the op has a backward where training needs one", needs=("numerics",))
def backward_exists(case: Case, say: Say) -> Iterator[Outcome]:
    """An op that a training step enters must be differentiable.

    What it checks
        Whether any output can be differentiated and whether the backward runs. A grad_fn alone proves nothing.
    Why it matters
        A forward-only kernel on a training path either raises at the first step or, launched without a graph, trains
        nothing at all (huggingface/kernels#68).
    Example
        fused_recurrent_gated_delta_rule raises NotImplementedError in its backward: fine for decoding.
    How to fix
        Use the op's training form (chunk_gated_delta_rule for fused_recurrent_gated_delta_rule), or a release of the
        package whose backward works for these arguments.
    """
    for op in ops(case):
        broken = [(lane, cell) for lane, cell in op.compared if cell.backward != "ok"]
        if not broken:
            yield say.passed(op.id, f"its backward runs in {len(op.compared)} cells", op.evidence)
        elif not op.trains:
            yield say.not_applicable(op.id, "forward-only here, and not entered by training")
        else:
            lane, cell = broken[0]
            wrong_way = cell.backward_error or "no output has a graph"
            yield say.failed(
                op.id,
                "its forward runs and its backward does not",
                found=f"{wrong_way} (in {lane.title}, {cell.name})",
                wanted="a backward: a training step enters this op",
                remedy=f"use the package's training form of this op, or a release of {op.spec.distributions[0]} whose "
                "backward works for these arguments",
                evidence=op.evidence,
                severity=op.severity,
            )


@check("KC404", "its own check launches the op's kernels", needs=("numerics",))
def kernels_launched(case: Case, say: Say) -> Iterator[Outcome]:
    """What was compared with the truth must have been the kernel, not eager code behind the same name.

    What it checks
        Kernel launches are counted while the op runs alone, forward and backward: Triton's launches, or entries into
        the compiled extension.
    Why it matters
        A parity test that quietly compares eager code with eager code passes on every machine.
    Example
        l2norm: the result is right and no kernel was launched.
    How to fix
        Look for what redirects the op: FLA_* variables, another dispatch backend, a patched package. Then verify again.
    """
    for op in ops(case):
        idle = [(lane, cell, op.idle_way(cell)) for lane, cell in op.compared if op.idle_way(cell)]
        if not op.compared:
            continue
        if idle:
            lane, cell, way = idle[0]
            yield say.failed(
                op.id,
                f"its {way} launched no kernel: whatever ran is not the fused op",
                found=f"no launch in {lane.title}, {cell.name}",
                wanted=f"at least one launch by {op.spec.import_name}",
                remedy="look for what redirects the op (FLA_* variables, a dispatch backend, a patched package), then "
                "verify again",
                evidence=op.evidence,
                severity=op.severity,
            )
        else:
            names = dict.fromkeys(name for _, cell in op.compared for name in cell.launched_forward)
            yield say.passed(op.id, f"launched {', '.join(names)}", op.evidence)


@check("KC405", "outputs and gradients are well formed", needs=("numerics",))
def well_formed(case: Case, say: Say) -> Iterator[Outcome]:
    """Shapes and dtypes must be right, numbers finite, and outputs not all zero, before errors mean anything.

    What it checks
        Shape and dtype of every output and gradient, entries that are not finite where the truth is, outputs of zeros.
    Why it matters
        A kernel that writes zeros or NaN in a corner moves the loss of a small test hardly at all: zeroing every output
        of the delta rule of a tiny model moves its loss by 2e-4.
    Example
        chunk_gated_delta_rule: o has 4096 entries that are not finite where the truth is.
    How to fix
        Do not use the op as it is installed. Take another release of the package, or of the torch that brings its
        Triton, and verify again.
    """
    for op in ops(case):
        bad: dict[str, Sighting] = {}
        for item in op.sightings:
            if item.structural:
                bad.setdefault(item.tensor.name, item)
        if bad:
            first = next(iter(bad.values()))
            yield say.failed(
                op.id,
                "; ".join(f"{name} {item.structural}" for name, item in bad.items()),
                found=f"in {first.place} ({versions(case)})",
                wanted="finite numbers in the shape and dtype of the reference",
                remedy=other_release(op),
                evidence=op.evidence,
                severity=op.severity,
            )
        elif op.sightings:
            yield say.passed(op.id, f"shapes, dtypes and finite numbers in {len(op.compared)} cells", op.evidence)


def started(lane: Lane) -> bool:
    """Tell whether the worker of a lane got as far as its first cell."""
    return lane.unusable is None


def unusable_reason(lanes: tuple[Lane, ...]) -> str:
    """Return why no lane started, or nothing."""
    reasons: list[Missing | Broken] = [lane.unusable for lane in lanes if lane.unusable is not None]
    return why(reasons[0]) if reasons and not any(started(lane) for lane in lanes) else ""
