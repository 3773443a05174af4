from __future__ import annotations

import pytest
from machines import EMULATED, ON_A_NODE, SOUND, distributions, environment, one, said, statuses

from kerncheck.model.environment import Python
from kerncheck.model.snapshot import Snapshot


def machine(versions=None, requires=None, **changes):
    found = {**SOUND, **(versions or {})}
    return Snapshot(environment=environment(distributions=distributions(found, **(requires or {})), **changes))


def failed(code, snapshot, job=ON_A_NODE):
    return {outcome.subject for outcome in said(code, snapshot, job) if outcome.status == "failed"}


def test_kc111_the_sound_machine_fits():
    assert statuses("KC111", machine()) == {"passed"}


@pytest.mark.parametrize(
    ("versions", "subject"),
    [
        ({"triton": "3.2.0"}, "fla-core: triton"),
        ({"torch": "2.6.0+cu124"}, "fla-core: torch"),
        ({"transformers": "4.57.6"}, "flash-linear-attention: transformers"),
        ({"transformers": "6.0.0"}, "flash-linear-attention: transformers"),
        ({"triton": None}, "fla-core: triton"),
        ({"torch": None}, "fla-core: torch"),
        ({"mamba-ssm": "2.3.2.post1", "triton": "3.4.0"}, "mamba-ssm: triton"),
        ({"mamba-ssm": "2.3.2.post1", "tilelang": "0.1.15"}, "mamba-ssm: tilelang"),
        ({"flash-attn-4": "4.0.0b36", "nvidia-cutlass-dsl": "4.6.0"}, "flash-attn-4: nvidia-cutlass-dsl"),
        ({"flash-qla": "0.1.3", "tilelang": "0.1.9"}, "flash-qla: tilelang"),
        ({"liger-kernel": "0.8.5", "torch": "2.0.1+cu118"}, "liger-kernel: torch"),
    ],
)
def test_kc111_requirements_that_the_matrix_knows(versions, subject):
    assert subject in failed("KC111", machine(versions))


@pytest.mark.parametrize("triton", ["2.3.1", "3.1.0", "3.2.0"])
def test_kc111_l50_current_fla_wants_triton_3_3(triton):
    outcome = next(o for o in said("KC111", machine({"triton": triton})) if o.subject == "fla-core: triton")
    assert (outcome.status, outcome.severity) == ("failed", "error")
    assert "3.3" in outcome.wanted
    assert "through the torch that ships it" in outcome.remedy


def test_kc111_l50_control():
    assert "fla-core: triton" not in failed("KC111", machine({"triton": "3.3.1"}))


def test_kc111_what_a_package_only_warns_about_is_a_warning():
    versions = {"fla-core": "0.4.2", "flash-linear-attention": "0.4.2", "triton": "3.1.0"}
    outcome = next(o for o in said("KC111", machine(versions)) if o.subject == "fla-core: triton")
    assert outcome.severity == "warning"


def test_kc111_the_metadata_of_what_is_installed_counts_without_any_row():
    requires = {"causal_conv1d": ("torch>=99",)}
    assert failed("KC111", machine(requires=requires)) == {"causal-conv1d: torch"}
    elsewhere = {
        "causal_conv1d": ('torch>=99; platform_system == "Windows"', 'torch>=99; extra == "dev"', "not a line ???")
    }
    assert failed("KC111", machine(requires=elsewhere)) == set()


def test_kc111_the_extra_cuda_counts_although_pip_does_not_ask():
    requires = {"fla_core": ('triton>=3.9; extra == "cuda"',)}
    assert failed("KC111", machine(requires=requires)) == {"fla-core: triton"}


def test_kc111_python_is_a_requirement_too():
    assert "transformers: python" in failed("KC111", machine(python=Python(version="3.10.13")))


def test_kc111_newer_than_the_matrix_is_unknown_and_no_pass():
    outcomes = said("KC111", machine({"fla-core": "0.9.0", "flash-linear-attention": "0.9.0"}))
    unknown = [o for o in outcomes if o.status == "not_judged"]
    assert {o.subject for o in unknown} == {"fla-core", "flash-linear-attention"}
    assert all(o.required is False and "unknown" in o.message for o in unknown)


def test_kc111_a_dependency_that_fits_after_the_repair():
    assert failed("KC111", machine({"triton": "3.2.0"})) == {"fla-core: triton"}
    assert failed("KC111", machine({"triton": "3.3.0"})) == set()


