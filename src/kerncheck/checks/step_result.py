"""KC6: whether the fused training step runs to its end, with the result of the eager one, and faster."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks import _step as read
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Broken, Missing, seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.step import OnDevice, Raised, Run, Step, Tensor


@check("KC605", "fused and eager step agree", needs=("step",))
def same_result(case: Case, say: Say) -> Iterator[Outcome]:
    """The fused step must compute what the eager step computes: each seam's output, each parameter's gradient.

    What it checks
        Same weights, batch and seed in two processes. Each tensor's difference, as a root mean square over that of
        the eager tensor: at most 1e-5 for outputs and 5e-5 for gradients in float32.
    Why it matters
        The loss proves nothing: with every output of the delta rule set to zero, the loss of a small model moves by
        2e-4. A wrong gradient of one input leaves the forward untouched.
    Example
        gradient of layers.2.linear_attn.A_log: difference 0.7 of its size.
    How to fix
        KC4 judges the op alone and names the tensor that is wrong. If the op alone is right, look at how the model
        calls it: arguments that the seam drops, a patched module.
    """
    step = seen(case.snapshot.step)
    yield from read.unfinished(step, say)
    for device in step.devices:
        if isinstance(device.fused, Run) and device.fused.phase == "done":
            yield agreement(say, step, device, device.fused)


def agreement(say: Say, step: Step, device: OnDevice, fused: Run) -> Outcome:
    """Judge one device's comparison."""
    subject = read.named("step", step, device)
    eager, reason = read.run_or_reason(device.eager)
    if eager is None or device.comparison is None:
        return say.not_judged(subject, f"there is nothing to compare with: {reason or 'no comparison was made'}")
    known = {f"gradient of {name}" for name in read.lost_gradients(fused, eager)}  # KC607's
    ranked = [(over, tensor) for over, tensor in read.excess(fused, device.comparison) if tensor.name not in known]
    wrong = [(over, tensor) for over, tensor in ranked if over > 1]
    outputs = [tensor.name for _, tensor in ranked if tensor.name.startswith("output")]
    if not ranked:
        return say.not_judged(subject, "no output and no gradient was compared")
    if not wrong:
        worst = ranked[0][1]
        gap = f"{worst.error or 0.0:.1e} of {worst.eager or 0.0:.1e}"
        message = f"{len(outputs)} outputs and {len(ranked) - len(outputs)} gradients agree; worst {gap} ({worst.name})"
        return say.passed(subject, message, step.evidence)
    return disagreement(say, step, subject, wrong, len(ranked))


def disagreement(say: Say, step: Step, subject: str, wrong: list[tuple[float, Tensor]], total: int) -> Outcome:
    """Say which tensors differ: outputs in the order of layers first, then gradients, the worst first."""
    outputs = sorted((tensor for _, tensor in wrong if tensor.name.startswith("output")), key=read.layer_of)
    gradients = [tensor for _, tensor in wrong if not tensor.name.startswith("output")]
    first = [difference(tensor) for tensor in (outputs or gradients)[:3]]
    mild = step.evidence == "measured" and wrong[0][0] <= read.UNCALIBRATED
    return say.failed(
        subject,
        f"fused and eager step disagree in {len(outputs)} outputs and {len(gradients)} gradients of {total} tensors"
        + ("" if outputs else "; every output is right, so the backward is wrong"),
        found="; ".join(first) + (f"; {listed(outputs, gradients)}"),
        wanted="outputs and gradients of the eager step within the limits of KC605"
        + (" (uncalibrated on GPUs: a warning up to three times the limit)" if mild else ""),
        remedy="see KC4 for the op alone; if it is right there, look at the arguments and patches between model and op",
        evidence=step.evidence,
        severity="warning" if mild else "error",
    )


def listed(outputs: list[Tensor], gradients: list[Tensor]) -> str:
    """Return the names of gradients that differ, where outputs were told before, else of further ones."""
    names = [tensor.name.removeprefix("gradient of ") for tensor in gradients]
    return f"gradients: {read.listed(names if outputs else names[3:]) or 'no others'}"


