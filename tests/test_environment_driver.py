from __future__ import annotations

import msgspec
import pytest
from machines import EMULATED, NODES, ON_A_NODE, environment, gpus, one, said, statuses

from kerncheck.model.base import Broken, Missing
from kerncheck.model.environment import Gpus
from kerncheck.model.imports import Imports, TorchRuntime
from kerncheck.model.job import Job, Target
from kerncheck.model.snapshot import Snapshot

NO_NVML = Missing(reason="NVML library not found (libnvidia-ml.so.1): NVML Shared Library Not Found")
IMAGE = Job(profile="image", targets=(Target(text="h200", cc="9.0", name="H200"),))


def machine(torch="2.14.1+cu130", gpu=None, runtime=None, **changes):
    imports = Imports(torch=runtime) if runtime else Missing(reason="not imported")
    return Snapshot(
        environment=environment({"torch": torch}, **changes), gpus=gpus() if gpu is None else gpu, imports=imports
    )


@pytest.mark.parametrize(
    ("torch", "driver", "cuda", "found"),
    [
        ("2.12.0+cu130", "565.57.01", "12.7", {"failed"}),
        ("2.12.0+cu130", "570.124.06", "12.8", {"failed"}),
        ("2.12.0+cu130", "580.65.06", "13.0", {"passed"}),
        ("2.9.1+cu128", "535.104.05", "12.2", {"passed", "note"}),
        ("2.6.0+cu124", "515.65.01", "11.7", {"failed"}),
        ("2.4.0+cu118", "580.65.06", "13.0", {"passed"}),
        ("2.14.1+cu132", "580.65.06", "13.0", {"passed", "note"}),
        ("2.14.1+cpu", "535.104.05", "12.2", {"not_applicable"}),
        ("2.7.0+rocm6.3", "535.104.05", "12.2", {"not_applicable"}),
        ("2.14.1+cu140", "580.65.06", "13.0", {"not_judged"}),
    ],
)
def test_kc103_drivers_and_cuda_majors(torch, driver, cuda, found):
    snapshot = machine(torch, gpus(driver=driver, cuda=cuda))
    assert statuses("KC103", snapshot) == found


def test_kc103_the_finding_names_both_and_the_way_out():
    outcome = one("KC103", machine("2.12.0+cu130", gpus(driver="565.57.01", cuda="12.7")))
    assert "built for CUDA 13.0 (needs driver >= 580)" in outcome.message
    assert "CUDA 12.7" in outcome.found
    assert "cu126 or cu128" in outcome.remedy
    assert "--reinstall-package torch" in outcome.remedy


def test_kc103_the_kernel_module_speaks_where_nvml_is_absent():
    snapshot = machine("2.12.0+cu130", NO_NVML, driver_module="570.1")
    assert one("KC103", snapshot).status == "failed"
    assert statuses("KC103", machine("2.12.0+cu130", NO_NVML, driver_module="")) == {"not_judged"}


@pytest.mark.parametrize(("driver", "words"), [("580", "may be older"), ("580.20", "is older"), ("580.65.06", "")])
def test_kc103_a_branch_of_drivers_may_be_new_enough(driver, words):
    declared = msgspec.structs.replace(IMAGE, driver=driver)
    outcomes = said("KC103", machine("2.12.0+cu130", NO_NVML), declared)
    notes = [outcome.message for outcome in outcomes if outcome.status == "note"]
    assert [words in note for note in notes] == [True] * bool(words)


def test_kc103_an_image_is_judged_against_the_declared_driver():
    snapshot = machine("2.12.0+cu130", NO_NVML)
    with_driver = msgspec.structs.replace(IMAGE, driver="570")
    assert statuses("KC103", snapshot, IMAGE) == {"not_judged"}
    assert one("KC103", snapshot, IMAGE).required is False
    assert one("KC103", snapshot, with_driver).status == "failed"
    assert statuses("KC103", snapshot, msgspec.structs.replace(IMAGE, driver="580.65.06")) == {"passed"}


def test_kc103_never_speaks_about_the_emulated_device():
    assert statuses("KC103", machine("2.12.0+cu130", gpus(driver="450.1")), EMULATED) == {"not_applicable"}


def test_kc104_a_driver_that_lists_gpus():
    assert "NVIDIA H200" in one("KC104", machine()).message
    assert statuses("KC104", machine()) == {"passed"}


def test_kc104_a_gpu_that_does_not_answer():
    lost = msgspec.structs.replace(gpus(), problem="GPU 1: GPU is lost")
    outcome = one("KC104", machine(gpu=lost))
    assert outcome.status == "failed"
    assert "GPU 1: GPU is lost" in outcome.message


def test_kc104_a_container_that_lost_its_gpus():
    outcome = one("KC104", machine(gpu=Gpus(problem="Unknown Error"), container="docker"))
    assert outcome.status == "failed"
    assert "device files exist" in outcome.message
    assert "recreate the container" in outcome.remedy


def test_kc104_denied_device_files_without_nvml():
    outcome = one("KC104", machine(gpu=NO_NVML, denied=("/dev/nvidiactl",)))
    assert outcome.status == "failed"
    assert "/dev/nvidiactl" in outcome.found


def test_kc104_a_container_started_without_gpus_is_another_class():
    outcome = one("KC104", machine(gpu=NO_NVML, container="docker", nodes=()))
    assert outcome.status == "failed"
    assert "without GPU access" in outcome.message
    assert "--gpus all" in outcome.remedy


