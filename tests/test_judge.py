"""The judge: what is not observed never passes, one bad check does not end the run, and one place decides."""

from __future__ import annotations

import itertools

import pytest

from kerncheck.checks.registry import Case, check
from kerncheck.errors import UsageError
from kerncheck.judge import judge, requires, run_check, waive
from kerncheck.model.base import Missing, seen
from kerncheck.model.job import Job, ModelRequest
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.snapshot import Snapshot
from kerncheck.plan import Plan, make_plan, parse_waiver
from kerncheck.report import Crash, Report, Waiver

MODEL = ModelRequest(name="tiny", folder="tiny", architecture="Tiny", config={})
NODE = Job(profile="node", device="none", model=MODEL)
CASE = Case(NODE, Snapshot(), None)


def made(code, judge_function, needs=("environment",)):
    return check(code, f"title of {code}", needs=needs)(judge_function)


def passing(case, say):
    yield say.passed("thing", "is right")


def failing(case, say):
    yield say.failed("thing", "is wrong", found="1", wanted="2", remedy="do")


def warning(case, say):
    yield say.failed("thing", "is odd", found="1", wanted="2", remedy="do", severity="warning")


def unseen(case, say):
    yield say.passed("thing", str(seen(case.snapshot.environment)))


def empty(case, say):
    yield from ()


def raising(case, say):
    yield say.passed("before", "said before it raised")
    raise RuntimeError("boom")


def report(*functions, job=NODE, fail_on="error"):
    checks = [made(f"KC10{index}", function) for index, function in enumerate(functions)]
    outcomes, crashes = judge(Case(job, Snapshot(), None), checks)
    return Report(version="0", job=job, snapshot=Snapshot(), outcomes=outcomes, crashes=crashes, fail_on=fail_on)


@pytest.mark.parametrize(
    ("functions", "code"),
    [
        ((passing,), 0),
        ((passing, warning), 0),
        ((passing, failing), 1),
        ((), 3),
        ((empty,), 3),
        ((passing, unseen), 3),
        ((passing, raising), 4),
        ((failing, raising), 1),  # precedence 1, 4, 3, 0
        ((unseen, raising), 4),
        ((failing, unseen), 1),
    ],
)
def test_exit_code(functions, code):
    assert report(*functions).exit_code == code


def test_fail_on_warning_makes_a_warning_fail():
    assert report(passing, warning).exit_code == 0
    assert report(passing, warning, fail_on="warning").exit_code == 1


@pytest.mark.parametrize("order", list(itertools.permutations([passing, failing, unseen, raising])))
def test_order_of_checks_does_not_change_the_verdict(order):
    assert report(*order).exit_code == 1


def test_a_crash_keeps_nothing_of_what_the_check_said():
    outcomes, crashes = judge(CASE, [made("KC100", raising), made("KC101", passing)])
    assert [outcome.code for outcome in outcomes] == ["KC101"]
    assert isinstance(crashes[0], Crash)
    assert "boom" in crashes[0].message


def test_a_missing_section_is_not_judged_with_its_reason():
    (outcome,) = run_check(CASE, made("KC100", unseen))
    assert (outcome.status, outcome.required) == ("not_judged", True)
    assert outcome.message == "this snapshot does not hold it"


def test_a_section_that_is_not_declared_is_hidden():
    from kerncheck.model.numerics import Numerics

    snapshot = Snapshot(numerics=Numerics(evidence="emulated"))

    def reads(case, say):
        yield say.passed("numerics", str(seen(case.snapshot.numerics)))

    (undeclared,) = run_check(Case(NODE, snapshot, None), made("KC100", reads, needs=("environment",)))
    (declared,) = run_check(Case(NODE, snapshot, None), made("KC100", reads, needs=("numerics",)))
    assert (undeclared.status, declared.status) == ("not_judged", "passed")


@pytest.mark.parametrize(
    ("profile", "family", "model", "packing", "needed"),
    [
        ("node", "KC1", None, None, True),
        ("node", "KC4", None, None, True),
        ("node", "KC3", None, None, False),
        ("node", "KC3", MODEL, None, True),
        ("node", "KC5", MODEL, None, False),
        ("node", "KC5", MODEL, "both", True),
        ("image", "KC5", MODEL, "both", False),
        ("image", "KC4", MODEL, None, False),
        ("image", "KC2", MODEL, None, True),
        ("ci", "KC6", MODEL, None, True),
        ("ci", "KC7", MODEL, None, False),
    ],
)
def test_what_each_profile_requires(profile, family, model, packing, needed):
    device = "emulate" if profile == "ci" else "none"
    assert requires(Job(profile=profile, device=device, model=model, packing=packing), family) is needed


