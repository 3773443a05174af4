"""KC412: an op as jobs run it. What is run (real torch, on the CPU), how it is judged, and a real fault in fla."""

from __future__ import annotations

import contextlib
import shutil
import types

import pytest
from faults.fla_patches import installed_fla
from test_numerics_checks import CAUSAL, CHUNK, HEALTHY, failed, judged, section

from kerncheck.model.numerics import Cell, InContext

NAMES = ("gradient checkpointing", "autocast", "torch.compile", "cu_seqlens at a reused address")


def jobs(*contexts):
    cell = Cell(op=CHUNK, name="as jobs run it", regime="weak", lengths=(3, 65), seeds=1, contexts=contexts)
    return section(HEALTHY, CAUSAL, cell)


def test_the_same_bits_and_roundings_of_autocast_pass():
    fine = [InContext(name=name) for name in NAMES if name != "autocast"]
    outcomes = judged(jobs(*fine, InContext(name="autocast", differs={"o": 0.015})))
    assert [item.code for item in outcomes if item.status == "failed"] == []
    (passed,) = [item for item in outcomes if item.code == "KC412"]
    assert (passed.status, passed.subject) == ("passed", CHUNK)
    assert all(name in passed.message for name in NAMES)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (InContext(name=NAMES[0], differs={"dk": 1e-9}), "dk 1e-09"),
        (InContext(name=NAMES[1], differs={"o": 0.017}), "o 0.017"),
        (InContext(name=NAMES[1], differs={"o": None}), "o not finite or absent"),
        (InContext(name=NAMES[2], raised="Unsupported: x"), "Unsupported: x"),
        (InContext(name=NAMES[3], differs={"o": 1.2}), "o 1.2"),
    ],
)
def test_any_difference_and_any_exception_is_found(item, words):
    found = failed(jobs(item))
    assert set(found) == {"KC412"}
    assert item.name in found["KC412"].message
    assert words in found["KC412"].found


def test_what_was_not_tried_is_not_passed():
    (outcome,) = [item for item in judged(section()) if item.code == "KC412"]
    assert (outcome.status, outcome.required) == ("not_judged", False)


# What is run


def observed(function, *contexts, packed=False):
    """Run a small op of torch in contexts."""
    import torch

    from kerncheck.kernels import _contexts
    from kerncheck.kernels._forms import Form
    from kerncheck.kernels._fused import Fused

    def call(function, inputs, plan):
        bounds = {"cu_seqlens": torch.tensor([0, 2, 6], dtype=torch.int32)} if packed else {}
        return {"y": function(inputs["x"], **bounds)}

    form = Form(axes={}, draw=None, call=call, reference=None, eagers=(), batched=True)
    device = types.SimpleNamespace(
        TORCH_DEVICE="cpu", launches=lambda: contextlib.nullcontext([]), synchronize=lambda: None
    )
    inputs = {"x": torch.linspace(-2, 2, 24).reshape(1, 6, 4)}
    plan = {"upstream": "random", "extension": "", "contexts": contexts}
    told = _contexts.observed(Fused(form, function, device), inputs, plan, {"y": torch.ones(1, 6, 4)})
    return {item["name"]: item.get("raised") or item.get("differs") for item in told}


@pytest.mark.torch
def test_a_second_forward_that_differs_shows_under_checkpointing():
    calls = []

    def counting(x):
        calls.append(1)
        return x.sin() * (1 + len(calls))

    assert observed(lambda x: x.sin(), NAMES[0]) == {NAMES[0]: {}}
    assert set(observed(counting, NAMES[0])[NAMES[0]]) == {"y", "dx"}


@pytest.mark.torch
def test_an_op_that_autocast_breaks_raises_or_differs():
    import torch

    def strict(x):
        wide = x @ torch.eye(4)
        if wide.dtype != x.dtype:
            raise TypeError("expected float32")
        return wide

    assert observed(lambda x: x * 2, NAMES[1]) == {NAMES[1]: {}}
    assert observed(strict, NAMES[1]) == {NAMES[1]: "TypeError: expected float32"}
    rough = observed(lambda x: (x @ torch.eye(4)).float() / 3, NAMES[1])[NAMES[1]]
    assert 0 < rough["y"] < 8 * 2.0**-9


@pytest.mark.torch
def test_an_op_that_compiles_to_something_else_is_seen():
    import torch

    assert observed(lambda x: x.sin(), NAMES[2]) == {NAMES[2]: {}}
    told = observed(lambda x: x.sin() * (2 if torch.compiler.is_compiling() else 1), NAMES[2])
    assert told[NAMES[2]]["y"] == 1.0


@pytest.mark.torch
def test_what_is_kept_by_the_address_of_freed_boundaries_is_stale():
    def lengths(cu_seqlens):
        return (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()

    kept = []

    def first_only(cu_seqlens):
        kept.append(lengths(cu_seqlens)) if len(kept) % 2 else kept.append(kept[-1] if kept else lengths(cu_seqlens))
        return kept[-1]

    def op(of):
        return lambda x, cu_seqlens: x * of(cu_seqlens)[0]

    assert observed(op(lengths), NAMES[3], packed=True) == {NAMES[3]: {}}
    assert set(observed(op(first_only), NAMES[3], packed=True)[NAMES[3]]) == {"y", "dx"}


# A real one: l2norm of fla, whose second forward is scaled


@pytest.mark.torch
def test_a_norm_of_fla_that_counts_its_calls_is_found(tmp_path):
    from power.harness import findings, lane_run, observe

    norm = "fla.modules.l2norm:l2norm"
    shutil.copytree(installed_fla(), tmp_path / "fla")
    target = tmp_path / "fla" / "modules" / "norm" / "l2norm.py"
    line = "    x_shape_og = x.shape\n    x = x.view"
    text = target.read_text()
    assert text.count(line) == 1
    target.write_text(
        text.replace(line, "    CALLS.append(1)\n    x = x * (1 + 1e-3 * len(CALLS))\n" + line) + "\nCALLS = []\n"
    )
    asked = lane_run("fp32", norm)
    (only,) = [case for case in asked.cases if case["contexts"]]
    found = findings(observe(alone(lane_run("fp32", norm, path=tmp_path), only)), norm)
    assert {item.code for item in found} == {"KC412"}
    assert "gradient checkpointing" in found[0].message
    assert findings(observe(alone(asked, only)), norm) == []


def alone(run, case):
    """Return a run with one case only."""
    from dataclasses import replace

    return replace(run, cases=(case,))
