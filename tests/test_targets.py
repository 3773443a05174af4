"""--target and --driver: what they accept, what they refuse and how, and that rules judge targets like real GPUs."""

from __future__ import annotations

import pytest

from kerncheck.catalog import load
from kerncheck.checks.registry import Case
from kerncheck.cli import run
from kerncheck.errors import UsageError
from kerncheck.facts import devices, without_devices
from kerncheck.model.environment import Gpu, Gpus
from kerncheck.model.job import Job
from kerncheck.model.snapshot import Snapshot
from kerncheck.targets import parse_driver, parse_target, parse_targets

CATALOG = load()


@pytest.mark.parametrize(
    ("text", "cc", "name"),
    [
        ("sm_90", "9.0", ""),
        ("SM_90", "9.0", ""),
        ("sm90", "9.0", ""),
        ("sm_90a", "9.0", ""),
        ("sm_100f", "10.0", ""),
        ("compute_120", "12.0", ""),
        ("9.0", "9.0", ""),
        ("10.3", "10.3", ""),
        ("12.1", "12.1", ""),
        ("h200", "9.0", "H200"),
        ("NVIDIA H200", "9.0", "H200"),
        ("H100 80GB HBM3", "9.0", "H100"),
        ("A100-SXM4-80GB", "8.0", "A100"),
        ("L40S", "8.9", "L40S"),
        ("l4", "8.9", "L4"),
        ("GeForce RTX 4090", "8.9", "GeForce RTX 4090"),
        ("rtx 4090", "8.9", "GeForce RTX 4090"),
        ("rtx4090", "8.9", "GeForce RTX 4090"),
        ("rtx-4070-ti", "8.9", "GeForce RTX 4070 Ti"),
        ("Tesla T4", "7.5", "T4"),
        ("v100", "7.0", "V100"),
        ("gb10", "12.1", "GB10"),
    ],
)
def test_a_target_is_a_capability_or_a_name(text, cc, name):
    target = parse_target(text, CATALOG)
    assert (target.text, target.cc, target.name) == (text, cc, name)


def test_every_gpu_of_the_matrix_is_a_target_by_its_own_name():
    for gpu in CATALOG.gpus.gpu:
        target = parse_target(gpu.name.lower(), CATALOG)
        assert (target.cc, target.name) == (gpu.cc, gpu.name)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("h300", "H200"),
        ("H20O", "H20"),
        ("sm_91", "sm_90"),
        ("9.5", "sm_9"),
        ("rtx 4095", "GeForce RTX 4090"),
        ("nonsense", "write sm_90"),
        ("", "write sm_90"),
        ("sm_", "sm_"),
        ("90", "sm_90, 9.0"),
        ("-1", "write sm_90"),
        ("sm_90;sm_80", "sm_"),
        ("x" * 5000, "write sm_90"),
        ("\x00", "write sm_90"),
        ("\u0669.\u0660", "write sm_90"),
        ("99.9", "sm_"),
    ],
)
def test_an_unknown_target_is_one_line_with_near_names(text, near):
    with pytest.raises(UsageError) as caught:
        parse_target(text, CATALOG)
    whole = f"{caught.value.message} {caught.value.hint}"
    assert near in caught.value.hint
    assert "\n" not in whole
    assert len(whole) < 300


def test_a_target_given_twice_counts_once():
    targets = parse_targets(("sm_90", "9.0", "h200", "H200", "h100"), CATALOG)
    assert [(target.cc, target.name) for target in targets] == [("9.0", ""), ("9.0", "H200"), ("9.0", "H100")]


@pytest.mark.parametrize("text", ["580", "580.65", "580.65.06", " 535.104.05 "])
def test_a_driver_is_a_branch_or_a_version(text):
    assert parse_driver(text) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "58", "5800", "580.", "v580", "580.65.06.1", "13.0", "new", "580\n570", "\u0665\u0668\u0660"]
)
def test_what_is_no_driver_is_refused(text):
    with pytest.raises(UsageError, match="no driver version"):
        parse_driver(text)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--profile", "image", "--target", "h201"], "H20"),
        (["--profile", "image", "--target", "sm_90", "--target", "sm_99"], "'sm_99'"),
        (["--profile", "image", "--driver", "13.0"], "580.65.06"),
        (["--profile", "node", "--target", "sm_90"], "--profile image"),
        (["--target", "sm_90"], "--profile image"),
        (["--driver", "580"], "--profile image"),
    ],
)
def test_bad_options_end_with_one_line_and_2(capsys, arguments, told):
    assert run(["verify", *arguments]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def case(profile, targets=(), gpus=()):
    job = Job(profile=profile, targets=parse_targets(targets, CATALOG))
    return Case(job, Snapshot(gpus=Gpus(gpus=gpus)), CATALOG)


def test_rules_about_hardware_speak_of_targets_in_an_image_and_of_gpus_on_a_node():
    real = (Gpu(name="NVIDIA A100-SXM4-80GB", cc="8.0"),)
    image = devices(case("image", ("h200", "sm_120"), real))
    assert [(device.label, device.cc, device.evidence) for device in image] == [
        ("H200", "9.0", "declared"),
        ("sm_120", "12.0", "declared"),
    ]
    assert [(device.cc, device.evidence) for device in devices(case("node", (), real))] == [("8.0", "inferred")]


def test_an_image_without_a_target_says_what_to_declare():
    reason, remedy = without_devices(case("image"))
    assert "no target" in reason
    assert "--target" in remedy
