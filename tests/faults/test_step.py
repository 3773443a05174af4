"""Broken training steps, made for real: fla's real kernels run in the interpreter, with one fault around them.

The eager step runs once; each fault then takes one fused step. The control is the same run without a fault.
"""

from __future__ import annotations

import pytest
from fla_patches import patched_fla
from running import codes, eager_step, job, judged, stepped
from standins import after_import, place

pytestmark = pytest.mark.torch

CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
PACKAGE = "fla.ops.gated_delta_rule"
NAIVE = """
import functools, torch
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule as naive
fused, calls = module.chunk_gated_delta_rule, []
def eager(q, k, v, g, beta, use_qk_l2norm_in_kernel=False, output_final_state=False, **rest):
    q, k = (x * torch.rsqrt(x.square().sum(-1, True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    return naive(q, k, v, beta, g, output_final_state=output_final_state)
"""


def wrapper(body):
    """Return a sitecustomize under which fla's op is a wrapper around itself, as patches make them."""
    last = "module.chunk_gated_delta_rule = functools.wraps(fused)(wrapped)\n"
    return {"sitecustomize": after_import(PACKAGE, NAIVE + body + last)}


FAULTS = {
    "the package's function is eager inside": (wrapper("wrapped = eager\n"), ["KC601"]),
    "layer 1 is eager": (
        wrapper(
            "def wrapped(*args, **kwargs):\n"
            "    calls.append(1)\n"
            "    return (eager if len(calls) == 2 else fused)(*args, **kwargs)\n"
        ),
        ["KC602"],
    ),
    "both forms run": (
        wrapper(
            "def wrapped(*args, **kwargs):\n"
            "    calls.append(1)\n"
            "    if len(calls) <= 3: eager(*args, **kwargs)\n"
            "    return fused(*args, **kwargs)\n"
        ),
        ["KC603", "KC604"],
    ),
    "the output is zero": (
        wrapper("def wrapped(*args, **kwargs):\n    o, s = fused(*args, **kwargs)\n    return o * 0, s\n"),
        ["KC605", "KC607"],
    ),
    "the query is cut from the graph": (
        wrapper("def wrapped(q, *args, **kwargs):\n    return fused(q.detach(), *args, **kwargs)\n"),
        ["KC605"],
    ),
    "a forward-only op is bound": (
        {
            "sitecustomize": after_import(
                PACKAGE, "module.chunk_gated_delta_rule = module.fused_recurrent_gated_delta_rule"
            )
        },
        ["KC606"],
    ),
    "the backward aborts": (
        wrapper(
            "def wrapped(*args, **kwargs):\n"
            "    import os\n"
            "    o, s = fused(*args, **kwargs)\n"
            "    o.register_hook(lambda gradient: os.abort())\n"
            "    return o, s\n"
        ),
        ["KC606"],
    ),
    "fla does not import": ({"fla__init": "raise ImportError('libx.so: undefined symbol')"}, ["KC601"]),
}
PATCHES = {"dg is None": ["KC605", "KC607"], "scale 1.002": ["KC605"]}


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    """The eager step, run once."""
    return eager_step(job(), tmp_path_factory.mktemp("eager") / "meet")


@pytest.fixture
def fault(eager, tmp_path):
    """Return a function that runs the fused step in an environment and judges it."""

    def run(environment):
        return judged(job(), step=stepped(job(), environment, eager, tmp_path / "meet"))

    return run


def the(report, code):
    (found,) = [outcome for outcome in report.findings if outcome.code == code]
    return found


def test_the_step_as_installed_passes(fault):
    told = fault({})
    assert codes(told) == []
    assert told.exit_code == 0
    passed = {outcome.code: outcome.message for outcome in told.of("passed")}
    assert set(passed) == {f"KC60{number}" for number in range(1, 8)}
    assert "in 3 of 3 linear_attention layers (the real model: 24 of 32 layers)" in passed["KC601"]
    assert "fused: 0 of these" in passed["KC603"]
    assert "56 gradients agree" in passed["KC605"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_step_is_found(fault, tmp_path, name):
    files, expected = FAULTS[name]
    told = fault(place(tmp_path / "packages", **files))
    assert codes(told) == expected
    assert told.exit_code == 1
    assert CAUSES[name] in " ".join(found.message + found.found + found.wanted for found in told.findings)
    if name == "the output is zero":  # which is why the loss proves nothing
        (device,) = told.snapshot.step.devices
        assert abs(device.fused.loss - device.eager.loss) < 5e-3 * device.eager.loss


CAUSES = {
    "the package's function is eager inside": "it launches none even alone",
    "layer 1 is eager": "2 of 3 layers; not in layer 1",
    "both forms run": "layer 0: ",
    "the output is zero": "output of chunk_gated_delta_rule in layer 0",
    "the query is cut from the graph": "every output is right, so the backward is wrong",
    "a forward-only op is bound": "fused_recurrent_gated_delta_rule in layer 2, which has no backward",
    "the backward aborts": "killed by SIGABRT",
    "fla does not import": "ImportError: libx.so: undefined symbol",
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_wrong_kernel_is_found_by_what_comes_out(fault, tmp_path, name):
    told = fault({"PYTHONPATH": str(patched_fla(tmp_path, name))})
    assert codes(told) == PATCHES[name]
    assert told.exit_code == 1
    if name == "dg is None":
        assert "A_log" in the(told, "KC607").found
