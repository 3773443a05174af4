"""NVML is driven through real stand-in libraries, built here: kerncheck's own binding loads them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from machines import ON_A_NODE, catalog

from kerncheck.model.base import Missing
from kerncheck.model.environment import Gpus
from kerncheck.probes import nvml
from kerncheck.stages import gpus as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor

NOTHING = Missing(reason="not yet")
ASK = Ask(job=ON_A_NODE, catalog=catalog(), environment=NOTHING, devices=NOTHING)

HEALTHY = r"""
#include <string.h>
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInitWithFlags(unsigned flags) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.159.03", size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = handle; return index == LOST ? 15 : 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { strncpy(text, "NVIDIA H200", size); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { strncpy(text, "GPU-12345678-9abc", size); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, Memory *m) { m->total = 150000000000; m->free = 140000000000; return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *next) { return 3; }
"""


def seen_with(tmp_path, monkeypatch, *, init=0, lost=9):
    source = tmp_path / "nvml.c"
    source.write_text(HEALTHY.replace("INIT", str(init)).replace("LOST", str(lost)))
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    supervisor = Supervisor(sys.executable)
    return stage.collect(ASK, [supervisor.run(run) for run in stage.runs(ASK)])


def test_a_driver_with_two_gpus(tmp_path, monkeypatch):
    found = seen_with(tmp_path, monkeypatch)
    assert isinstance(found, Gpus)
    assert (found.driver, found.cuda, found.problem) == ("580.159.03", "13.0", "")
    assert [(gpu.index, gpu.name, gpu.cc, gpu.mig) for gpu in found.gpus] == [
        (0, "NVIDIA H200", "9.0", False),
        (1, "NVIDIA H200", "9.0", False),
    ]
    assert found.gpus[0].memory_free == 140_000_000_000
    assert found.gpus[0].uuid == "GPU-12345678"


def test_a_gpu_that_fell_off_the_bus_leaves_the_others(tmp_path, monkeypatch):
    found = seen_with(tmp_path, monkeypatch, lost=1)
    assert [gpu.index for gpu in found.gpus] == [0]
    assert found.problem == "GPU 1: GPU is lost"


@pytest.mark.parametrize(("code", "text"), [(999, "Unknown Error"), (4, "Insufficient Permissions")])
def test_a_library_that_cannot_be_started_is_no_absence(tmp_path, monkeypatch, code, text):
    found = seen_with(tmp_path, monkeypatch, init=code)
    assert isinstance(found, Gpus)
    assert found.gpus == ()
    assert text.casefold() in found.problem.casefold()


def test_no_library_is_absence_with_its_reason(tmp_path, monkeypatch):
    source = tmp_path / "none.c"
    source.write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    supervisor = Supervisor(sys.executable)
    found = stage.collect(ASK, [supervisor.run(run) for run in stage.runs(ASK)])
    assert isinstance(found, Missing)
    assert "NVML library not found" in found.reason


def test_cuda_versions_of_the_driver():
    assert [nvml.cuda_version(number) for number in (12070, 13000, 11080, None)] == ["12.7", "13.0", "11.8", ""]
