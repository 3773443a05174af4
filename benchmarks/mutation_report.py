"""Write docs/detection.md from what benchmarks/mutation.py found."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import nulls

PAGE = Path(__file__).parents[1] / "docs" / "detection.md"
KINDS = ("killed", "survived", "equivalent")
HEAD = """# Detection: mutants of fla, and what the default checks made of them

Made by `python benchmarks/mutation.py --report`; do not edit. A mutant is one change in one line of
flash-linear-attention 0.6.0 that some numeric cell executes. The sample ({count} of {sites} possible mutants, seed
{seed}) was drawn and committed before the first run. Each was shown to what `verify --device emulate` runs by default:
numeric cells in fp32 and bf16, then the training step, then packing. Equivalent: equal in every bit of every cell of
both lanes, and silent in step and packing.

"""


def write(rows: list[dict[str, Any]], sample: dict[str, Any]) -> None:
    """Write the page."""
    head = HEAD.format(count=len(sample["mutants"]), sites=sample["sites"], seed=sample["seed"])
    parts = (totals(rows, sample), by_operator(rows), by_stage(rows), healthy(), rest(rows))
    PAGE.write_text(head + "\n\n".join("\n".join(part) for part in parts) + "\n")


def totals(rows: list[dict[str, Any]], sample: dict[str, Any]) -> list[str]:
    """Return the score."""
    count = Counter(row["status"] for row in rows)
    live = count["killed"] + count["survived"]
    rate = 100 * count["killed"] / live if live else 0.0
    same = 100 * count["equivalent"] / len(rows) if rows else 0.0
    minutes = sum(row["seconds"] for row in rows) / 60
    return [
        f"* judged: {len(rows)} of {len(sample['mutants'])}, {minutes:.0f} minutes of wall time in all",
        f"* killed: {count['killed']} of {live} live mutants that are not equivalent: **{rate:.1f} %**",
        f"* equivalent: {count['equivalent']} ({same:.0f} % of those judged)",
        f"* survived: {count['survived']}",
        *later(rows),
    ]


def later(rows: list[dict[str, Any]]) -> list[str]:
    """Say what was judged again, by cells that were added after the first run."""
    again = [row for row in rows if row.get("again")]
    won = sum(row["status"] == "killed" for row in again)
    if not again:
        return []
    return [
        f"* {len(again)} were not killed in the first run. Cells were added for them (keys of four blocks, short rows,",
        f"  convolutions with a residual and of a batch), and they were judged again: {won} of them were killed then",
    ]


def by_operator(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table by operator."""
    count = Counter((row["operator"], row["status"]) for row in rows)
    lines = ["| change | " + " | ".join(KINDS) + " |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(str(count[name, kind]) for kind in KINDS)} |" for name in operators(rows)]
    return lines


def operators(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names of the operators."""
    return sorted({row["operator"] for row in rows})


def by_stage(rows: list[dict[str, Any]]) -> list[str]:
    """Return which stage found how many first, in the order in which they were asked."""
    count = Counter(row["by"] for row in rows if row["status"] == "killed")
    stages = ("quick", "fp32", "bf16", "step", "packing")
    return ["Found first by: " + ", ".join(f"{name} {count[name]}" for name in stages) + "."]


def healthy() -> list[str]:
    """Return what healthy kernels need of the constants, from benchmarks/nulls.json."""
    data = json.loads(nulls.DATA.read_text())
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return [
        "## Healthy kernels",
        "",
        f"Measured on {data['date']} with {versions}",
        "(`benchmarks/nulls.py`). A run is one op in one lane on seeds of its own, as `verify` judges it:",
        f"{nulls.runs(data)} held-out runs of {nulls.runs(data, 3)} cells (each pools its seeds), on seeds that no",
        f"constant was chosen on; {nulls.alarms(data)} tensors above their limit. *Needed* is the smallest constant",
        "with which the worst tensor would still be right.",
        "",
        "The cell of wide keys is not in the bf16 part any more: on seed 202, the sixteenth held-out one that was run,",
        "it accused a healthy kernel there (dg, 1.05 of its limit). It runs in fp32 alone since, and the figures are",
        "those of what is left. The two mutants that were killed with its help had been killed in fp32.",
        "",
        *nulls.table(data),
    ]


def rest(rows: list[dict[str, Any]]) -> list[str]:
    """Return every mutant that was not killed."""
    lines = ["## Not killed", "", "| file | line | change | was | became | status |", "|---|---|---|---|---|---|"]
    for row in sorted(
        (row for row in rows if row["status"] != "killed"), key=lambda row: (row["status"], row["file"], row["line"])
    ):
        cells = [row["file"], str(row["line"]), row["operator"], code(row["old"]), code(row["new"]), row["status"]]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def code(text: str) -> str:
    """Return source text for a cell of a table."""
    return "`" + text.replace("|", "\\|")[:90] + "`"
