from __future__ import annotations

import pytest
from machines import EMULATED, ON_A_NODE, catalog, distributions, environment, gpus, one, said, statuses

from kerncheck.facts import torch_facts
from kerncheck.model.base import Missing
from kerncheck.model.environment import Environment, Gpu, Gpus, Python, TorchBuild
from kerncheck.model.job import Job, Target
from kerncheck.model.snapshot import Snapshot

NO_NVML = Missing(reason="NVML library not found")
ARM = Python(version="3.12.3", machine="aarch64", headers="/usr/include/python3.12/Python.h")


def with_torch(version, **changes):
    return Snapshot(environment=environment({"torch": version}, **changes), gpus=gpus())


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [
        ("2.14.1+cu130", "passed", "2.14.1 for CUDA 13.0"),
        ("2.9.1", "passed", "2.9.1 for CUDA 12.8"),
        ("2.14.1+cpu", "passed", "the CPU only"),
        ("2.14.1+cu128", "not_judged", "no pair"),
        ("2.3.0a0+40ec155e58.nv24.03", "not_judged", "unknown"),
        ("2.10.0.dev20250924+cu128", "not_judged", "unknown"),
    ],
)
def test_kc101_released_pairs_pass_and_others_are_unknown(version, status, words):
    outcome = one("KC101", with_torch(version))
    assert outcome.status == status
    assert words in outcome.message
    assert status == "passed" or outcome.required is False


def test_kc101_without_torch():
    outcome = one("KC101", with_torch(None))
    assert (outcome.status, outcome.subject) == ("failed", "torch")


def test_torchs_own_files_outrank_its_name():
    build = TorchBuild(version="2.14.1", cuda="13.0")
    facts = torch_facts(environment({"torch": "2.14.1+cpu"}, torch=build), catalog())
    assert facts.cuda == "13.0"


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("2.2.0+cpu", "the CPU only"),
        ("2.2.0", "an unknown build"),
        ("2.14.1", "CUDA 13.0"),
        ("2.2.0+cu121", "CUDA 12.1"),
        ("2.3.0a0+40ec155e58.nv24.03", "an unknown build"),
        ("2.7.0+rocm6.3", "ROCm 6.3"),
        ("2.10.0.dev20250924+cu128", "CUDA 12.8"),
        ("2.8.0+xpu", "XPU"),
    ],
)
def test_kinds_of_builds(version, kind):
    assert torch_facts(environment({"torch": version}), catalog()).kind == kind


def test_the_wheel_for_aarch64_was_a_cpu_build_up_to_torch_2_10():
    kinds = [torch_facts(environment({"torch": v}, python=ARM), catalog()).kind for v in ("2.8.0", "2.11.0")]
    assert kinds == ["the CPU only", "CUDA 13.0"]


def test_kc102_a_gpu_machine_with_a_cpu_torch_fails():
    found = environment({"torch": "2.8.0"}, python=ARM, torch=TorchBuild(version="2.8.0"))
    outcome = one("KC102", Snapshot(environment=found, gpus=gpus(name="NVIDIA GH200 480GB")))
    assert outcome.status == "failed"
    assert "1 NVIDIA GPU (aarch64)" in outcome.message
    assert "torch.version.cuda is None" in outcome.found
    assert "--force-reinstall --no-cache-dir" in outcome.remedy


def test_kc102_control_the_cuda_build():
    assert one("KC102", with_torch("2.8.0+cu128")).status == "passed"


def test_kc102_a_cpu_machine_with_a_cpu_torch_never_fails():
    snapshot = Snapshot(environment=environment({"torch": "2.14.1+cpu"}, nodes=()), gpus=NO_NVML)
    assert one("KC102", snapshot).status == "not_applicable"


def test_kc102_device_files_count_where_nvml_is_absent():
    snapshot = Snapshot(environment=environment({"torch": "2.14.1+cpu"}), gpus=NO_NVML)
    assert one("KC102", snapshot).status == "failed"


def test_kc102_an_amd_gpu_wants_a_rocm_build():
    cpu = Snapshot(environment=environment({"torch": "2.7.0+cpu"}, nodes=("/dev/kfd",)), gpus=NO_NVML)
    rocm = Snapshot(environment=environment({"torch": "2.7.0+rocm6.3"}, nodes=("/dev/kfd",)), gpus=NO_NVML)
    assert "an AMD GPU" in one("KC102", cpu).message
    assert one("KC102", rocm).status == "passed"


def test_kc102_an_image_is_judged_against_its_target():
    job = Job(profile="image", targets=(Target(text="h200", cc="9.0", name="H200"),))
    snapshot = Snapshot(environment=environment({"torch": "2.14.1+cpu"}, nodes=()), gpus=NO_NVML)
    assert "the target h200" in one("KC102", snapshot, job).message


