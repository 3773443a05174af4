"""Time and profile the step on a GPU. The trace stays a file that the parent reads (``tracing.labels``)."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

TRACE = "trace.json"
WARM, STEPS = 2, 3  # kernels of a first profiled step are lost without warm-up (pytorch/kineto#996)


def profile(step: Callable[[], None], synchronize: Callable[[], None], path: str) -> dict[str, Any]:
    """Profile one step (no stacks, no shapes) and write the trace to a path, whose folder is made. Needs a GPU."""
    import torch
    from torch.profiler import ProfilerActivity

    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    schedule = torch.profiler.schedule(wait=0, warmup=WARM, active=1)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    try:
        with torch.profiler.profile(
            activities=activities, schedule=schedule, on_trace_ready=lambda profiler: profiler.export_chrome_trace(path)
        ) as profiler:
            for _ in range(WARM + 1):
                step()
                synchronize()
                profiler.step()
    except (OSError, ValueError, RuntimeError) as error:  # CUPTI that does not start, a full disk
        return {"reason": f"the profiler gave no trace ({type(error).__name__}: {error})"}
    return {}


def timed(step: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """Return the median time of a plain step in seconds."""
    times = []
    for _ in range(STEPS):
        synchronize()
        start = time.perf_counter()
        step()
        synchronize()
        times.append(time.perf_counter() - start)
    return round(statistics.median(times), 6)
