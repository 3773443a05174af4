"""KC627 to KC629: whether a trace shows the fused kernels that the model requires, or its eager references."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks import _trace as read
from kerncheck.checks._trace import Shown
from kerncheck.checks.registry import Case, check
from kerncheck.model.job import RequiredOp
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.trace import StepReport

REPAIR = "run kerncheck verify --model in that environment: KC2 and KC3 name why the op is not bound"


@check("KC627", "the trace shows the required fused kernels", needs=("trace",))
def fallback(case: Case, say: Say) -> Iterator[Outcome]:
    """The kernels of each op that the model requires must be in the trace, not the operators of its eager reference.

    What it checks
        For each required op, whether all kernels that it launches forward are there by name (matrices/traces.toml, by
        version), and whether operators that only its eager reference runs are.
    Why it matters
        This is the proof from the run itself: not what is installed, but what ran.
    Example
        chunk_gated_delta_rule: none of its 4 kernels, but 144 linalg_solve_triangular of the eager reference.
    How to fix
        Run kerncheck verify in the environment of that run; KC2 and KC3 name the cause.
    """
    if case.job.model is None:
        yield say.not_applicable("model", "no model was named (--model): nothing is required")
        return
    report = read.trace_of(case)
    ops = read.seams(case)
    if not ops:
        yield say.not_judged("ops", "the model is not known to need any fused op", required=False)
    for op in ops:
        yield judged(say, report, op, read.shown(case, report, op.op))


def judged(say: Say, report: StepReport, op: RequiredOp, found: Shown) -> Outcome:
    """Judge one op."""
    if found.forward and found.eager:
        return say.not_applicable(op.op, "its kernels and its eager reference both ran (KC629)")
    if found.forward:
        return say.passed(op.op, f"launched {', '.join(found.forward)}", "measured")
    if not found.eager:
        return say.not_judged(op.op, unseen(found))
    if report.joins.lost:
        reason = (
            f"its eager operators ran, but {report.joins.lost} launches have no kernel event: absence is not proved"
        )
        return say.not_judged(op.op, reason)
    return say.failed(
        op.op,
        "fell back: the eager reference ran in its place",
        found=f"none of its kernels; {ran(found)} forward",
        wanted="the kernels of the fused op" + (f" in version {found.version}" if found.version else ""),
        remedy=REPAIR,
        evidence="measured",
    )


def unseen(found: Shown) -> str:
    """Say why nothing is known of an op of which the trace shows nothing."""
    if not found.known:
        version = f" in version {found.version}" if found.version else ""
        return f"no row of matrices/traces.toml knows its kernels{version}, and no eager reference is seen"
    return "neither its kernels nor its eager reference are seen: the traced steps do not run it, or under other names"


def ran(found: Shown) -> str:
    """Name the eager operators and how often they ran."""
    return ", ".join(f"{count} {name.removeprefix('aten::')}" for name, count in found.eager.items())


@check("KC628", "what is fused forward is fused backward", needs=("trace",))
def forward_only(case: Case, say: Say) -> Iterator[Outcome]:
    """An op whose fused forward ran in a training step must run its fused backward too.

    What it checks
        For each op whose forward kernels are in the trace, that at least one of its backward kernels is, where the
        trace holds a backward pass.
    Why it matters
        A fused forward with an eager or absent backward loses most of the gain, or trains with detached layers.
    Example
        chunk_gated_delta_rule: 4 kernels forward, none of its 4 backward ones.
    How to fix
        Look for torch.no_grad, detach or a hand-made autograd function around the op; kerncheck verify judges this.
    """
    report = read.trace_of(case)
    rows = [(op, row) for op, row in read.fused_rows(report) if row.backward]
    if not report.backward or not rows:
        reason = "no op with a known backward ran fused" if report.backward else "the trace holds no backward pass"
        yield say.not_applicable("backward", reason)
        return
    for op, _ in rows:
        found = read.shown(case, report, op)
        if found.backward:
            yield say.passed(op, f"launched {', '.join(found.backward)} backward", "measured")
        elif report.joins.lost:
            yield say.not_judged(op, f"{report.joins.lost} launches have no kernel event: absence is not proved")
        else:
            yield say.failed(
                op,
                "ran fused forward only: a backward pass ran without its kernels",
                found=f"{', '.join(found.forward)}, and nothing of its backward",
                wanted=f"{', '.join(found.missing)}",
                remedy="look for no_grad, detach or an own autograd function around it; run kerncheck verify --model",
                evidence="measured",
            )


@check("KC629", "fused and eager are not mixed", needs=("trace",))
def mixed(case: Case, say: Say) -> Iterator[Outcome]:
    """Where an op runs fused, its eager reference must not run as well, in other layers or beside it.

    What it checks
        Operators of the eager reference in a trace that also shows the op's kernels.
    Why it matters
        Some layers that fall back, or both forms computed "to compare", hide behind the fused kernels in every total.
    Example
        causal_conv1d_fn ran fused, and 12 conv1d of its eager reference ran as well.
    How to fix
        Compare what the layers have bound (kerncheck verify, KC3 and KC602), and remove what computes twice.
    """
    if case.job.model is None:
        yield say.not_applicable("model", "no model was named (--model): nothing is required")
        return
    report = read.trace_of(case)
    for op in read.seams(case):
        found = read.shown(case, report, op.op)
        if found.forward and found.eager:
            yield say.failed(
                op.op,
                "ran fused in part: its eager reference ran as well",
                found=f"{', '.join(found.forward)}; {ran(found)} of the eager reference",
                wanted="only the fused kernels, in every layer",
                remedy="compare what the layers have bound (kerncheck verify --model, KC3 and KC602)",
                evidence="measured",
            )
        elif found.forward:
            yield say.passed(op.op, "no operator of its eager reference ran", "measured")
        else:
            yield say.not_applicable(op.op, "its kernels are not seen (KC627)")
