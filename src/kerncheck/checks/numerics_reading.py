"""What the checks of family KC4 share: everything that was seen of one op, read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kerncheck.checks.numerics_rule import UNCALIBRATED, WARN, Margin, margin, near
from kerncheck.checks.registry import Case
from kerncheck.kernels import OpSpec, all_specs
from kerncheck.model.base import Evidence, seen
from kerncheck.model.numerics import Cell, Lane, Numerics, TensorSeen
from kerncheck.model.outcome import Severity


@dataclass(frozen=True)
class Sighting:
    """One tensor in one cell."""

    lane: Lane
    cell: Cell
    tensor: TensorSeen

    @cached_property
    def margin(self) -> Margin | None:
        """The worst margin, or None where there were no numbers or what they say is told by a flag."""
        return None if self.tensor.zero else margin(self.tensor, self.cell.seeds)

    @property
    def value(self) -> float:
        """The margin as a number, 0 without one."""
        return self.margin.value if self.margin else 0.0

    @cached_property
    def near(self) -> Margin | None:
        """The margin that a warning is given by."""
        return None if self.tensor.zero else near(self.tensor)

    @property
    def structural(self) -> str:
        """What is wrong before any number is compared, in words; gradients that are missing are told elsewhere."""
        tensor = self.tensor
        if tensor.shape:
            return f"has shape {tensor.shape}"
        if tensor.dtype:
            return f"is {tensor.dtype}"
        if tensor.nonfinite and tensor.name not in self.cell.unwritten:
            return f"has {tensor.nonfinite} entries that are not finite where the truth is"
        if tensor.zero and tensor.role != "gradient":
            return "is all zero"
        return ""

    @property
    def missing(self) -> bool:
        """Whether this is a gradient that did not come, or came as zeros."""
        return self.tensor.role == "gradient" and (self.tensor.absent or self.tensor.zero)

    @property
    def place(self) -> str:
        """Where it was seen."""
        return f"{self.lane.title}, {self.cell.name}"


@dataclass(frozen=True)
class Op:
    """One op, what the job wants of it, and every cell in which it gave an answer."""

    spec: OpSpec
    severity: Severity
    trains: bool
    evidence: Evidence
    cells: tuple[tuple[Lane, Cell], ...]

    @property
    def id(self) -> str:
        """The op's id, the subject of every outcome."""
        return self.spec.id

    @cached_property
    def compared(self) -> tuple[tuple[Lane, Cell], ...]:
        """The cells whose numbers were compared with the truth: not those that looked for leaks, or at contexts."""
        return tuple((lane, cell) for lane, cell in self.cells if not cell.cuts and not cell.contexts)

    @cached_property
    def sightings(self) -> tuple[Sighting, ...]:
        """Every tensor of every compared cell."""
        return tuple(Sighting(lane, cell, tensor) for lane, cell in self.compared for tensor in cell.tensors)

    @cached_property
    def outputs(self) -> tuple[Sighting, ...]:
        """Outputs and states."""
        return tuple(item for item in self.sightings if item.tensor.role != "gradient")

    @cached_property
    def gradients(self) -> tuple[Sighting, ...]:
        """Gradients."""
        return tuple(item for item in self.sightings if item.tensor.role == "gradient")

    @cached_property
    def malformed(self) -> frozenset[str]:
        """Tensors of which KC405 or KC408 tells: what else is wrong with them has the same cause."""
        holes = {name for _, cell in self.compared for name in cell.unwritten}
        return frozenset(holes | {item.tensor.name for item in self.sightings if item.structural})

    @property
    def wrong_outputs(self) -> dict[str, Sighting]:
        """Outputs and states over their limit, worst first, as KC401 tells them."""
        return wrong(tuple(item for item in self.outputs if item.tensor.name not in self.malformed))

    @property
    def outputs_sound(self) -> bool:
        """Whether nothing is wrong with the outputs, so that a wrong gradient has a cause of its own."""
        return not self.wrong_outputs and not any(item.tensor.name in self.malformed for item in self.outputs)

    @property
    def wrong_gradients(self) -> dict[str, Sighting]:
        """Gradients over their limit, worst first, as KC402 tells them."""
        return wrong(tuple(item for item in self.gradients if item.tensor.name not in self.malformed))

    @property
    def has_backward(self) -> bool:
        """Whether every compared cell could be differentiated."""
        return all(cell.backward == "ok" for _, cell in self.compared)

    @property
    def launched(self) -> bool:
        """Whether the op's kernels ran in every compared cell, and in its backward where it has one."""
        return not any(self.idle_way(cell) for _, cell in self.compared)

    def idle_way(self, cell: Cell) -> str:
        """Return which of forward and backward launched no kernel in a cell and should have, or nothing."""
        if not cell.launched_forward:
            return "forward"
        needed = self.spec.backward_launches and cell.backward == "ok"
        return "backward" if needed and not cell.launched_backward else ""

    @property
    def where(self) -> str:
        """Lanes and regimes, for a pass."""
        lanes = ", ".join(dict.fromkeys(lane.title for lane, _ in self.compared))
        names = "; ".join(dict.fromkeys(cell.name for _, cell in self.compared))
        return f"in {lanes}: {names}"

    def severity_of(self, worst: float) -> Severity:
        """Return the severity of a margin: on a GPU, up to three times the limit is a warning."""
        return "warning" if self.evidence == "measured" and worst <= UNCALIBRATED else self.severity


