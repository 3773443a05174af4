"""Text for a person: one calm screen. Families first, then what is wrong, what was not judged, the verdict."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from kerncheck.checks.registry import FAMILIES
from kerncheck.formats.sentence import environment_line, headline, last_line, short
from kerncheck.model.outcome import Outcome
from kerncheck.privacy import redacted
from kerncheck.report import Report

MARKS = {
    "failed": ("fail", "bold red"),
    "not_judged": ("  ? ", "yellow"),
    "passed": (" ok ", "green"),
    "": (" -  ", "dim"),
}
COUNTS = {
    "passed": "passed",
    "failed": "failed",
    "note": "noted",
    "not_judged": "not judged",
    "not_applicable": "not applicable",
}
MOST_NOT_JUDGED, MOST_SUBJECTS = 8, 3


def render(report: Report, *, colour: bool = False, width: int = 100, verbose: int = 0) -> str:
    """Return the report as text of at most ``width`` columns; ``verbose`` also lists what passed."""
    console = blank(colour=colour, width=width)
    print_head(console, report)
    print_families(console, report)
    print_judgements(console, report, verbose)
    return text_of(console)


def blank(*, colour: bool, width: int) -> Console:
    """Return a console that keeps what is printed to it."""
    return Console(file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour, highlight=False)


def print_judgements(console: Console, report: Report, verbose: int) -> None:
    """Print what every report ends with: findings, notes, what was not judged, and the verdict."""
    print_findings(console, report)
    print_crashes(console, report)
    print_notes(console, report)
    print_not_judged(console, report, verbose)
    if verbose:
        print_all(console, report)
    print_verdict(console, report)


def text_of(console: Console) -> str:
    """Return what was printed, without the user's name and without spaces at the ends of lines."""
    stream = console.file
    assert isinstance(stream, io.StringIO)  # noqa: S101 - given above
    return redacted("\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n")


def line(console: Console, text: str, style: str = "", indent: int = 0) -> None:
    """Print one paragraph; what does not fit goes on under its first word."""
    console.print(Padding(Text(text, style=style), (0, 0, 0, indent)))


def print_head(console: Console, report: Report) -> None:
    """Print what was judged, and on what."""
    line(console, headline(report), "bold")
    line(console, environment_line(report), "dim")
    console.print()


def print_families(console: Console, report: Report) -> None:
    """Print one line of counts for each family that had something to say."""
    for prefix, title in FAMILIES.items():
        own = [outcome for outcome in report.outcomes if outcome.code.startswith(prefix)]
        if own:
            word, style = MARKS[worst(own)]
            counts = [(sum(one.status == status for one in own), label) for status, label in COUNTS.items()]
            told = ", ".join(f"{number} {label}" for number, label in counts if number)
            console.print(Text.assemble((f"{word} ", style), f"{title:<22}", (told, "dim")))
    for reason, titles in grouped((one.reason, one.code) for one in report.left_out).items():
        families = sorted({FAMILIES[code[:3]] for code in titles})
        line(console, f" -   {', '.join(families)}: not run, {reason}", "dim")


