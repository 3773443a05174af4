"""The measures of real traces, each against a second, independent script (tests/plain_trace.py)."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from plain_trace import Plain, load, percentile

from kerncheck import tracing

TRACES = Path(__file__).parents[2] / "shared" / "traces"
ALL = (
    "a100_training_rank3",
    "v100_training",
    "v100_nanoseconds",
    "a100_alexnet",
    "mi250_training",
    "triton_one_kernel",
)
CLOSE = {"rel": 1e-9, "abs": 0.01}  # sums of hundred thousands of microseconds in another order
DOUBLE = 0.25  # microseconds: what a double can tell apart at 1.7e15, the time since 1970 that these traces hold


def path_of(name):
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the sample traces (shared/traces) are not on this machine")
    return path


@functools.cache
def both(name):
    path = path_of(name)
    return tracing.analyse(tracing.read(path)), Plain(load(path))


@pytest.fixture(params=ALL)
def pair(request):
    return both(request.param)


def test_joins(pair):
    report, plain = pair
    expected = plain.joins()
    assert {name: getattr(report.joins, name) for name in expected} == expected
    assert report.events == plain.events


def test_busy_span_and_idle(pair):
    report, plain = pair
    assert report.total.busy_microseconds == pytest.approx(plain.busy(), **CLOSE)
    assert report.total.span_microseconds == pytest.approx(plain.span(), **CLOSE)
    expected = plain.idle()
    assert {name: getattr(report.total.idle, name) for name in expected} == pytest.approx(expected, **CLOSE)
    assert report.total.idle.total == pytest.approx(plain.span() - plain.busy(), **CLOSE)


def test_host_is_split_without_rest(pair):
    report, _ = pair
    idle = report.total.idle
    assert idle.compiling + idle.data + idle.synchronising + idle.enqueue == pytest.approx(idle.host, **CLOSE)


def test_enqueue(pair):
    report, plain = pair
    assert report.total.enqueue_microseconds == pytest.approx(plain.enqueue(), **CLOSE)
    assert report.total.enqueue_span_microseconds == pytest.approx(plain.enqueue_span(), **CLOSE)


def test_lead_and_queue(pair):
    report, plain = pair
    for spread, values in ((report.total.lead, plain.leads()), (report.total.queue, plain.queue())):
        expected = [percentile(values, share) for share in (0.1, 0.5, 0.9)]
        assert [spread.p10, spread.p50, spread.p90] == pytest.approx(expected, abs=DOUBLE)
        assert (spread.count, spread.largest) == (len(values), pytest.approx(max(values), abs=DOUBLE))
    assert report.total.early == sum(lead < 0 for lead in plain.leads())


def test_families(pair):
    report, plain = pair
    expected = plain.families()
    assert {share.name: share.count for share in report.total.families} == {k: v[0] for k, v in expected.items()}
    times = {share.name: share.microseconds for share in report.total.families}
    assert times == pytest.approx({name: time for name, (_, time) in expected.items()}, **CLOSE)
    talk, exposed = plain.exposed()
    assert report.total.communication_microseconds == pytest.approx(talk, **CLOSE)
    assert report.total.exposed_communication_microseconds == pytest.approx(exposed, **CLOSE)


def test_counts_by_step(pair):
    report, plain = pair
    found = [(step.name, step.cpu_calls, step.gpu_operations) for step in report.steps]
    assert found == plain.step_counts()
    assert report.total.cpu_calls == len(plain.ops) + len(plain.calls)


def test_copies_and_waits(pair):
    report, plain = pair
    total = report.total
    assert (total.copies, total.copied_bytes, total.pageable_copies, total.pageable_bytes) == plain.copies()
    assert total.synchronisations == len(plain.synchronisations())
    waited = sum(e["dur"] for e in plain.synchronisations())
    assert total.synchronising_microseconds == pytest.approx(waited, abs=DOUBLE, rel=1e-9)
    assert total.data_microseconds == pytest.approx(plain.range_time("data"), **CLOSE)
    assert total.optimizer_microseconds == pytest.approx(plain.range_time("optimizer"), **CLOSE)


def test_time_by_operator(pair):
    report, plain = pair
    expected = plain.operator_time()
    found = {use.name: use.gpu_microseconds for use in report.operators if use.name in expected}
    assert found == pytest.approx(expected, **CLOSE)
    assert {use.name: use.calls for use in report.operators} == Counter(e["name"] for e in plain.ops)


# Figures that others published or measured for the same traces.


def test_the_figures_of_the_research_note():
    """methods.md 4.2, first row, which a third script measured: 24881 / 77150 / 89798, 1012 / 1022, 0.83."""
    report, _ = both("v100_nanoseconds")
    total = report.total
    assert [total.lead.p10, total.lead.p50, total.lead.p90] == pytest.approx([24881, 77150, 89798], abs=1)
    assert (total.queue.p50, total.queue.largest) == (1012, 1022)
    assert round(total.enqueue_span_microseconds / total.busy_microseconds, 2) == 0.83


def test_a_cpu_trace_has_operators_and_nothing_to_join():
    report = tracing.analyse(tracing.read(path_of("cpu_only")))
    assert (report.joins.rate, report.total.gpu_operations, report.gpus) == (0.0, 0, ())
    assert report.total.cpu_calls == 4
    assert (report.rank, report.world_size) == (34, 300)


def steps_of(name, count):
    report, _ = both(name)
    return report.steps[:count]


def summed(steps, measure):
    return sum(getattr(step, measure) for step in steps)


def test_beside_holistic_trace_analysis_on_the_a100():
    """HolisticTraceAnalysis 0.5.0 drops the last iteration; of the other five it has the same numbers, to the µs.

    get_temporal_breakdown: compute 234,760 + non-compute 86,525 µs busy. get_gpu_kernel_breakdown: communication alone
    69,110, over computation 55,152, over memory 1,087, over both 7,161. get_cuda_kernel_launch_stats: 7,875 rows.
    """
    steps = steps_of("a100_training_rank3", 5)
    assert summed(steps, "busy_microseconds") == 234_760 + 86_525
    assert summed(steps, "exposed_communication_microseconds") == 69_110
    assert summed(steps, "communication_microseconds") == 69_110 + 55_152 + 1_087 + 7_161
    assert summed(steps, "gpu_operations") == 7_875


def test_beside_holistic_trace_analysis_on_nanoseconds():
    """It drops the last of five iterations, and rounds times of nanoseconds down to whole µs: 374,521 µs busy.

    4,876 launches. Rounding takes half a µs from each operation on average, so it must come out lower, by no more than
    one µs for each.
    """
    steps = steps_of("v100_nanoseconds", 4)
    assert summed(steps, "gpu_operations") == 4_876
    assert 0 < summed(steps, "busy_microseconds") - 374_521 < 4_876


def test_a_launch_of_triton_counts_here_and_not_there():
    """get_cuda_kernel_launch_stats knows no cuLaunchKernel; here it is a launch, and its kernel is fused by name."""
    report, _ = both("triton_one_kernel")
    assert (report.joins.launches, report.joins.joined, report.joins.lost) == (1, 1, 0)
    assert [(use.name, use.family) for use in report.kernels] == [("triton_poi_fused_add_cos_sin_0", "fused")]
