"""Packing that leaks, made for real: a tiny model with fla's kernels, and one thing wrong around it."""

from __future__ import annotations

import msgspec
import pytest
from fla_patches import patched_fla
from running import codes, job, judged, model, packed
from standins import MODELLING, after_import, place

from kerncheck.model.job import CONVENTIONS, VARIANTS

pytestmark = pytest.mark.torch

STANDINS = "kerncheck.probes.standins"
IGNORES = """
fn = module.causal_conv1d_fn
import functools
@functools.wraps(fn)
def ignoring(x, weight, bias=None, seq_idx=None, **rest):
    return fn(x, weight, bias, **rest)
module.causal_conv1d_fn = ignoring
"""
DROPS = """
layer, forward = module.Qwen3_5GatedDeltaNet, module.Qwen3_5GatedDeltaNet.forward
def dropping(self, *args, seq_idx=None, **kwargs):
    return forward(self, *args, **kwargs, **({"seq_idx": seq_idx} if self.layer_idx != 1 else {}))
layer.forward = dropping
"""


def quick(convention, **config):
    return job(packing=convention, quick=True, model=model(**{"use_cache": False, **config}))


def the(report, code, status="failed"):
    (found,) = [outcome for outcome in report.outcomes if (outcome.code, outcome.status) == (code, status)]
    return found


def leaking(cell):
    return {call.seam for call in cell.seams if call.reach and any(call.reach[1:])}


LEAKS = {
    "position_ids": {"causal_conv1d_fn", "chunk_gated_delta_rule"},
    "cu_seq_lens": {"causal_conv1d_fn"},
    "seq_idx": {"chunk_gated_delta_rule"},
    "both": set(),
    "both_mrope3": {"attention"},
    "both_mrope4": set(),
    "both_mask": {"attention"},
}
SAFE = {name for name, seams in LEAKS.items() if not seams}
TRIED = (*CONVENTIONS, *VARIANTS)
"""What transformers 5.24 does with each convention (methods.md, 3.3)."""


def test_every_convention_in_the_environment_as_installed():
    """One run of the whole table, which takes half a minute, for all that can be asked of it."""
    whole = packed(job(model=model()), {})
    assert {name: leaking(whole.cell(name, use_cache=False)) for name in TRIED} == LEAKS
    assert all("attention" in leaking(whole.cell(name, use_cache=True)) for name in CONVENTIONS)
    assert leaking(whole.cell("nothing", use_cache=False)) == {*LEAKS["position_ids"], "attention"}
    rows = whole.cell("both", use_cache=False).gradients
    assert all((value == 0) is (i != j) for i, row in enumerate(rows) for j, value in enumerate(row))
    nothing_declared_is_no_finding(whole)
    for convention in TRIED:
        the_declared_convention_is_judged(whole, convention)
    use_cache_left_on_warns(whole)


def nothing_declared_is_no_finding(whole):
    told = judged(job(), packing=whole)
    assert codes(told) == []
    assert "leaks" in next(outcome.message for outcome in told.of("note") if outcome.subject == "position_ids")


def the_declared_convention_is_judged(whole, convention):
    told = judged(job(packing=convention, model=model(use_cache=False)), packing=whole)
    assert codes(told) == ([] if convention in SAFE else ["KC501"])
    assert told.exit_code == (0 if convention in SAFE else 1)


def use_cache_left_on_warns(whole):
    told = judged(job(packing="both"), packing=whole)
    assert [(found.code, found.severity) for found in told.findings] == [("KC503", "warning")]
    strict = msgspec.structs.replace(told, fail_on="warning")
    assert strict.exit_code == 1


FAULTS = {
    "the convolution ignores seq_idx": ({"sitecustomize": after_import(STANDINS, IGNORES)}, ["KC501"]),
    "layer 1 drops seq_idx": ({"sitecustomize": after_import(MODELLING, DROPS)}, ["KC501", "KC506"]),
    "fla does not import": ({"fla__init": "raise ImportError('libx.so: undefined symbol')"}, ["KC502"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_environment_is_found(tmp_path, name):
    files, expected = FAULTS[name]
    told = judged(quick("both"), packing=packed(quick("both"), place(tmp_path, **files)))
    assert codes(told) == expected
    assert told.exit_code == 1
    assert CAUSES[name] in " ".join(found.message + found.found + found.remedy for found in told.findings)


CAUSES = {
    "the convolution ignores seq_idx": "convolution: 3 tokens of other examples in layers 0, 1",
    "layer 1 drops seq_idx": "convolution: 3 tokens of other examples in layer 1",
    "fla does not import": "`chunk_gated_delta_rule` can't keep packed sequences apart",
}


def test_a_delta_rule_that_ignores_cu_seqlens_is_named(tmp_path):
    environment = {"PYTHONPATH": str(patched_fla(tmp_path, "cu_seqlens ignored"))}
    told = judged(quick("both"), packing=packed(quick("both"), environment))
    assert codes(told) == ["KC501"]
    assert "delta rule: 68 tokens of other examples in layers 0, 1" in the(told, "KC501").message
    assert "was given the boundaries and ignores them" in the(told, "KC501").remedy
