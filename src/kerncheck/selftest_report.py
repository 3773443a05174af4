"""What `kerncheck selftest` prints: one line for each sabotage, and the verdict."""

from __future__ import annotations

import textwrap
from typing import Literal

from kerncheck.formats.json import indented
from kerncheck.formats.sentence import counted, environment_line
from kerncheck.model.base import Frozen
from kerncheck.privacy import redacted
from kerncheck.report import FINDINGS, INCONCLUSIVE, OK, Report

SCHEMA = "kerncheck.selftest/1"
WIDTH = 100
MARKS = {"passed": " ok ", "failed": "fail", "not_run": "  ? "}


class Result(Frozen):
    """One sabotage: what was broken, the code that was expected, the codes that the gate went red with.

    ``passed``: it had effect, the gate is green without it, and red with it by the expected code. ``not_run``: for a
    reason outside of it, this could not be seen. ``message`` is what the check said, or what went wrong.
    """

    kind: str
    title: str
    broken: str
    expected: str
    status: Literal["passed", "failed", "not_run"]
    found: tuple[str, ...] = ()
    message: str = ""


class Document(Frozen):
    """The whole self-test. Everything in it was seen in children that were broken on purpose; it judges no machine."""

    schema: str
    kerncheck: str
    headline: str
    environment: str
    verdict: Literal["passed", "failed", "inconclusive"]
    exit_code: int
    sentence: str
    seconds: float
    results: tuple[Result, ...]


def exit_code(results: tuple[Result, ...]) -> int:
    """Return 1 if a sabotage was not found, 3 if one could not be run, else 0."""
    statuses = {result.status for result in results}
    if "failed" in statuses:
        return FINDINGS
    return INCONCLUSIVE if "not_run" in statuses or not results else OK


def document(empty: Report, results: tuple[Result, ...], seconds: float) -> Document:
    """Return the result of a self-test; the report, which judges nothing, tells job and environment."""
    code = exit_code(results)
    words: dict[int, Literal["passed", "failed", "inconclusive"]] = {
        FINDINGS: "failed",
        INCONCLUSIVE: "inconclusive",
        OK: "passed",
    }
    model = empty.job.model.name if empty.job.model else "none"
    return Document(
        schema=SCHEMA,
        kerncheck=empty.version,
        headline=f"kerncheck {empty.version} · selftest, broken on purpose · emulated device · model {model}",
        environment=environment_line(empty),
        verdict=words[code],
        exit_code=code,
        sentence=sentence(results, seconds, words[code], code),
        seconds=round(seconds, 2),
        results=results,
    )


def sentence(results: tuple[Result, ...], seconds: float, word: str, code: int) -> str:
    """Return the verdict in one line."""
    good = sum(result.status == "passed" for result in results)
    parts = [f"{good} of {counted(len(results), 'sabotage')} found, each green without it"]
    parts += [f"{number} failed" for number in [sum(one.status == "failed" for one in results)] if number]
    parts += [f"{number} could not be run" for number in [sum(one.status == "not_run" for one in results)] if number]
    return f"selftest {word}: {', '.join(parts)}, in {seconds:.0f} s: exit {code}"


def render(document: Document, form: str) -> str:
    """Return the document as text or as JSON."""
    if form == "json":
        return indented(document)
    lines = [document.headline, document.environment, ""]
    for result in document.results:
        lines += lines_of(result)
    return redacted("\n".join([*lines, "", document.sentence]) + "\n")


def lines_of(result: Result) -> list[str]:
    """Return the line of one sabotage, and below it why it did not pass."""
    found = ", ".join(result.found) or "nothing"
    line = f"{MARKS[result.status]} {result.title}: {result.broken}; expected {result.expected}, found {found}"
    reason = [] if result.status == "passed" else textwrap.wrap(result.message, WIDTH - 9)
    return [line, *(f"         {part}" for part in reason)]
