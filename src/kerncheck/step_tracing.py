"""Record a few steps of a user's own training loop, in its process, and judge them as `kerncheck trace` does.

    with kerncheck.step_trace(model) as trace:
        for batch in loader:
            ...
            optimizer.step()
            trace.step()
    trace.raise_on_fallback()

The recording costs what torch.profiler costs, during ``warmup`` and ``active`` steps; then hooks and profiler are gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from kerncheck import catalog as catalogs
from kerncheck import tracing
from kerncheck.catalog import Catalog
from kerncheck.checks.registry import Case, all_checks
from kerncheck.in_job import NotJudgedError, refuse, request_of
from kerncheck.judge import judge
from kerncheck.kept import Kept
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, TraceRequest
from kerncheck.model.outcome import Outcome
from kerncheck.model.snapshot import Snapshot
from kerncheck.model.trace import StepReport, TraceSection
from kerncheck.plan import make_plan
from kerncheck.probes.recording import Recording, Schedule
from kerncheck.tracing.names import known

COMPLETE = "KC620"
FALLBACK = (COMPLETE, "KC627", "KC628", "KC629")
"""The checks that say whether the fused kernels ran, the first whether anything can be said. Others: what is slow."""


class StepTrace:
    """What `kerncheck.step_trace` gives. All is there as soon as the last recorded step has ended, inside of the loop.

    ``done`` says so. ``report`` then holds the measures (a StepReport of kerncheck.tracing), and ``path`` is the trace
    if it was to be kept. Where nothing could be recorded there is no report, and ``reason`` says why.
    """

    def __init__(self, recording: Recording, job: Job, catalog: Catalog, kept: Kept) -> None:
        self.report: StepReport | None = None
        self.path: Path | None = None
        self.done = False
        self.reason = "nothing was recorded: step_trace belongs into a with statement"
        self._recording, self._job, self._catalog, self._kept = recording, job, catalog, kept
        self._entered = False

    def __enter__(self) -> Self:
        """Begin to count steps."""
        self._entered = True
        self._recording.start()
        self._look()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """End the recording and remove its hooks. What the loop raised goes its way."""
        self._recording.close()
        if not self.done:
            raised = f"the loop ended with {kind.__name__} before the recording did" if kind else ""
            self._end(raised or self._recording.why())

    def step(self) -> None:
        """Say that a step of the loop has ended. The call that ends the last recorded step also reads the trace.

        Outside of a ``with`` statement it does nothing: what it would begin, nobody would end.
        """
        if self._entered and not self.done:
            self._recording.step()
            self._look()

    def _look(self) -> None:
        """See whether the recording is over."""
        if self._recording.done:
            try:
                self._take()
            except Exception as error:  # noqa: BLE001 - no fault of ours may end a training run, and nothing passes by it
                self._end(f"the trace cannot be read ({type(error).__name__}: {error})")
        elif self._recording.reason:
            self._end(self._recording.reason)
        else:
            self.reason = self._recording.why()

    def _take(self) -> None:
        """Measure the trace, and keep it if it was to be kept."""
        with without_collection():
            report = tracing.analyse(tracing.read(self._kept.temporary))
        try:
            self.path = self._kept.keep()
        except OSError as error:
            warnings.warn(f"kerncheck: the trace was not kept: {error.filename}: {error.strerror}", stacklevel=3)
        self.report = msgspec.structs.replace(report, file=str(self.path or ""))
        self._end("")

    def _end(self, reason: str) -> None:
        self.done, self.reason = True, reason
        self._kept.remove()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What the checks of `kerncheck trace` say (KC62x, KC63x). Without a report all is not judged.

        Raises:
            NotJudgedError: a check of ours raised.

        """
        section = Missing(reason=self.reason) if self.report is None else TraceSection(report=self.report)
        checks = make_plan(self._job, all_checks(), (), ()).checks
        outcomes, crashes = judge(Case(self._job, Snapshot(job=self._job, trace=section), self._catalog), checks)
        if crashes:
            raise NotJudgedError(f"kerncheck itself failed: {crashes[0].message}", ())
        return outcomes

    @property
    def findings(self) -> tuple[Outcome, ...]:
        """What is wrong. A fallback is an error, what merely makes the steps slow a warning."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "failed")

    def raise_on_fallback(self) -> None:
        """Return if the recorded steps ran the fused kernels that the model needs; raise in every other case.

        Raises:
            FallbackError: an eager reference ran in place of a needed op, or beside it, or no fused backward did.
            NotJudgedError: a FallbackError too; the trace does not tell (no GPU, lost kernels, too few steps).

        """
        told = [outcome for outcome in self.outcomes if outcome.code in FALLBACK]
        complete = [outcome for outcome in told if outcome.code == COMPLETE and outcome.status == "passed"]
        refuse(
            tuple(outcome for outcome in told if complete or outcome.code == COMPLETE),
            wrong="the recorded steps did not run the fused kernels",
            unknown="it cannot be told what the recorded steps ran",
        )


def step_trace(  # noqa: PLR0913 - all but the model are optional and named
    model: Any,  # noqa: ANN401
    *,
    wait: int = 1,
    warmup: int = 2,
    active: int = 3,
    path: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    training: bool = True,
    required: Iterable[str] | None = None,
) -> StepTrace:
    """Record ``active`` steps of a loop after ``wait`` and ``warmup`` others; a context manager.

    Call ``trace.step()`` after each step, at least ``wait + warmup + active`` times; later calls cost nothing. ``path``
    keeps the trace (``.json`` or ``.json.gz``). ``required`` names ops (``module:name``) as in `kerncheck.guard`;
    without it they follow from the kinds of the model's layers.

    Raises:
        TypeError: not a torch module.
        ValueError: nothing would be recorded, or without a warm-up.
        OSError: ``path`` exists already (FileExistsError), or its folder cannot be written.

    """
    if not callable(getattr(model, "modules", None)):
        raise TypeError(f"step_trace wants a torch module, not a {type(model).__name__}")
    schedule = Schedule(wait, warmup, active)
    catalog = catalogs.load()
    request = TraceRequest(file=str(path or ""), versions=installed())
    job = Job(model=request_of(model, catalog, required), training=training, trace=request)
    kept = Kept(Path(path).absolute() if path is not None else None, overwrite=overwrite)
    return StepTrace(Recording(model, schedule, str(kept.temporary)), job, catalog, kept)


def installed() -> dict[str, str]:
    """Return the versions of the distributions whose kernels are known by version, as this process has them."""
    found = {}
    for name in {row.distribution for row in known().expected}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Keep the garbage collector from walking through the training process's objects while a trace is read."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
