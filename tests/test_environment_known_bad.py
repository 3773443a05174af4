from __future__ import annotations

import msgspec
import pytest
from machines import EMULATED, ON_A_NODE, SOUND, environment, gpus, qwen, said

from kerncheck.model.base import Missing
from kerncheck.model.environment import Tool
from kerncheck.model.job import Job, Target
from kerncheck.model.snapshot import Snapshot

NVCC = Tool(path="/usr/local/cuda/bin/nvcc", version="13.0.88", via="PATH")
HOPPER = "fla-640-hopper-guard-052"
OLD = {"torch": "2.9.1+cu128", "triton": "3.5.1", "fla-core": "0.5.1", "flash-linear-attention": "0.5.1"}


def machine(versions=None, cc="9.0", **changes):
    return Snapshot(environment=environment(versions, **changes), gpus=gpus(cc))


def found(snapshot, job=None):
    """The known-bad rows that are findings for the model qwen."""
    outcomes = said("KC112", snapshot, qwen() if job is None else job)
    return {outcome.subject for outcome in outcomes if outcome.status == "failed"}


def one_of(snapshot, row, job=None):
    return next(o for o in said("KC112", snapshot, qwen() if job is None else job) if o.subject == row)


def test_kc112_the_sound_machine_has_no_finding_with_or_without_a_model():
    assert found(machine()) == set()
    assert found(machine(), ON_A_NODE) == set()


@pytest.mark.parametrize(
    ("triton", "cc", "bad"),
    [
        ("3.3.1", "9.0", False),
        ("3.4.0", "9.0", True),
        ("3.5.0", "9.0", True),
        ("3.7.0", "9.0", True),
        ("3.7.1", "9.0", False),
        ("3.7.1+git1f8dc1d", "9.0", False),
        ("3.8.0", "9.0", False),
        ("3.5.0", "8.0", False),
        ("3.5.0", "10.0", False),
    ],
)
def test_kc112_l32_hopper_with_triton_3_4_to_3_7_0(triton, cc, bad):
    assert (HOPPER in found(machine({"triton": triton}, cc))) == bad


def test_kc112_l32_a_silent_fla_and_its_cure():
    outcome = one_of(
        machine({**OLD, "fla-core": "0.4.2", "flash-linear-attention": "0.4.2"}), "fla-640-hopper-gated-dqkwg"
    )
    assert "silently wrong gradients" in outcome.message
    assert "[chunk_gated_delta_rule, backward" in outcome.message
    assert "triton >= 3.7.1 through torch >= 2.12.1" in outcome.remedy
    assert "build causal-conv1d anew" in outcome.remedy
    assert (outcome.evidence, outcome.severity) == ("declared", "error")
    assert "FLA#640" in outcome.source


def test_kc112_the_guard_of_0_5_1_names_range_and_cure():
    outcome = one_of(machine(OLD), "fla-640-hopper-guard-050-051")
    assert "Triton >= 3.4.0 and < 3.7.1" in outcome.message
    assert "fla-core 0.5.1 with triton 3.5.1 on NVIDIA H200 (capability 9.0)" in outcome.found
    assert "flash-linear-attention >= 0.5.2" in outcome.remedy
    sound = machine(
        {**OLD, "torch": "2.14.1+cu130", "triton": "3.8.0", "fla-core": "0.6.0", "flash-linear-attention": "0.6.0"}
    )
    assert found(sound) == set()


def test_kc112_a_machine_with_only_the_whole_package_has_no_core_and_is_matched_too():
    old = machine({"torch": "2.9.1+cu128", "triton": "3.5.1", "fla-core": None, "flash-linear-attention": "0.3.1"})
    outcome = one_of(old, "fla-640-hopper-gated-dqkwg")
    assert outcome.found.startswith("flash-linear-attention 0.3.1 with triton 3.5.1")


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        ({"nvcc": NVCC}, False),
        ({"nvcc": Tool()}, True),
        ({"nvcc": NVCC, "variables": {"FLA_TILELANG": "0"}}, True),
        ({"nvcc": NVCC, "variables": {"FLA_DISABLE_BACKEND_DISPATCH": "1"}}, True),
    ],
)
def test_kc112_only_a_usable_tilelang_stands_in(changes, bad):
    assert (HOPPER in found(machine({"triton": "3.6.0", "tilelang": "0.1.15"}, **changes))) == bad


