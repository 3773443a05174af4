"""A few thousand mutated ELF files and fat binaries: no traceback, no hang, bounded memory; always the same ones."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutations import SLOWEST, hostile, hostile_fatbins

MEGABYTES = 200  # of resident memory that reading may add; the reader maps files and copies names only


def test_mutated_shared_objects(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path, seconds in hostile(tmp_path, 2400, seed=230):
        assert seconds < SLOWEST, path
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def test_mutated_fat_binaries():
    ends = hostile_fatbins(5000, seed=237)
    assert ends["read"] > 100
    assert sum(ends.values()) == 5000
    assert len(ends) >= 5
