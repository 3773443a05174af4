"""Section ``trace`` comes from a file that a user brings, never from a probe: `kerncheck trace FILE` puts it there."""

from __future__ import annotations

from kerncheck.model.base import Missing
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, ProbeRun


def runs(_ask: Ask) -> list[ProbeRun]:
    """Return nothing to run: a machine is observed by other sections."""
    return []


def collect(_ask: Ask, _answers: list[Answers]) -> Missing:
    """Say that there is no trace."""
    return Missing(reason="no trace was given (kerncheck trace FILE)")
