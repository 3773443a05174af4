"""`kerncheck selftest`: break things on purpose in children, and see that the gate goes red each time.

The probes, the stages, the checks and the verdict are those of verify. A sabotage counts as found when it had an
effect, when the same small job without it is green for the expected code, and when the gate says failed with it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import replace as altered
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import msgspec

from kerncheck import catalog as catalogs
from kerncheck._version import __version__
from kerncheck.checks.registry import Case, Check, all_checks
from kerncheck.commands import make_job, observed
from kerncheck.judge import NOTHING, judge
from kerncheck.kernels import OpSpec
from kerncheck.model.outcome import Outcome
from kerncheck.model.snapshot import Snapshot
from kerncheck.observe import Request, first_ask, informed, run_stages, workers
from kerncheck.plan import STATIC
from kerncheck.report import FINDINGS, Report
from kerncheck.selftest_report import Result, document, render
from kerncheck.selftest_sabotages import CONTROL, SABOTAGES, Sabotage
from kerncheck.selftest_trials import PACKING, Told, Trial, disguised, lanes, narrowed, section_of, smallest, target
from kerncheck.selftest_trials import trouble as trouble_in
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor

TIMEOUT = 120.0  # seconds that one case may take, as in verify on the emulated device


@dataclass(frozen=True)
class Bench:
    """Everything that was seen: the job, the op that was broken, each child's answers, which sabotages had effect."""

    ask: Ask
    spec: OpSpec
    told: tuple[Told, ...]
    live: frozenset[str]

    def trouble(self, section: str, side: str) -> str:
        """Return why there is no answer on a side, or nothing."""
        return trouble_in(self.told, section, side)

    @cached_property
    def subjects(self) -> frozenset[str]:
        """What an outcome that counts here is about."""
        return frozenset({self.spec.id, self.spec.import_name, PACKING, "step"})

    def report(self, section: str, side: str, checks: Sequence[Check]) -> Report:
        """Judge one side of one section with every check that reads this section alone, as verify judges it."""
        ask = narrowed(self.ask, self.spec, section)
        seen = {section: section_of(ask, self.told, section, side)}
        version = f"{__version__} (selftest, broken on purpose: {side})" if side else __version__
        snapshot = Snapshot(kerncheck=version, job=ask.job, **seen)
        own = [check for check in checks if set(check.needs) == {section}]
        outcomes, crashes = judge(Case(ask.job, snapshot, ask.catalog), own)
        return Report(version=version, job=ask.job, snapshot=snapshot, outcomes=outcomes, crashes=crashes)


def command(given: Mapping[str, Any]) -> int:
    """Run the self-test, print its result, and return the exit code."""
    started = time.monotonic()
    asked = {"profile": "ci", "target": (), "driver": None, "training": True, "packing": PACKING, "quick": True}
    catalog = catalogs.load()
    job = make_job({**given, **asked}, catalog)
    assert job.model is not None  # noqa: S101 - the option has a default
    job = msgspec.structs.replace(job, model=smallest(job.model))
    python = given["python"] or ""
    request = Request(job=job, catalog=catalog, sections=(), python=python, timeout=TIMEOUT)
    ask, bench = observed(lambda supervisor: observe(request, supervisor), given)
    results = judged(bench, all_checks()) if bench else not_runnable(ask)
    empty = Report(version=__version__, job=job, snapshot=Snapshot(environment=ask.environment), outcomes=())
    told = document(empty, results, time.monotonic() - started)
    click.echo(render(told, given["form"]), nl=False)
    return told.exit_code


def observe(request: Request, supervisor: Supervisor) -> tuple[Ask, Bench | None]:
    """Look at what is installed, then run all children; no bench where the model calls no op that can be run here."""
    ask = first_ask(request)
    ask = informed(ask, run_stages(ask, STATIC, request, supervisor))
    spec = target(ask.job)
    if spec is None:
        return ask, None
    planned = lanes(ask, spec)
    with tempfile.TemporaryDirectory(prefix="kerncheck-selftest-") as folder:
        told = walked(planned, spec, folder, supervisor, workers(ask.job))
        live = frozenset(path.name for path in Path(folder).iterdir())
    return ask, Bench(ask, spec, told, live)


def walked(
    planned: list[list[Trial]], spec: OpSpec, folder: str, supervisor: Supervisor, at_once: int
) -> tuple[Told, ...]:
    """Run the lanes side by side."""

    def walk(lane: list[Trial]) -> list[Told]:
        runs = [(item, supervisor.run(disguised(item, spec, folder))) for item in lane]
        return [Told(item, altered(answers, run=item.run)) for item, answers in runs]

    with ThreadPoolExecutor(max_workers=at_once) as pool:
        return tuple(told for lane in pool.map(walk, planned) for told in lane)


