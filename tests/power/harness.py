"""Shows what the default numeric cells see: every fault of fla_patches, and no healthy kernel. See benchmarks/power.py.

A fault counts only if it is live: on the inputs of the cells some output or gradient has other bits than without it,
and the kernel that it sits in was launched.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from fla_patches import CHUNK, CONV, FAULTS, FROM_TABLE, GATED_NORM, L2NORM, RECURRENT, Fault, patched_fla

from kerncheck.checks.numerics_rule import margin
from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.kernels import all_specs
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.numerics import Cell, Lane, LaneName, Numerics
from kerncheck.model.outcome import Outcome
from kerncheck.model.snapshot import Snapshot
from kerncheck.stages import numerics
from kerncheck.stages.common import Ask
from kerncheck.supervise import ProbeRun, Supervisor

__all__ = ["FAULTS", "FROM_TABLE", "changed", "findings", "lane_run", "launched", "observe", "trial"]
LANES: tuple[LaneName, ...] = ("fp32", "bf16")
NOT_LOOKED = Missing(reason="not looked at here")
QWEN = (CHUNK, RECURRENT, L2NORM, GATED_NORM, CONV)
"""The ops that the table of faults, the nulls and the mutants speak of."""


def job(*ops: str, quick: bool = False) -> Job:
    """Return a training job that needs these ops (those of qwen that can run by default), on the emulated device."""
    wanted = [spec for spec in all_specs() if spec.id in (ops or QWEN)]
    required = tuple(RequiredOp(op=spec.id, training=spec.has_backward) for spec in wanted)
    model = ModelRequest(name="all", folder="", architecture="", config={}, required=required)
    return Job(profile="ci", device="emulate", model=model, quick=quick)


def lane_run(lane: LaneName, *ops: str, path: Path | None = None, quick: bool = False) -> ProbeRun:
    """Return what verify runs by default in a lane, in an environment whose PYTHONPATH begins with ``path``."""
    ask = Ask(
        job=job(*ops, quick=quick), catalog=cast("Any", None), environment=NOT_LOOKED, devices=NOT_LOOKED, timeout=900.0
    )
    run = numerics.run_of(ask, (lane,), "")
    return replace(run, environment={**run.environment, **({"PYTHONPATH": str(path)} if path else {})})


def observe(run: ProbeRun) -> Lane:
    """Run a lane in its child process."""
    answers = Supervisor(sys.executable).run(run)
    (name,) = numerics.lanes_of(answers)
    return numerics.lane(name, answers)


def findings(lane: Lane, *ops: str) -> list[Outcome]:
    """Judge one lane; return the errors of the numerics family."""
    snapshot = Snapshot(numerics=Numerics(evidence="emulated", lanes=(lane,)))
    checks = [check for check in all_checks() if check.family == "KC4"]
    outcomes, crashes = judge(Case(job(*ops), snapshot, cast("Any", None)), checks)
    assert not crashes, crashes
    wrong = [outcome for outcome in outcomes if outcome.status == "failed" and outcome.code != "KC410"]
    unjudged = [outcome for outcome in outcomes if outcome.status == "not_judged" and outcome.required]
    assert not unjudged, unjudged
    return wrong


def cells(lane: Lane) -> dict[str, Cell]:
    """Return the cells of a lane that gave an answer, by op and name."""
    return {f"{cell.op} {cell.name}": cell for cell in lane.cells if isinstance(cell, Cell)}


def changed(healthy: Lane, faulty: Lane) -> bool:
    """Tell whether any output, gradient or input of any cell has other bits, or a cell did not live."""
    before, after = cells(healthy), cells(faulty)
    return any(
        name not in after or bits(cell) != bits(after[name])
        for name, cell in before.items()
        if name in after or any(f"{lost.op} {lost.name}" == name for lost in faulty.cells)
    )


def bits(cell: Cell) -> tuple[list[str], tuple[str, ...]]:
    """Return what identifies the bits of a cell's results, and the inputs that were written to."""
    return [tensor.digest for tensor in cell.tensors], cell.changed


def launched(lane: Lane, kernel: str) -> bool:
    """Tell whether a kernel was launched in any cell; host code ("") runs without one."""
    names = {name for cell in cells(lane).values() for name in (*cell.launched_forward, *cell.launched_backward)}
    return not kernel or kernel in names


