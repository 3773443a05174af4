"""Section ``numerics`` of a snapshot: sizes of errors and what happened, never verdicts."""

from __future__ import annotations

from typing import Literal

from kerncheck.model.base import Broken, Evidence, Frozen, Missing

LaneName = Literal["fp32", "bf16", "fp16"]
Role = Literal["output", "state", "gradient"]


class Sizes(Frozen):
    """Errors of one tensor against the fp64 truth, pooled over seeds.

    ``rms``: root mean squares of the truth, of the fused error, and of the error of each eager run (the same dtype,
    then the kernel's precision contract). ``natural``: the size of the terms where the true value can cancel.
    ``block``: the worst root mean square over 16 tokens of a head, in units of that head's. ``gain``: by which part
    the tensor is larger than the truth, mean over seeds, and its standard error (None for one seed, or a zero truth).
    """

    rms_reference: float
    natural: float
    rms_fused: float
    rms_eager: tuple[float | None, ...]
    block_fused: float
    block_eager: tuple[float | None, ...]
    gain_fused: float | None = None
    gain_error: float | None = None
    gain_eager: tuple[float | None, ...] = ()


class TensorSeen(Frozen):
    """One output, state or gradient (``dk`` is the gradient of ``k``). ``precision`` is the dtype that it should have.

    ``absent``: no gradient came. ``shape`` and ``dtype``: what it had and what was wanted, empty when right.
    ``nonfinite``: how many entries are not finite where the truth is. ``zero``: all zero where the truth is not.
    ``sizes`` is None where there were no numbers to compare. ``digest`` is a checksum of the bits: equal digests in two
    snapshots mean the same result.
    """

    name: str
    role: Role
    precision: LaneName
    absent: bool = False
    shape: str = ""
    dtype: str = ""
    nonfinite: int = 0
    zero: bool = False
    digest: str = ""
    sizes: Sizes | None = None


class Unrepeated(Frozen):
    """A tensor that differed between runs on the same inputs: the largest difference, and what reordering explains."""

    name: str
    spread: float | None
    bound: float | None


class InContext(Frozen):
    """One way in which jobs run an op, against the plain run: what it raised, or rms(difference) / rms by tensor.

    None: absent or not finite on one side. Tensors with the same bits are not in ``differs``.
    """

    name: str
    raised: str = ""
    differs: dict[str, float | None] = {}


class Cell(Frozen, tag="cell", tag_field="kind"):
    """One op on one set of inputs.

    Of a cell with ``cuts`` only ``leaks`` was looked at: the positions from which changed tokens reached earlier
    outputs. Of one with ``contexts`` only these were. ``backward``: ``ok``, ``no graph`` or ``raised``. ``changed``:
    inputs and upstream gradients that were written to. ``unwritten``: tensors with entries that no kernel wrote.
    ``slopes``: for gradients that are missing or zero, the slope of the op's own forward along that input.
    ``configurations``: autotune choices by kernel.
    """

    op: str
    name: str
    regime: str
    lengths: tuple[int, ...]
    seeds: int
    tensors: tuple[TensorSeen, ...] = ()
    backward: Literal["ok", "no graph", "raised"] = "ok"
    backward_error: str = ""
    changed: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    slopes: dict[str, float | None] = {}
    repeats: int = 0
    unrepeated: tuple[Unrepeated, ...] = ()
    cuts: tuple[int, ...] = ()
    leaks: tuple[int, ...] = ()
    contexts: tuple[InContext, ...] = ()
    launched_forward: tuple[str, ...] = ()
    launched_backward: tuple[str, ...] = ()
    configurations: dict[str, str] = {}


class CellLost(Frozen, tag="lost", tag_field="kind"):
    """A cell that gave no answer, and why."""

    op: str
    name: str
    why: Missing | Broken


class Unimportable(Frozen):
    """An op that could not be imported: why, and the name of the module that was not found ("" for another error)."""

    op: str
    reason: str
    module: str = ""


class Lane(Frozen):
    """What one worker saw: one dtype on one device. ``facts`` are versions and names of the device.

    ``unusable`` says why the worker could not start; the emulated device refuses with ``DeviceUnusableError``.
    """

    name: LaneName
    gpu: str = ""
    facts: dict[str, str] = {}
    unusable: Missing | Broken | None = None
    cells: tuple[Cell | CellLost, ...] = ()
    unimportable: tuple[Unimportable, ...] = ()

    @property
    def title(self) -> str:
        """How a message names this lane."""
        return f"{self.name} on GPU {self.gpu}" if self.gpu else self.name


class Numerics(Frozen, tag="numerics", tag_field="kind"):
    """All lanes. ``left_out`` says of an op why this device cannot run it."""

    evidence: Evidence
    lanes: tuple[Lane, ...] = ()
    left_out: dict[str, str] = {}

    def cells(self, op: str) -> tuple[tuple[Lane, Cell], ...]:
        """Return the cells of an op that gave an answer, with their lanes."""
        return tuple(
            (lane, cell) for lane in self.lanes for cell in lane.cells if isinstance(cell, Cell) and cell.op == op
        )

    def lost(self, op: str) -> tuple[tuple[Lane, CellLost], ...]:
        """Return the cells of an op that gave none."""
        return tuple(
            (lane, cell) for lane in self.lanes for cell in lane.cells if isinstance(cell, CellLost) and cell.op == op
        )
