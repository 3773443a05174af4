"""What a page shows of a report, gathered in the order in which it is read. Nothing is judged again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kerncheck.checks.numerics_rule import margin
from kerncheck.checks.registry import FAMILIES
from kerncheck.formats.json import Document, Item
from kerncheck.model.base import Missing
from kerncheck.model.environment import Environment, Gpus
from kerncheck.model.numerics import Cell, Numerics
from kerncheck.model.snapshot import Snapshot
from kerncheck.model.step import Run, Step
from kerncheck.model.trace import Measures, Offender, TraceSection

MOST_ROWS = 14  # of a chart or table; the JSON holds all
SHOWN = {"passed": "passed", "failed": "failed", "note": "noted", "not_judged": "not judged", "not_applicable": "n/a"}
VARIABLES_SHOWN = 30
OF_PACKAGES = "kernels of packages"


@dataclass(frozen=True)
class Table:
    """A table: its title, a sentence about it, the heads of its columns, and its rows."""

    title: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Page:
    """Everything on a page but its charts."""

    title: str
    verdict: str
    sentence: str
    facts: tuple[str, ...]
    families: Table
    findings: tuple[Item, ...]
    unjudged: tuple[Item, ...]
    notes: tuple[Item, ...]
    tables: tuple[Table, ...]
    environment: Table
    version: str = ""
    source: str = ""


@dataclass
class Numbers:
    """What the charts are drawn from. An empty list: there is nothing to draw."""

    operations: list[tuple[str, float, float]] = field(default_factory=list)
    families: list[tuple[str, float, float]] = field(default_factory=list)
    shares: list[tuple[str, float, str]] = field(default_factory=list)
    margins: list[tuple[str, dict[str, float]]] = field(default_factory=list)


def page(document: Document, snapshot: Snapshot, source: str) -> Page:
    """Gather a page from a report and the snapshot in it."""
    items = document.outcomes
    failed = tuple(item for item in items if item.status == "failed")
    return Page(
        title=document.headline,
        verdict=document.verdict,
        sentence=document.sentence,
        facts=facts(document, snapshot),
        families=families(items),
        findings=tuple(sorted(failed, key=lambda item: (item.severity != "error", item.code))),
        unjudged=tuple(item for item in items if item.status == "not_judged" and item.required),
        notes=tuple(item for item in items if item.status == "note"),
        tables=tuple(trace_tables(snapshot.trace)),
        environment=environment(snapshot),
        version=document.kerncheck,
        source=source,
    )


def facts(document: Document, snapshot: Snapshot) -> tuple[str, ...]:
    """Return what was asked, in short pieces. A trace has no profile and no device."""
    of_run = isinstance(snapshot.trace, Missing)
    asked = [f"profile {document.profile}", f"device {document.device}"] if of_run else ["a profiler trace"]
    asked += [f"model {document.model}"] if document.model else []
    asked += [f"packing {document.packing}"] if document.packing else []
    asked += [document.partial] if document.partial else []
    return (*asked, "training" if document.training else "inference", *([f"{document.seconds:.0f} s"] * of_run))


def families(items: tuple[Item, ...]) -> Table:
    """Return how many judgements of each kind every family made."""
    count: Counter[tuple[str, str]] = Counter((item.code[:3], item.status) for item in items)
    rows = [
        (f"{key}xx {name}", *(str(count[key, status] or "") for status in SHOWN))
        for key, name in FAMILIES.items()
        if any(count[key, status] for status in SHOWN)
    ]
    return Table("Families", "How many judgements each family made.", ("family", *SHOWN.values()), tuple(rows))


def environment(snapshot: Snapshot) -> Table:
    """Return versions, hardware and the variables that matter."""
    rows: list[tuple[str, str]] = []
    if isinstance(snapshot.environment, Environment):
        seen = snapshot.environment
        rows += [("Python", seen.python.version), ("kernel", seen.kernel), ("container", seen.container)]
        rows += sorted(seen.versions.items())
        rows += sorted(seen.variables.items())[:VARIABLES_SHOWN]
    if isinstance(snapshot.gpus, Gpus):
        rows += [
            ("driver", snapshot.gpus.driver),
            *((f"GPU {at}", gpu.name) for at, gpu in enumerate(snapshot.gpus.gpus)),
        ]
    elif rows:
        rows.append(("GPU", snapshot.gpus.reason))
    return Table("Environment", "What was installed and set.", ("what", "value"), tuple(row for row in rows if row[1]))


def numbers(snapshot: Snapshot) -> Numbers:
    """Return what the charts of a run are drawn from."""
    found = Numbers()
    if isinstance(snapshot.step, Step):
        found.operations = operations(snapshot.step)
    if isinstance(snapshot.numerics, Numerics):
        found.margins = margins(snapshot.numerics)
    if isinstance(snapshot.trace, TraceSection):
        of_trace(snapshot.trace, found)
    return found


def of_trace(section: TraceSection, found: Numbers) -> None:
    """Add the families of kernels: before and after where two traces were compared, else the time of each."""
    if section.comparison is not None:
        changes = section.comparison.families
        found.families = [(change.name, change.before, change.after) for change in changes][:MOST_ROWS]
        return
    for share in sorted(section.report.total.families, key=lambda share: -share.microseconds)[:MOST_ROWS]:
        time = share.microseconds / 1000
        found.shares.append((share.name, time, f"{time:,.1f} ms, {share.count:,} operations"))


def operations(step: Step) -> list[tuple[str, float, float]]:
    """Return (name, eager, as configured) of the commonest operations of the first device that ran both."""
    for device in step.devices:
        if isinstance(device.fused, Run) and isinstance(device.eager, Run):
            fused, eager = counted(device.fused), counted(device.eager)
            names = sorted({*fused, *eager}, key=lambda name: (name != OF_PACKAGES, -max(fused[name], eager[name])))
            names = names[:MOST_ROWS]
            return [(name, float(eager[name]), float(fused[name])) for name in names]
    return []


def counted(run: Run) -> Counter[str]:
    """Count the operators of forward and backward by name, and all kernel launches under one name."""
    count: Counter[str] = Counter()
    for work in (work for work in run.work if work.phase != "optimizer"):
        count.update(work.operations)
        count[OF_PACKAGES] += sum(work.launches.values())
    return count


def margins(numerics: Numerics) -> list[tuple[str, dict[str, float]]]:
    """Return the worst margin of each tensor of each op by lane, the largest first."""
    found: dict[str, dict[str, float]] = {}
    for lane in numerics.lanes:
        for cell in (cell for cell in lane.cells if isinstance(cell, Cell)):
            for tensor in cell.tensors:
                worst = margin(tensor, cell.seeds)
                if worst is not None and worst.value > 0:
                    by_lane = found.setdefault(f"{cell.op.partition(':')[2]}: {tensor.name}", {})
                    by_lane[lane.title] = max(worst.value, by_lane.get(lane.title, 0.0))
    return sorted(found.items(), key=lambda item: -max(item[1].values()))


def trace_tables(section: TraceSection | Missing) -> list[Table]:
    """Return the tables of a trace: its measures, and the chains of small work."""
    if isinstance(section, Missing):
        return []
    found = [measures(section.report.total)]
    if section.report.offenders:
        found.append(offenders(section.report.offenders))
    return found


def measures(total: Measures) -> Table:
    """Return the main numbers of a whole trace."""
    ratio = total.cpu_gpu_ratio
    rows = (
        ("CPU calls", f"{total.cpu_calls:,}"),
        ("GPU operations", f"{total.gpu_operations:,}"),
        ("CPU enqueue time", f"{total.enqueue_microseconds / 1000:,.1f} ms"),
        ("GPU busy time", f"{total.busy_microseconds / 1000:,.1f} ms"),
        ("enqueue over busy", "" if ratio is None else f"{ratio:.2f}"),
        ("launch lead, median", f"{total.lead.p50:,.0f} microseconds"),
        ("waits on the host", f"{total.idle.host / 1000:,.1f} ms"),
        ("fused kernels, share of GPU time", f"{100 * total.fused_share:.0f} %"),
    )
    return Table("Measures", "Of the whole trace; each is defined in docs/traces.md.", ("measure", "value"), rows)


def offenders(found: tuple[Offender, ...]) -> Table:
    """Return the classes of modules with the longest chains of small kernels."""
    rows = tuple(
        (
            one.module,
            one.phase,
            f"{one.instances} of {one.of}",
            str(one.longest),
            f"{one.launches:,}",
            f"{one.gpu_microseconds / 1000:,.2f} ms",
        )
        for one in found[:MOST_ROWS]
    )
    heads = ("module", "phase", "instances", "longest chain", "launches", "GPU time")
    return Table(
        "Repeat offenders", "Chains of elementwise and copying kernels under one class of module.", heads, rows
    )
