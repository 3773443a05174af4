"""The null distribution of every margin: what healthy kernels need of the constants of ``checks/numerics_rule.py``.

    python benchmarks/power.py --faults "" --nulls 8 --held-out 30 --store benchmarks/nulls.json   # measure
    python benchmarks/nulls.py                                                                     # the table

A run is one op, judged in one lane on seeds of its own as `verify` judges it: forward, backward, all of its cells.
Constants may be chosen on seeds below 201 only; the others are held out, for the report. A constant *needed* is the
smallest with which one tensor would still be right: its error less the fixed allowances, divided by the eager error.
A tool for kerncheck's makers: no option loosens a verdict.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kerncheck.checks import numerics_rule as rule
from kerncheck.model.numerics import Cell, Lane, Sizes, TensorSeen

DATA = Path(__file__).with_name("nulls.json")
HELD_OUT = 201
"""Seeds from here on were never looked at when a constant or a yardstick was chosen."""
PACKAGES = ("torch", "triton", "flash-linear-attention", "kerncheck")
RULES = {"norm": rule.C_RMS, "block": rule.C_BLOCK, "gain": rule.C_RMS}
Row = dict[str, Any]


def needed(sizes: Sizes, unit: float) -> dict[str, float | None]:
    """Return the constant that each rule would need for one tensor; None where a rule does not apply."""
    scale = max(sizes.rms_reference, sizes.natural)
    found: dict[str, float | None] = dict.fromkeys(RULES)
    if eager := rule.largest(sizes.rms_eager):
        found["norm"] = (sizes.rms_fused - unit * sizes.rms_reference - rule.FLOOR * scale) / eager
    if eager := rule.largest(sizes.block_eager):
        found["block"] = (sizes.block_fused - unit - rule.FLOOR) / eager
    if (eager := rule.largest(sizes.gain_eager)) and sizes.gain_fused is not None and sizes.gain_error is not None:
        natural = max(1.0, sizes.natural / sizes.rms_reference) if sizes.rms_reference else 1.0
        allowed = 5 * sizes.gain_error + unit / 2 + 2 * 2.0**-24 * natural
        found["gain"] = (abs(sizes.gain_fused) - allowed) / eager
    return {name: value if value is None else max(0.0, value) for name, value in found.items()}


def margins(sizes: Sizes, unit: float, seeds: int) -> dict[str, float | None]:
    """Return the margin of each rule."""
    found = {
        "norm": rule.of_norm(sizes, unit),
        "block": rule.of_block(sizes, unit),
        "gain": rule.of_gain(sizes, unit, seeds),
    }
    return {name: None if margin is None else margin.value for name, margin in found.items()}


def rows(lane: str, seed: int, seen: Lane) -> Iterator[tuple[str, int, TensorSeen, int]]:
    """Yield the tensors of a lane with a name that says where they stand."""
    for cell in seen.cells:
        if isinstance(cell, Cell):
            for tensor in cell.tensors:
                yield f"{lane} | {cell.op.partition(':')[2]} | {cell.name} | {tensor.name}", seed, tensor, cell.seeds


def store(path: Path, found: dict[tuple[Any, int], Lane]) -> None:
    """Add every margin and every needed constant to a file, by tensor and rule, in the order in which seeds ran."""
    data = json.loads(path.read_text()) if path.exists() else {**about(), "tensors": {}}
    if data["versions"] != about()["versions"]:
        sys.exit(f"{path} was measured with {data['versions']}, not with what is installed: take another file")
    for (lane, seed), seen in found.items():
        for name, at, tensor, seeds in rows(lane, seed, seen):
            if tensor.sizes is None:
                sys.exit(f"{name}, seed {at}: nothing to compare: {tensor}")
            unit = rule.ROUND_OFF[tensor.precision]
            row = data["tensors"].setdefault(name, {"seeds": [], "margin": {}, "needed": {}})
            row["seeds"].append(at)
            add(row["margin"], margins(tensor.sizes, unit, seeds))
            add(row["needed"], needed(tensor.sizes, unit))
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n")


def add(columns: dict[str, list[float | None]], values: dict[str, float | None]) -> None:
    """Append one value of each rule, to three digits."""
    for kind, value in values.items():
        columns.setdefault(kind, []).append(None if value is None else float(f"{value:.3g}"))


def about() -> Row:
    """Return when, where and with what was measured."""
    head = {"date": time.strftime("%Y-%m-%d"), "machine": platform.machine(), "python": platform.python_version()}
    return {**head, "versions": {name: version(name) for name in PACKAGES}}


def of_part(row: Row, key: str, kind: str, *, held: bool) -> list[float]:
    """Return the values of one part of the seeds."""
    pairs = zip(row["seeds"], row[key][kind], strict=True)
    return [value for seed, value in pairs if value is not None and (seed >= HELD_OUT) == held]


def table(data: Row) -> Iterator[str]:
    """Yield one line for each lane and rule: the constant, what was needed on both parts, and the margins."""
    yield "| lane | rule | constant | tensors | needed, chosen | needed, held out | largest held-out margin | above 1 |"
    yield "|---|---|---|---|---|---|---|---|"
    for lane in ("fp32", "bf16"):
        found = [row for name, row in data["tensors"].items() if name.startswith(lane)]
        for kind, constant in RULES.items():
            parts = [[x for row in found for x in of_part(row, "needed", kind, held=held)] for held in (False, True)]
            worst = [x for row in found for x in of_part(row, "margin", kind, held=True)]
            needs = " | ".join(f"{max(part, default=0.0):.2f}" for part in parts)
            above = sum(x > 1 for x in worst)
            yield f"| {lane} | {kind} | {constant:g} | {len(worst)} | {needs} | {max(worst):.2f} | {above} |"


def runs(data: Row, parts: int = 2) -> int:
    """Return how many held-out runs the data holds: ops times lanes times seeds; with three parts, cells instead."""
    found = {
        (*name.split(" | ")[:parts], seed)
        for name, row in data["tensors"].items()
        for seed in row["seeds"]
        if seed >= HELD_OUT
    }
    return len(found)


def alarms(data: Row) -> int:
    """Return how many held-out tensors lie above one of their limits."""
    held = (x for row in data["tensors"].values() for kind in RULES for x in of_part(row, "margin", kind, held=True))
    return sum(x > 1 for x in held)


def main() -> int:
    """Print the table of the data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(DATA))
    data = json.loads(Path(parser.parse_args().data).read_text())
    print(f"{data['versions']}, {data['date']}: {runs(data)} held-out runs, {runs(data, 3)} pooled cells")
    print("\n".join(table(data)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