def ops(case: Case) -> Iterator[Op]:
    """Yield every op that gave an answer."""
    section = seen(case.snapshot.numerics)
    for spec in wanted(case, section):
        cells = section.cells(spec.id)
        if cells:
            yield Op(spec, severity(case, spec.id), trains(case, spec.id), section.evidence, cells)


def running(case: Case) -> Iterator[Op]:
    """Yield the ops whose own kernels ran: only of these do numbers say anything (KC404 tells of the others)."""
    return (op for op in ops(case) if op.compared and op.launched)


def wanted(case: Case, section: Numerics) -> list[OpSpec]:
    """Return the ops that a verdict should speak of: the model's, or without a model all that were seen."""
    if case.job.model is not None:
        named = {required.op for required in case.job.model.required}
        return [spec for spec in all_specs() if spec.id in named]
    met = {cell.op for lane in section.lanes for cell in lane.cells} | set(section.left_out)
    met |= {gone.op for lane in section.lanes for gone in lane.unimportable}
    return [spec for spec in all_specs() if spec.id in met]


def severity(case: Case, op: str) -> Severity:
    """An op that the job does not enter (decoding, for a training job) is worth a warning."""
    return "error" if case.job.model is None or any(item.op == op for item in case.job.needed) else "warning"


def trains(case: Case, op: str) -> bool:
    """Tell whether a training step of this job enters the op."""
    if case.job.model is None:
        return case.job.training
    return case.job.training and any(item.op == op and item.training for item in case.job.model.required)


def wrong(sightings: tuple[Sighting, ...]) -> dict[str, Sighting]:
    """Return the worst sighting of every tensor that is over its limit anywhere, worst first."""
    return worst_of([item for item in sightings if item.value > 1])


def close(sightings: tuple[Sighting, ...]) -> dict[str, Sighting]:
    """Return the closest sighting of every tensor that comes near its limit, and is nowhere over one."""
    over = wrong(sightings)
    found: dict[str, Sighting] = {}
    for item in sightings:
        if item.near and WARN < item.near.value <= 1 and item.tensor.name not in over:
            other = found.get(item.tensor.name)
            if other is None or other.near is None or other.near.value < item.near.value:
                found[item.tensor.name] = item
    return found


def worst_of(sightings: list[Sighting]) -> dict[str, Sighting]:
    """Return the worst sighting of each tensor, worst first."""
    ordered = sorted(sightings, key=lambda item: -item.value)
    found: dict[str, Sighting] = {}
    for item in ordered:
        found.setdefault(item.tensor.name, item)
    return found


def right(sightings: tuple[Sighting, ...]) -> list[str]:
    """Return the tensors that were compared everywhere and are right everywhere."""
    names = dict.fromkeys(item.tensor.name for item in sightings)
    bad = {item.tensor.name for item in sightings if item.value > 1 or item.margin is None}
    return [name for name in names if name not in bad]


def versions(case: Case) -> str:
    """Return the versions that a numeric verdict belongs to, for a message."""
    section = seen(case.snapshot.numerics)
    facts = next((lane.facts for lane in section.lanes if lane.facts), {})
    return ", ".join(f"{name} {facts[name]}" for name in ("torch", "triton", "numpy") if facts.get(name))
