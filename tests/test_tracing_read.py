"""Reading traces: schemas, pieces, oddities, and files that are broken or hostile."""

from __future__ import annotations

import gzip
import json
import resource
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trace_maker import ELEMENTWISE, HOST, THREAD, Maker

from kerncheck import tracing
from kerncheck.errors import UsageError
from kerncheck.tracing import pieces

TRACES = Path(__file__).parents[2] / "shared" / "traces"


def small():
    maker = Maker()
    with maker.step(1):
        for _ in range(5):
            maker.run("aten::mul", ELEMENTWISE, 3.0)
    return maker


def written(tmp_path, text, name="trace.json"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def fault(path):
    with pytest.raises(UsageError) as caught:
        tracing.read(path)
    text = f"{caught.value.message} {caught.value.hint}"
    assert "\n" not in text
    return text


def shape(trace):
    tables = (trace.operators, trace.calls, trace.ranges, trace.modules, trace.device)
    return [len(table) for table in tables]


def test_plain_and_gzip_under_any_name(tmp_path):
    plain, packed = small().write(tmp_path / "a.json"), small().write(tmp_path / "b.json.gz")
    odd = tmp_path / "c.pt.trace"
    odd.write_bytes(packed.read_bytes())
    assert shape(tracing.read(plain)) == shape(tracing.read(packed)) == shape(tracing.read(str(odd))) == [5, 5, 1, 0, 5]


def test_the_events_may_stand_anywhere_in_the_file_and_alone(tmp_path):
    events = json.dumps(small().events)
    for text in (
        events,
        f'{{"traceEvents": {events}}}',
        f'{{"a": {{"traceEvents": [1]}}, "b": "\\"traceEvents\\": [", "traceEvents" : {events}, "z": [{{"q": 1}}, {{}}]}}',  # noqa: E501
        f"\ufeff{events}",
    ):
        assert shape(tracing.read(written(tmp_path, text))) == [5, 5, 1, 0, 5]


@pytest.mark.parametrize("size", [1, 7, 64, 300, 1000, 5000])
def test_the_size_of_pieces_changes_nothing(tmp_path, monkeypatch, size):
    monkeypatch.setattr(pieces, "PIECE", size)
    maker = small()
    maker.events[2]["args"]["list"] = [{"a": "},{"}, {"b": ["]}", "{"]}]
    maker.events[3]["name"] = 'quote " and \\ and },\n{"ph": in a name'
    path = written(tmp_path, json.dumps({**maker.trace(), "tail": [{"x": 1}, {"ph": "X"}]}, indent=size % 3))
    trace = tracing.read(path)
    assert shape(trace) == [5, 5, 1, 0, 5]
    assert maker.events[3]["name"] in trace.names
    assert trace.oddities == {}


def test_head(tmp_path):
    path = small().write(tmp_path / "a.json", distributedInfo={"rank": 3, "world_size": 8}, traceName="t")
    head = tracing.read(path).head
    assert (head.schema, head.distributed.rank, head.devices[0].name, head.name) == (1, 3, "NVIDIA H200", "t")
    odd = small().write(tmp_path / "b.json", distributedInfo="?", deviceProperties=[1], schemaVersion={})
    assert tracing.read(odd).head.distributed is None


def old(category, name, start, duration, thread, **arguments):
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration}
    return {**event, "args": arguments}


def test_the_oldest_schema(tmp_path):
    """torch 1.8 to 1.10: categories with capitals, whole microseconds, "external id"."""
    ids, work = {"correlation": 4, "external id": 7}, {"device": 0, "stream": 7}
    events = [
        old("Operator", "aten::mul", 10, 20, 1, **{"External id": 7}),
        old("Runtime", "cudaLaunchKernel", 12, 5, 1, **ids),
        old("Kernel", ELEMENTWISE, 20, 4, "stream 7", **ids, **work),
        old("Memcpy", "Memcpy DtoD", 30, 4, "stream 7", correlation=5, bytes=8, **work),
    ]
    report = tracing.analyse(tracing.read(written(tmp_path, json.dumps({"traceEvents": events}))))
    assert (report.joins.joined, report.joins.orphans, report.joins.attributed) == (1, 1, 1)
    assert report.operators[0].gpu_operations == 1


def test_oddities_are_counted_and_left_out(tmp_path):
    maker = small()
    base = {"ph": "X", "cat": "cpu_op", "name": "x", "pid": HOST, "tid": THREAD, "ts": 2_000_000.0, "dur": 1.0}
    maker.events += [
        {**base, "ts": 0},
        {**base, "dur": -5.0},
        {key: value for key, value in base.items() if key != "dur"},
        {key: value for key, value in base.items() if key != "ts"},
        {**base, "ts": 1e300},
        {**base, "ts": "nan"},
        {**base, "dur": 1e300},
        {**base, "ph": "B"},
        {**base, "name": None},
        {**base, "name": ["list"]},
        {**base, "args": {"External id": 2**70}},
        {**base, "name": ""},
        {**base, "args": [1, 2]},
        {**base, "ts": {"a": 1}},
        "no event at all",
        17,
        None,
    ]
    trace = tracing.read(written(tmp_path, json.dumps(maker.trace())))
    assert dict(trace.oddities) == {
        "timestamps of 0": 1,
        "negative durations": 1,
        "events without a duration": 1,
        "events without a usable time": 4,
        "events that are not complete ones (ph is not X)": 1,
        "events of the wrong shape": 7,
        "ids beyond 64 bits": 1,
        "events without a name": 1,
    }
    assert len(trace.operators) == 5 + 4
    assert trace.events == len(maker.events)
    assert min(trace.operators.duration) >= 0


