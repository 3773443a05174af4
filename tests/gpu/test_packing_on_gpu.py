"""Packing on a real GPU: the compiled convolution and the tuned kernels keep examples apart, bit for bit."""

from __future__ import annotations

import sys

from needs_gpu import MARKS

from kerncheck import catalog as catalogs
from kerncheck.checks import packing as checks
from kerncheck.checks.registry import Case, Check
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.job import Job
from kerncheck.model.snapshot import Snapshot
from kerncheck.report import Report
from kerncheck.stages import packing
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor

pytestmark = MARKS
CATALOG = catalogs.load()


def test_both_boundaries_separate_examples_and_position_ids_alone_do_not():
    job = Job(profile="node", device="cuda", model=CATALOG.model("qwen").request(), packing="both")
    missing = Missing(reason="not part of this test")
    ask = Ask(job=job, catalog=CATALOG, environment=missing, devices=missing, gpus=("0",), timeout=600.0)
    section = packing.collect(ask, [Supervisor(sys.executable).run(run) for run in packing.runs(ask)])
    snapshot = Snapshot(job=job, packing=section)
    every = [item for item in vars(checks).values() if isinstance(item, Check)]
    outcomes, crashes = judge(Case(job, snapshot, CATALOG), every)
    told = Report(version="0", job=job, snapshot=snapshot, outcomes=outcomes, crashes=crashes)
    assert told.crashes == ()
    assert told.failing == ()
    assert section.evidence == "measured"
    assert section.standins == ()
    rows = {outcome.subject: outcome.message for outcome in told.of("note")}
    assert "leaks" in rows["position_ids"]
    assert ": safe" in rows["both"]
