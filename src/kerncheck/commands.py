"""What the commands do, one small step after the other; nothing here prints but ``emit``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from kerncheck import catalog as catalogs
from kerncheck._version import __version__
from kerncheck.catalog import Catalog
from kerncheck.checks.registry import Case, Check, all_checks
from kerncheck.errors import UsageError
from kerncheck.judge import judge as judge_case
from kerncheck.judge import waive
from kerncheck.model.job import DeviceName, Job, ProfileName
from kerncheck.model.outcome import Outcome
from kerncheck.model.snapshot import Snapshot
from kerncheck.plan import Plan, make_plan, parse_waiver
from kerncheck.report import Report, Waiver

Given = Mapping[str, Any]
DEFAULT_TIMEOUT = {"emulate": 120.0, "cuda": 300.0, "none": 60.0}  # seconds a case; a cold GPU compile is slow
MOST_SNAPSHOT_BYTES = 64 * 2**20
FINDINGS = 1


def verify(given: Given) -> int:
    """Observe, judge, report."""
    from kerncheck.observe import observe

    started = time.monotonic()
    checks, catalog = all_checks(), catalogs.load()
    job = make_job(given, catalog)
    plan = make_plan(job, checks, given["select"], given["ignore"])
    waivers = tuple(parse_waiver(text, checks) for text in given["waive"])
    writable(given["output"])
    if given["dry_run"]:
        return dry_run(given, job, plan, catalog)
    seen = observed(lambda supervisor: observe(make_request(given, job, plan, catalog), supervisor), given)
    report = make_report(Case(job, seen, catalog), plan, given, waivers)
    return emit(msgspec.structs.replace(report, seconds=time.monotonic() - started), given)


def make_report(case: Case, plan: Plan, given: Given, waivers: tuple[Waiver, ...]) -> Report:
    """Judge a snapshot by a plan."""
    outcomes, crashes = judge_case(case, plan.checks)
    for text in unmatched(outcomes, waivers):
        click.echo(text, err=True)
    return Report(
        version=__version__,
        job=case.job,
        snapshot=case.snapshot,
        outcomes=waive(outcomes, waivers),
        crashes=crashes,
        left_out=plan.left_out,
        partial=plan.partial,
        fail_on=given["fail_on"],
    )


def unmatched(outcomes: Iterable[Outcome], waivers: Iterable[Waiver]) -> Iterator[str]:
    """Yield a line about each waiver that matches no finding: it may be stale, or name another subject."""
    findings = [outcome for outcome in outcomes if outcome.status == "failed"]
    for waiver in waivers:
        if not any(waiver.matches(finding) for finding in findings):
            subjects = sorted({finding.subject for finding in findings if finding.code == waiver.code})
            about = f"; the findings of {waiver.code} are about {', '.join(subjects)}" if subjects else ""
            named = waiver.code + (f":{waiver.subject}" if waiver.subject else "")
            yield f"kerncheck: --waive {named} matches no finding{about}"


def observed(work: Callable[[Any], Any], given: Given) -> Any:  # noqa: ANN401
    """Run work with a supervisor whose children end with it, whatever happens, and with progress on stderr."""
    from kerncheck.progress import progress_on
    from kerncheck.supervise import Supervisor

    with progress_on(sys.stderr) as progress:
        supervisor = Supervisor(interpreter(given["python"]), progress)
        try:
            return work(supervisor)
        finally:
            supervisor.stop()


def make_request(given: Given, job: Job, plan: Plan, catalog: Catalog) -> Any:  # noqa: ANN401
    """Return what to observe for a plan."""
    from kerncheck.observe import Request

    timeout = given["timeout"] or DEFAULT_TIMEOUT[job.device]
    python = interpreter(given["python"])
    return Request(job=job, catalog=catalog, sections=plan.sections, python=python, timeout=timeout)


def make_job(given: Given, catalog: Catalog) -> Job:
    """Read profile, device, model and targets from the options.

    Raises:
        UsageError: options that exclude each other, or a model, target or driver that nobody knows.

    """
    from kerncheck.models import resolve
    from kerncheck.targets import parse_driver, parse_targets

    device = choose_device(given.get("device") or "auto", given["profile"])
    profile: ProfileName = given["profile"] or ("ci" if device == "emulate" else "node")
    if (device == "emulate") != (profile == "ci"):
        raise UsageError(f"--profile {profile} and --device {device} exclude each other", "emulate belongs to ci alone")
    if profile == "node" and (given["target"] or given["driver"]):
        raise UsageError("profile node judges the GPU that is here, --target and --driver an image", "--profile image")
    return Job(
        profile=profile,
        device=device,
        model=resolve(given["model"], catalog) if given["model"] else None,
        training=given["training"],
        packing=given["packing"],
        quick=bool(given.get("quick")),
        targets=parse_targets(given["target"], catalog),
        driver=parse_driver(given["driver"]),
    )


def choose_device(asked: str, profile: str | None) -> DeviceName:
    """Return the device to run on. ``auto`` is cuda or none, and emulate only where the profile is ci."""
    if asked == "auto" and profile == "ci":
        return "emulate"
    if asked == "auto":
        return "cuda" if profile != "image" and nvidia_device_node() else "none"
    names: dict[str, DeviceName] = {"cuda": "cuda", "emulate": "emulate", "none": "none"}
    return names[asked]


def nvidia_device_node() -> bool:
    """Tell whether the kernel driver shows a GPU (/dev/nvidia0 ..., or WSL's /dev/dxg)."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def interpreter(path: str | None) -> str:
    """Return the interpreter to judge.

    Raises:
        UsageError: there is no such executable file.

    """
    if path is None:
        return sys.executable
    found = shutil.which(path)
    if found is None:
        raise UsageError(f"--python {path}: no such executable", "give the path of a Python interpreter")
    return found


def dry_run(given: Given, job: Job, plan: Plan, catalog: Catalog) -> int:
    """Print the plan."""
    from kerncheck.listing import planned_text
    from kerncheck.observe import planned

    runs = observed(lambda supervisor: planned(make_request(given, job, plan, catalog), supervisor), given)
    click.echo(planned_text(plan, runs), nl=False)
    return os.EX_OK


def snapshot(given: Given) -> int:
    """Observe everything that this job's checks would read, and print it."""
    from kerncheck.formats.json import indented
    from kerncheck.observe import observe

    catalog = catalogs.load()
    job = make_job(given, catalog)
    writable(given["output"])
    plan = make_plan(job, all_checks(), (), ())
    seen = observed(lambda supervisor: observe(make_request(given, job, plan, catalog), supervisor), given)
    write(indented(seen), given["output"])
    return os.EX_OK


def judge(given: Given) -> int:
    """Judge a snapshot file with today's rules and data."""
    checks, catalog = all_checks(), catalogs.load()
    seen = read_snapshot(given["file"])
    job = judged_job(given, seen, catalog)
    plan = make_plan(job, checks, given["select"], given["ignore"])
    waivers = tuple(parse_waiver(text, checks) for text in given["waive"])
    writable(given["output"])
    return emit(make_report(Case(job, seen, catalog), plan, given, waivers), given)


def judged_job(given: Given, seen: Snapshot, catalog: Catalog) -> Job:
    """Return the job that a snapshot is judged for: what the options say, else what it was taken for."""
    taken = seen.job or Job(device="none")
    asked = {**given, "profile": given["profile"] or taken.profile, "device": taken.device}
    if asked["profile"] == "ci" or taken.device == "emulate":
        asked["device"] = "emulate" if asked["profile"] == "ci" else "none"
    job = make_job({**asked, "packing": given["packing"] or taken.packing}, catalog)
    declared = job.profile == "image"
    return msgspec.structs.replace(
        job,
        model=job.model if given["model"] else taken.model,
        targets=job.targets or (taken.targets if declared else ()),
        driver=job.driver or (taken.driver if declared else ""),
        trace=taken.trace,
    )


def read_snapshot(name: str) -> Snapshot:
    """Read a snapshot, or the snapshot inside a JSON report.

    Raises:
        UsageError: no such file, too large, not JSON, or not a snapshot of a version that we read; one line.

    """
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        if len(data) > MOST_SNAPSHOT_BYTES:
            raise UsageError(f"{name}: {len(data)} bytes is more than a snapshot can have")
        raw = msgspec.json.decode(data)
        inner = raw.get("snapshot", raw) if isinstance(raw, dict) else raw
        return supported(msgspec.convert(inner, Snapshot), name)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: not a snapshot: {error}", "make one with `kerncheck snapshot`") from None


def supported(seen: Snapshot, name: str) -> Snapshot:
    """Return the snapshot if its schema is one that we read."""
    if seen.schema != Snapshot().schema:
        raise UsageError(
            f"{name}: a snapshot of version {seen.schema}; this kerncheck reads version {Snapshot().schema}"
        )
    return seen


def pins(given: Given) -> int:
    """Print the newest sound versions as a constraints file, or on stderr which rows forbid every combination."""
    from kerncheck import pin_sheet
    from kerncheck import pins as search
    from kerncheck.formats import constraints
    from kerncheck.models import resolve

    catalog = catalogs.load()
    wanted = search.wish(given, resolve(given["model"], catalog), catalog)
    writable(given["output"])
    found = search.search(wanted, catalog)
    if isinstance(found, search.Conflict):
        lines = pin_sheet.conflict_lines(search.with_ways_out(found, catalog))
        click.echo("\n".join(lines), err=True)
        return FINDINGS
    write(constraints.render(pin_sheet.sheet(found, catalog)), given["output"])
    return os.EX_OK


def explain(code: str) -> int:
    """Print the page of one check.

    Raises:
        UsageError: no check has this code.

    """
    found = find_check(code, all_checks())
    click.echo(f"{found.code}  {found.title}\n\n{found.page}")
    return os.EX_OK


def find_check(code: str, checks: tuple[Check, ...]) -> Check:
    """Return the check with this code, in any case."""
    for check in checks:
        if check.code == code.upper():
            return check
    raise UsageError(f"no check has the code {code!r}", "kerncheck list checks")


def emit(report: Report, given: Given) -> int:
    """Render the report, write it, and return its exit code, which no format can change."""
    if given["form"] == "json":
        from kerncheck.formats import json as form

        write(form.render(report), given["output"])
    else:
        from kerncheck.formats import text

        terminal = given["output"] is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = min(shutil.get_terminal_size().columns, 120) if terminal else 100
        write(text.render(report, colour=terminal, width=width, verbose=given["verbose"]), given["output"])
    return report.exit_code


def writable(output: str | None) -> None:
    """Find out before minutes of work whether the report can be written where it is asked for.

    Raises:
        UsageError: the folder is absent or not writable.

    """
    if output is not None:
        folder = Path(output).absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"--output {output}: the folder is absent or not writable")


def write(text: str, output: str | None) -> None:
    """Write to stdout, or whole to a file: a reader never sees half a report, and a failure leaves the old one."""
    if output is None:
        try:
            click.echo(text, nl=False)
        except BrokenPipeError:  # the reader (head, say) has seen enough; the verdict stands
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    target = Path(output).absolute()
    with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)  # noqa: PTH101 - readable by whoever collects it, like any report
    os.replace(file.name, target)  # noqa: PTH105
