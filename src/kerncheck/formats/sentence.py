"""The two sentences that every format shares: what was judged (first line) and the verdict (last line)."""

from __future__ import annotations

from kerncheck.model.base import Missing
from kerncheck.model.environment import Environment
from kerncheck.report import BUG, FINDINGS, INCONCLUSIVE, Report

NEVER_EMULATED = "races, TF32, other configurations, speed"
SHOWN = ("torch", "triton", "transformers", "flash-linear-attention", "causal-conv1d")


def headline(report: Report) -> str:
    """Name what was judged: tool, profile, device, model."""
    job = report.job
    if job.trace:
        return f"kerncheck {report.version} · trace · {f'model {job.model.name}' if job.model else 'no model named'}"
    device = {"emulate": "emulated device", "cuda": "GPU", "none": "no GPU used"}[job.device]
    model = f"model {job.model.name}" if job.model else "no model named"
    return f"kerncheck {report.version} · profile {job.profile}{meant_for(report)} · {device} · {model}"


def meant_for(report: Report) -> str:
    """Return the GPUs and the driver that an image was declared to be meant for."""
    names = ", ".join(target.name or target.text for target in report.job.targets)
    driver = f"driver {report.job.driver}" if report.job.driver else ""
    given = " with ".join(part for part in (names, driver) if part)
    return f" for {given}" if given else ""


def environment_line(report: Report) -> str:
    """Name the versions that matter, as installed."""
    environment, gpus = report.snapshot.environment, report.snapshot.gpus
    parts = versions(environment) if isinstance(environment, Environment) else ["environment not observed"]
    if isinstance(gpus, Missing):
        return " · ".join([*parts, "no GPU seen"])
    names = sorted({gpu.name for gpu in gpus.gpus})
    return " · ".join([*parts, f"driver {gpus.driver}", f"{len(gpus.gpus)} x {', '.join(names)}"])


def versions(environment: Environment) -> list[str]:
    """Return ``name version`` for Python and each distribution of interest that is installed."""
    installed = {found.name: found.version for found in environment.distributions}
    return [
        f"Python {environment.python.version}",
        *(f"{name} {installed[name]}" for name in SHOWN if name in installed),
    ]


def short(op: str) -> str:
    """Return the bare name of an op id."""
    return op.rpartition(":")[2]


def ops_judged(report: Report) -> tuple[list[str], list[str]]:
    """Split the job's required ops into those that numerics judged and those that it did not."""
    needed = [op.op for op in report.job.needed]
    judged = {outcome.subject for outcome in report.of("passed", "failed") if outcome.code.startswith("KC4")}
    return [op for op in needed if op in judged], [op for op in needed if op not in judged]


def last_line(report: Report) -> str:
    """State the verdict, its exit code and its limits in one line."""
    code = report.exit_code
    if code == FINDINGS:
        text = f"failed: {counted(len(report.failing), 'finding')} at or above {report.fail_on}"
    elif code == BUG:
        text = f"a bug in kerncheck: {counted(len(report.crashes), 'check')} raised"
    elif code == INCONCLUSIVE:
        text = inconclusive(report)
    elif report.job.trace:
        text = f"passed as a trace: {traced(report)}"
    else:
        text = f"passed for profile {report.job.profile}{meant_for(report)}{coverage(report)}"
    partial = f" (partial: {report.partial})" if report.partial else ""
    return f"{text}{partial}: exit {code}"


def counted(number: int, noun: str) -> str:
    """Return ``1 finding`` or ``2 findings``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def inconclusive(report: Report) -> str:
    """Say what the verdict lacks."""
    if not report.unjudged:
        return "inconclusive: nothing was judged"
    return f"inconclusive: {counted(len(report.unjudged), 'required judgement')} could not be made"


def traced(report: Report) -> str:
    """Say what of a trace was judged; warnings are findings that do not fail it."""
    warnings = len(report.findings)
    told = f"{counted(warnings, 'warning')}; " if warnings else ""
    seen = [outcome.status for outcome in report.outcomes if outcome.code == "KC627"]
    absent = "the required kernels" if report.job.model else "any model (--model)"
    model = "the required kernels are seen" if seen and set(seen) == {"passed"} else f"not judged: {absent}"
    return f"{told}{model}; nothing was run here"


def coverage(report: Report) -> str:
    """Say which required ops were judged, on what, and what such a run can never show."""
    emulated = report.job.device == "emulate"
    parts = [*ops_told(report), *(() if report.job.device == "cuda" else ("nothing ran on a GPU",))]
    missing = [short(op) for op in ops_judged(report)[1]] if numerics_ran(report) else ["numerics"]
    missing = missing if report.job.model else ["any model"]
    rest = ", ".join([*missing, *((NEVER_EMULATED,) if emulated else ())])
    parts += [f"not judged: {rest}"] if rest else []
    told = "; ".join(parts)
    return f"{' (emulated)' if emulated else ''}{': ' if told else ''}{told}"


def numerics_ran(report: Report) -> bool:
    """Tell whether numerics had a part in this run."""
    return any(outcome.code.startswith("KC4") for outcome in report.outcomes)


def ops_told(report: Report) -> list[str]:
    """Return how many of the required ops numerics judged, where it ran at all."""
    if not report.job.model or not numerics_ran(report):
        return []
    judged, not_judged = ops_judged(report)
    where = " in Triton's interpreter" if report.job.device == "emulate" else ""
    return [f"{len(judged)} of {len(judged) + len(not_judged)} required ops judged{where}"]
