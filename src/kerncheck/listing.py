"""What `kerncheck list` and `--dry-run` print."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kerncheck import catalog as catalogs
from kerncheck import plugins
from kerncheck.checks.registry import FAMILIES, all_checks
from kerncheck.kernels import all_specs
from kerncheck.model.plugin import PluginSeen
from kerncheck.plan import Plan
from kerncheck.probes import plugins as look
from kerncheck.supervise import ProbeRun


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def checks() -> str:
    """List every check: code, family, title."""
    return table([(one.code, FAMILIES[one.family], one.title) for one in all_checks()])


def kernels() -> str:
    """List every op that has a specification: id, package, whether it has a backward and runs emulated."""
    rows = [("op", "package", "backward", "emulated")]
    yes = {True: "yes", False: "no"}
    found = plugins.read_all(msgspec.convert(look.found(), tuple[PluginSeen, ...]))
    specs = (*all_specs(), *found.specs)
    rows += [(spec.id, spec.package, yes[spec.has_backward], yes[spec.runs_emulated]) for spec in specs]
    broken = [f"plug-in {name} cannot be used: {reason}\n" for name, reason in found.broken.items()]
    return table(rows) + "".join(broken)


def models() -> str:
    """List the models with a profile: name, aliases, number of required ops."""
    return table([(one.name, ", ".join(one.aliases), one.title) for one in catalogs.load().models])


def matrix() -> str:
    """List the files of the matrix, their rows and their date."""
    return table(catalogs.load().summary())


def listing(what: str) -> str:
    """Return one of the four lists."""
    lists: dict[str, Callable[[], str]] = {"checks": checks, "kernels": kernels, "models": models, "matrix": matrix}
    return lists[what]()


def planned_text(plan: Plan, runs: list[tuple[str, list[ProbeRun]]]) -> str:
    """Return the plan: probes with their cases, checks, and what is left out and why."""
    lines = ["Probes, each in a child process:"]
    for section, section_runs in runs:
        lines += [f"  {section}: {run.label}, {len(run.cases)} cases, {run.limit:g} s each" for run in section_runs]
        lines += [] if section_runs else [f"  {section}: nothing to run here"]
    lines += ["Checks:", *(f"  {check.code} {check.title}" for check in plan.checks)]
    lines += (
        ["Left out:", *(f"  {one.code} {one.title}: {one.reason}" for one in plan.left_out)] if plan.left_out else []
    )
    return "\n".join(lines) + "\n"
