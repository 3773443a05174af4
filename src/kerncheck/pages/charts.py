"""Charts as SVG text for a page. Colours are CSS variables of the page, so that one chart fits light and dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.patches import Patch

INK, MUTED, GRID = "#010101", "#020202", "#030303"
SERIES = ("#040404", "#050505", "#060606", "#070707", "#080808", "#090909")
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", **{colour: f"c{at}" for at, colour in enumerate(SERIES)}}
"""Colours that no chart would use by itself, each replaced by a variable of the page's style."""
WIDTH = 9.0  # inches: 900 units of the picture at 100 dots an inch
ROW = 0.3  # inches for one row of bars or points

rcParams.update(
    {
        "svg.fonttype": "none",
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": GRID,
        "axes.labelcolor": MUTED,
        "xtick.color": MUTED,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
)


@dataclass(frozen=True)
class Chart:
    """A chart with its title and what a reader who cannot see it must know."""

    key: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Lane:
    """One lane of a timeline: its name, and bars of (start, length, series) in milliseconds."""

    name: str
    bars: tuple[tuple[float, float, int], ...]


def drawing(rows: int, *, extra: float = 0.9) -> tuple[Figure, Any]:
    """Return a figure for so many rows, and its axes."""
    figure = Figure(figsize=(WIDTH, extra + ROW * max(rows, 1)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def svg(figure: Figure, key: str, label: str) -> str:
    """Return a figure as an SVG element. ``key`` keeps the ids of several charts on one page apart."""
    rcParams["svg.hashsalt"] = key
    out = io.StringIO()
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(id|xlink:href|clip-path)="(#|url\(#)?', rf'\1="\2{key}-', text)
    for colour, name in VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    head = f'<svg role="img" aria-label="{escaped(label)}" '
    return head + re.sub(r'\s(width|height)="[\d.]+pt"', "", text[len("<svg ") :], count=2)


def escaped(text: str) -> str:
    """Return text for an attribute."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def pairs(
    key: str, title: str, caption: str, rows: Sequence[tuple[str, float, float]], names: tuple[str, str]
) -> Chart:
    """Two bars for each row, such as before and after. Rows are drawn from the top."""
    figure, axes = drawing(2 * len(rows))
    places = [-2.4 * at for at in range(len(rows))]
    for which, name in enumerate(names):
        values = [row[1 + which] for row in rows]
        bars = axes.barh([place - which for place in places], values, height=0.95, color=SERIES[which], label=name)
        axes.bar_label(bars, fmt=lambda value: f"{value:,.0f}", padding=3, color=MUTED, fontsize=9)
    axes.set_yticks([place - 0.5 for place in places], [row[0] for row in rows])
    axes.margins(x=0.12)
    axes.legend(loc="lower right")
    return Chart(key, title, caption, svg(figure, key, f"{title}. {caption}"))


def shares(key: str, title: str, caption: str, rows: Sequence[tuple[str, float, str]]) -> Chart:
    """One bar of milliseconds for each row, with a text at its end."""
    figure, axes = drawing(len(rows))
    bars = axes.barh([-at for at in range(len(rows))], [row[1] for row in rows], height=0.75, color=SERIES[0])
    axes.bar_label(bars, labels=[row[2] for row in rows], padding=3, color=MUTED, fontsize=9)
    axes.set_yticks([-at for at in range(len(rows))], [row[0] for row in rows])
    axes.set_xlabel("milliseconds")
    axes.margins(x=0.2)
    return Chart(key, title, caption, svg(figure, key, f"{title}. {caption}"))


def margins(key: str, title: str, caption: str, rows: Sequence[tuple[str, dict[str, float]]]) -> Chart:
    """One point for each row and lane on a logarithmic scale, with the limit at 1."""
    figure, axes = drawing(len(rows))
    lanes = list(dict.fromkeys(lane for _, values in rows for lane in values))
    for at, lane in enumerate(lanes):
        points = [(values[lane], -row) for row, (_, values) in enumerate(rows) if lane in values]
        shape = "os^"[at % 3]
        axes.scatter(*zip(*points, strict=True), s=34, marker=shape, color=SERIES[at], label=lane, zorder=3)
    axes.axvline(1.0, color=SERIES[3], linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yticks([-row for row in range(len(rows))], [name for name, _ in rows])
    axes.set_xlabel("error divided by its limit (1 is the limit)")
    axes.legend(loc="lower right")
    return Chart(key, title, caption, svg(figure, key, f"{title}. {caption}"))


def histogram(key: str, title: str, caption: str, values: Sequence[float], unit: str) -> Chart:
    """How often values lie where, on a logarithmic scale; values below 1 are in the first bar."""
    figure, axes = drawing(8)
    top = max(10.0, *values)
    edges = [10 ** (at / 4) for at in range(math.ceil(4 * math.log10(top)) + 1)]
    axes.hist([max(1.0, value) for value in values], bins=edges, color=SERIES[0])
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.set_ylabel("launches")
    return Chart(key, title, caption, svg(figure, key, f"{title}. {caption}"))


def timeline(key: str, title: str, caption: str, lanes: Sequence[Lane], names: Sequence[str]) -> Chart:
    """Lanes over time, from the top; each bar has the colour of its series."""
    figure, axes = drawing(len(lanes), extra=1.5)
    for at, lane in enumerate(lanes):
        for series in sorted({bar[2] for bar in lane.bars}):
            spans = [(start, length) for start, length, kind in lane.bars if kind == series]
            axes.broken_barh(spans, (-at - 0.4, 0.8), facecolors=SERIES[series % len(SERIES)])
    axes.set_yticks([-at for at in range(len(lanes))], [lane.name for lane in lanes])
    axes.set_xlabel("milliseconds since the start of the step")
    axes.set_xlim(0, max((start + length for lane in lanes for start, length, _ in lane.bars), default=1.0))
    patches = [Patch(color=SERIES[series % len(SERIES)], label=name) for series, name in enumerate(names)]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=9)
    return Chart(key, title, caption, svg(figure, key, f"{title}. {caption}"))
