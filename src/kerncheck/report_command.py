"""What `kerncheck report` does: read a report or a trace, and write a page. It judges nothing but a trace."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kerncheck.commands import MOST_SNAPSHOT_BYTES, supported, writable, write
from kerncheck.errors import UsageError
from kerncheck.formats.json import SCHEMA, Document, document
from kerncheck.model.snapshot import Snapshot

if TYPE_CHECKING:
    from kerncheck.tracing import Trace

Given = Mapping[str, Any]
BY_DEFAULT: Given = {
    "training": True,
    "versions": (),
    "max_cpu_gpu_ratio": None,
    "select": (),
    "ignore": (),
    "waive": (),
    "fail_on": "error",
}
"""What `kerncheck trace` is given when nothing but the file and the model is said."""
EXTRA = ("jinja2", "matplotlib")


def report(given: Given) -> int:
    """Write the page or pages that were asked for; return 0. The verdict's own code is on the page.

    Raises:
        UsageError: nothing was asked for, the file cannot be read, or the extra is not installed; one line.

    """
    if given["html"] is None and not given["markdown"]:
        raise UsageError("kerncheck report: say what to write", "--html OUT, --markdown")
    if given["html"] is not None:
        drawable()
    writable(given["html"])
    told, snapshot, trace = contents(given)
    write_pages(given, told, snapshot, trace)
    return 0


def drawable() -> None:
    """Raise UsageError if what draws pages is not installed."""
    absent = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if absent:
        raise UsageError(f"--html needs {' and '.join(absent)}", "pip install 'kerncheck[report]'")


def write_pages(given: Given, told: Document, snapshot: Snapshot, trace: Trace | None) -> None:
    """Write HTML to its file and Markdown to stdout."""
    from kerncheck.pages import content, markdown

    page, numbers = content.page(told, snapshot, Path(given["file"]).name), content.numbers(snapshot)
    if given["html"] is not None:
        from kerncheck.pages import html, timeline

        drawn = timeline.drawn(trace) if trace is not None else []
        write(html.render(page, numbers, drawn), given["html"])
    if given["markdown"]:
        write(markdown.render(page, numbers), None)


def contents(given: Given) -> tuple[Document, Snapshot, Trace | None]:
    """Return the report, the snapshot in it, and the trace if the file is one."""
    name = given["file"]
    try:
        with Path(name).open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    if SCHEMA.partition("/")[0].encode() in start:
        return read_report(name)
    return judged_trace(given)


def read_report(name: str) -> tuple[Document, Snapshot, None]:
    """Read a report of `--format json`.

    Raises:
        UsageError: too large, not JSON, or not a report of a version that we read; one line.

    """
    if Path(name).stat().st_size > MOST_SNAPSHOT_BYTES:
        raise UsageError(f"{name}: larger than a report can be")
    try:
        told = msgspec.json.decode(Path(name).read_bytes(), type=Document)
        snapshot = msgspec.convert(told.snapshot, Snapshot)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: not a report: {error}", "make one with --format json") from None
    if told.schema != SCHEMA:
        raise UsageError(f"{name}: a report of version {told.schema}; this kerncheck reads {SCHEMA}")
    return told, supported(snapshot, name), None


def judged_trace(given: Given) -> tuple[Document, Snapshot, Trace]:
    """Read and judge a trace as `kerncheck trace` does by default."""
    from kerncheck import catalog as catalogs
    from kerncheck import trace_commands, tracing
    from kerncheck.model.job import TraceRequest
    from kerncheck.model.trace import TraceSection

    catalog, asked = catalogs.load(), {**given, **BY_DEFAULT}
    job = trace_commands.make_job(asked, catalog, TraceRequest(file=given["file"]))
    trace = tracing.read(given["file"])
    section = TraceSection(report=tracing.analyse(trace))
    made = trace_commands.report_of(asked, job, catalog, lambda: section)
    return document(made), made.snapshot, trace