def l45(triton, cc, variables=None, nvcc=None):
    versions = {"fla-core": "0.5.0", "flash-linear-attention": "0.5.0", "triton": triton, "tilelang": "0.1.8"}
    rows = found(machine(versions, cc, nvcc=nvcc or Tool(), variables=variables or {}))
    return {row for row in rows if "tilelang" in row or "640" in row}


def test_kc112_l45_tilelang_without_nvcc_and_its_contradiction_with_l32():
    assert l45("3.6.0", "8.0") == {"fla-tilelang-without-nvcc"}
    assert l45("3.6.0", "8.0", {"FLA_TILELANG": "0"}) == set()
    assert l45("3.6.0", "8.0", nvcc=NVCC) == set()
    hopper = {"fla-tilelang-without-nvcc-hopper", "fla-640-hopper-guard-050-051"}
    assert l45("3.6.0", "9.0") == hopper
    assert l45("3.6.0", "9.0", {"FLA_TILELANG": "0"}) == {"fla-640-hopper-guard-050-051"}
    assert l45("3.6.0", "9.0", nvcc=NVCC) == set()
    assert l45("3.3.1", "9.0") == {"fla-tilelang-without-nvcc-hopper-old-triton"}


def test_kc112_l45_the_remedy_on_hopper_is_not_the_variable():
    versions = {"fla-core": "0.5.0", "flash-linear-attention": "0.5.0", "triton": "3.6.0", "tilelang": "0.1.8"}
    hopper = one_of(machine(versions, "9.0"), "fla-tilelang-without-nvcc-hopper")
    assert "triton >= 3.7.1" in hopper.remedy
    assert "FLA_TILELANG=0 alone brings back" in hopper.remedy
    assert "set FLA_TILELANG=0" in one_of(machine(versions, "8.0"), "fla-tilelang-without-nvcc").remedy


@pytest.mark.parametrize(
    ("versions", "cc", "row", "neighbour"),
    [
        ({"fla-core": "0.5.1", "triton": "3.7.1"}, "10.0", "fla-913-blackwell-nan", {"fla-core": "0.6.0"}),
        ({"fla-core": "0.5.1"}, "10.3", "fla-999-blackwell-wy-bwd-hang", {"fla-core": "0.5.2"}),
        ({"fla-core": "0.5.2", "triton": "3.7.1"}, "10.3", "triton-10590-blackwell-fwd-o-8warp", {"triton": "3.8.0"}),
        ({"causal-conv1d": "1.7.0"}, "10.3", "cc1d-105-sm103", {"torch": "2.11.0+cu128"}),
        ({"causal-conv1d": "1.5.0.post8"}, "9.0", "cc1d-61-backward-without-bias", {"causal-conv1d": "1.5.2"}),
        ({"fla-core": "0.4.1"}, "8.0", "fla-slow-before-042", {"fla-core": "0.4.2"}),
        ({"fla-core": "0.5.2", "triton": "3.9.0"}, "8.0", "fla-triton-3.9-autotune-keys", {"triton": "3.8.0"}),
        ({"fla-core": "0.4.2", "triton": "3.9.1"}, "9.0", "fla-triton-3.9-autotune-keys", {"fla-core": "0.6.0"}),
        ({"fla-core": "0.5.0", "transformers": "5.16.0"}, "8.0", "fla-root-without-ops", {"transformers": "5.17.0"}),
        (
            {"flash-linear-attention": None, "transformers": "5.15.1"},
            "9.0",
            "fla-core-alone-root-without-ops",
            {"flash-linear-attention": "0.6.0"},
        ),
    ],
)
def test_kc112_rows_fire_and_their_neighbour_is_silent(versions, cc, row, neighbour):
    assert row in found(machine(versions, cc))
    assert row not in found(machine({**versions, **neighbour}, cc))


