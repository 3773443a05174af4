"""What `kerncheck trace` does: read, analyse, judge, report. Nothing here prints but ``emit``."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kerncheck import catalog as catalogs
from kerncheck import tracing
from kerncheck.catalog import Catalog
from kerncheck.checks.registry import Case, all_checks
from kerncheck.commands import make_report, writable, write
from kerncheck.errors import UsageError
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, TraceRequest
from kerncheck.model.snapshot import Snapshot
from kerncheck.model.trace import StepReport, TraceSection
from kerncheck.plan import make_plan, parse_waiver
from kerncheck.report import Report
from kerncheck.versions import parse

Given = Mapping[str, Any]
Section = Callable[[], TraceSection | Missing]
"""Reads the trace, or says why there is none."""
TIMES = re.compile(r"(\d+(?:\.\d+)?)\s*x?")


def trace(given: Given) -> int:
    """Judge one trace."""
    catalog = catalogs.load()
    job = make_job(given, catalog, TraceRequest(file=given["file"]))
    return judged(given, job, catalog, lambda: TraceSection(report=analysed(given["file"])))


def compare(given: Given) -> int:
    """Judge a trace, and what changed since the one before."""
    catalog = catalogs.load()
    gates = TraceRequest(
        file=given["after"],
        before=given["before"],
        min_op_reduction=reduction(given["min_op_reduction"]),
        max_step_time_ratio=given["max_step_time_ratio"],
    )
    job = make_job(given, catalog, gates)
    return judged(given, job, catalog, lambda: compared(given))


def compared(given: Given) -> TraceSection:
    """Read both traces and compare them."""
    before, after = analysed(given["before"]), analysed(given["after"])
    return TraceSection(report=after, before=before, comparison=tracing.compare(before, after))


def analysed(file: str) -> StepReport:
    """Read and measure one trace.

    Raises:
        UsageError: the file cannot be read or is no trace.

    """
    gc.disable()  # millions of numbers in a few lists: there are no circles to look for, and looking takes a while
    try:
        return tracing.analyse(tracing.read(file))
    finally:
        gc.enable()


def make_job(given: Given, catalog: Catalog, request: TraceRequest) -> Job:
    """Return the job: the trace, the model whose kernels it must show, and the versions that the run had."""
    from kerncheck.models import resolve

    model = resolve(given["model"], catalog) if given["model"] else None
    request = msgspec.structs.replace(
        request, versions=versions(given["versions"], catalog), max_cpu_gpu_ratio=given["max_cpu_gpu_ratio"]
    )
    return Job(model=model, training=given["training"], trace=request)


def versions(texts: tuple[str, ...], catalog: Catalog) -> dict[str, str]:
    """Read ``name==version``. The version of one distribution of a package speaks for its others.

    Raises:
        UsageError: it is written otherwise, or is no version.

    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, version = (part.strip() for part in text.partition("=="))
        if not equals or parse(version) is None:
            raise UsageError(f"--with {text}: not a package and its version", "write --with fla-core==0.6.0")
        canonical = re.sub(r"[-_.]+", "-", name).casefold()
        package = catalog.kernel_of(canonical)
        found |= dict.fromkeys(package.package.distributions if package else (canonical,), version)
    return found


def reduction(text: str | None) -> float | None:
    """Read ``5x`` or ``5``.

    Raises:
        UsageError: it is no such number.

    """
    if text is None:
        return None
    match = TIMES.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--min-op-reduction {text}: not a number such as 5x")
    return float(match[1])


def judged(given: Given, job: Job, catalog: Catalog, section: Section) -> int:
    """Judge by the checks of traces, and report. Options are checked before a large file is read."""
    started = time.monotonic()
    writable(given["output"])
    report = report_of(given, job, catalog, section)
    return emit(msgspec.structs.replace(report, seconds=time.monotonic() - started), given)


def report_of(given: Given, job: Job, catalog: Catalog, section: Section) -> Report:
    """Judge what ``section`` reads, by ``select``, ``ignore``, ``waive`` and ``fail_on`` of what was given."""
    checks = all_checks()
    plan = make_plan(job, checks, given["select"], given["ignore"])
    waivers = tuple(parse_waiver(text, checks) for text in given["waive"])
    snapshot = Snapshot(job=job, trace=section())
    return make_report(Case(job, snapshot, catalog), plan, given, waivers)


def emit(report: Report, given: Given) -> int:
    """Render the report, write it, and return its exit code."""
    if given["form"] == "json":
        from kerncheck.formats import json as form

        write(form.render(report), given["output"])
        return report.exit_code
    from kerncheck.formats import trace_text

    terminal = given["output"] is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = min(shutil.get_terminal_size().columns, 120) if terminal else 100
    write(trace_text.render(report, colour=terminal, width=width, verbose=given["verbose"]), given["output"])
    return report.exit_code
