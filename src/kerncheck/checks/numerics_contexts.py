"""KC412: an op in the ways in which jobs run it."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks.numerics import other_release
from kerncheck.checks.numerics_reading import Op, ops
from kerncheck.checks.registry import Case, check
from kerncheck.model.numerics import Cell, InContext, Lane
from kerncheck.model.outcome import Outcome, Say

ROUNDINGS = 8 * 2.0**-9
"""Autocast may round what an op is given and what it returns: eight roundings to bf16, relative to the tensor."""
ADVICE = {
    "gradient checkpointing": "do not recompute the layers that call it (gradient_checkpointing off)",
    "autocast": "run it outside of torch.autocast, on inputs of one dtype",
    "torch.compile": "keep it out of the compiled region (torch.compiler.disable)",
    "cu_seqlens at a reused address": "keep every cu_seqlens alive while the job runs",
}
"""What helps until another release of the package is installed."""


@check("KC412", "the op holds as jobs run it", needs=("numerics",))
def in_contexts(case: Case, say: Say) -> Iterator[Outcome]:
    """An op must give the same results under checkpointing, autocast and torch.compile, and forget old boundaries.

    What it checks
        One small packed case is run plainly, and again: with its forward recomputed in the backward (bit for bit the
        same), under torch.autocast to bf16 (within eight roundings), on a GPU through torch.compile (the same), and
        after a call with other cu_seqlens that were freed since (the same).
    Why it matters
        A kernel that is right when called alone can still fail in a training loop: helpers that are kept by a tensor's
        address, counters, buffers that a second forward overwrites, casts that only mixed precision makes.
    Example
        Under gradient checkpointing dk differs by 0.4 of its size: the second forward returned other values.
    How to fix
        Take another release of the package, or keep the op out of that context. Never refill a cu_seqlens tensor in
        place: fla keeps chunk indices by its identity, and stale ones make kernels write out of bounds.
    """
    for op in ops(case):
        looked = [(lane, cell) for lane, cell in op.cells if cell.contexts]
        pairs = [(lane, cell, item) for lane, cell in looked for item in cell.contexts]
        wrong = [(lane, cell, item) for lane, cell, item in pairs if worse(item)]
        for lane, cell, item in wrong:
            yield broken(say, op, lane, cell, item)
        if not pairs:
            yield say.not_judged(
                op.id,
                "no case of it was run in other ways than plainly (KC412 has none for this op, or the run is quick)",
                required=False,
            )
        elif not wrong:
            names = ", ".join(dict.fromkeys(item.name for _, _, item in pairs))
            yield say.passed(op.id, f"holds under: {names}", op.evidence)


def worse(item: InContext) -> bool:
    """Tell whether a context spoils the op."""
    allowed = ROUNDINGS if item.name == "autocast" else 0.0
    return bool(item.raised) or any(size is None or size > allowed for size in item.differs.values())


def broken(say: Say, op: Op, lane: Lane, cell: Cell, item: InContext) -> Outcome:
    """Say what went wrong in one context."""
    sizes = ", ".join(
        f"{name} {'not finite or absent' if size is None else f'{size:.2g}'}" for name, size in item.differs.items()
    )
    return say.failed(
        op.id,
        f"fails under {item.name}" if item.raised else f"gives other results under {item.name}",
        found=item.raised or f"relative difference from the plain run: {sizes} ({lane.title}, {cell.name})",
        wanted="within eight roundings of the plain run" if item.name == "autocast" else "what the plain run gives",
        remedy=f"{other_release(op)}; until then {ADVICE.get(item.name, 'keep the op out of it')}",
        evidence=op.evidence,
        severity=op.severity,
    )
