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
FAULTS = {
    "scale 1.01": ({"KC401"}, "chunk_gated_delta_rule"),
    "dk second term lost": ({"KC402"}, "dk"),
    "dg is None": ({"KC402"}, "dg did not come"),
    "gated norm without its rstd in dx": ({"KC402"}, "FusedRMSNormGated"),
    "convolution assumes a contiguous dy": ({"KC402"}, "causal_conv1d"),
    "l2norm runs eagerly": ({"KC404"}, "l2norm"),
    "l2norm changes its input": ({"KC406"}, "it wrote to what it was given"),
    "l2norm aborts": ({"KC411"}, "SIGABRT"),
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


@pytest.mark.parametrize("name", FAULTS)
def test_one_wrong_line_is_found_for_its_cause(tmp_path, name):
    codes, cause = FAULTS[name]
    code, report = verified(patched_fla(tmp_path, name))
    told = " ".join(f"{one['code']} {one['subject']} {one['message']} {one['found']}" for one in found(report))
    assert ({one["code"] for one in found(report)}, code) == (codes, 1), told
    assert cause in told
