"""JSON, version 1. Its types are its own: the inside of kerncheck may change without changing what a fleet reads."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kerncheck.formats.sentence import headline, last_line
from kerncheck.model.base import Frozen
from kerncheck.model.outcome import Outcome
from kerncheck.privacy import redacted
from kerncheck.report import Report

SCHEMA = "kerncheck.report/1"


class Item(Frozen):
    """One judgement."""

    code: str
    status: Literal["passed", "failed", "note", "not_judged", "not_applicable"]
    subject: str
    message: str
    evidence: Literal["measured", "emulated", "rehearsed", "inferred", "declared"]
    severity: Literal["error", "warning", ""] = ""
    found: str = ""
    wanted: str = ""
    remedy: str = ""
    source: str = ""
    required: bool = False
    waived: str = ""
    explain: str = ""


class Part(Frozen):
    """A check that was not run or that crashed."""

    code: str
    title: str
    reason: str


class Document(Frozen):
    """The whole report. ``exit_code`` is the code that the process ended with.

    ``snapshot`` is a document of its own, with its own version (its ``schema``): `kerncheck judge` reads it.
    """

    schema: str
    kerncheck: str
    headline: str
    verdict: Literal["passed", "failed", "inconclusive", "crashed"]
    exit_code: int
    sentence: str
    profile: str
    device: str
    model: str
    training: bool
    packing: str
    partial: str
    fail_on: str
    seconds: float
    outcomes: tuple[Item, ...]
    left_out: tuple[Part, ...]
    crashes: tuple[Part, ...]
    snapshot: dict[str, Any]


def item(outcome: Outcome) -> Item:
    """Return an outcome in the shape of version 1."""
    failed = outcome.status == "failed"
    return Item(
        code=outcome.code,
        status=outcome.status,
        subject=outcome.subject,
        message=outcome.message,
        evidence=outcome.evidence,
        severity=outcome.severity if failed else "",
        found=outcome.found,
        wanted=outcome.wanted,
        remedy=outcome.remedy,
        source=outcome.source,
        required=bool(outcome.required),
        waived=outcome.waived,
        explain=f"kerncheck explain {outcome.code}" if failed else "",
    )


def document(report: Report) -> Document:
    """Return the report in the shape of version 1."""
    return Document(
        schema=SCHEMA,
        kerncheck=report.version,
        headline=headline(report),
        verdict=report.verdict,
        exit_code=report.exit_code,
        sentence=last_line(report),
        profile=report.job.profile,
        device=report.job.device,
        model=report.job.model.name if report.job.model else "",
        training=report.job.training,
        packing=report.job.packing or "",
        partial=report.partial,
        fail_on=report.fail_on,
        seconds=round(report.seconds, 2),
        outcomes=tuple(item(outcome) for outcome in report.outcomes),
        left_out=tuple(Part(code=one.code, title=one.title, reason=one.reason) for one in report.left_out),
        crashes=tuple(Part(code=one.code, title=one.message, reason=one.detail) for one in report.crashes),
        snapshot=msgspec.to_builtins(report.snapshot),
    )


def indented(value: Any) -> str:  # noqa: ANN401 - any of our plain data
    """Return plain data as indented JSON without the user's name."""
    return redacted(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n"


def render(report: Report) -> str:
    """Return the report as JSON."""
    return indented(document(report))


def schema() -> dict[str, Any]:
    """Return the JSON schema of version 1 (kept in docs/report-v1.schema.json, compared by a test)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Document)}
