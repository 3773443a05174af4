from __future__ import annotations

import pytest
from machines import environment, gpus, one

from kerncheck.model.base import Missing
from kerncheck.model.environment import DriverLibrary
from kerncheck.model.snapshot import Snapshot

OWN = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
COMPAT = "/usr/local/cuda-12.8/compat/libcuda.so.570.124.06"


def machine(library, *, driver="525.147.05", name="NVIDIA GeForce RTX 3060", cc="8.6", kernel=""):
    found = environment(libcuda=library, kernel=kernel)
    return Snapshot(environment=found, gpus=gpus(cc, driver=driver, name=name))


def in_use(path="/usr/local/cuda-12.8/compat/libcuda.so.1"):
    return DriverLibrary(path=path, target=COMPAT, version="570.124.06", via="LD_LIBRARY_PATH", compat=(COMPAT,))


def test_kc134_the_drivers_own_library():
    assert one("KC134", machine(DriverLibrary(path=OWN, target=OWN, version="525.147.05"))).status == "passed"


def test_kc134_a_compat_library_on_a_consumer_gpu():
    outcome = one("KC134", machine(in_use()))
    assert outcome.status == "failed"
    assert "compat directory (570.124.06), the driver is 525.147.05" in outcome.message
    assert "GeForce RTX 3060" in outcome.message


def test_kc134_a_compat_library_on_a_data_centre_gpu_is_what_it_is_made_for():
    assert one("KC134", machine(in_use(), name="NVIDIA H100 80GB HBM3", cc="9.0")).status == "note"


def test_kc134_compat_libraries_that_are_installed_and_not_taken():
    library = DriverLibrary(path=OWN, target=OWN, version="525.147.05", compat=(COMPAT,))
    outcome = one("KC134", machine(library))
    assert (outcome.status, outcome.severity) == ("failed", "warning")
    assert "570.124.06" in outcome.message
    same_branch = DriverLibrary(path=OWN, target=OWN, version="570.86.10", compat=(COMPAT,))
    assert one("KC134", machine(same_branch, driver="570.86.10")).status == "passed"
    older = DriverLibrary(path=OWN, target=OWN, version="580.1", compat=(COMPAT,))
    assert one("KC134", machine(older, driver="580.65.06")).status == "passed"


@pytest.mark.parametrize(
    ("kernel", "severity", "words"),
    [
        ("5.15.153.1-microsoft-standard-WSL2", "warning", "TRITON_LIBCUDA_PATH=/usr/lib/wsl/lib"),
        ("6.8.0-generic", "error", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    ],
)
def test_kc134_no_library_at_all(kernel, severity, words):
    outcome = one("KC134", machine(DriverLibrary(), kernel=kernel))
    assert (outcome.status, outcome.severity) == ("failed", severity)
    assert words in outcome.remedy


def test_kc134_without_a_gpu_or_without_a_look():
    blind = Snapshot(environment=environment(libcuda=DriverLibrary()), gpus=Missing(reason="no NVML"))
    assert one("KC134", blind).status == "not_applicable"
    assert one("KC134", machine(Missing(reason="no look"))).status == "not_judged"