@pytest.mark.parametrize(
    "snapshot",
    [
        machine("2.14.1+cpu", NO_NVML, container="docker", nodes=()),
        machine("2.14.1+cpu", NO_NVML, nodes=()),
        machine("2.14.1+cu130", NO_NVML, nodes=()),
        machine("2.14.1+cu130", NO_NVML, nodes=NODES),
        machine("2.14.1+cu130", Gpus(driver="580.1"), nodes=()),
    ],
)
def test_kc104_no_gpu_is_inconclusive_and_says_where_to_go(snapshot):
    outcome = one("KC104", snapshot)
    assert (outcome.status, outcome.required) == ("not_judged", True)
    assert "--device emulate" in outcome.remedy


@pytest.mark.parametrize(
    ("torch", "nodes", "subject"),
    [
        ("2.7.0+rocm6.3", ("/dev/kfd",), "AMD GPU"),
        ("2.8.0+cpu", ("/dev/kfd",), "AMD GPU"),
        ("2.8.0+xpu", (), "Intel GPU"),
    ],
)
def test_kc104_other_makers_are_not_supported_yet_and_never_no_gpu(torch, nodes, subject):
    outcome = one("KC104", machine(torch, NO_NVML, nodes=nodes))
    assert (outcome.status, outcome.subject, outcome.required) == ("not_judged", subject, True)
    assert "only so far" in outcome.message


@pytest.mark.parametrize("job", [EMULATED, IMAGE])
@pytest.mark.parametrize("code", ["KC104", "KC105", "KC134"])
def test_where_no_driver_belongs_nothing_is_asked_of_it(code, job):
    assert statuses(code, machine(gpu=NO_NVML, nodes=()), job) == {"not_applicable"}


def runtime(**facts):
    return TorchRuntime(**{"version": "2.14.1+cu130", "file": "/x/torch/__init__.py", "cuda": "13.0", **facts})


SEES = runtime(available=True, device_count=1, device_names=("NVIDIA H200",))


def test_kc105_torch_sees_the_gpu():
    outcome = one("KC105", machine(runtime=SEES))
    assert (outcome.status, outcome.evidence) == ("passed", "measured")


@pytest.mark.parametrize(
    ("warning", "words"),
    [
        ("Error 802: system not yet initialized", "Fabric Manager"),
        ("Error 804: forward compatibility was attempted on non supported HW", "compat directory"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "unified-memory module"),
        ("The NVIDIA driver on your system is too old (found version 12070)", "driver is older"),
        ("something new", "no reason that is known"),
    ],
)
def test_kc105_a_blind_torch_is_told_by_its_words(warning, words):
    outcome = one("KC105", machine(runtime=runtime(warnings=(warning,))))
    assert outcome.status == "failed"
    assert words in outcome.message
    assert "1 GPU(s) present, torch sees none" in outcome.message
    assert warning in outcome.found


def test_kc105_the_unknown_error_does_not_blame_the_variable():
    warning = "CUDA unknown error - e.g. changing env variable CUDA_VISIBLE_DEVICES"
    assert "nvidia_uvm" in one("KC105", machine(runtime=runtime(warnings=(warning,)))).remedy


@pytest.mark.parametrize("value", ["", "-1", "-1,0"])
def test_kc105_a_variable_that_hides_every_gpu_is_named(value):
    outcome = one("KC105", machine(runtime=runtime(), variables={"CUDA_VISIBLE_DEVICES": value}))
    assert outcome.status == "failed"
    assert "CUDA_VISIBLE_DEVICES" in outcome.message
    assert "unset CUDA_VISIBLE_DEVICES" in outcome.remedy


def test_kc105_one_of_two_gpus_is_missing():
    two = Gpus(driver="580.1", gpus=(*gpus().gpus, msgspec.structs.replace(gpus().gpus[0], index=1)))
    assert one("KC105", machine(gpu=two, runtime=SEES)).status == "failed"
    chosen = machine(gpu=two, runtime=SEES, variables={"CUDA_VISIBLE_DEVICES": "0"})
    assert one("KC105", chosen).status == "passed"
    parted = Gpus(driver="580.1", gpus=(*gpus().gpus, msgspec.structs.replace(gpus().gpus[0], index=1, mig=True)))
    assert one("KC105", machine(gpu=parted, runtime=SEES)).status == "passed"


def test_kc105_no_gpu_anywhere_is_inconclusive():
    assert one("KC105", machine(gpu=NO_NVML, runtime=runtime(), nodes=())).status == "not_judged"


@pytest.mark.parametrize(
    "broken", [Missing(reason="slow"), Broken(how="raised", message="no", exception="ImportError")]
)
def test_kc105_a_torch_that_was_not_imported_is_not_judged(broken):
    assert one("KC105", machine(runtime=broken)).status == "not_judged"


def test_kc105_asks_nothing_of_a_cpu_build():
    assert one("KC105", machine("2.14.1+cpu", runtime=runtime(cuda=""))).status == "not_applicable"


@pytest.mark.parametrize("code", ["KC103", "KC104", "KC105"])
def test_unobserved_is_never_a_pass(code):
    assert statuses(code, Snapshot(), ON_A_NODE) == {"not_judged"}
