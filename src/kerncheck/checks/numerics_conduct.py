"""KC406 to KC411: what a kernel must not do besides computing: write elsewhere, look ahead, differ, die."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck import plugins
from kerncheck.checks.numerics import other_release, unusable_reason
from kerncheck.checks.numerics_reading import Op, close, ops, running, severity, wanted
from kerncheck.checks.registry import Case, check
from kerncheck.kernels import OpSpec
from kerncheck.model.base import Broken, seen
from kerncheck.model.numerics import CellLost, Lane, Numerics, Unimportable, Unrepeated
from kerncheck.model.outcome import Outcome, Say
from kerncheck.supervise import why


@check("KC406", "inputs stay as they were", needs=("numerics",))
def inputs_unchanged(case: Case, say: Say) -> Iterator[Outcome]:
    """An op must not write to its inputs or to the gradient that it is given.

    What it checks
        Inputs and upstream gradients are copied before the forward and compared bit for bit after the backward. States
        that an op updates in place by contract are outputs, not inputs.
    Why it matters
        A kernel that changes its input passes every comparison of its output, and spoils whatever else reads the input:
        a residual, another branch, a recomputation.
    Example
        l2norm: x was changed.
    How to fix
        Do not use the op as it is installed. Take another release of the package and verify again.
    """
    for op in ops(case):
        changed = [(lane, cell) for lane, cell in op.compared if cell.changed]
        if changed:
            lane, cell = changed[0]
            names = ", ".join(dict.fromkeys(name for _, other in changed for name in other.changed))
            yield say.failed(
                op.id,
                f"it wrote to what it was given: {names}",
                found=f"other bits after the run than before, in {lane.title}, {cell.name}",
                wanted="inputs and upstream gradients bit for bit as before",
                remedy=other_release(op),
                evidence=op.evidence,
                severity=op.severity,
            )
        elif op.compared:
            yield say.passed(op.id, f"inputs and upstream gradients unchanged in {len(op.compared)} cells", op.evidence)


@check("KC407", "no output depends on a later token", needs=("numerics",))
def causal(case: Case, say: Say) -> Iterator[Outcome]:
    """What an op returns for a token must not depend on tokens after it.

    What it checks
        Every token from some position on is replaced; the outputs before it must be bit for bit the same. There is no
        tolerance.
    Why it matters
        A lost causal mask lets a model read the answer. Its loss is excellent and the model is useless.
    Example
        chunk_gated_delta_rule: tokens from position 70 on changed earlier outputs.
    How to fix
        Do not use the op as it is installed. Take another release of the package and verify again.
    """
    for op in ops(case):
        looked = [(lane, cell) for lane, cell in op.cells if cell.cuts]
        leaking = [(lane, cell) for lane, cell in looked if cell.leaks]
        if leaking:
            lane, cell = leaking[0]
            places = ", ".join(str(at) for at in cell.leaks)
            yield say.failed(
                op.id,
                "outputs depend on later tokens",
                found=f"tokens changed from position {places} on changed earlier outputs, in {lane.title}, {cell.name}",
                wanted="the same bits before the first changed token",
                remedy=other_release(op),
                evidence=op.evidence,
                severity=op.severity,
            )
        elif looked:
            cuts = ", ".join(str(at) for at in looked[0][1].cuts)
            yield say.passed(op.id, f"changes from position {cuts} on leave earlier outputs bit for bit", op.evidence)


@check("KC408", "every entry is written", needs=("numerics",))
def everything_written(case: Case, say: Say) -> Iterator[Outcome]:
    """A kernel must write every entry of what it returns.

    What it checks
        Memory that torch hands out without a value is filled with NaN while the op runs (torch's deterministic fill).
        Entries that hold NaN then, and none without the fill, were never written.
    Why it matters
        Unwritten memory often holds a former right answer: a kernel that wrote 100 of 65536 entries passed a comparison
        in 19 of 50 runs. In training it holds whatever the allocator left there.
    Example
        chunk_gated_delta_rule: o has entries that no kernel wrote.
    How to fix
        Do not use the op as it is installed. Take another release of the package and verify again.
    """
    for op in ops(case):
        holes = [(lane, cell) for lane, cell in op.compared if cell.unwritten]
        if holes:
            lane, cell = holes[0]
            names = ", ".join(dict.fromkeys(name for _, other in holes for name in other.unwritten))
            yield say.failed(
                op.id,
                f"parts of {names} were never written",
                found=f"NaN where fresh memory was filled with NaN, in {lane.title}, {cell.name}",
                wanted="every entry written",
                remedy=other_release(op),
                evidence=op.evidence,
                severity=op.severity,
            )
        elif op.compared:
            yield say.passed(op.id, f"no trace of the NaN fill in {len(op.compared)} cells", op.evidence)


@check("KC409", "the same inputs give the same bits", needs=("numerics",))
def repeatable(case: Case, say: Say) -> Iterator[Outcome]:
    """A kernel must give the same bits for the same inputs, unless it adds up in any order by design.

    What it checks
        On a GPU the op runs 30 times on the same inputs; outputs and gradients are compared bit for bit. Gradients that
        a package sums with atomics may differ by twice the rounding of the tensor.
    Why it matters
        A race shows in one run of many (fla-org/flash-linear-attention#945: 30 different results in 30 runs). 30 runs
        see a race that happens in one run of ten with 95 %.
    Example
        chunk_gated_delta_rule: o differed between runs by 0.3.
    How to fix
        Take another release of the package or of the torch that brings its Triton, and verify again.
    """
    for op in running(case):
        repeated = [(lane, cell) for lane, cell in op.compared if cell.repeats]
        loose = [
            (lane, cell.name, item) for lane, cell in repeated for item in cell.unrepeated if not excused(op, item)
        ]
        if op.evidence == "emulated":
            reason = "repeatability cannot fail in emulation: programs run one after the other"
            yield say.not_judged(op.id, reason, required=False)
        elif loose:
            yield not_repeatable(say, op, loose)
        elif repeated:
            runs = max(cell.repeats for _, cell in repeated)
            yield say.passed(op.id, f"the same bits in {runs} more runs", op.evidence)


def excused(op: Op, item: Unrepeated) -> bool:
    """Tell whether a difference is what adding up in another order explains, for a tensor declared so."""
    if item.name not in op.spec.unordered or item.spread is None or item.bound is None:
        return False
    return item.spread <= item.bound


def not_repeatable(say: Say, op: Op, loose: list[tuple[Lane, str, Unrepeated]]) -> Outcome:
    """Say what differed between runs."""
    lane, cell, first = loose[0]
    names = ", ".join(dict.fromkeys(item.name for _, _, item in loose))
    spread = "numbers that are not finite" if first.spread is None else f"{first.spread:.2g}"
    return say.failed(
        op.id,
        f"{names} differed between runs on the same inputs",
        found=f"{first.name} by up to {spread} in {lane.title}, {cell}",
        wanted="the same bits in every run",
        remedy=other_release(op),
        evidence=op.evidence,
        severity=op.severity,
    )


@check("KC410", "margins are clear of the limit", needs=("numerics",))
def margins_clear(case: Case, say: Say) -> Iterator[Outcome]:
    """An error between half the limit and the limit is worth a look before the next upgrade.

    What it checks
        The root mean square error of each tensor of each op that is right by KC401 and KC402, as part of its limit.
    Why it matters
        Healthy kernels stay below 0.5 in all our runs. One that does not may be about to cross the limit with another
        shape, or has lost precision that its release notes do not mention.
    Example
        chunk_gated_delta_rule: dg at 0.62 of its limit.
    How to fix
        Compare with the snapshot of the last release that you trusted (kerncheck judges either). Nothing has to be done
        for this run.
    """
    for op in running(case):
        tight = close(op.sightings)
        if tight:
            names = ", ".join(f"{name} at {item.near.value:.2f}" for name, item in tight.items() if item.near)
            first = next(iter(tight.values()))
            yield say.failed(
                op.id,
                f"close to the limit: {names}",
                found=f"{first.near.words if first.near else ''} in {first.place}",
                wanted="at most half the limit, as healthy kernels have",
                remedy="compare with a snapshot of a release that you trust; nothing has to be done for this run",
                evidence=op.evidence,
                severity="warning",
            )
        elif all(item.value <= 1 for item in op.sightings):
            yield say.passed(op.id, "no error above half its limit", op.evidence)


@check("KC411", "every op's own check ran", needs=("numerics",), also=("environment",))
def cells_ran(case: Case, say: Say) -> Iterator[Outcome]:
    """Every required op must have been run and must have lived through it.

    What it checks
        For each op of the job: that it could be imported, and that no cell raised, crashed, stood still or was lost.
    Why it matters
        What did not run was not judged. A crash is a finding, an exhausted memory or a slow compilation is not.
    Example
        chunk_gated_delta_rule: killed by SIGSEGV in bf16, weak gates.
    How to fix
        Read the exception: it is the kernel's own. An op that cannot be imported is told by the KC2 checks. For a slow
        first compilation raise --timeout; for exhausted memory free the GPU.
    """
    for name, reason in plugins.read(case.snapshot.environment).broken.items():
        needed = None if case.job.model is None else False
        yield say.not_judged(f"plug-in {name}", f"its ops are not known: {reason} (KC002)", required=needed)
    section = seen(case.snapshot.numerics)
    for spec in wanted(case, section):
        yield from told(case, say, section, spec)


def told(case: Case, say: Say, section: Numerics, spec: OpSpec) -> Iterator[Outcome]:
    """Yield what became of one op's cells."""
    gone = [item for lane in section.lanes for item in lane.unimportable if item.op == spec.id]
    lost, cells, nowhere = section.lost(spec.id), section.cells(spec.id), unusable_reason(section.lanes)
    needed = None if severity(case, spec.id) == "error" else False
    died = [(lane, cell) for lane, cell in lost if isinstance(cell.why, Broken)]
    if spec.id in section.left_out:
        yield say.not_judged(spec.id, section.left_out[spec.id], required=False)
    elif nowhere:
        yield say.not_judged(spec.id, f"nothing could be run: {nowhere}", required=needed)
    elif gone:
        yield unimportable(case, say, spec, gone[0], needed)
    elif died:
        yield cell_died(case, say, section, spec, died[0])
    elif lost:
        lane, cell = lost[0]
        yield say.not_judged(spec.id, f"{lane.title}, {cell.name}: {why(cell.why)}", required=needed)
    elif cells:
        lanes = ", ".join(dict.fromkeys(lane.title for lane, _ in cells))
        yield say.passed(spec.id, f"{len(cells)} cells ran ({lanes})", section.evidence)
    else:
        yield say.not_judged(spec.id, "no cell of it was run", required=needed)


def unimportable(case: Case, say: Say, spec: OpSpec, gone: Unimportable, needed: bool | None) -> Outcome:  # noqa: FBT001
    """Say that an op could not be imported; without a model, a package that is not installed is nobody's need."""
    if case.job.model is None and gone.module == spec.import_name:
        return say.not_applicable(spec.id, f"{spec.package} is not installed")
    return say.not_judged(spec.id, f"it cannot be imported: {gone.reason} (see KC2)", required=needed)


def cell_died(case: Case, say: Say, section: Numerics, spec: OpSpec, first: tuple[Lane, CellLost]) -> Outcome:
    """Say that a cell broke."""
    lane, cell = first
    assert isinstance(cell.why, Broken)  # noqa: S101 - chosen by the caller
    tail = cell.why.detail.strip().splitlines()[-1:] if cell.why.how != "raised" else []
    return say.failed(
        spec.id,
        f"it did not live through its own check: {cell.why.how.replace('_', ' ')}",
        found=f"{why(cell.why)} in {lane.title}, {cell.name}" + "".join(f" ({line[:200]})" for line in tail),
        wanted="every cell runs to its end",
        remedy=f"mend the plug-in {spec.plugin}, or install another version of it (docs/plug-ins.md)"
        if cell.why.exception == "PluginError"
        else f"take another release of {spec.distributions[0]}, or of the torch that brings its triton, and verify "
        "again; the exception is in the snapshot",
        evidence=section.evidence,
        severity=severity(case, spec.id),
    )