def test_time_zero_is_a_time_in_a_trace_that_begins_there(tmp_path):
    maker = Maker(start=0.0)
    maker.run("aten::mul", ELEMENTWISE, 3.0)
    trace = tracing.read(maker.write(tmp_path / "a.json"))
    assert shape(trace) == [1, 1, 0, 0, 1]
    assert trace.oddities == {}


BROKEN = {
    "empty": (b"", "empty"),
    "blank": (b"  \n ", "empty"),
    "no json": (b"hello", "not valid JSON"),
    "a number": (b"17", "no list traceEvents"),
    "no events": (b'{"a": 1}', "no list traceEvents"),
    "empty list": (b"[]", "an empty list"),
    "events is an object": (b'{"traceEvents": {"a": 1}}', "no list traceEvents"),
    "events is null": (b'{"traceEvents": null}', "no list traceEvents"),
    "a control character": (b'{"traceEvents": [{"ph": "X", "name": "a\x01b"}]}', "invalid character"),
    "not a number": (b'{"traceEvents": [{"ph": "X", "ts": NaN}]}', "invalid character"),
    "bytes that are no text": (b'{"traceEvents": [{"ph": "X", "name": "\xff\xfe"}]}', "UTF-8"),
    "garbage behind": (b'{"traceEvents": [{"ph": "X"}]} extra', "behind its events"),
    "a second list": (b'{"traceEvents": [{"ph": "X"}], "traceEvents": []}', "second list"),
    "deep": (b'{"traceEvents": [{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}]}", "nested too deeply"),
    "deep and open": (b'{"traceEvents": [{"a": ' + b"[" * 200_000, "truncated"),
    "deep at the top": (b"{" * 3, "not valid JSON"),
    "zeros": (b"\0" * 4096, "not valid JSON"),
    "half a gzip": (gzip.compress(b'{"traceEvents": [{"ph": "X"}]}' * 50)[:-20], "broken gzip"),
    "no gzip inside": (b"\x1f\x8b" + b"junk" * 20, "broken gzip"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_one_line(tmp_path, name):
    text, words = BROKEN[name]
    assert words in fault(written(tmp_path, text))


def test_every_truncation_is_one_line(tmp_path):
    text = json.dumps(small().trace()).encode()
    for cut in range(0, len(text) - 1, 7):
        said = fault(written(tmp_path, text[:cut]))
        assert any(word in said for word in ("truncated", "empty", "JSON", "traceEvents")), (cut, said)


def test_a_fault_names_its_byte(tmp_path):
    text = json.dumps(small().trace()).encode()
    at = text.rindex(b'"aten::mul"') + 4
    said = fault(written(tmp_path, text[:at] + b"\x01" + text[at:]))
    byte = int(said.rpartition("near byte ")[2].rstrip(") "))
    assert abs(byte - at) < 200


def test_files_that_cannot_be_read(tmp_path):
    assert "No such file" in fault(tmp_path / "absent.json")
    assert "directory" in fault(tmp_path)


def test_one_huge_event_is_refused_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MOST_EVENT", 2**20)
    text = b'{"traceEvents": [{"ph": "X", "name": "' + b"a" * 2**22 + b'"}]}'
    assert "no event ends within 1 MiB" in fault(written(tmp_path, text))


def test_memory_stays_near_the_columns(tmp_path):
    """200,000 events in 60 MB, decompressed from 1 MB: the reader may add far less than the file holds."""
    event = (
        '{"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 1, "tid": 1, "ts": %d.5, "dur": 2, '
        '"args": {"External id": %d, "shapes": "%s"}}'
    )
    body = ",\n".join(event % (10 * number, number, "x" * 200) for number in range(200_000))
    path = tmp_path / "big.json.gz"
    path.write_bytes(gzip.compress(f'{{"traceEvents": [{body}]}}'.encode(), 1))
    del body
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = tracing.read(path)
    assert len(trace.operators) == 200_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024


def test_several_processes_and_ranks_with_the_same_ids(tmp_path):
    """Two ranks merged into one file count their ids alike: work joins by correlation and External id, or not."""
    first, second = small(), small()
    second.external = second.ids = 0
    moved = []
    for event in second.events:
        gpu = event["cat"] == "kernel"
        arguments = {**event["args"], "External id": event["args"]["External id"] + 1000}
        if gpu:
            arguments["device"] = 1
        moved.append({**event, "pid": 1 if gpu else HOST + 50, "args": arguments})
    merged = written(tmp_path, json.dumps({"traceEvents": first.events + moved}))
    report = tracing.analyse(tracing.read(merged))
    assert (report.processes, len(report.gpus)) == (2, 2)
    assert (report.joins.joined, report.joins.ambiguous, report.joins.lost) == (10, 0, 0)
    same = [{**event, "args": {**event["args"], "External id": 5}} for event in first.events + moved]
    report = tracing.analyse(tracing.read(written(tmp_path, json.dumps({"traceEvents": same}))))
    assert report.joins.ambiguous == 10
    assert report.joins.rate == 0
