"""Everything that was seen on one machine, as plain data that any other machine can judge."""

from __future__ import annotations

from kerncheck.model.base import Frozen, Missing
from kerncheck.model.binaries import Binaries
from kerncheck.model.compiled import Compiled
from kerncheck.model.environment import Environment, Gpus
from kerncheck.model.imports import Imports
from kerncheck.model.job import Job
from kerncheck.model.numerics import Numerics
from kerncheck.model.packing import Packing
from kerncheck.model.seams import Seams
from kerncheck.model.step import Step
from kerncheck.model.trace import TraceSection

NOT_HERE = Missing(reason="this snapshot does not hold it")
SECTIONS = ("environment", "gpus", "binaries", "imports", "seams", "numerics", "packing", "step", "compiled", "trace")


class RunRecord(Frozen):
    """One child's work: which section it served, how many cases it walked, and its wall time in seconds."""

    section: str
    label: str
    cases: int
    seconds: float


class Snapshot(Frozen):
    """Raw observations, never verdicts. A section that is absent from a file counts as Missing."""

    schema: int = 1
    kerncheck: str = ""
    taken: str = ""
    job: Job | None = None
    runs: tuple[RunRecord, ...] = ()
    environment: Environment | Missing = NOT_HERE
    gpus: Gpus | Missing = NOT_HERE
    binaries: Binaries | Missing = NOT_HERE
    imports: Imports | Missing = NOT_HERE
    seams: Seams | Missing = NOT_HERE
    numerics: Numerics | Missing = NOT_HERE
    packing: Packing | Missing = NOT_HERE
    step: Step | Missing = NOT_HERE
    compiled: Compiled | Missing = NOT_HERE
    trace: TraceSection | Missing = NOT_HERE
