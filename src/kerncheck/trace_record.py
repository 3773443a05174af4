"""What `kerncheck trace record` does: let a child record steps of the model, keep the trace, judge it as any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from kerncheck import catalog as catalogs
from kerncheck.checks.registry import all_checks
from kerncheck.commands import choose_device, observed, writable
from kerncheck.errors import UsageError
from kerncheck.formats.sentence import counted
from kerncheck.kept import Kept
from kerncheck.model.base import Missing
from kerncheck.model.job import DeviceName, Job, TraceRequest
from kerncheck.model.trace import TraceSection
from kerncheck.plan import make_plan, parse_waiver
from kerncheck.stages.common import child_environment
from kerncheck.stages.numerics import COLD, production_lane
from kerncheck.supervise import ProbeRun, why
from kerncheck.trace_commands import analysed, judged, make_job
from kerncheck.tracing.names import known

Given = Mapping[str, Any]
NO_GPU = (
    "no GPU is here, and nothing was recorded: run it on the node; --device emulate records a trace of the CPU alone, "
    "which shows no kernel and proves nothing about a GPU"
)
CAUSE = "kerncheck verify --model looks for the cause"
EMULATED_LIMIT = 600.0
"""Seconds, where none are given: a step takes 11 s in Triton's interpreter on two cores, and there are several."""


@dataclass(frozen=True)
class Recorded:
    """What came of it: the trace or why there is none, and the versions of the kernel packages that ran."""

    file: Path | Missing
    versions: dict[str, str]


def record(given: Given) -> int:
    """Record, keep, judge. Bad options are refused before anything runs.

    Raises:
        UsageError: options that cannot be followed, or a file that would be overwritten.

    """
    catalog, target = catalogs.load(), Path(given["output"])
    asked = {**given, "versions": (), "max_cpu_gpu_ratio": None, "output": None}
    job = make_job(asked, catalog, TraceRequest(file=given["output"]))
    make_plan(job, all_checks(), given["select"], given["ignore"])
    [parse_waiver(text, all_checks()) for text in given["waive"]]
    writable(given["output"])
    found = recorded(given, job, kept_at(target, force=given["force"]))
    assert job.trace is not None  # noqa: S101 - make_job put it there
    job = msgspec.structs.replace(job, trace=msgspec.structs.replace(job.trace, versions=found.versions))
    return judged(asked, job, catalog, lambda: section_of(found.file))


def section_of(file: Path | Missing) -> TraceSection | Missing:
    """Read the trace, if there is one."""
    return file if isinstance(file, Missing) else TraceSection(report=analysed(str(file)))


def kept_at(target: Path, *, force: bool) -> Kept:
    """Return where the trace goes. Raises UsageError where a file would be overwritten."""
    try:
        return Kept(target, overwrite=force)
    except OSError as error:
        raise refused(error) from None


def refused(error: OSError) -> UsageError:
    """Return the refusal to write a trace."""
    hint = "--force, or another name" if isinstance(error, FileExistsError) else ""
    return UsageError(f"--output {error.filename}: {error.strerror}", hint)


def recorded(given: Given, job: Job, kept: Kept) -> Recorded:
    """Let a child record, and keep what it wrote."""
    device = choose_device(given["device"], None)
    if device == "none":
        return Recorded(Missing(reason=NO_GPU), {})
    run = run_of(given, job, device, kept.temporary)
    answer = observed(lambda supervisor: supervisor.run(run), given).cases[0]
    if not isinstance(answer, dict):
        return Recorded(Missing(reason=f"the steps could not be recorded ({why(answer)}); {CAUSE}"), {})
    if answer["missing"]:
        return Recorded(Missing(reason=f"nothing was recorded: {answer['missing']}; {CAUSE}"), {})
    try:
        file = kept.keep()
    except OSError as error:
        raise refused(error) from None
    assert file is not None  # noqa: S101 - it has a target
    click.echo(told_of(answer, given, file), err=True)
    return Recorded(file, answer["versions"])


def run_of(given: Given, job: Job, device: DeviceName, path: Path) -> ProbeRun:
    """Return the child's work."""
    here = msgspec.structs.replace(job, device=device)
    limit = given["timeout"] or (EMULATED_LIMIT if device == "emulate" else COLD)
    return ProbeRun(
        label="recording",
        probe="record",
        cases=({"name": "steps"},),
        options={
            "request": msgspec.to_builtins(job.model),
            "device": device,
            "dtype": "float16" if production_lane(job) == "fp16" else "bfloat16",
            "path": str(path.absolute()),
            "steps": given["steps"],
            "warmup": given["warmup"],
            "tokens": given["tokens"],
            "distributions": sorted({row.distribution for row in known().expected}),
        },
        environment=child_environment(here),
        limit=limit,
        setup_limit=limit,
    )


def told_of(answer: Mapping[str, Any], given: Given, file: Path) -> str:
    """Say what was recorded; of a large model it is a small one with the same kinds of layers."""
    what = f"{counted(given['steps'], 'step')} of {answer['tokens']} tokens, {counted(answer['layers'], 'layer')}"
    size = f"{file.stat().st_size / 1e6:.2f} MB"
    return f"kerncheck: recorded {what} with random weights, on {answer['device']}: {file} ({size})"
