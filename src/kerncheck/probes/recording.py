"""Record steps of a training loop with torch.profiler: wait, warm up, record, write one trace. Nothing is judged here.

No stacks and no shapes: they slow the host down. A range is opened for each module's forward instead. During the wait
nothing is hooked and no profiler exists; after the last recorded step both are gone again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kerncheck.probes.ranges import ModuleRanges

BUSY = "another profiler is active in this process, and there can be only one at a time"


@dataclass(frozen=True)
class Schedule:
    """How many steps are let pass, warm the profiler up (without that kernels are lost, pytorch/kineto#996), and count.

    Raises ValueError where nothing would be recorded, or without a warm-up.
    """

    wait: int = 1
    warmup: int = 2
    active: int = 3

    def __post_init__(self) -> None:
        if self.wait < 0 or self.warmup < 1 or self.active < 1:
            raise ValueError(f"{self.told}: wait must be at least 0, warmup and active at least 1")

    @property
    def told(self) -> str:
        """The numbers as a caller writes them."""
        return f"wait={self.wait}, warmup={self.warmup}, active={self.active}"

    @property
    def first(self) -> int:
        """How many steps end before the first that is recorded."""
        return self.wait + self.warmup

    @property
    def last(self) -> int:
        """How many steps have ended when the last one was recorded."""
        return self.first + self.active


class Recording:
    """Records one stretch of a loop that calls ``step`` after each of its steps, and writes the trace to ``path``.

    ``done`` says that a whole trace was written. ``reason`` says why none will be, as far as that is known already.
    """

    def __init__(self, model: Any, schedule: Schedule, path: str) -> None:
        self.schedule = schedule
        self.calls = 0
        self.done = False
        self.reason = ""
        self._path = path
        self._ranges = ModuleRanges(model)
        self._profiler: Any = None

    def start(self) -> None:
        """Begin to count steps."""
        if self.schedule.wait == 0:
            self._begin()

    def step(self) -> None:
        """Say that a step has ended. Waits for the GPU before the first and after the last recorded step."""
        self.calls += 1
        if self._profiler is not None:
            self._advance()
        elif self.calls == self.schedule.wait:
            self._begin()

    def close(self) -> None:
        """End the recording, in its midst too: then nothing is written. Raises nothing."""
        profiler, self._profiler = self._profiler, None
        self._ranges.unhook()
        if profiler is not None:
            try:
                profiler.__exit__(None, None, None)
            except Exception as error:
                self.reason = self.reason or failed(error)

    def _begin(self) -> None:
        """Start the profiler's warm-up."""
        import torch
        from torch.profiler import ProfilerActivity

        if torch.autograd._profiler_enabled():  # noqa: SLF001 - torch has no public question for it
            self.reason = BUSY
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        steps = torch.profiler.schedule(wait=0, warmup=self.schedule.warmup, active=self.schedule.active, repeat=1)
        profiler = torch.profiler.profile(activities=activities, schedule=steps, on_trace_ready=self._ready)
        try:
            self._ranges.hook()
            profiler.start()
        except Exception as error:
            self._drop(failed(error))
            return
        self._profiler = profiler

    def _advance(self) -> None:
        import torch

        if self.calls in (self.schedule.first, self.schedule.last):
            settle()  # launches and their kernels must both lie in the recorded steps
        if self.calls == self.schedule.first and torch.autograd._profiler_enabled():  # noqa: SLF001 - see above
            self._drop(BUSY)
            return
        try:
            self._profiler.step()
        except Exception as error:  # a profiler that fails must not end the loop that it watches
            self._drop(failed(error))
            return
        if self.calls == self.schedule.last:
            self.close()

    def _drop(self, reason: str) -> None:
        """Let go of a profiler that could not begin. To stop it would stop the one that is active."""
        self.reason, self._profiler = reason, None
        self._ranges.unhook()

    def _ready(self, profiler: Any) -> None:
        """Write the trace, if all of its steps were recorded."""
        if self._profiler is None:
            return
        if self.calls < self.schedule.last:
            self.reason = f"the profiler stopped collecting after {self.calls} of {self.schedule.last} steps"
            return
        profiler.export_chrome_trace(self._path)
        self.done = True

    def why(self) -> str:
        """Return why there is no trace."""
        if self.reason:
            return self.reason
        if not self.calls:
            return "step() was never called: the profiler must be told where each step of the loop ends"
        if self.calls < self.schedule.last:
            return f"step() was called {self.calls} times, and {self.schedule.told} need {self.schedule.last} calls"
        return "the profiler gave no trace"


def settle() -> None:
    """Wait for the GPU, if this process uses one."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def failed(error: Exception) -> str:
    """Say that the profiler did not do its work."""
    return f"the profiler failed ({type(error).__name__}: {error})"
