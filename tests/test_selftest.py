"""The self-test finds each sabotage, and fails when a detector is switched off, is blind, or nothing was broken.

The children run once; the detectors are switched off over their recorded answers.
"""

from __future__ import annotations

import json
import sys
import venv
from dataclasses import replace

import pytest

from kerncheck import catalog as catalogs
from kerncheck import selftest, selftest_report
from kerncheck.checks.registry import Check, all_checks
from kerncheck.cli import run
from kerncheck.commands import make_job
from kerncheck.model.base import Broken, Missing
from kerncheck.observe import Request
from kerncheck.selftest_sabotages import CONTROL, SABOTAGES
from kerncheck.selftest_trials import disguised, lanes
from kerncheck.stages.numerics import run_of
from kerncheck.supervise import ProbeRun, Supervisor

CATALOG = catalogs.load()
CHECKS = all_checks()
NOT_SEEN = Missing(reason="not part of this test")
GIVEN = {"model": "qwen", "device": "emulate", "python": None, "form": "json"}
EXPECTED = {
    "scale": "KC401",
    "gradient": "KC402",
    "no_graph": "KC403",
    "zero": "KC405",
    "writes": "KC406",
    "future": "KC407",
    "hole": "KC408",
    "abort": "KC411",
    "boundaries": "KC501",
    "unimportable": "KC301",
    "reference": "KC302",
    "hollow": "KC303",
    "step_hollow": "KC601",
    "step_scale": "KC605",
    "step_weights": "KC607",
    "step_abort": "KC606",
    "hidden_library": "KC203",
    "crash": "KC209",
    "standstill": "KC210",
}


def blind(check):
    """Return a check that finds nothing, whatever it sees."""

    def passes(case, say):
        for outcome in check.judge(case, say):
            yield say.passed(outcome.subject, "all is well") if outcome.status == "failed" else outcome

    return replace(check, judge=passes)


def raising(check):
    """Return a check that raises where it should find something."""

    def raises(case, say):
        for outcome in check.judge(case, say):
            if outcome.status == "failed":
                raise ZeroDivisionError
            yield outcome

    return replace(check, judge=raises)


def verdicts(bench, checks=CHECKS):
    return {result.kind: result for result in selftest.judged(bench, checks)}


def failing(results):
    return {kind for kind, result in results.items() if result.status == "failed"}


def answering(bench, side, change):
    """Return the bench with the answers of one side changed."""
    told = tuple(
        replace(item, answers=replace(item.answers, cases=changed_cases(item, side, change))) for item in bench.told
    )
    return replace(bench, told=told)


def changed_cases(item, side, change):
    return tuple(
        change(answer) if own == side else answer
        for own, answer in zip(item.trial.sides, item.answers.cases, strict=True)
    )


