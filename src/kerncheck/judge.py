"""Judge a snapshot: run each planned check on what it may see. A check that raises is a crash, never a pass."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

import msgspec

from kerncheck.checks.registry import FAMILIES, Case, Check
from kerncheck.model.base import Missing, NotObservedError
from kerncheck.model.job import Job
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.snapshot import SECTIONS
from kerncheck.plugins import plugged
from kerncheck.report import Crash, Waiver

NOTHING = "there was nothing to judge"
ALWAYS = {"node": {"KC0", "KC1", "KC2", "KC3", "KC4", "KC6"}, "image": {"KC0", "KC1", "KC2", "KC3"}}
ON_THE_NODE = {"KC4", "KC5", "KC6"}  # families that an image build, which has no GPU, leaves to the node
NEEDS_A_MODEL = {"KC3", "KC5", "KC6", "KC7"}


def requires(job: Job, family: str) -> bool:
    """Tell whether this job's verdict needs the judgements of a family (the table in docs/how-it-judges.md)."""
    if family in NEEDS_A_MODEL and job.model is None:
        return False
    if family == "KC5":
        return job.packing is not None and job.profile != "image"
    if family == "KC7":
        return bool(job.targets) and job.profile == "image"
    return family in ALWAYS.get(job.profile, ALWAYS["node"])


def left_out(job: Job, check: Check) -> str:
    """Return why a check has no place in this job, or nothing if it has one."""
    if job.profile == "image" and check.family in ON_THE_NODE:
        return "judged on the node, where there is a GPU"
    if check.family in NEEDS_A_MODEL and job.model is None:
        return "no model was named (--model)"
    if check.family == "KC7" and not job.targets:
        return "no target was named (--target)"
    return ""


def judge(case: Case, checks: Iterable[Check]) -> tuple[tuple[Outcome, ...], tuple[Crash, ...]]:
    """Run the checks; return what they said, and which of them raised."""
    outcomes: list[Outcome] = []
    crashes: list[Crash] = []
    with plugged(case.snapshot.environment):
        for check in checks:
            try:
                outcomes += run_check(case, check)
            except Exception as error:  # noqa: BLE001 - one bad check must not end the run
                detail = traceback.format_exc()
                crashes.append(Crash(code=check.code, message=f"{type(error).__name__}: {error}", detail=detail))
    return tuple(outcomes), tuple(crashes)


def run_check(case: Case, check: Check) -> list[Outcome]:
    """Run one check on the sections that it declared; fill in whether the verdict needs what it could not judge."""
    say = Say(check.code)
    outcomes: list[Outcome] = []
    try:
        outcomes += check.judge(narrowed(case, check), say)
    except NotObservedError as error:
        outcomes.append(say.not_judged(check.title, error.reason))
    if not outcomes:
        outcomes.append(say.not_judged(check.title, NOTHING, required=False))
    required = requires(case.job, check.family)
    return [
        msgspec.structs.replace(outcome, required=required) if outcome.required is None else outcome
        for outcome in outcomes
    ]


def narrowed(case: Case, check: Check) -> Case:
    """Hide every section that the check did not declare, so that ``needs`` cannot drift from what it reads."""
    hidden = Missing(reason="the check does not declare this section in its needs")
    others = {name: hidden for name in SECTIONS if name not in (*check.needs, *check.also)}
    return Case(case.job, msgspec.structs.replace(case.snapshot, **others), case.catalog)


def waive(outcomes: Iterable[Outcome], waivers: tuple[Waiver, ...]) -> tuple[Outcome, ...]:
    """Turn waived findings into visible notes that carry the reason."""
    return tuple(waived(outcome, waivers) for outcome in outcomes)


def waived(outcome: Outcome, waivers: tuple[Waiver, ...]) -> Outcome:
    """Return the outcome as it is, or as a note if a waiver matches it."""
    reason = next((waiver.reason for waiver in waivers if waiver.matches(outcome)), "")
    if not reason or outcome.status != "failed":
        return outcome
    return msgspec.structs.replace(outcome, status="note", waived=reason)


def family_title(code: str) -> str:
    """Return the name of a code's family."""
    return FAMILIES[code[:3]]
