"""What the KC7 checks read off a rehearsal: results by kernel, what was lost, and what counts as fitting."""

from __future__ import annotations

from dataclasses import dataclass, field

from kerncheck.checks.registry import Case
from kerncheck.model.base import Broken
from kerncheck.model.compiled import Call, Compiled, Configuration, Rehearsal, Result
from kerncheck.model.releases import DriverFloor
from kerncheck.versions import parse

TOLERATED = frozenset({"OutOfResources", "CompileTimeAssertionFailure", "PTXASError"})
"""Triton's autotuner drops a configuration for these (``Autotuner._bench``, triton 3.7.1 and 3.9.0); others end it."""
TENSOR_MEMORY = {107: 576}
"""Columns of tensor memory that a block may take; 512 elsewhere (triton 3.9.0, compiler/compiler.py)."""


@dataclass
class Tally:
    """One kernel for one target, over all calls: what each configuration gave."""

    name: str
    compiled: list[tuple[Configuration, Result]] = field(default_factory=list)
    failed: list[tuple[Configuration, Result]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    needed: bool = False

    @property
    def tried(self) -> int:
        """How many compilations were made."""
        return len(self.compiled) + len(self.failed)

    @property
    def ends(self) -> bool:
        """Whether training ends here: an error that the autotuner does not swallow, or nothing left to choose."""
        raised = any(result.exception not in TOLERATED for _, result in self.failed)
        return raised or (bool(self.failed) and not self.compiled)


def needed(case: Case, call: Call) -> bool:
    """Tell whether the job enters a call's op: training does not decode."""
    return any(op.op == call.op for op in case.job.needed)


def tallies(case: Case, rehearsal: Rehearsal) -> list[Tally]:
    """Return every kernel with its results, in the order of launch; each compilation counts once."""
    results = {result.id: result for result in rehearsal.results}
    found: dict[str, Tally] = {}
    seen: set[str] = set()
    for call, _, kernel in rehearsal.walk():
        tally = found.setdefault(kernel.name, Tally(kernel.name))
        tally.needed = tally.needed or needed(case, call)
        if call.name not in tally.calls:
            tally.calls.append(call.name)
        for configuration in kernel.configurations:
            result = results.get(configuration.id)
            if result is not None and result.id not in seen:
                seen.add(result.id)
                (tally.compiled if result.compiled else tally.failed).append((configuration, result))
    return list(found.values())


def fits(result: Result, rehearsal: Rehearsal) -> bool:
    """Tell whether a block of a compiled kernel finds room on the target."""
    columns = TENSOR_MEMORY.get(rehearsal.facts.arch, 512)
    return result.shared <= rehearsal.facts.shared_memory and result.tensor_memory <= columns


def wanted(call: Call, compiled: Compiled) -> set[str]:
    """Return the ids of a call's compilations that were to be made."""
    return {
        item.id
        for phase in call.phases
        for kernel in phase.kernels
        for item in kernel.configurations
        if item.number == 1 or not compiled.quick
    }


def gets_through(call: Call, results: dict[str, Result], ids: set[str]) -> bool:
    """Tell whether each kernel of a call compiles in some configuration, and no other ends the autotuner."""
    for phase in call.phases:
        for kernel in phase.kernels:
            given = [results[item.id] for item in kernel.configurations if item.id in ids]
            ending = [one for one in given if not one.compiled and one.exception not in TOLERATED]
            if ending or (given and not any(one.compiled for one in given)):
                return False
    return True


def missing_reason(rehearsal: Rehearsal, ids: set[str]) -> str:
    """Return why some compilations of a call have no result."""
    for lost in rehearsal.lost:
        if ids & set(lost.ids):
            return f"{len(ids)} compilations were not made: {shown(lost.why)}"
    return f"{len(ids)} compilations were not made"


def shown(why: object) -> str:
    """Return a reason in one line."""
    text = str(getattr(why, "reason", "") or getattr(why, "message", ""))
    return text.strip().splitlines()[0] if text.strip() else "no reason was given"


def last_line(text: str) -> str:
    """Return the line of an error that says what is wrong: the last that is not blank."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def spelled(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"


def salient(result: Result) -> str:
    """Return the line of a failed compilation that says what is wrong.

    ptxas says "fatal" or "error"; MLIR prints "error:" while Triton's exception only tells that a pass failed;
    elsewhere the last line is the reason, below the source that it points at.
    """
    said = [line.strip() for line in (result.error + "\n" + result.detail).splitlines() if line.strip()]
    told = [line for line in said if not line.startswith("PTXAS error")]  # Triton's own words around those of ptxas
    marked = [line for line in told if "fatal" in line or "error:" in line or "error   :" in line]
    if marked and result.exception in ("PTXASError", "RuntimeError"):
        return marked[0][:300]
    return last_line(result.error)[:300]


def last_words(broken: Broken) -> str:
    """Return what a process printed before it ended: the line that tells of an error, else the last one."""
    lines = [line.strip() for line in broken.detail.splitlines() if line.strip()]
    told = next((line for line in lines if "UNREACHABLE" in line or "error" in line.lower()), "")
    return (told or (lines[-1] if lines else ""))[:300]


def least_spill(tally: Tally) -> str:
    """Return a kernel with the least that any of its configurations spills."""
    least = min(result.local_memory or 0 for _, result in tally.compiled)
    return f"{tally.name} ({spelled(least)} bytes a thread at least)"


def older(driver: str, floor: DriverFloor) -> bool:
    """Tell whether a driver (``580`` or ``580.65.06``) is older than the oldest of a CUDA major version."""
    given = parse(driver)
    wanted = floor.exact if "." in driver else floor.branch
    return given is not None and given < wanted