def test_kc112_a_slow_version_is_a_warning():
    assert one_of(machine({"fla-core": "0.4.1"}, "8.0"), "fla-slow-before-042").severity == "warning"


def test_kc112_rows_about_other_ops_do_not_apply_to_a_model_and_are_findings_without_one():
    bad = machine({"flash-attn": "2.8.3"}, "7.5")
    assert one_of(bad, "fa2-below-ampere").status == "not_applicable"
    assert one_of(bad, "fa2-below-ampere", ON_A_NODE).status == "failed"
    assert "fa2-below-ampere" not in found(machine({"flash-attn": "2.8.3"}, "8.0"), ON_A_NODE)


def test_kc112_a_bad_backward_is_no_finding_for_inference():
    inference = msgspec.structs.replace(qwen(), training=False)
    assert HOPPER in found(machine({"triton": "3.6.0"}))
    assert HOPPER not in found(machine({"triton": "3.6.0"}), inference)
    assert "fla-913-blackwell-nan" in found(machine({"fla-core": "0.5.1"}, "10.0"), inference)


def test_kc112_without_a_gpu_rows_that_depend_on_it_are_not_judged():
    blind = Snapshot(environment=environment({"triton": "3.6.0"}), gpus=Missing(reason="NVML library not found"))
    outcomes = said("KC112", blind, qwen())
    undecided = [outcome for outcome in outcomes if outcome.status == "not_judged"]
    assert {outcome.subject for outcome in undecided} == {"fla-core", "causal-conv1d"}
    assert all(outcome.required and "--device emulate" in outcome.remedy for outcome in undecided)
    assert HOPPER in next(outcome.message for outcome in undecided if outcome.subject == "fla-core")


def test_kc112_the_emulated_device_is_no_gpu_and_an_image_has_targets():
    versions = {"triton": "3.6.0"}
    blind = Snapshot(environment=environment(versions), gpus=Missing(reason="no NVML"))
    assert found(blind, qwen(EMULATED)) == set()
    assert not [o for o in said("KC112", blind, qwen(EMULATED)) if o.status == "not_judged"]
    image = Job(profile="image", targets=(Target(text="h200", cc="9.0", name="H200"),))
    assert HOPPER in found(blind, qwen(image))
    assert HOPPER not in found(blind, qwen(msgspec.structs.replace(image, targets=(Target(text="a100", cc="8.0"),))))


def test_kc112_a_build_between_releases_is_not_judged_and_needs_no_verdict():
    outcomes = said("KC112", machine({"triton": "3.4.0.dev20250701"}), qwen())
    undecided = [outcome for outcome in outcomes if outcome.status == "not_judged"]
    assert [(outcome.subject, outcome.required) for outcome in undecided] == [("fla-core", False)]
    assert "between releases" in undecided[0].message


def test_kc112_nothing_installed_and_nothing_observed():
    bare = Snapshot(environment=environment(dict.fromkeys(SOUND)), gpus=gpus())
    assert {o.status for o in said("KC112", bare)} == {"not_applicable"}
    assert {o.status for o in said("KC112", Snapshot())} == {"not_judged"}


def test_kc112_rows_that_another_check_judges_are_left_to_it():
    gb10 = machine({"triton": "3.5.1", "torch": "2.9.1+cu128"}, "12.1")
    assert not [o for o in said("KC112", gb10) if o.subject == "triton-no-103-121"]


def test_kc112_a_rocm_build_has_none_of_the_gpus_that_rows_speak_of():
    rocm = environment({"torch": "2.7.0+rocm6.3", "triton": "3.6.0", "causal-conv1d": None}, nodes=("/dev/kfd",))
    outcomes = said("KC112", Snapshot(environment=rocm, gpus=Missing(reason="no NVML")), qwen())
    assert not [outcome for outcome in outcomes if outcome.status in ("failed", "not_judged")]