@pytest.mark.parametrize("version", [None, "2.3.0a0+40ec155e58.nv24.03", "2.14.1+cpu"])
def test_kc102_never_speaks_about_the_emulated_device(version):
    assert statuses("KC102", with_torch(version), EMULATED) == {"not_applicable"}


PIN = 'triton==3.5.1; platform_system == "Linux"'


def pinned(torch, triton, *requires):
    found = environment(distributions=distributions({"torch": torch, "triton": triton}, torch=requires))
    return Snapshot(environment=found, gpus=gpus())


@pytest.mark.parametrize(
    ("torch", "triton", "requires", "status"),
    [
        ("2.9.1+cu128", "3.5.1", (PIN,), "passed"),
        ("2.9.1+cu128", "3.6.0", (PIN,), "failed"),
        ("2.9.1+cu128", "3.5.1+git1234", (PIN,), "passed"),
        ("2.9.1+cu128", None, (PIN,), "failed"),
        ("2.9.1+cu128", "3.6.0", ('triton==3.5.1; platform_system == "Windows"',), "failed"),
        ("2.14.1+cu130", "3.8.2", ("triton~=3.8.0",), "passed"),
        ("2.14.1+cu130", "3.9.0", ("triton~=3.8.0",), "failed"),
        ("2.14.1+cu130", "3.9.0", (), "failed"),
        ("2.14.1+cu130", "3.8.0.dev1", ("triton~=3.8.0",), "not_judged"),
        ("2.13.0+cpu", "3.9.0", (), "not_applicable"),
        ("9.9.9+cu999", "3.9.0", (), "not_applicable"),
    ],
)
def test_kc107_triton_against_torchs_own_requirement(torch, triton, requires, status):
    assert one("KC107", pinned(torch, triton, *requires)).status == status


def test_kc107_triton_under_the_name_of_pytorchs_index_and_no_torch():
    found = environment(distributions=distributions({"torch": "2.8.0+cu128", "pytorch-triton": "3.4.0"}))
    assert one("KC107", Snapshot(environment=found, gpus=gpus())).status == "passed"
    assert one("KC107", pinned(None, "3.8.0")).status == "not_applicable"


def test_kc107_the_remedy_names_the_pin():
    outcome = one("KC107", pinned("2.9.1+cu128", "3.6.0", PIN))
    assert outcome.wanted == "triton==3.5.1"
    assert "pip install 'triton==3.5.1'" in outcome.remedy


@pytest.mark.parametrize(
    ("python", "status"), [("3.12.3", "passed"), ("3.15.0", "failed"), ("3.9.1", "failed"), ("", "not_judged")]
)
def test_kc109_python_has_a_wheel(python, status):
    found = environment(python=Python(version=python))
    assert {o.status for o in said("KC109", Snapshot(environment=found)) if o.subject == "Python"} == {status}


def test_kc109_free_threaded_builds_have_their_own_wheels():
    for version, status in (("3.14.0", "passed"), ("3.13.0", "failed")):
        found = environment(python=Python(version=version, free_threaded=True))
        assert {o.status for o in said("KC109", Snapshot(environment=found)) if o.subject == "Python"} == {status}


@pytest.mark.parametrize(("glibc", "failed"), [("2.39", 0), ("2.28", 0), ("2.27", 1), ("2.17", 2), ("", 2)])
def test_kc109_glibc_against_torch_and_triton(glibc, failed):
    outcomes = said("KC109", Snapshot(environment=environment(glibc=glibc)))
    assert sum(outcome.status == "failed" for outcome in outcomes) == failed


def test_kc109_an_unseen_glibc_is_not_judged():
    found = environment(glibc=Missing(reason="no confstr"))
    assert "no confstr" in [o.message for o in said("KC109", Snapshot(environment=found)) if o.status == "not_judged"]


@pytest.mark.parametrize("code", ["KC101", "KC102", "KC107", "KC109"])
def test_an_unobserved_environment_is_never_a_pass(code):
    outcome = one(code, Snapshot())
    assert (outcome.status, outcome.required) == ("not_judged", True)


def test_an_empty_environment_is_judged_without_an_error():
    for code in ("KC101", "KC102", "KC107", "KC109"):
        assert "passed" not in statuses(code, Snapshot(environment=Environment(), gpus=Gpus()), ON_A_NODE)


def test_many_gpus_are_counted():
    two = Gpus(driver="580.1", gpus=(Gpu(name="NVIDIA H200", cc="9.0"), Gpu(name="NVIDIA H200", cc="9.0", index=1)))
    outcome = one("KC102", Snapshot(environment=environment({"torch": "2.14.1+cpu"}), gpus=two))
    assert "2 NVIDIA GPUs" in outcome.message