@pytest.mark.torch
def test_each_sabotage_is_found_and_each_detector_is_needed(monkeypatch, capsys):
    """One run of all children, which takes most of a minute, for all that can be asked of it."""
    kept = []
    observe = selftest.observe

    def recorded(request, supervisor):
        kept.append(kept[0] if kept else observe(request, supervisor))
        return kept[0]

    monkeypatch.setattr(selftest, "observe", recorded)
    assert run(["selftest", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "passed"
    assert {one["kind"]: (one["status"], one["found"]) for one in document["results"]} == {
        kind: ("passed", ["KC605", "KC607"] if kind == "step_weights" else [code]) for kind, code in EXPECTED.items()
    }
    (_, bench) = kept[0]
    every_detector_is_needed(bench, monkeypatch, capsys)
    a_red_control_is_no_proof(bench)
    without_effect_nothing_is_proved(bench)
    what_could_not_be_run_is_inconclusive(bench)
    the_broken_side_says_so(bench)


def every_detector_is_needed(bench, monkeypatch, capsys):
    for kind, code in EXPECTED.items():
        removed = verdicts(bench, [check for check in CHECKS if check.code != code])
        assert failing(removed) == {kind}, code
        assert "there is no check" in removed[kind].message
        for spoil in (blind, raising):
            spoilt = [spoil(check) if check.code == code else check for check in CHECKS]
            assert failing(verdicts(bench, spoilt)) == {kind}, (spoil, code)
    without = [check for check in CHECKS if check.code != "KC407"]
    monkeypatch.setattr(selftest, "all_checks", lambda: without)
    assert run(["selftest"]) == 1
    told = capsys.readouterr().out
    assert "fail missing mask: chunk_gated_delta_rule adds a tenth" in told
    assert told.endswith(": exit 1\n")
    assert "18 of 19 sabotages found" in told


def a_red_control_is_no_proof(bench):
    def dies(_answer):
        return Broken(how="signal", message="killed by SIGSEGV", signal=11)

    results = verdicts(answering(bench, CONTROL, dies))
    assert {results[kind].status for kind in EXPECTED} <= {"failed", "not_run"}
    assert "abort" in failing(results)
    assert "red without the sabotage too" in results["abort"].message


def without_effect_nothing_is_proved(bench):
    for kind in EXPECTED:
        results = verdicts(replace(bench, live=bench.live - {kind}))
        assert failing(results) == {kind}
        assert "had no effect" in results[kind].message


def what_could_not_be_run_is_inconclusive(bench):
    for kind in EXPECTED:
        results = verdicts(
            replace(answering(bench, kind, lambda _answer: Missing(reason="out of memory")), live=bench.live - {kind})
        )
        assert {name for name, one in results.items() if one.status != "passed"} == {kind}
        assert (results[kind].status, results[kind].message) == ("not_run", "out of memory")
    still = answering(bench, "standstill", lambda _answer: Missing(reason="not finished after 6 s (busy)"))
    assert failing(verdicts(still)) == {"standstill"}, "a supervisor that takes a standstill for slow work is blind"
    lost = tuple(verdicts(answering(bench, CONTROL, lambda _answer: Missing(reason="too slow"))).values())
    assert {result.status for result in lost} == {"not_run"}
    assert selftest_report.exit_code(lost) == 3


def the_broken_side_says_so(bench):
    report = bench.report("numerics", "scale", CHECKS)
    assert "broken on purpose: scale" in report.version
    assert report.snapshot.kerncheck == report.version
    assert report.exit_code == 1
    assert bench.report("numerics", CONTROL, CHECKS).exit_code == 0


def test_the_table_of_sabotages_is_the_one_that_is_tested():
    assert {item.kind: item.code for item in SABOTAGES} == EXPECTED
    assert {item.code for item in SABOTAGES} <= {check.code for check in CHECKS}
    assert all(isinstance(check, Check) for check in CHECKS)


def ask():
    asked = {"profile": "ci", "target": (), "driver": None, "training": True, "packing": "both", "quick": True}
    job = make_job({**GIVEN, **asked}, CATALOG)
    return selftest.first_ask(Request(job=job, catalog=CATALOG, sections=(), python="", timeout=60.0))


def test_what_is_sound_runs_as_in_verify_and_no_run_of_verify_is_broken(tmp_path):
    spec = selftest.target(ask().job)
    for item in [item for lane in lanes(ask(), spec) for item in lane]:
        sent = disguised(item, spec, str(tmp_path))
        assert (sent == item.run) is item.sound
        assert (sent.probe == "sabotage") is not item.sound
    run_in_verify = run_of(ask(), ("fp32",), "")
    assert "sabotage" not in json.dumps([run_in_verify.options, *run_in_verify.cases])


@pytest.mark.parametrize("options", [{}, {"asked_by": "verify"}])
def test_nothing_is_broken_unless_the_selftest_asks(tmp_path, options):
    options = {"probe": "imports", "options": {}, "witness": str(tmp_path), **options}
    case = {"name": "the interpreter", "kind": "host"}
    told = Supervisor(sys.executable).run(ProbeRun(label="x", probe="sabotage", cases=(case,), options=options))
    assert isinstance(told.setup, Broken)
    assert "for `kerncheck selftest` alone" in told.setup.message
    assert list(tmp_path.iterdir()) == []


def test_an_environment_without_torch_is_inconclusive(tmp_path, capsys):
    venv.create(tmp_path / "bare", with_pip=False)
    before = sorted(path for path in tmp_path.rglob("*"))
    assert run(["selftest", "--python", str(tmp_path / "bare" / "bin" / "python")]) == 3
    told = capsys.readouterr().out
    assert "19 could not be run" in told
    assert sorted(path for path in tmp_path.rglob("*")) == before, "nothing is left in the judged environment"


def test_a_model_without_an_op_that_can_be_broken_is_inconclusive(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    assert run(["selftest", "--model", str(tmp_path / "config.json")]) == 3
    assert "calls no op with a backward that the emulated device can run" in " ".join(capsys.readouterr().out.split())
