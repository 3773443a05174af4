"""Compare two traces: what disappeared, what appeared, what changed, by operator, kernel and class of module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kerncheck.model.trace import Change, StepReport, TraceComparison

Row = tuple[str, float, float]
Amounts = Mapping[str, tuple[float, float]]
MOST = 200


def compare(before: StepReport, after: StepReport) -> TraceComparison:
    """Compare two analysed traces.

    Numbers are per step where both traces know how many steps they hold, else those of the whole traces. ``ratio`` is
    before over after: 15 means a fifteenth is left. Each list is ordered by the change in GPU time, largest first.
    """
    per_step = bool(before.iterations and after.iterations)
    pair = (before, after)
    parts = [float(report.iterations) if per_step else 1.0 for report in pair]
    kernels = sums(pair, parts, kernel_rows)
    return TraceComparison(
        per_step=per_step,
        cpu_calls=change("CPU calls", *[single(report, "cpu_calls", per_step=per_step) for report in pair]),
        gpu_operations=change(
            "GPU operations", *[single(report, "gpu_operations", per_step=per_step) for report in pair]
        ),
        step=step(before, after),
        families=changes(*sums(pair, parts, family_rows)),
        operators=changes(*sums(pair, parts, operator_rows)),
        kernels=changes(*kernels),
        modules=changes(*sums(pair, parts, module_rows)),
        appeared=only(kernels[1], kernels[0]),
        disappeared=only(kernels[0], kernels[1]),
    )


def sums(
    pair: tuple[StepReport, StepReport], parts: list[float], rows: Callable[[StepReport], Iterable[Row]]
) -> list[dict[str, tuple[float, float]]]:
    """Sum one kind of rows of both traces."""
    return [amounts(rows(report), part) for report, part in zip(pair, parts, strict=True)]


def only(these: Amounts, those: Amounts) -> tuple[str, ...]:
    """Return the names of these that those lack, the most time first."""
    names = sorted(these.keys() - those.keys(), key=lambda name: (-these[name][1], name))
    return tuple(names[:MOST])


def single(report: StepReport, measure: str, *, per_step: bool) -> tuple[float, float]:
    """Return a count, for one step or for all, with the GPU's busy time."""
    if per_step:
        return report.per_step(measure) or 0.0, report.per_step("busy_microseconds") or 0.0
    return float(getattr(report.total, measure)), report.total.busy_microseconds


def step(before: StepReport, after: StepReport) -> Change:
    """Return the time of a step, or of the whole traces where one does not tell its steps."""
    times = [before.step_microseconds, after.step_microseconds]
    if None in times:
        times = [before.total.span_microseconds, after.total.span_microseconds]
    first, second = times[0] or 0.0, times[1] or 0.0
    return change("step", (first, first), (second, second))


def family_rows(report: StepReport) -> Iterable[Row]:
    """Return the families of device work; those of the steps where there are any."""
    for measured in report.steps or (report.total,):
        for share in measured.families:
            yield share.name, share.count, share.microseconds


def kernel_rows(report: StepReport) -> Iterable[Row]:
    """Return the kernels by their launches and time."""
    return ((use.name, use.count, use.microseconds) for use in report.kernels)


def operator_rows(report: StepReport) -> Iterable[Row]:
    """Return the operators by their calls and the GPU time that they launched."""
    return ((use.name, use.calls, use.gpu_microseconds) for use in report.operators)


def module_rows(report: StepReport) -> Iterable[Row]:
    """Return the classes of module with chains of small work, by their launches."""
    return ((f"{item.module} ({item.phase})", item.launches, item.gpu_microseconds) for item in report.offenders)


def amounts(rows: Iterable[Row], part: float) -> dict[str, tuple[float, float]]:
    """Sum count and time by name, and divide by the number of steps."""
    found: dict[str, tuple[float, float]] = {}
    for name, count, time in rows:
        before = found.get(name, (0.0, 0.0))
        found[name] = (before[0] + count / part, before[1] + time / part)
    return found


def changes(before: Amounts, after: Amounts) -> tuple[Change, ...]:
    """Return one change for each name, the largest change of GPU time first."""
    names = sorted(before.keys() | after.keys())
    found = [change(name, before.get(name, (0.0, 0.0)), after.get(name, (0.0, 0.0))) for name in names]
    found.sort(key=lambda item: -abs(item.before_microseconds - item.after_microseconds))
    return tuple(found[:MOST])


def change(name: str, before: tuple[float, float], after: tuple[float, float]) -> Change:
    """Return how count and time of one name changed."""
    return Change(
        name=name,
        before=before[0],
        after=after[0],
        before_microseconds=before[1],
        after_microseconds=after[1],
        ratio=before[0] / after[0] if before[0] and after[0] else None,
    )
