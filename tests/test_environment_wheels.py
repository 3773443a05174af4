from __future__ import annotations

import pytest
from machines import SOUND, distributions, environment, one, statuses

from kerncheck.model.environment import Python
from kerncheck.model.snapshot import Snapshot


def machine(versions=None, **changes):
    return Snapshot(environment=environment(distributions=distributions({**SOUND, **(versions or {})}), **changes))


@pytest.mark.parametrize(
    ("torch", "conv", "status", "severity"),
    [
        ("2.9.1+cu128", "1.6.1", "passed", "error"),
        ("2.11.0+cu128", "1.6.1", "failed", "warning"),
        ("2.11.0+cu128", "1.6.2.post1", "failed", "warning"),
        ("2.14.1+cu130", "1.7.0", "note", "error"),
        ("2.10.0+cu128", "1.7.0", "passed", "error"),
        ("2.14.1+cu130", "9.9.9", "not_judged", "error"),
        ("2.3.0a0+40ec155e58.nv24.03", "1.6.1", "not_judged", "error"),
    ],
)
def test_kc120_wheels_of_a_release_and_the_installed_torch(torch, conv, status, severity):
    outcome = one("KC120", machine({"torch": torch, "causal-conv1d": conv}))
    assert (outcome.status, outcome.severity) == (status, severity)


def test_kc120_names_the_exact_wheel():
    outcome = one("KC120", machine({"torch": "2.11.0+cu128", "causal-conv1d": "1.6.1"}))
    assert "causal_conv1d-1.6.1+cu12torch2.11cxx11abiTRUE-cp312-cp312-linux_x86_64.whl" in outcome.wanted
    assert "--no-build-isolation" in outcome.remedy
    arm = Python(version="3.11.2", machine="aarch64")
    other = one("KC120", machine({"torch": "2.11.0+cu128", "flash-attn": "2.8.3", "causal-conv1d": None}, python=arm))
    assert "flash_attn-2.8.3+cu12torch2.11cxx11abiTRUE-cp311-cp311-linux_aarch64.whl" in other.wanted


def test_kc120_without_a_compiled_package_or_torch():
    assert statuses("KC120", machine({"causal-conv1d": None})) == {"not_applicable"}
    assert statuses("KC120", machine({"torch": None})) == {"not_applicable"}


@pytest.mark.parametrize(
    ("versions", "status"),
    [
        ({"mamba-ssm": "2.3.2.post1", "tilelang": "0.1.15"}, "failed"),
        ({"mamba-ssm": "2.3.2.post1", "tilelang": "0.1.8"}, "passed"),
        ({"mamba-ssm": "2.3.1", "tilelang": "0.1.15"}, "passed"),
        ({"flash-attn": "2.8.3", "flash-attn-4": "4.0.0b36"}, "failed"),
        ({"flash-attn": "2.8.3"}, "not_applicable"),
    ],
)
def test_kc121_pairs_that_exclude_each_other(versions, status):
    outcome = one("KC121", machine(versions))
    assert outcome.status == status
    assert status != "failed" or outcome.severity == "warning"


@pytest.mark.parametrize("code", ["KC120", "KC121"])
def test_unobserved_is_never_a_pass(code):
    assert statuses(code, Snapshot()) == {"not_judged"}
