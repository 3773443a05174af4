from __future__ import annotations

import pytest
from machines import SOUND, distributions, environment, one, said, statuses

from kerncheck.model.environment import Python, Tool
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


NVCC = Tool(path="/usr/local/cuda/bin/nvcc", version="12.2.140", via="PATH")


@pytest.mark.parametrize(
    ("torch", "deepspeed", "nvcc", "status"),
    [
        ("2.0.1+cu117", "0.14.0", NVCC, "failed"),
        ("2.9.1+cu128", "0.14.0", NVCC, "passed"),
        ("2.4.0+cu122", "0.14.0", NVCC, "passed"),
        ("2.0.1+cu117", None, NVCC, "not_applicable"),
        ("2.0.1+cu117", "0.14.0", Tool(), "not_applicable"),
        ("2.14.1+cpu", "0.14.0", NVCC, "not_applicable"),
        ("2.9.1+cu128", "0.14.0", Tool(path="/x/nvcc", problem="no answer"), "not_judged"),
    ],
)
def test_kc122_nvcc_for_packages_that_build_at_run_time(torch, deepspeed, nvcc, status):
    outcome = one("KC122", machine({"torch": torch, "deepspeed": deepspeed}, nvcc=nvcc))
    assert outcome.status == status
    assert status != "failed" or (outcome.severity, "CUDA_HOME" in outcome.remedy) == ("warning", True)


@pytest.mark.parametrize(
    ("flash", "xformers", "status"),
    [
        ("2.8.0.post2", "0.0.30", "failed"),
        ("2.7.4.post1", "0.0.30", "passed"),
        ("2.6.3", "0.0.30", "failed"),
        ("2.8.0.post2", "0.0.31", "passed"),
        ("2.8.3", "0.0.32.post2", "failed"),
        ("2.8.3", "0.0.33", "passed"),
    ],
)
def test_kc121_the_window_of_xformers_minds_post_releases(flash, xformers, status):
    outcomes = said("KC121", machine({"flash-attn": flash, "xformers": xformers}))
    assert ("failed" in {outcome.status for outcome in outcomes}) == (status == "failed")
    assert all(outcome.severity == "warning" for outcome in outcomes if outcome.status == "failed")
