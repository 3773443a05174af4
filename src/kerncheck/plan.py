"""Decide, before anything runs, which checks have a place in a job and which sections they need."""

from __future__ import annotations

from dataclasses import dataclass

from kerncheck.checks.registry import FAMILIES, Check
from kerncheck.errors import UsageError
from kerncheck.judge import left_out
from kerncheck.model.job import Job
from kerncheck.report import LeftOut, Waiver

STATIC = ("environment", "gpus")


@dataclass(frozen=True)
class Plan:
    """The checks to run, those left out and why, and the sections of the snapshot that must be observed."""

    checks: tuple[Check, ...]
    left_out: tuple[LeftOut, ...]
    partial: str

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that the planned checks read. The static ones always run: other probes plan by them."""
        needed = {section for check in self.checks for section in check.needs}
        return (*STATIC, *sorted(needed - set(STATIC)))


def make_plan(job: Job, checks: tuple[Check, ...], select: tuple[str, ...], ignore: tuple[str, ...]) -> Plan:
    """Choose checks by code or prefix, then drop those that have no place in this job. Nothing dropped is run.

    Raises:
        UsageError: a code in ``select`` or ``ignore`` that names no check and no family.

    """
    for prefix in (*select, *ignore):
        known(prefix, checks)
    chosen = [check for check in checks if of_this_job(job, check) and wanted(check, select, ignore)]
    reasons = [(item, "" if job.trace else left_out(job, item)) for item in chosen]
    out = [LeftOut(code=item.code, title=item.title, reason=reason) for item, reason in reasons]
    out = [item for item in out if item.reason]
    dropped = {item.code for item in out}
    partial = " ".join((*(f"--select {code}" for code in select), *(f"--ignore {code}" for code in ignore)))
    return Plan(tuple(check for check in chosen if check.code not in dropped), tuple(out), partial)


def of_this_job(job: Job, check: Check) -> bool:
    """Tell whether a check judges what this job is about: a trace, or a machine."""
    return ("trace" in check.needs) == (job.trace is not None)


def wanted(check: Check, select: tuple[str, ...], ignore: tuple[str, ...]) -> bool:
    """Tell whether a check is selected and not ignored."""
    selected = not select or check.code.startswith(select)
    return selected and not (ignore and check.code.startswith(ignore))


def known(prefix: str, checks: tuple[Check, ...]) -> None:
    """Raise UsageError if no check's code starts so (a family that this version has no check of is no match)."""
    if not prefix or not any(check.code.startswith(prefix) for check in checks):
        families = ", ".join(sorted({check.code[:3] for check in checks} & set(FAMILIES)))
        raise UsageError(f"no check has the code {prefix!r}", f"kerncheck list checks; families: {families}")


def parse_waiver(text: str, checks: tuple[Check, ...]) -> Waiver:
    """Read ``CODE[:subject]=reason``. A subject may itself hold colons; the reason may not be empty.

    Raises:
        UsageError: no reason, or a code that no check has.

    """
    head, equals, reason = text.partition("=")
    code, _, subject = head.partition(":")
    if not equals or not reason.strip():
        raise UsageError(f"--waive {text!r} gives no reason", "write --waive CODE[:subject]=reason")
    if code not in {check.code for check in checks}:
        raise UsageError(f"--waive names {code!r}, which is no check's code", "kerncheck list checks")
    return Waiver(code=code, subject=subject, reason=reason.strip())
