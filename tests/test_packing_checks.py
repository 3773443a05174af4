"""Packing: the judge on hand-made sections (exact zero and nothing else), and the stage that plans and reads."""

from __future__ import annotations

import msgspec
import pytest

from kerncheck import catalog as catalogs
from kerncheck.checks import packing as checks
from kerncheck.checks.registry import Case, Check
from kerncheck.judge import judge
from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import CONVENTIONS, VARIANTS, Job
from kerncheck.model.packing import Cell, Change, Packing, SeamCall, Unseen
from kerncheck.model.snapshot import Snapshot
from kerncheck.report import Report
from kerncheck.stages import packing as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers

CATALOG = catalogs.load()
CHECKS = tuple(item for item in vars(checks).values() if isinstance(item, Check))
LENGTHS = (2, 65, 3)
BOUNDARIES = (0, 2, 67, 70)
APART = ((4.0, 0.0, 0.0), (0.0, 7.0, 0.0), (0.0, 0.0, 5.0))
MIXED = ((4.0, 0.0, 0.0), (2.0, 7.0, 0.0), (1e-30, 3.0, 5.0))


def seam(name, layer=0, *, reach=(2, 0, 0), takes=(), received=None, bound="package"):
    return SeamCall(
        layer=layer,
        seam=name,
        implementation=f"pkg.{name}",
        bound=bound,
        takes=takes,
        received=received or {},
        reach=reach,
        largest=float(sum(reach[1:])) if reach else None,
    )


def conv(received=None, **changes):
    return seam("causal_conv1d_fn", takes=("seq_idx",), received={"seq_idx": received}, **changes)


def rule(received=None, **changes):
    return seam("chunk_gated_delta_rule", takes=("cu_seqlens",), received={"cu_seqlens": received}, **changes)


def attention(**changes):
    return seam("attention", 1, **changes)


def changes(*, leak):
    others = (65, 3) if leak else (0, 0)
    first = Change(example=0, scale=1e4, tokens=(2, *others), largest=(1.0, float(others[0]), float(others[1])))
    return (first, Change(example=2, scale=1.0, tokens=(0, 0, 3), largest=(0.0, 0.0, 1.0)))


def cell(convention="both", *, leak=False, use_cache=False, seams=(), **more):
    given = {
        "gradients": () if use_cache else (MIXED if leak else APART),
        "changes": changes(leak=leak),
        "seams": seams,
    }
    return Cell(**{"convention": convention, "use_cache": use_cache, **given, **more})


CONTROL = cell("nothing", leak=True, seams=(conv(reach=(2, 3, 0)), rule(reach=(2, 65, 3)), attention(reach=(2, 65, 3))))
SAFE = cell(seams=(conv(BOUNDARIES), rule(BOUNDARIES), attention()))


def section(*cells, control=CONTROL, **more):
    given = {
        "evidence": "emulated",
        "device": "Triton interpreter",
        "lengths": LENGTHS,
        "layer_types": ("linear_attention", "full_attention"),
        "attention": "sdpa",
        "experts": False,
        "standins": (),
        "cells": tuple(item for item in (control, *cells) if item is not None),
    }
    return Packing(**{**given, **more})


def job(packing="both", **config):
    request = CATALOG.model("qwen").request()
    model = msgspec.structs.replace(request, config={**request.config, **config})
    return Job(profile="ci", device="emulate", model=model, packing=packing)


def report(packing, asked=None):
    asked = asked or job()
    snapshot = Snapshot(job=asked, packing=packing)
    outcomes, crashes = judge(Case(asked, snapshot, CATALOG), CHECKS)
    return Report(version="0", job=asked, snapshot=snapshot, outcomes=outcomes, crashes=crashes)


def codes(told):
    assert told.crashes == ()
    return [found.code for found in told.findings]


def the(told, code, status):
    return [outcome for outcome in told.outcomes if (outcome.code, outcome.status) == (code, status)]


def test_examples_that_stay_apart_pass():
    told = report(section(SAFE, cell(use_cache=True, seams=(attention(),))))
    assert codes(told) == []
    assert told.exit_code == 0
    assert {outcome.code for outcome in told.of("passed")} == {"KC501", "KC502", "KC503", "KC504", "KC506"}


