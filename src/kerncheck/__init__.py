"""kerncheck proves that the fused kernels a model needs are installed, right and used.

``kerncheck.guard(model)`` asks the process that trains: it raises ``kerncheck.FallbackError`` when a layer would run
the eager reference of an op that it needs. ``kerncheck.step_trace(model)`` records a few steps of its loop and says
what ran. ``kerncheck.tracing`` reads traces. Everything else is the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kerncheck._version import __version__

if TYPE_CHECKING:
    from kerncheck.in_job import FallbackError, NotJudgedError, guard
    from kerncheck.step_tracing import step_trace

__all__ = ["FallbackError", "NotJudgedError", "__version__", "guard", "step_trace"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562: importing kerncheck itself stays cheap
    if name in ("FallbackError", "NotJudgedError", "guard"):
        from kerncheck import in_job  # noqa: PLC0415

        return getattr(in_job, name)
    if name == "step_trace":
        from kerncheck.step_tracing import step_trace  # noqa: PLC0415

        return step_trace
    raise AttributeError(f"module 'kerncheck' has no attribute {name!r}")