def test_left_out_checks_are_named_and_not_run():
    ran = []

    def counting(case, say):
        ran.append(1)
        yield say.passed("x", "y")

    checks = (made("KC100", passing), made("KC400", counting))
    plan = make_plan(Job(profile="image", device="none", model=MODEL), checks, (), ())
    judge(CASE, plan.checks)
    assert [item.code for item in plan.left_out] == ["KC400"]
    assert ran == []


def test_an_ignored_check_never_runs():
    checks = (made("KC100", passing), made("KC101", raising))
    plan = make_plan(NODE, checks, (), ("KC101",))
    assert judge(CASE, plan.checks)[1] == ()
    assert plan.partial == "--ignore KC101"


@pytest.mark.parametrize(
    ("select", "ignore", "codes"),
    [
        ((), (), ["KC100", "KC101", "KC400"]),
        (("KC1",), (), ["KC100", "KC101"]),
        (("KC1", "KC400"), ("KC101",), ["KC100", "KC400"]),
        (("KC",), ("KC1",), ["KC400"]),
    ],
)
def test_selection_by_code_or_prefix(select, ignore, codes):
    checks = (made("KC100", passing), made("KC101", passing), made("KC400", passing))
    assert [one.code for one in make_plan(NODE, checks, select, ignore).checks] == codes


@pytest.mark.parametrize("prefix", ["KC9", "kc1", "", "KC1234", "*"])
def test_an_unknown_code_is_a_usage_error(prefix):
    with pytest.raises(UsageError, match="no check has the code"):
        make_plan(NODE, (made("KC100", passing),), (prefix,), ())


def test_the_plan_always_observes_the_static_sections():
    assert Plan(checks=(made("KC100", passing, needs=("step",)),), left_out=(), partial="").sections == (
        "environment",
        "gpus",
        "step",
    )


def test_a_waiver_makes_a_visible_note():
    outcomes, _ = judge(CASE, [made("KC100", failing)])
    (outcome,) = waive(outcomes, (Waiver(code="KC100", subject="", reason="known, ticket 7"),))
    assert (outcome.status, outcome.waived) == ("note", "known, ticket 7")
    (other,) = waive(outcomes, (Waiver(code="KC100", subject="another", reason="r"),))
    assert other.status == "failed"


def test_a_waiver_cannot_turn_anything_else_into_a_note():
    outcomes, _ = judge(CASE, [made("KC100", unseen)])
    (outcome,) = waive(outcomes, (Waiver(code="KC100", subject="", reason="r"),))
    assert outcome.status == "not_judged"


def test_waivers_alone_are_no_pass():
    outcomes, _ = judge(CASE, [made("KC100", failing)])
    waived = waive(outcomes, (Waiver(code="KC100", subject="", reason="r"),))
    assert Report(version="0", job=NODE, snapshot=Snapshot(), outcomes=waived).exit_code == 3


@pytest.mark.parametrize("text", ["KC100", "KC100=", "KC100:x=  ", "=reason", "KC999=reason", "nonsense"])
def test_a_malformed_waiver_is_a_usage_error(text):
    with pytest.raises(UsageError):
        parse_waiver(text, (made("KC100", passing),))


def test_a_waiver_subject_may_hold_colons():
    waiver = parse_waiver("KC100:fla.ops:chunk=because a=b", (made("KC100", passing),))
    assert (waiver.subject, waiver.reason) == ("fla.ops:chunk", "because a=b")


def test_seen_gives_the_value_or_raises_with_the_reason():
    from kerncheck.model.base import NotObservedError

    assert seen(5) == 5
    with pytest.raises(NotObservedError, match="why"):
        seen(Missing(reason="why"))


def test_say_fills_the_code_in():
    say = Say("KC123")
    outcomes = [
        say.passed("s", "m"),
        say.note("s", "m"),
        say.not_judged("s", "r"),
        say.not_applicable("s", "r"),
        say.failed("s", "m", found="f", wanted="w", remedy="r"),
    ]
    assert {outcome.code for outcome in outcomes} == {"KC123"}
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
