"""A page as Markdown, for a comment on a pull request: the verdict, what is wrong, what was not judged."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.formats.json import Item
from kerncheck.pages.content import Numbers, Page, Table

MARK = {"passed": "passed", "failed": "**failed**", "inconclusive": "**inconclusive**", "crashed": "**crashed**"}


def render(page: Page, numbers: Numbers) -> str:
    """Return the page as Markdown."""
    return "\n".join(lines(page, numbers)) + "\n"


def lines(page: Page, numbers: Numbers) -> Iterator[str]:
    """Yield the lines of a page."""
    yield f"### kerncheck: {MARK[page.verdict]}"
    yield ""
    yield f"{page.sentence}. {', '.join(page.facts)}."
    for item in page.findings:
        yield from finding(item)
    if page.unjudged:
        yield from folded("Not judged", [f"* {item.code} {item.subject}: {item.message}" for item in page.unjudged])
    for table in (page.families, *page.tables):
        yield from folded(table.title, list(rows(table)))
    if numbers.operations:
        counts = tuple((name, f"{eager:,.0f}", f"{fused:,.0f}") for name, eager, fused in numbers.operations)
        table = Table("Operations of one step", "", ("operation", "eager references", "as configured"), counts)
        yield from folded(table.title, list(rows(table)))


def finding(item: Item) -> Iterator[str]:
    """Yield one finding."""
    yield ""
    yield f"**{item.code}** {item.severity}: {plain(item.message)}"
    yield ""
    yield f"* found: {plain(item.found)} ({item.evidence})"
    yield f"* wanted: {plain(item.wanted)}"
    yield f"* do: {plain(item.remedy)}"


def folded(title: str, body: list[str]) -> Iterator[str]:
    """Yield a part that a reader opens."""
    yield ""
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield from body
    yield ""
    yield "</details>"


def rows(table: Table) -> Iterator[str]:
    """Yield a table."""
    yield "| " + " | ".join(table.heads) + " |"
    yield "|" + "---|" * len(table.heads)
    for row in table.rows:
        yield "| " + " | ".join(plain(cell) for cell in row) + " |"


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    flat = " ".join(text.split())
    for sign in ("\\", "|", "<", "*", "_", "`"):
        flat = flat.replace(sign, "&lt;" if sign == "<" else "\\" + sign)
    return flat