@dataclass(frozen=True)
class Trial:
    """One fault in one lane: what was found, and whether that is what was asked."""

    name: str
    lane: LaneName
    live: bool
    codes: tuple[str, ...]
    words: str

    @property
    def asked(self) -> str:
        """What the table asks of this lane."""
        fault = FAULTS[self.name]
        return fault.fp32 if self.lane == "fp32" else fault.bf16

    @property
    def as_asked(self) -> bool:
        """Whether the lane did what it must; what is below the noise, or cannot be there, is only shown."""
        return self.asked != "caught" or (self.live and bool(self.codes))


def trial(name: str, lane: LaneName, healthy: Lane, *, quick: bool = False) -> Trial:
    """Run the default cells of the fault's op on a copy of fla that has it."""
    fault: Fault = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        faulty = observe(lane_run(lane, fault.op, path=patched_fla(Path(folder), name), quick=quick))
    found = findings(faulty, fault.op)
    live = changed(healthy, faulty) and launched(healthy, fault.kernel)
    words = "; ".join(f"{outcome.code} {outcome.message}" for outcome in found)
    return Trial(name, lane, live, tuple(sorted({outcome.code for outcome in found})), words)


def null(lane: LaneName, seed: int) -> Lane:
    """Run all cells of a lane on the healthy fla, with other seeds than the default ones."""
    run = lane_run(lane)
    return observe(replace(run, cases=tuple({**case, "seed": case["seed"] + seed} for case in run.cases)))


def margins(lane: Lane) -> list[tuple[float, str]]:
    """Return every margin of a lane with its place, largest first."""
    found = []
    for cell in lane.cells:
        assert isinstance(cell, Cell), cell
        for tensor in cell.tensors:
            worst = margin(tensor, cell.seeds)
            assert worst is not None, (cell.name, tensor)
            found.append((worst.value, f"{cell.op.partition(':')[2]} {cell.name}: {tensor.name} ({worst.rule})"))
    return sorted(found, reverse=True)


def show(one: Trial) -> None:
    """Print one line about a fault."""
    verdict = ", ".join(one.codes) or "nothing"
    mark = "ok " if one.as_asked else "BAD"
    print(
        f"{mark} {one.lane} {one.name:44} live={one.live!s:5} asked={one.asked:6} found={verdict}: {one.words[:110]}",
        flush=True,
    )


def run_faults(names: list[str], jobs: int) -> list[Trial]:
    """Try every fault in both lanes, some at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        healthy = dict(zip(LANES, pool.map(lambda lane: observe(lane_run(lane)), LANES), strict=True))
        pairs = [(name, lane) for name in names for lane in LANES]
        trials = []
        for one in pool.map(lambda pair: trial(*pair, healthy[pair[1]]), pairs):
            show(one)
            trials.append(one)
    for lane in LANES:
        assert findings(healthy[lane]) == [], f"the healthy fla is not clean in {lane}: {findings(healthy[lane])}"
    return trials


Nulls = dict[tuple[LaneName, int], Lane]
"""What was observed of healthy kernels, by lane and seed."""


def run_nulls(seeds: Iterable[int], jobs: int) -> Nulls:
    """Observe healthy kernels on fresh seeds, some at a time."""
    asked = [(lane, seed) for seed in seeds for lane in LANES]
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(asked, pool.map(lambda pair: null(*pair), asked), strict=True))


def accused(found: Nulls) -> int:
    """Print the margins of each lane, and what the checks would say of any op; return how many ops were accused."""
    alarms = []
    for lane in LANES:
        values = sorted(
            (item for (name, _), seen in found.items() if name == lane for item in margins(seen)), reverse=True
        )
        above, warned = (sum(value > limit for value, _ in values) for limit in (1.0, 0.5))
        seeds = sum(name == lane for name, _ in found)
        print(f"null {lane}: {seeds} seeds, {len(values)} tensors, {above} above 1, {warned} above 0.5; largest:")
        for value, place in values[:8]:
            print(f"    {value:.2f} {place}")
        alarms += [item for item in values if item[0] > 1]
    for (name, seed), seen in found.items():
        for outcome in findings(seen):
            print(f"    alarm {name} seed {seed}: {outcome.code} {outcome.subject} {outcome.message}")
            alarms.append((0.0, outcome.code))
    return len(alarms)