def judged(bench: Bench, checks: Sequence[Check]) -> tuple[Result, ...]:
    """Judge every sabotage against its control."""
    sections = dict.fromkeys(item.section for item in SABOTAGES)
    controls = {section: bench.report(section, CONTROL, checks) for section in sections}
    return tuple(verdict(bench, item, controls[item.section], checks) for item in SABOTAGES)


def verdict(bench: Bench, item: Sabotage, control: Report, checks: Sequence[Check]) -> Result:
    """Say whether the gate is green without a sabotage and red with it, by the right code."""
    result = Result(
        kind=item.kind,
        title=item.title,
        broken=item.words.format(op=bench.spec.name, package=bench.spec.import_name),
        expected=item.code,
        status="failed",
    )
    if item.code not in {check.code for check in checks}:
        return msgspec.structs.replace(result, message=f"there is no check {item.code} that could find it")
    problem = not_green(control, item, bench)
    if problem is not None:
        return msgspec.structs.replace(result, **problem)
    return msgspec.structs.replace(result, **found(bench, item, bench.report(item.section, item.kind, checks), control))


def not_green(control: Report, item: Sabotage, bench: Bench) -> dict[str, Any] | None:
    """Return what is wrong with the control, or None if it is green for the code."""
    own = about(control, item.code, bench)
    failed = [outcome for outcome in own if outcome.status == "failed"]
    if failed:
        return {"message": f"red without the sabotage too: {failed[0].message}"}
    crashed = [crash.message for crash in control.crashes if crash.code == item.code]
    if crashed:
        return {"message": f"the check itself fails without the sabotage: {crashed[0]}"}
    if any(outcome.status == "passed" for outcome in own):
        return None
    reason = bench.trouble(item.section, CONTROL) or reason_in(control, item.code)
    return {"status": "not_run", "message": f"not judged without the sabotage: {reason}"}


def reason_in(report: Report, code: str) -> str:
    """Return why a check judged nothing: in its own words, or by what else is wrong where it had nothing to look at."""
    own = [one.message for one in report.outcomes if one.code == code and one.message != NOTHING]
    others = [f"{one.code} {one.message}" for one in (*report.failing, *report.of("not_judged"))]
    return next((reason for reason in (*own, *others) if not reason.endswith(NOTHING)), NOTHING)


def found(bench: Bench, item: Sabotage, report: Report, control: Report) -> dict[str, Any]:
    """Return what came of the sabotage."""
    before = {outcome.code for outcome in control.failing}
    codes = tuple(dict.fromkeys(outcome.code for outcome in report.failing if outcome.code not in before))
    hit = [outcome for outcome in about(report, item.code, bench) if outcome in report.failing]
    live = item.kind in bench.live
    if hit and live and report.exit_code == FINDINGS:
        return {"status": "passed", "found": codes, "message": hit[0].message}
    trouble = "" if hit else bench.trouble(item.section, item.kind)
    if trouble and not (live and item.section == "imports"):  # of a broken import, no answer is an answer too
        return {"status": "not_run", "found": codes, "message": trouble}
    if not live:
        return {"found": codes, "message": "the sabotage had no effect, so that nothing is shown"}
    told = [f"{one.status.replace('_', ' ')}: {one.message}" for one in about(report, item.code, bench)]
    others = [f"{one.status.replace('_', ' ')}: {one.message}" for one in report.outcomes if one.code == item.code]
    crashed = [f"the check itself fails: {crash.message}" for crash in report.crashes if crash.code == item.code]
    return {"found": codes, "message": f"not found ({next(iter([*crashed, *told, *others]), 'nothing was said')})"}


def about(report: Report, code: str, bench: Bench) -> list[Outcome]:
    """Return what a check says about the thing that is broken."""
    return [outcome for outcome in report.outcomes if outcome.code == code and outcome.subject in bench.subjects]


def not_runnable(ask: Ask) -> tuple[Result, ...]:
    """Say of every sabotage that there is nothing to break."""
    name = ask.job.model.name if ask.job.model else ""
    reason = f"model {name} calls no op with a backward that the emulated device can run"
    return tuple(
        Result(
            kind=item.kind,
            title=item.title,
            broken=item.words.format(op="the op", package="its package"),
            expected=item.code,
            status="not_run",
            message=reason,
        )
        for item in SABOTAGES
    )