def difference(tensor: Tensor) -> str:
    """Return one difference in words."""
    if tensor.error is None:
        return f"{tensor.name}: not finite, or of another shape"
    sizes = f"eager {tensor.eager or 0.0:.2g}, fused {tensor.fused or 0.0:.2g}"
    return f"{tensor.name}: differs by {tensor.error:.2g} ({sizes})"


@check("KC606", "a training step runs to its end", needs=("step",))
def step_runs(case: Case, say: Say) -> Iterator[Outcome]:
    """Forward, backward and optimiser must run with what is bound.

    What it checks
        A child process runs the step. An exception, a signal, an exit or a standstill is the finding; a step that is
        merely slow, or out of memory, is not judged.
    Why it matters
        Some fused ops have a forward only: inference works, and the first training step dies, or hangs.
    Example
        NotImplementedError in the backward of fused_recurrent_gated_delta_rule in layer 0.
    How to fix
        Bind the op that has a backward (for gated delta nets: chunk_gated_delta_rule), or repair what the error names.
    """
    step = seen(case.snapshot.step)
    for device in step.devices:
        yield ended(say, step, device)


def ended(say: Say, step: Step, device: OnDevice) -> Outcome:
    """Judge how one device's step ended."""
    subject, run = read.named("step", step, device), device.fused
    if isinstance(run, Missing):
        return say.not_judged(subject, run.reason)
    if isinstance(run, Broken):
        return broken(say, step, subject, run)
    if run.raised is not None:
        return stopped(say, step, subject, run, run.raised)
    loss = "not finite" if run.loss is None else f"{run.loss:.4f}"
    message = f"forward, backward and AdamW ran on {run.tokens} tokens in {run.dtype}; loss {loss}"
    return say.passed(subject, message, step.evidence)


def broken(say: Say, step: Step, subject: str, run: Broken) -> Outcome:
    """Say that the child died or stood still in the step."""
    word = "stood still" if run.how == "stood_still" else "died"
    last = run.detail.strip().splitlines()[-1:] or [""]
    return say.failed(
        subject,
        f"the training step {word}",
        found=f"{run.message}; {last[0]}".rstrip("; "),
        wanted="a step that runs to its end",
        remedy="rerun with --verbose to see the child's stack; KC4 tells which op does it alone",
        evidence=step.evidence,
    )


def stopped(say: Say, step: Step, subject: str, run: Run, raised: Raised) -> Outcome:
    """Say what the step raised, in which op; name a forward-only op as such."""
    there = f" in {raised.seam}" if raised.seam else ""
    layer = f" of layer {raised.layer}" if raised.layer >= 0 else ""
    forward_only = run.phase == "backward" and "NotImplementedError" in (raised.exception, *heads(raised))
    use = next((use for use in run.uses if (use.layer, use.seam) == (raised.layer, raised.seam)), None)
    implementation = use.implementation if use else "an op"
    message = f"the step raised {raised.exception} in {run.phase}{there}{layer}"
    if forward_only:
        message = f"the model trains through {implementation}{layer.replace(' of', ' in')}, which has no backward"
    return say.failed(
        subject,
        message,
        found=f"{raised.exception}: {raised.message}",
        wanted="a backward for every op that training enters",
        remedy="bind the op that has a backward (chunk_gated_delta_rule for gated delta nets)"
        if forward_only
        else "repair what the error names; KC2 and KC3 tell what is installed and bound",
        evidence=step.evidence,
    )


def heads(raised: Raised) -> list[str]:
    """Return the types of the exceptions in a chain."""
    return [entry.partition(":")[0] for entry in raised.chain]


