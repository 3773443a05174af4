from __future__ import annotations

import pytest
from machines import EMULATED, distributions, environment, gpus, one, said, statuses

from kerncheck.model.base import Missing
from kerncheck.model.environment import Gpu, Gpus, Python, Tool
from kerncheck.model.imports import Imports, TorchRuntime
from kerncheck.model.job import Job, Target
from kerncheck.model.snapshot import Snapshot

NO_NVML = Missing(reason="NVML library not found")


def machine(torch, cc, *, name="", listed=None, **changes):
    runtime = (
        TorchRuntime(version=torch, file="", cuda="13.0", arch_list=tuple(listed or ())) if listed is not None else None
    )
    imports = Imports(torch=runtime) if runtime else Missing(reason="not imported")
    return Snapshot(environment=environment({"torch": torch}, **changes), gpus=gpus(cc, name=name), imports=imports)


@pytest.mark.parametrize(
    ("torch", "cc", "status"),
    [
        ("2.11.0+cu128", "7.0", "failed"),
        ("2.10.0+cu128", "7.0", "passed"),
        ("2.11.0+cu126", "7.0", "passed"),
        ("2.5.1+cu121", "12.0", "failed"),
        ("2.14.1+cu130", "8.9", "passed"),
        ("2.14.1+cu130", "8.6", "passed"),
        ("2.14.1+cu130", "12.1", "passed"),
        ("2.14.1+cu130", "10.3", "passed"),
        ("2.14.1+cu130", "11.0", "failed"),
        ("2.14.1+cu130", "6.1", "failed"),
        ("2.7.0+cu128", "12.1", "passed"),
        ("2.14.1+cpu", "9.0", "not_applicable"),
        ("2.3.0a0+40ec155e58.nv24.03", "9.0", "not_judged"),
        ("9.9.9+cu130", "9.0", "not_judged"),
    ],
)
def test_kc106_declared_architectures_by_torchs_rule(torch, cc, status):
    assert one("KC106", machine(torch, cc)).status == status


def test_kc106_the_remedy_comes_from_our_data():
    old = one("KC106", machine("2.11.0+cu128", "7.0"))
    assert "device sm_70" in old.message
    assert "torch 2.11.0 built for CUDA 12.6 (cu126)" in old.remedy
    new = one("KC106", machine("2.5.1+cu121", "12.0"))
    assert "no PTX" in new.message
    assert "torch 2.15.0 built for CUDA 13.2" in new.remedy


@pytest.mark.parametrize(
    ("listed", "cc", "status"),
    [
        (["sm_80", "sm_90"], "9.0", "passed"),
        (["sm_80", "sm_86"], "9.0", "failed"),
        (["sm_90a"], "9.0", "passed"),
        (["sm_90a"], "10.0", "failed"),
        (["sm_80", "compute_80"], "9.0", "passed"),
        ([], "9.0", "not_judged"),
    ],
)
def test_kc106_what_torch_lists_outranks_the_matrix(listed, cc, status):
    assert one("KC106", machine("2.14.1+cu130", cc, listed=listed)).status == status


def test_kc106_on_aarch64_other_builds_were_published():
    arm = Python(version="3.12.3", machine="aarch64")
    assert one("KC106", machine("2.14.1+cu130", "11.0", python=arm)).status == "passed"
    assert one("KC106", machine("2.9.1+cu128", "9.0", python=arm)).status == "not_judged"


def test_kc106_each_kind_of_gpu_is_judged_once():
    mixed = Gpus(
        driver="580.1",
        gpus=tuple(Gpu(name=n, cc=c, index=i) for i, (n, c) in enumerate([("A", "9.0")] * 3 + [("B", "7.0")])),
    )
    outcomes = said("KC106", Snapshot(environment=environment(), gpus=mixed))
    assert [(outcome.subject, outcome.status) for outcome in outcomes] == [("A", "passed"), ("B", "failed")]


