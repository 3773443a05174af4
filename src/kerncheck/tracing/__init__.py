"""Read torch.profiler traces, measure their steps, compare two of them. A library: it prints nothing, judges nothing.

    from kerncheck import tracing

    report = tracing.analyse(tracing.read("trace.json.gz"))
    print(report.total.busy_microseconds, report.total.enqueue_microseconds)

All times are microseconds. What each measure is, as a formula and with its blind spots, stands in docs/traces.md.
"""

from __future__ import annotations

from kerncheck.tracing.analysis import analyse
from kerncheck.tracing.comparison import compare
from kerncheck.tracing.reader import read
from kerncheck.tracing.table import Table, Trace

__all__ = ["Table", "Trace", "analyse", "compare", "read"]