def test_the_smallest_gradient_across_examples_is_a_leak():
    rows = ((4.0, 0.0, 0.0), (0.0, 7.0, 0.0), (1e-45, 0.0, 5.0))
    told = report(section(cell(gradients=rows, seams=(conv(BOUNDARIES), rule(BOUNDARIES)))))
    assert codes(told) == ["KC501"]
    assert told.exit_code == 1
    assert "gradient of example 3 at example 1" in told.findings[0].found


def test_one_changed_token_is_a_leak_and_so_is_a_gradient_that_is_not_finite():
    moved = (Change(example=2, scale=1.0, tokens=(0, 1, 3), largest=(0.0, 1e-9, 1.0)),)
    assert codes(report(section(cell(changes=moved, seams=(conv(BOUNDARIES),))))) == ["KC501"]
    rows = ((4.0, None, 0.0), (0.0, 7.0, 0.0), (0.0, 0.0, 5.0))
    assert codes(report(section(cell(gradients=rows, seams=(conv(BOUNDARIES),))))) == ["KC501"]


def test_routing_of_experts_may_change_bits_but_no_gradient():
    moved = (Change(example=0, scale=1e4, tokens=(2, 1, 0), largest=(1.0, 1e-8, 0.0)),)
    seams = (conv(BOUNDARIES), rule(BOUNDARIES))
    assert codes(report(section(cell(changes=moved, seams=seams), experts=True))) == []
    assert codes(report(section(cell(gradients=MIXED, changes=moved, seams=seams), experts=True))) == ["KC501"]


def test_a_leak_names_its_seams_and_what_to_send():
    leaking = cell("position_ids", leak=True, seams=(conv(reach=(2, 3, 0)), rule(reach=(2, 65, 3)), attention()))
    told = report(section(leaking), job("position_ids"))
    assert codes(told) == ["KC501"]
    (found,) = told.findings
    assert "convolution: 3 tokens of other examples in layer 0; delta rule: 68 tokens" in found.message
    assert "full attention" not in found.message
    assert "return_flash_attn_kwargs=True, return_seq_idx=True" in found.remedy
    assert "uninstall" not in found.remedy


def test_an_op_that_ignores_the_boundaries_it_got_is_named():
    leaking = cell(leak=True, seams=(conv(BOUNDARIES), rule(BOUNDARIES, reach=(2, 65, 3)), attention()))
    (found,) = report(section(leaking)).findings
    assert found.code == "KC501"
    assert "pkg.chunk_gated_delta_rule was given the boundaries and ignores them" in found.remedy
    assert "DataCollator" not in found.remedy


def test_a_model_that_does_not_pass_the_boundaries_on_is_not_told_to_send_them():
    leaking = cell(leak=True, seams=(conv(None, reach=(2, 3, 0)), rule(BOUNDARIES), attention()))
    told = report(section(leaking))
    assert codes(told) == ["KC501", "KC506"]
    assert "does not pass the boundaries on" in told.findings[0].remedy
    assert all("DataCollator" not in found.remedy for found in told.findings)


REFUSAL = "ValueError: `causal_conv1d_fn` can't keep packed sequences apart without `causal_conv1d`."


def test_a_refusal_is_told_with_its_words():
    told = report(section(Cell(convention="both", use_cache=False, refused=REFUSAL)))
    assert codes(told) == ["KC502"]
    assert told.findings[0].found == REFUSAL
    assert "let the examples leak" in told.findings[0].remedy


def test_a_packed_run_that_dies_is_a_finding_and_one_that_could_not_run_is_not():
    died = Unseen(convention="both", use_cache=False, why=Broken(how="signal", message="killed by SIGSEGV", signal=11))
    assert codes(report(section(died))) == ["KC502"]
    slow = Unseen(convention="both", use_cache=False, why=Missing(reason="not finished after 120 s"))
    told = report(section(slow))
    assert codes(told) == []
    assert told.exit_code == 3


def test_use_cache_warns_and_only_warns():
    leaking = cell(use_cache=True, seams=(attention(reach=(2, 65, 3)),))
    told = report(section(SAFE, leaking))
    assert codes(told) == ["KC503"]
    assert told.findings[0].severity == "warning"
    assert "use_cache=False" in told.findings[0].remedy
    assert told.exit_code == 0


