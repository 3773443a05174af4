"""What a check says: one outcome for each subject it judged, or could not judge."""

from __future__ import annotations

from typing import Literal

from kerncheck.model.base import Evidence, Frozen

Status = Literal["passed", "failed", "note", "not_judged", "not_applicable"]
Severity = Literal["error", "warning"]


class Outcome(Frozen):
    """One judgement about one subject.

    ``required`` says whether the verdict needs this judgement: only then does ``not_judged`` make it inconclusive.
    ``None`` lets the judge fill in what the profile requires of the check's family.
    """

    code: str
    status: Status
    subject: str
    message: str
    found: str = ""
    wanted: str = ""
    remedy: str = ""
    severity: Severity = "error"
    evidence: Evidence = "inferred"
    required: bool | None = None
    source: str = ""
    waived: str = ""


class Say:
    """Makes the outcomes of one check, so that the code is written once, in its decorator."""

    def __init__(self, code: str) -> None:
        self.code = code

    def passed(self, subject: str, message: str, evidence: Evidence = "inferred") -> Outcome:
        """Say that the subject was judged and is right."""
        return Outcome(code=self.code, status="passed", subject=subject, message=message, evidence=evidence)

    def failed(  # noqa: PLR0913 - a finding must name all of these
        self,
        subject: str,
        message: str,
        *,
        found: str,
        wanted: str,
        remedy: str,
        evidence: Evidence = "inferred",
        severity: Severity = "error",
        source: str = "",
    ) -> Outcome:
        """Say that the subject is wrong: what was found, what was wanted, what to do next."""
        return Outcome(
            code=self.code,
            status="failed",
            subject=subject,
            message=message,
            found=found,
            wanted=wanted,
            remedy=remedy,
            evidence=evidence,
            severity=severity,
            source=source,
        )

    def note(self, subject: str, message: str, evidence: Evidence = "inferred", *, source: str = "") -> Outcome:
        """Say something that a reader should know and that changes no verdict."""
        return Outcome(
            code=self.code, status="note", subject=subject, message=message, evidence=evidence, source=source
        )

    def not_judged(
        self, subject: str, reason: str, *, required: bool | None = None, remedy: str = "", source: str = ""
    ) -> Outcome:
        """Say that the subject could not be judged, and why."""
        return Outcome(
            code=self.code,
            status="not_judged",
            subject=subject,
            message=reason,
            required=required,
            remedy=remedy,
            source=source,
        )

    def not_applicable(self, subject: str, reason: str) -> Outcome:
        """Say that the check has nothing to ask of this subject, and why."""
        return Outcome(code=self.code, status="not_applicable", subject=subject, message=reason)
