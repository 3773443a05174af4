"""A page as HTML: one file, no network, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from kerncheck.pages import charts
from kerncheck.pages.charts import Chart
from kerncheck.pages.content import Numbers, Page


def render(page: Page, numbers: Numbers, drawn: Sequence[Chart]) -> str:
    """Return the page as HTML; ``drawn`` are charts that need more than the numbers."""
    source = files("kerncheck.pages").joinpath("page.html.j2").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(source).render(page=page, charts=[*drawn, *of_numbers(numbers)])


def of_numbers(numbers: Numbers) -> list[Chart]:
    """Return the charts for which there are numbers."""
    found = []
    if numbers.families:
        caption = "GPU operations of each family of kernels in both traces."
        found.append(charts.pairs("families", "Operations by family", caption, numbers.families, ("before", "after")))
    if numbers.shares:
        caption = "GPU time of each family of kernels in the whole trace."
        found.append(charts.shares("shares", "GPU time by family", caption, numbers.shares))
    if numbers.operations:
        caption = "Operators and kernel launches of one training step; the second bar lacks what the kernels replaced."
        names = ("eager references", "as configured")
        found.append(charts.pairs("operations", "Operations of one training step", caption, numbers.operations, names))
    if numbers.margins:
        caption = "The worst over all cells, by op and tensor. At 1 and below the kernel is as right as an eager run."
        found.append(charts.margins("margins", "Numerics margins", caption, numbers.margins))
    return found