def test_use_cache_off_in_the_configuration_is_not_asked():
    leaking = cell(use_cache=True, seams=(attention(reach=(2, 65, 3)),))
    told = report(section(SAFE, leaking), job(use_cache=False))
    assert codes(told) == []
    assert the(told, "KC503", "not_applicable")


BLIND = {
    "no gradient": cell("nothing", gradients=APART, changes=changes(leak=True)),
    "no change": cell("nothing", gradients=MIXED, changes=changes(leak=False)),
    "not finite": cell("nothing", leak=True, finite=False),
    "refused": Cell(convention="nothing", use_cache=False, refused="TypeError: no inputs_embeds"),
    "not run": None,
    "died": Unseen(convention="nothing", use_cache=False, why=Missing(reason="out of memory")),
}


@pytest.mark.parametrize("control", BLIND.values(), ids=BLIND.keys())
def test_a_blind_test_judges_nothing(control):
    told = report(section(SAFE, control=control))
    assert codes(told) == []
    assert the(told, "KC504", "not_judged")
    assert the(told, "KC501", "not_judged")
    assert told.exit_code == 3


def test_outputs_that_do_not_depend_on_their_own_example_prove_nothing():
    dead = cell(gradients=((0.0, 0.0, 0.0),) * 3, seams=(conv(BOUNDARIES), rule(BOUNDARIES)))
    told = report(section(dead))
    assert the(told, "KC501", "not_judged")
    assert told.exit_code == 3


ARRIVALS = {
    "lost": (None, "None"),
    "shifted": ((0, 3, 67, 70), "[0, 3, 67, 70]"),
    "short": ((2, 67, 70), "[2, 67, 70]"),
}


@pytest.mark.parametrize(("received", "told"), ARRIVALS.values(), ids=ARRIVALS.keys())
def test_boundaries_that_do_not_arrive_are_found_by_layer(received, told):
    seams = (conv(BOUNDARIES), rule(BOUNDARIES), conv(received, layer=1), rule(BOUNDARIES, layer=1))
    judged = report(section(cell(seams=seams)))
    assert codes(judged) == ["KC506"]
    (found,) = judged.findings
    assert found.subject == "causal_conv1d_fn"
    assert "in layer 1" in found.message
    assert told in found.found


def test_what_was_not_sent_need_not_arrive():
    told = report(section(cell("cu_seq_lens", seams=(conv(None), rule(BOUNDARIES)))), job("cu_seq_lens"))
    assert [outcome.subject for outcome in the(told, "KC506", "passed")] == ["chunk_gated_delta_rule"]
    alone = report(section(cell("position_ids", seams=(conv(None), rule(None)))), job("position_ids"))
    assert the(alone, "KC506", "not_applicable")


def test_undeclared_packing_is_a_table_and_never_a_finding():
    cells = [
        cell("position_ids", leak=True, seams=(conv(reach=(2, 3, 0)),)),
        cell("position_ids", leak=True, use_cache=True, seams=(attention(reach=(2, 65, 3)),)),
        Cell(convention="seq_idx", use_cache=False, refused=REFUSAL),
        SAFE,
    ]
    told = report(section(*cells, standins=("causal_conv1d:causal_conv1d_fn",)), job(None))
    assert codes(told) == []
    rows = {outcome.subject: outcome.message for outcome in the(told, "KC505", "note")}
    assert "leaks (convolution: 3 tokens" in rows["position_ids"]
    assert "full attention leaks too (position_ids)" in rows["use_cache"]
    assert f"refused: {REFUSAL}" in rows["seq_idx"]
    assert ": safe" in rows["both"]
    assert "causal_conv1d_fn" in rows["stand-in"]
    assert {outcome.code for outcome in told.unjudged} == set()
    assert the(told, "KC501", "not_judged")


ATTENTION_LEAKS = {"leak": True, "seams": (conv(BOUNDARIES), rule(BOUNDARIES), attention(reach=(2, 65, 3)))}


@pytest.mark.parametrize(("convention", "cure"), [("both_mrope3", "[4, 1, tokens]"), ("both_mask", "leave the")])
def test_what_switches_the_separation_in_full_attention_off_is_named(convention, cure):
    told = report(section(cell(convention, **ATTENTION_LEAKS)), job(convention))
    assert codes(told) == ["KC501"]
    assert told.findings[0].remedy.startswith(("put the text's own", "leave the attention_mask out"))
    assert cure in told.findings[0].remedy
    assert codes(report(section(cell(convention)), job(convention))) == []