@pytest.mark.parametrize("code", ["KC106", "KC108"])
def test_without_a_gpu_a_node_is_inconclusive_and_an_image_asks_for_a_target(code):
    blind = Snapshot(environment=environment(), gpus=NO_NVML)
    node = one(code, blind)
    assert (node.status, node.required) == ("not_judged", True)
    assert "--device emulate" in node.remedy
    image = one(code, blind, Job(profile="image"))
    assert image.status == "not_judged"
    assert "--target" in image.remedy
    assert statuses(code, blind, EMULATED) == {"not_applicable"}


@pytest.mark.parametrize(("cc", "status"), [("9.0", "passed"), ("7.0", "failed")])
def test_kc106_an_image_is_judged_against_its_targets(cc, status):
    job = Job(profile="image", targets=(Target(text=f"sm_{cc}", cc=cc),))
    outcome = one("KC106", Snapshot(environment=environment(), gpus=NO_NVML), job)
    assert outcome.status == status


def with_triton(triton, cc, **changes):
    found = environment({"triton": triton}, **changes)
    return Snapshot(environment=found, gpus=gpus(cc))


@pytest.mark.parametrize(
    ("triton", "cc", "status"),
    [
        ("3.5.1", "12.1", "failed"),
        ("3.6.0", "12.1", "passed"),
        ("3.5.1", "10.3", "failed"),
        ("3.5.1", "10.0", "passed"),
        ("3.2.0", "10.0", "failed"),
        ("3.3.1", "10.0", "passed"),
        ("3.6.0", "11.0", "failed"),
        ("3.7.1", "11.0", "passed"),
        ("3.8.0", "9.0", "passed"),
        ("3.9.0", "9.0", "passed"),
        ("9.9.9", "9.0", "not_judged"),
    ],
)
def test_kc108_the_bundled_ptxas_by_release(triton, cc, status):
    assert one("KC108", with_triton(triton, cc)).status == status


def test_kc108_names_the_ptxas_and_the_torch_whose_triton_knows_the_gpu():
    outcome = one("KC108", with_triton("3.5.1", "12.1"))
    assert "ptxas 12.8.93 cannot target sm_121" in outcome.message
    assert "triton 3.9.0 through torch 2.15.0" in outcome.remedy
    assert "triton-lang/triton#8539" in outcome.source


def test_kc108_a_newer_ptxas_on_this_machine_is_offered_only_if_it_was_found():
    nvcc = Tool(path="/usr/local/cuda/bin/nvcc", version="13.0.88", via="PATH")
    assert "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas" in one("KC108", with_triton("3.5.1", "12.1", nvcc=nvcc)).remedy
    old = Tool(path="/usr/local/cuda/bin/nvcc", version="12.4.131", via="PATH")
    assert "TRITON_PTXAS_PATH" not in one("KC108", with_triton("3.5.1", "12.1", nvcc=old)).remedy
    blackwell = one("KC108", with_triton("3.6.0", "11.0", nvcc=nvcc))
    assert "TRITON_PTXAS_BLACKWELL_PATH=/usr/local/cuda/bin/ptxas" in blackwell.remedy


def test_kc108_the_ptxas_that_was_found_outranks_the_release():
    named = Tool(path="/opt/ptxas", version="13.0.88", via="TRITON_PTXAS_PATH")
    assert one("KC108", with_triton("3.5.1", "12.1", ptxas=named)).status == "passed"
    unseen = with_triton("3.5.1", "12.1", variables={"TRITON_PTXAS_PATH": "/opt/ptxas"})
    assert one("KC108", unseen).status == "not_judged"


def test_kc108_asks_nothing_without_triton():
    found = environment(distributions=distributions({"torch": "2.14.1+cu130"}))
    assert one("KC108", Snapshot(environment=found, gpus=gpus())).status == "not_applicable"


@pytest.mark.parametrize("code", ["KC103", "KC105", "KC106", "KC108", "KC134"])
def test_nothing_of_nvidia_is_asked_of_a_rocm_build(code):
    rocm = environment({"torch": "2.7.0+rocm6.3", "triton": "3.3.0"}, nodes=("/dev/kfd",))
    outcome = one(code, Snapshot(environment=rocm, gpus=NO_NVML))
    assert outcome.status == "not_applicable"
