"""Whole machines, written by hand: the exact findings, the exit code and the named cause, and the same machine repaired.

Each file under ``snapshots/`` is judged by the real command. ``REPAIRED`` holds the smallest change that mends it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kerncheck.cli import cli

FOLDER = Path(__file__).parent / "snapshots"
EXAMPLES = Path(__file__).parents[2] / "examples" / "snapshots"
Machine = dict[str, Any]


def judged(snapshot: Machine, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Judge a snapshot with the checks of the environment; return the exit code and the report."""
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(snapshot))
    arguments = ["judge", str(file), "--select", "KC1", "--format", "json", *options]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, json.loads(result.stdout)


def findings(report: dict[str, Any]) -> set[str]:
    return {outcome["code"] for outcome in report["outcomes"] if outcome["status"] == "failed"}


def texts(report: dict[str, Any]) -> str:
    return json.dumps([outcome for outcome in report["outcomes"] if outcome["status"] == "failed"])


def set_version(machine: Machine, name: str, version: str | None) -> None:
    """Install another version of a distribution, or remove it."""
    installed = machine["environment"]["distributions"]
    for item in [item for item in installed if item["name"] == name]:
        item["version"] = version
        if version is None:
            installed.remove(item)


def new_torch(machine: Machine, version: str, cuda: str, triton: str) -> None:
    """Install another torch with the Triton that it ships."""
    machine["environment"]["torch"] |= {"version": version, "cuda": cuda}
    machine["imports"]["torch"] |= {"version": version, "cuda": cuda}
    set_version(machine, "torch", version)
    set_version(machine, "triton", triton)
    machine["environment"]["distributions"][0]["requires"] = [f"triton=={triton}"]


def newer_driver(machine: Machine) -> None:
    machine["gpus"] |= {"driver": "580.65.06", "cuda": "13.0"}
    machine["imports"]["torch"] |= {"available": True, "device_count": 1, "warnings": []}


def cuda_torch(machine: Machine) -> None:
    new_torch(machine, "2.11.0", "13.0", "3.6.0")
    machine["environment"]["distributions"].append({"name": "triton", "version": "3.6.0"})
    machine["imports"]["torch"] |= {"available": True, "device_count": 1, "arch_list": ["sm_80", "sm_90"]}


def one_nccl(machine: Machine) -> None:
    set_version(machine, "nvidia-nccl-cu12", None)
    machine["environment"]["shared_files"] = []


def with_sm_70(machine: Machine) -> None:
    new_torch(machine, "2.10.0+cu128", "12.8", "3.6.0")
    machine["imports"]["torch"]["arch_list"].insert(0, "sm_70")


FAULTS = {
    "e01-driver-too-old": (
        {"KC103", "KC105"},
        ["needs driver >= 580", "565.57.01", "too old (found version 12070)"],
        newer_driver,
    ),
    "e17-cpu-torch-on-gh200": ({"KC102"}, ["torch.version.cuda is None", "1 NVIDIA GPU (aarch64)"], cuda_torch),
    "e22-torchvision-of-another-torch": (
        {"KC116"},
        ["torchvision 0.21.0+cu128 pairs with torch 2.6, found 2.8.0+cu128"],
        lambda machine: set_version(machine, "torchvision", "0.23.0+cu128"),
    ),
    "e26-two-nccl-wheels": (
        {"KC114", "KC115"},
        [
            "libnccl.so.2 is claimed by nvidia-nccl-cu12 2.28.9 and nvidia-nccl-cu13 2.30.7",
            "content matches nvidia-nccl-cu12",
        ],
        one_nccl,
    ),
    "e56-v100-on-a-newer-wheel": (
        {"KC106"},
        ["device sm_70", "install torch 2.11.0 built for CUDA 12.6 (cu126)"],
        with_sm_70,
    ),
    "e71-triton-over-torchs-pin": (
        {"KC107"},
        ["requires triton~=3.8.0, found triton 3.9.0"],
        lambda machine: set_version(machine, "triton", "3.8.0"),
    ),
    "l09-kernels-outside-the-window": (
        {"KC117"},
        ["transformers 5.24.0 wants kernels", "found 0.17.2"],
        lambda machine: set_version(machine, "kernels", "0.18.2"),
    ),
    "l32-hopper-triton-3.6": (
        {"KC112"},
        ["fla-640-hopper-guard-052", "Triton >= 3.4.0 and < 3.7.1", "torch >= 2.12.1"],
        lambda machine: new_torch(machine, "2.12.1+cu130", "13.0", "3.7.1"),
    ),
    "l45-tilelang-without-nvcc": (
        {"KC112"},
        ["tilelang is installed, nvcc is not", "FLA_TILELANG=0"],
        lambda machine: machine["environment"].update(variables={"FLA_TILELANG": "0"}),
    ),
    "l48-gb10-old-ptxas": (
        {"KC108"},
        ["ptxas 12.8.93 cannot target sm_121", "through torch"],
        lambda machine: new_torch(machine, "2.10.0+cu130", "13.0", "3.6.0"),
    ),
    "l67-halves-of-two-versions": (
        {"KC113"},
        ["flash-linear-attention 0.5.0 with fla-core 0.4.2"],
        lambda machine: set_version(machine, "fla-core", "0.5.0"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_machine_and_the_same_machine_repaired(name, tmp_path):
    codes, words, repair = FAULTS[name]
    machine = json.loads((FOLDER / f"{name}.json").read_text())
    code, report = judged(machine, tmp_path, "--model", "qwen")
    assert findings(report) == codes
    assert code == 1
    assert [word for word in words if word not in texts(report)] == []
    repair(machine)
    code, report = judged(machine, tmp_path, "--model", "qwen")
    assert findings(report) == set()
    assert code == 0


def test_an_older_driver_of_the_same_major_passes_with_a_note(tmp_path):
    machine = json.loads((FOLDER / "e04-older-driver-same-major.json").read_text())
    code, report = judged(machine, tmp_path, "--model", "qwen")
    assert (code, findings(report)) == (0, set())
    notes = [outcome["message"] for outcome in report["outcomes"] if outcome["status"] == "note"]
    assert any("driver 535.104.05 is older than CUDA 12.8" in note for note in notes)


def test_every_file_has_its_test():
    assert {path.stem for path in FOLDER.glob("*.json")} == {*FAULTS, "e04-older-driver-same-major"}


@pytest.mark.parametrize("options", [(), ("--model", "qwen")])
def test_the_example_with_a_known_bad_triton_names_the_range_and_the_cure(tmp_path, options):
    machine = json.loads((EXAMPLES / "h100.json").read_text())
    code, report = judged(machine, tmp_path, *options)
    assert (code, findings(report)) == (1, {"KC112"})
    for words in ("chunk_gated_delta_rule", "backward", "Triton >= 3.4.0 and < 3.7.1", "torch >= 2.12.1", "0.5.2"):
        assert words in texts(report)


@pytest.mark.parametrize("options", [(), ("--model", "qwen")])
def test_the_sound_example_has_no_finding(tmp_path, options):
    machine = json.loads((EXAMPLES / "h200.json").read_text())
    code, report = judged(machine, tmp_path, *options)
    assert findings(report) == set()
    assert code == 3  # the file does not hold what torch itself says: nothing unobserved is passed
