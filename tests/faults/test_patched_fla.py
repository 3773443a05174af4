"""Copies of fla with one wrong line each, judged by ``kerncheck verify`` as a user runs it.

``nox -s power`` shows all of them in every cell; here are those that the quick cells see, down to code, cause and exit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from fla_patches import patched_fla

pytestmark = pytest.mark.torch

ASKED = ["verify", "--model", "qwen", "--device", "emulate", "--quick", "--select", "KC4", "--format", "json"]
CHUNK, NORM = "fla.ops.gated_delta_rule:chunk_gated_delta_rule", "fla.modules.l2norm:l2norm"
FAULTS = {
    "scale 1.01": (CHUNK, "KC401", "o wrong; ht right"),
    "dg is None": (CHUNK, "KC402", "dg did not come"),
    "l2norm runs eagerly": (NORM, "KC404", "launched no kernel"),
    "l2norm aborts": (NORM, "KC411", "SIGABRT"),
}
MORE = {
    "dk second term lost": (CHUNK, "KC402", "dk wrong; dq, dv, dbeta, dg right"),
    "gated norm without its rstd in dx": ("fla.modules:FusedRMSNormGated", "KC402", "dx wrong; dgate, dweight right"),
    "convolution assumes a contiguous dy": ("fla.modules.conv:causal_conv1d", "KC402", "dx, dweight wrong"),
    "l2norm changes its input": (NORM, "KC406", "it wrote to what it was given: x"),
}


def verified(path=""):
    """Run verify with a copy of fla before the installed one; return its exit code and its report."""
    done = subprocess.run(
        [sys.executable, "-m", "kerncheck", *ASKED],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, json.loads(done.stdout)


def found(report):
    return [outcome for outcome in report["outcomes"] if outcome["status"] == "failed"]


def test_fla_as_installed_is_the_control():
    code, report = verified()
    assert (code, found(report)) == (0, [])
    assert {outcome["code"] for outcome in report["outcomes"] if outcome["status"] == "passed"} >= {"KC401", "KC402"}


@pytest.mark.parametrize("name", [*FAULTS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_one_wrong_line_is_found_for_its_cause(tmp_path, name):
    op, wanted, cause = {**FAULTS, **MORE}[name]
    code, report = verified(patched_fla(tmp_path, name))
    told = {(one["subject"], one["code"]): f"{one['message']} {one['found']}" for one in found(report)}
    assert (told.keys(), code) == ({(op, wanted)}, 1), told
    assert cause in told[op, wanted]