def test_a_variant_whose_delta_rule_leaks_too_is_not_explained_by_attention():
    seams = (rule(reach=(2, 65, 3)), attention(reach=(2, 65, 3)))
    told = report(section(cell("both_mask", leak=True, seams=seams)), job("both_mask"))
    assert "leave the attention_mask out" not in told.findings[0].remedy


def test_rows_that_a_model_cannot_take_are_no_row_of_the_table_and_no_pass():
    gone = Unseen(convention="both_mrope3", use_cache=False, why=Missing(reason="one row"), applies=False)
    told = report(section(SAFE, gone), job(None))
    assert {outcome.subject for outcome in the(told, "KC505", "note")} == {"both"}
    declared = report(section(SAFE, gone), job("both_mrope3"))
    assert (declared.exit_code, the(declared, "KC501", "not_judged")[0].message) == (3, "one row")


def test_a_stand_in_is_named_beside_the_pass():
    told = report(section(SAFE, standins=("causal_conv1d:causal_conv1d_fn",)))
    assert "stand-in" in the(told, "KC501", "passed")[0].message
    (not_judged,) = the(told, "KC501", "not_judged")
    assert not_judged.subject == "causal_conv1d:causal_conv1d_fn"
    assert not_judged.required is False


def test_the_section_round_trips():
    packing = section(SAFE, Unseen(convention="seq_idx", use_cache=True, why=Missing(reason="x")))
    assert msgspec.json.decode(msgspec.json.encode(packing), type=Packing) == packing


# The stage


def ask(asked):
    return Ask(job=asked, catalog=CATALOG, environment=Missing(reason="x"), devices=Missing(reason="x"), gpus=())


def test_all_conventions_are_tried_and_a_quick_run_tries_the_declared_one():
    (run,) = stage.runs(ask(job(None)))
    tried = [(case["convention"], case["use_cache"]) for case in run.cases]
    off = [(convention, False) for convention in ("nothing", *CONVENTIONS, *VARIANTS)]
    assert tried == off + [(convention, True) for convention in CONVENTIONS]
    (run,) = stage.runs(ask(job("both_mask")))
    assert [case["convention"] for case in run.cases if case["use_cache"]] == [*CONVENTIONS, "both_mask"]
    quick = msgspec.structs.replace(job("seq_idx"), quick=True)
    (run,) = stage.runs(ask(quick))
    assert [case["convention"] for case in run.cases] == ["nothing", "seq_idx", "seq_idx"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"model": None}, "--model"), ({"quick": True, "packing": None}, "--packing"), ({"device": "none"}, "device")],
)
def test_nothing_to_run_is_missing_with_its_reason(changed, reason):
    asked = msgspec.structs.replace(job(), **changed)
    assert stage.runs(ask(asked)) == []
    missing = stage.collect(ask(asked), [])
    assert isinstance(missing, Missing)
    assert reason in missing.reason


ABOUT = {
    "device": "emulate",
    "name": "Triton interpreter",
    "lengths": [2, 65, 3],
    "layer_types": ["linear_attention"],
    "attention": "sdpa",
    "experts": False,
    "standins": [],
}


def test_answers_become_cells_and_what_did_not_answer_says_why():
    (run,) = stage.runs(ask(msgspec.structs.replace(job(), quick=True)))
    answer = {"cell": msgspec.to_builtins(SAFE), "about": ABOUT}
    broken = Broken(how="signal", message="killed by SIGSEGV", signal=11)
    cases = (Missing(reason="out of memory"), answer, broken)
    packing = stage.collect(ask(job()), [Answers(run=run, setup=None, cases=cases)])
    assert isinstance(packing, Packing)
    assert packing.cell("both", use_cache=False) == SAFE
    assert packing.cell("nothing", use_cache=False) == Unseen(convention="nothing", use_cache=False, why=cases[0])
    assert packing.evidence == "emulated"


def test_a_model_that_cannot_be_built_is_missing():
    (run,) = stage.runs(ask(job()))
    cases = ({"missing": "transformers 5.0 knows no such model"},) * len(run.cases)
    missing = stage.collect(ask(job()), [Answers(run=run, setup=None, cases=cases)])
    assert missing == Missing(reason="transformers 5.0 knows no such model")
