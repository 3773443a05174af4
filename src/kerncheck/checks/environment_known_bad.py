"""Combinations that are known to be bad, and packages outside of what is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerncheck.checks.registry import Case, check
from kerncheck.facts import Device, devices, setting, triton_version, without_devices
from kerncheck.invariants import EVERY_OP
from kerncheck.matching import Answer, applies, covers
from kerncheck.model.base import seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.versions import shown

if TYPE_CHECKING:
    from kerncheck.model.environment import Environment
    from kerncheck.model.matrix import KnownBad


@dataclass(frozen=True)
class Match:
    """A known-bad row whose package is installed, and whether it describes this machine."""

    row: KnownBad
    distribution: str
    version: str
    answer: Answer


@check("KC112", "no combination is known to be bad", needs=("environment", "gpus"))
def known_bad(case: Case, say: Say) -> Iterator[Outcome]:
    """Compare what is installed with the combinations that are known to be bad.

    What it checks
    Every known-bad row of the matrix whose package is installed: versions of the package, Triton, torch, transformers
    and Python, the GPU, tools and variables. Rows about ops that the job's model does not call are notes; without a
    model every installed package counts.

    Why it matters
    Some combinations run the fused kernel with a right forward and wrong gradients, or hang, or fall back without a
    word. No test of shapes, and no forward test, shows that; the reports of others do.

    Example
    fla-core 0.5.1 with triton 3.5.1 on an H100: Triton from 3.4.0 to 3.7.0 miscompiles the backward of
    chunk_gated_delta_rule on Hopper; this fla refuses to run it.

    How to fix
    Make the change that the finding names; it is one that brings no other known-bad combination. Rows carry their
    source and a date. What the matrix declares is not measured here: the numeric checks on the GPU have the last word.
    """
    environment = seen(case.snapshot.environment)
    matches = list(matched(case, environment))
    for match in matches:
        if match.answer:
            yield described(case, environment, match, say)
    for name in dict.fromkeys(match.distribution for match in matches):
        yield from summed_up(case, [match for match in matches if match.distribution == name], say)
    if not matches:
        yield say.not_applicable("kernel packages", "none is installed of which anything bad is known")


def matched(case: Case, environment: Environment) -> Iterator[Match]:
    """Yield each row whose package is installed, with its answer."""
    here = setting(case, environment)
    for row in case.catalog.known_bad:
        name, version = installed_package(case, environment, row)
        if version and not row.judged_by:
            yield Match(row, name, version, applies(row, here, version))


def installed_package(case: Case, environment: Environment, row: KnownBad) -> tuple[str, str]:
    """Return (distribution, version) of a row's package: of the first of its distributions that is installed."""
    item = case.catalog.kernels.get(row.package)
    if item is None:
        return "triton", triton_version(environment)
    found = ((name, environment.version(name)) for name in item.package.distributions)
    return next((pair for pair in found if pair[1]), ("", ""))


def concerns(case: Case, row: KnownBad) -> tuple[str, ...]:
    """Return the ops of a row that this job needs; without a model, all of them."""
    if case.job.model is None:
        return row.ops
    needed = [op.op for op in case.job.needed]
    if row.phase == "backward" and not case.job.training:
        return ()
    if EVERY_OP not in row.ops:
        return tuple(op for op in row.ops if op in needed)
    item = case.catalog.kernels.get(row.package)
    shipped = (
        item.op if item else [op for each in case.catalog.kernels.values() for op in each.op if "triton" in op.needs]
    )
    return tuple(op.id for op in shipped if op.id in needed)


def described(case: Case, environment: Environment, match: Match, say: Say) -> Outcome:
    """Say that a row describes this machine: a finding, or a note, where the job needs the op."""
    row = match.row
    ops = concerns(case, row)
    message = f"{combination(case, environment, match)}: {row.effect}{spoken(ops or row.ops, row)}"
    if not ops:
        return say.not_applicable(row.id, f"{message}; this job does not call it")
    if row.severity == "note":
        return say.note(row.id, message, "declared", source=row.source)
    doubt = f" (uncertain: {row.uncertain})" if row.uncertain else ""
    return say.failed(
        row.id,
        message + doubt,
        found=combination(case, environment, match),
        wanted=f"no {wanted(match)}",
        remedy=row.remedy + rebuild(case, environment, row),
        evidence="declared",
        severity=row.severity,
        source=row.source,
    )


def spoken(ops: tuple[str, ...], row: KnownBad) -> str:
    """Return the ops and the phase that a row is about, in brackets."""
    names = ", ".join("every op" if op == EVERY_OP else op.rpartition(":")[2] for op in ops)
    return f" [{names}, {row.phase}{'; ' + row.where if row.where else ''}]"


def combination(case: Case, environment: Environment, match: Match) -> str:
    """Return what is here of what a row speaks of: versions, and the GPU."""
    versions = setting(case, environment).packages
    named = (name for name in match.row.when.packages if name != match.distribution)
    parts = [f"{match.distribution} {match.version}", *(f"{name} {versions.get(name, '')}" for name in named)]
    parts += [f"no {name}" for name in (*match.row.when.absent, *match.row.when.without)]
    where = [device for device in devices(case) if is_about(match.row, device)]
    gpus = ", ".join(dict.fromkeys(f"{device.label} (capability {device.cc})" for device in where))
    return " with ".join([parts[0], ", ".join(parts[1:])] if parts[1:] else parts) + (f" on {gpus}" if gpus else "")


def is_about(row: KnownBad, device: Device) -> bool:
    """Tell whether a row speaks of certain GPUs, and of this one."""
    limited = bool(row.when.cc or row.when.not_cc or row.when.cc_below)
    return limited and covers(row.when, device.cc)


def wanted(match: Match) -> str:
    """Return a row's combination of ranges."""
    row = match.row
    parts = [f"{match.distribution} {shown(row.versions)}".strip()]
    parts += [f"{name} {shown(versions)}".strip() for name, versions in row.when.packages.items()]
    gpus = f" on capability {', '.join(row.when.cc)}" if row.when.cc else ""
    return " with ".join(parts) + gpus


def rebuild(case: Case, environment: Environment, row: KnownBad) -> str:
    """Say which compiled packages must be built anew when every cure is another torch."""
    if not row.cure or not all("torch" in cure.packages for cure in row.cure):
        return ""
    compiled = [
        name
        for item in case.catalog.kernels.values()
        for name in item.package.distributions
        if item.package.extension and environment.version(name)
    ]
    return f"; then build {', '.join(compiled)} anew for that torch" if compiled else ""


def summed_up(case: Case, matches: list[Match], say: Say) -> Iterator[Outcome]:
    """Say for one package how many rows do not describe this machine, and which could not be told."""
    first = matches[0]
    open_rows = [match.row for match in matches if match.answer is None]
    concerning = [row for row in open_rows if concerns(case, row)]
    if not any(match.answer for match in matches) and not open_rows:
        message = f"{first.distribution} {first.version}: none of {len(matches)} known-bad rows describes this machine"
        yield say.passed(first.distribution, message, "declared")
    if concerning and not devices(case) and case.job.profile != "ci":
        reason, remedy = without_devices(case)
        names = ", ".join(row.id for row in concerning)
        yield say.not_judged(first.distribution, f"{reason}: rows that depend on it: {names}", remedy=remedy)
    elif concerning:
        names = ", ".join(row.id for row in concerning)
        reason = f"a version here lies between releases, so these rows cannot be told: {names}"
        yield say.not_judged(first.distribution, reason, required=False)