@check("KC607", "no parameter loses its gradient", needs=("step",))
def gradients_complete(case: Case, say: Say) -> Iterator[Outcome]:
    """Every parameter that the eager step gives a gradient must get one from the fused step.

    What it checks
        The parameters whose gradient is absent or exactly zero as configured, against the eager step.
    Why it matters
        An op that detaches, or returns None or zeros for one input, trains everything but what lies before that input.
        No error is raised and the loss still falls.
    Example
        A_log, dt_bias and in_proj_a of every linear-attention layer have no gradient: the gate's gradient is dropped.
    How to fix
        KC4 names the op and the input; use a version of the package with that gradient.
    """
    step = seen(case.snapshot.step)
    yield from read.unfinished(step, say)
    for device in step.devices:
        if isinstance(device.fused, Run) and device.fused.phase == "done":
            yield complete(say, step, device, device.fused)


def complete(say: Say, step: Step, device: OnDevice, fused: Run) -> Outcome:
    """Judge one device's gradients."""
    subject = read.named("step", step, device)
    eager, reason = read.run_or_reason(device.eager)
    if eager is None:
        return say.not_judged(subject, f"there is nothing to compare with: {reason}")
    lost = read.lost_gradients(fused, eager)
    if not lost:
        return say.passed(subject, "every parameter with a gradient in the eager step has one", step.evidence)
    cut = sorted({f"{use.implementation} in layer {use.layer}" for use in fused.uses if use.differentiable is False})
    return say.failed(
        subject,
        f"{len(lost)} parameters have no gradient, or one of exactly zero, that have one in the eager step",
        found=read.listed(lost) + (f"; no backward through {read.listed(cut)}" if cut else ""),
        wanted="a gradient for each of them",
        remedy="KC4 names the op and the input whose gradient is lost; use a version of the package that has it",
        evidence=step.evidence,
    )


@check("KC610", "the fused step is faster", needs=("step",))
def faster(case: Case, say: Say) -> Iterator[Outcome]:
    """On a GPU, the step as configured should take less time than with the eager references. A warning at most.

    What it checks
        The median of three plain steps, synchronised, as configured and eager. Speed never fails a run, and no
        fallback is inferred from it: KC601 sees that by launched kernels.
    Why it matters
        A fused op that is slower than its reference (a cold or wrong autotuning choice, a bad version) costs what it
        was installed to save.
    Example
        0.812 s fused, 0.640 s eager.
    How to fix
        Clear stale autotuning results, and compare versions of the package and of Triton.
    """
    step = seen(case.snapshot.step)
    for device in step.devices:
        yield speed(say, step, device)


def speed(say: Say, step: Step, device: OnDevice) -> Outcome:
    """Judge one device's times."""
    subject = read.named("step", step, device)
    if step.evidence != "measured":
        return say.not_judged(subject, "speed is not judged in Triton's interpreter", required=False)
    fused, eager = plain_seconds(device.fused), plain_seconds(device.eager)
    if fused is None or eager is None:
        return say.not_judged(subject, "the steps were not timed", required=False)
    numbers = f"{fused:.3f} s fused, {eager:.3f} s eager{shape(device.fused)}"
    if fused <= eager:
        return say.passed(subject, numbers, step.evidence)
    return say.failed(
        subject,
        "the fused step is slower than the eager one",
        found=numbers,
        wanted="no more than the eager step takes",
        remedy="clear stale autotuning results of fla and Triton, make sure that nothing else uses the GPU, and rerun",
        evidence=step.evidence,
        severity="warning",
    )


def plain_seconds(run: Run | Missing | Broken) -> float | None:
    """Return how long one plain step took on the GPU."""
    return run.profile.seconds if isinstance(run, Run) and run.profile else None


def shape(run: Run | Missing | Broken) -> str:
    """Say how host and GPU shared the step, if a profiler saw it; its times hold what the profiler itself costs."""
    measures = run.profile.measures if isinstance(run, Run) and run.profile else None
    if measures is None:
        return ""
    host, busy = measures.enqueue_microseconds / 1e3, measures.busy_microseconds / 1e3
    waits = measures.idle.host / 1e3
    return f"; profiled: CPU enqueueing {host:.1f} ms, GPU busy {busy:.1f} ms, GPU waiting for the host {waits:.1f} ms"