def test_kc111_nothing_to_judge():
    nothing = dict.fromkeys(SOUND)
    assert statuses("KC111", machine({**nothing, "torch": "2.14.1+cu130"})) == {"not_applicable"}


@pytest.mark.parametrize(
    ("core", "whole", "status"),
    [
        ("0.6.0", "0.6.0", "passed"),
        ("0.6.0", "0.6.0+local", "passed"),
        ("0.4.1", "0.5.0", "failed"),
        (None, "0.6.0", "failed"),
        ("0.6.0", None, "note"),
        (None, "0.3.1", "passed"),
        ("0.6.0", "0.3.1", "failed"),
    ],
)
def test_kc113_the_two_halves_of_fla(core, whole, status):
    outcome = one("KC113", machine({"fla-core": core, "flash-linear-attention": whole}))
    assert outcome.status == status
    if status == "failed":
        assert "pip uninstall fla-core flash-linear-attention" in outcome.remedy
        assert "[cuda]" in outcome.remedy


def test_kc113_without_fla():
    assert statuses("KC113", machine({"fla-core": None, "flash-linear-attention": None})) == {"not_applicable"}


@pytest.mark.parametrize(
    ("torch", "vision", "requires", "status", "severity"),
    [
        ("2.8.0", "0.21.0", (), "failed", "error"),
        ("2.8.0+cu128", "0.23.0+cu128", (), "passed", "error"),
        ("2.6.0+cu126", "0.21.0+cu124", (), "failed", "warning"),
        ("2.6.0+cu126", "0.21.0", (), "passed", "error"),
        ("2.6.0", "0.21.0", ("torch==2.6.0",), "passed", "error"),
        ("2.6.1", "0.21.0", ("torch==2.6.0",), "failed", "error"),
        ("2.3.0a0+40ec155e58.nv24.03", "0.18.0a0", (), "passed", "error"),
        ("2.3.0a0+40ec155e58.nv24.03", "0.18.0a0", ("torch>=2.3.0",), "not_judged", "error"),
        ("2.14.1", "1.0.0", (), "not_judged", "error"),
        ("2.14.1", None, (), "not_applicable", "error"),
    ],
)
def test_kc116_torchvision_pairs_with_torch(torch, vision, requires, status, severity):
    outcome = one("KC116", machine({"torch": torch, "torchvision": vision}, {"torchvision": requires}))
    assert (outcome.status, outcome.severity) == (status, severity)


def test_kc116_the_finding_names_the_pair():
    outcome = one("KC116", machine({"torch": "2.8.0", "torchvision": "0.21.0"}))
    assert "torchvision 0.21.0 pairs with torch 2.6, found 2.8.0" in outcome.message
    assert "torchvision==0.23.*" in outcome.remedy


WINDOW = 'kernels<0.19,>=0.18.2; extra == "kernels"'


@pytest.mark.parametrize(
    ("transformers", "kernels", "requires", "status"),
    [
        ("5.13.1", "0.16.0", (), "failed"),
        ("5.13.1", "0.15.2", (), "passed"),
        ("5.24.0", "0.18.2", (WINDOW,), "passed"),
        ("5.24.0", "0.17.2", (WINDOW,), "failed"),
        ("5.24.0", "0.19.0", (), "failed"),
        ("5.8.0", "0.12.0", (), "not_judged"),
        ("5.24.0", None, (WINDOW,), "not_applicable"),
        (None, "0.18.2", (), "not_applicable"),
    ],
)
def test_kc117_kernels_in_the_window_of_transformers(transformers, kernels, requires, status):
    outcome = one("KC117", machine({"transformers": transformers, "kernels": kernels}, {"transformers": requires}))
    assert outcome.status == status


def test_kc117_what_transformers_says_outranks_the_matrix():
    own = {"transformers": ('kernels<0.2,>=0.1; extra == "kernels"',)}
    assert one("KC117", machine({"kernels": "0.18.2"}, own)).status == "failed"
    assert "transformers[kernels]==5.24.0" in one("KC117", machine({"kernels": "0.17.2"})).remedy


@pytest.mark.parametrize("code", ["KC111", "KC113", "KC116", "KC117"])
def test_unobserved_is_never_a_pass(code):
    assert statuses(code, Snapshot(), EMULATED) == {"not_judged"}
