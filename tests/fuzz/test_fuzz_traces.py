"""A hundred and more mutated traces: no traceback, no hang, bounded memory. benchmarks/fuzz_traces.py runs more."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trace_mutations import MUTATIONS, SLOWEST, hostile

MEGABYTES = 250  # of resident memory that reading may add; the largest of these files has 2 MB


def test_mutated_traces(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ends = Counter()
    for name, end, seconds in hostile(tmp_path, 10 * len(MUTATIONS), seed=50):
        assert seconds < SLOWEST, (name, end)
        ends[end] += 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
    assert set(ends) == {"unreadable", "passed", "finding", "inconclusive"}