def worst(outcomes: list[Outcome]) -> str:
    """Return the status that a family's mark must show."""
    if any(outcome.status == "failed" for outcome in outcomes):
        return "failed"
    if any(outcome.status == "not_judged" and outcome.required for outcome in outcomes):
        return "not_judged"
    return "passed" if any(outcome.status == "passed" for outcome in outcomes) else ""


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Collect the second of each pair under the first, in order of appearance."""
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def print_findings(console: Console, report: Report) -> None:
    """Print each finding: what was found, what was wanted, what to do."""
    if report.findings:
        line(console, "\nWhat is wrong", "bold")
    for outcome in report.findings:
        style = "bold red" if outcome.severity == "error" else "bold yellow"
        head = Text.assemble((f"{outcome.code} {outcome.severity}: ", style), (outcome.message, "bold"))
        console.print(Padding(head, (0, 0, 0, 2)))
        rows = {"found": f"{outcome.found} ({outcome.evidence})", "wanted": outcome.wanted, "do": outcome.remedy}
        more = f"kerncheck explain {outcome.code}; its subject is {outcome.subject}"
        for label, text in {**rows, "more": more}.items():
            console.print(Padding(Text.assemble((f"{label:<7}", "dim"), text), (0, 0, 0, 6)))


def print_crashes(console: Console, report: Report) -> None:
    """Print the checks that raised: bugs of ours."""
    for crash in report.crashes:
        line(
            console, f"{crash.code} crashed, a bug in kerncheck: {crash.message} (traceback in --format json)", "red", 2
        )


def print_notes(console: Console, report: Report) -> None:
    """Print notes, and findings that the user waived."""
    notes = report.of("note")
    if notes:
        line(console, "\nWorth knowing", "bold")
    for outcome in notes:
        waived = f" [waived: {outcome.waived}]" if outcome.waived else ""
        subject = "" if short(outcome.subject) in outcome.message else f"{short(outcome.subject)}: "
        line(console, f"{outcome.code} {subject}{outcome.message}{waived}", indent=2)


def print_not_judged(console: Console, report: Report, verbose: int) -> None:
    """Print what nobody could judge, the required first; the rest is cut unless asked for."""
    rows = sorted(report.of("not_judged"), key=lambda outcome: not outcome.required)
    if rows:
        line(console, "\nNot judged", "bold")
    groups = list(same_reason(rows).items())
    needed = sum(required for (_, _, required), _ in groups)
    shown = groups if verbose else groups[: max(MOST_NOT_JUDGED, needed)]
    for (reason, remedy, required), outcomes in shown:
        need = "needed: " if required else ""
        subjects = named(outcomes, verbose)
        line(console, f"{need}{subjects}: {reason}{f' -> {remedy}' if remedy else ''}", indent=2)
    if len(shown) < len(groups):
        line(console, f"and {sum(len(group) for _, group in groups[len(shown) :])} more (-v)", "dim", 2)


def same_reason(outcomes: list[Outcome]) -> dict[tuple[str, str, bool], list[Outcome]]:
    """Group what was not judged for one and the same reason."""
    groups: dict[tuple[str, str, bool], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault((one.message, one.remedy, bool(one.required)), []).append(one)
    return groups


def named(outcomes: list[Outcome], verbose: int) -> str:
    """Name subjects one by one while they are few, else each check once, else families with their counts."""
    if len(outcomes) <= MOST_SUBJECTS or verbose:
        return ", ".join(f"{one.code} {one.subject}" for one in outcomes)
    codes = sorted({one.code for one in outcomes})
    if len(codes) == 1:
        return f"{codes[0]} {', '.join(one.subject.rpartition(':')[2] for one in outcomes)}"
    counts = {code[:3]: sum(other.startswith(code[:3]) for other in codes) for code in codes}
    return ", ".join(f"{FAMILIES[family]} ({family}xx, {number} checks)" for family, number in counts.items())


def print_all(console: Console, report: Report) -> None:
    """Print everything that passed or did not apply, with its evidence."""
    for status, title in (("passed", "\nPassed"), ("not_applicable", "\nNot applicable")):
        if report.of(status):
            line(console, title, "bold")
        for outcome in report.of(status):
            evidence = f" ({outcome.evidence})" if status == "passed" else ""
            line(console, f"{outcome.code} {outcome.subject}: {outcome.message}{evidence}", indent=2)


def print_verdict(console: Console, report: Report) -> None:
    """Print the last line."""
    style = {"passed": "bold green", "failed": "bold red"}.get(report.verdict, "bold yellow")
    console.print()
    console.print(Text(last_line(report), style=style), soft_wrap=True)  # one line, so that grep and tail see it whole
