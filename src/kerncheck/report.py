"""The verdict: everything that was judged, and the one place where an exit code is decided."""

from __future__ import annotations

from typing import Literal

from kerncheck.model.base import Frozen
from kerncheck.model.job import Job
from kerncheck.model.outcome import Outcome, Severity
from kerncheck.model.snapshot import Snapshot

OK, FINDINGS, USAGE, INCONCLUSIVE, BUG, INTERRUPTED = 0, 1, 2, 3, 4, 130


class Crash(Frozen):
    """A check that raised: a bug in kerncheck."""

    code: str
    message: str
    detail: str


class LeftOut(Frozen):
    """A check that was not run, and why."""

    code: str
    title: str
    reason: str


class Waiver(Frozen):
    """``CODE[:subject]=reason``: a finding that the user accepts, visibly."""

    code: str
    subject: str
    reason: str

    def matches(self, outcome: Outcome) -> bool:
        """Tell whether this waiver speaks of that outcome."""
        return outcome.code == self.code and self.subject in ("", outcome.subject)


class Report(Frozen):
    """What was judged, what was not, and the verdict."""

    version: str
    job: Job
    snapshot: Snapshot
    outcomes: tuple[Outcome, ...]
    crashes: tuple[Crash, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    partial: str = ""
    fail_on: Severity = "error"
    seconds: float = 0.0

    def of(self, *statuses: str) -> tuple[Outcome, ...]:
        """Return the outcomes with one of these statuses."""
        return tuple(outcome for outcome in self.outcomes if outcome.status in statuses)

    @property
    def findings(self) -> tuple[Outcome, ...]:
        """Everything that is wrong, errors first."""
        return tuple(sorted(self.of("failed"), key=lambda outcome: (outcome.severity, outcome.code)))

    @property
    def failing(self) -> tuple[Outcome, ...]:
        """The findings at or above ``fail_on``."""
        return tuple(found for found in self.findings if found.severity == "error" or self.fail_on == "warning")

    @property
    def unjudged(self) -> tuple[Outcome, ...]:
        """What the verdict needs and nobody could judge."""
        return tuple(outcome for outcome in self.of("not_judged") if outcome.required)

    @property
    def exit_code(self) -> int:
        """The verdict as a number; the same in every format. Precedence 1, 4, 3, 0."""
        if self.failing:
            return FINDINGS
        if self.crashes:
            return BUG
        if self.unjudged or not self.of("passed", "failed"):
            return INCONCLUSIVE
        return OK

    @property
    def verdict(self) -> Literal["failed", "crashed", "inconclusive", "passed"]:
        """The verdict as a word."""
        words: dict[int, Literal["failed", "crashed", "inconclusive", "passed"]] = {
            FINDINGS: "failed",
            BUG: "crashed",
            INCONCLUSIVE: "inconclusive",
            OK: "passed",
        }
        return words[self.exit_code]
