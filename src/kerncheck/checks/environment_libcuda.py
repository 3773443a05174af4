"""Which libcuda the loader takes: the driver's own, one of a compat directory, or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from kerncheck.checks.environment_driver import OUTSIDE
from kerncheck.checks.registry import Case, check
from kerncheck.facts import has_gpus
from kerncheck.model.base import seen
from kerncheck.model.environment import DriverLibrary, Gpus
from kerncheck.model.outcome import Outcome, Say
from kerncheck.versions import parse

if TYPE_CHECKING:
    from kerncheck.model.environment import Environment


@check("KC134", "libcuda is the driver's own, and Triton finds it", needs=("environment", "gpus"))
def libcuda(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge which libcuda the loader takes.

    What it checks
    Where libcuda.so.1 would be loaded from, without loading it, and whether that is the library of the driver that is
    loaded: not one of a compat directory, and on WSL the one that Windows provides.

    Why it matters
    A compat library on a GPU that does not support it fails with error 804. One that is installed but not loaded
    leaves run-time compiled kernels to an older driver. Without any, Triton cannot load what it compiled.

    Example
    libcuda.so.1 resolves to /usr/local/cuda/compat (570.124.06), the kernel module is 525.147.05, the GPU a GeForce.

    How to fix
    Take the compat directory off LD_LIBRARY_PATH, or update the driver. On WSL set TRITON_LIBCUDA_PATH to
    /usr/lib/wsl/lib.
    """
    environment = seen(case.snapshot.environment)
    if case.job.profile in OUTSIDE:
        yield say.not_applicable("libcuda", OUTSIDE[case.job.profile])
        return
    if not has_gpus(case.snapshot.gpus):
        yield say.not_applicable("libcuda", "the driver shows no GPU (KC104)")
        return
    yield judge_libcuda(case, environment, seen(environment.libcuda), say)


def judge_libcuda(case: Case, environment: Environment, library: DriverLibrary, say: Say) -> Outcome:
    """Tell apart none, a compat library in use, one not in use, and the driver's own."""
    gpus = seen(case.snapshot.gpus)
    driver = parse(gpus.driver)
    if not library.path:
        return no_libcuda(environment, say)
    loaded = parse(library.version)
    if "/compat" in library.target and loaded and driver and loaded.major != driver.major:
        return compat_in_use(case, library, gpus, say)
    newest = max(library.compat, key=compat_version, default="")
    newer = bool(newest) and driver is not None and compat_version(newest).major > driver.major
    if newer and "/compat" not in library.target:
        return compat_unused(library, newest.rpartition(".so.")[2], gpus.driver, say)
    return say.passed("libcuda", f"libcuda.so.1 is {library.path} ({library.via})")


def compat_unused(library: DriverLibrary, newest: str, driver: str, say: Say) -> Outcome:
    """Say that newer compat libraries are installed and not the ones that are taken."""
    return say.failed(
        "libcuda",
        f"compat libraries {newest} are installed, the loaded libcuda is that of driver {driver}",
        found=f"{library.path} ({library.via})",
        wanted="the compat libraries in use, or a driver that is not older than they are",
        remedy="let the container toolkit choose (no LD_LIBRARY_PATH or bind mount of libcuda), or update the "
        "driver; kernels compiled at run time may fail with error 222",
        severity="warning",
        source="NVIDIA/JAX-Toolbox#1022",
    )


def compat_version(path: str) -> Version:
    """Return the version in the name of a compat library; 0 for a name without one."""
    return parse(path.rpartition(".so.")[2]) or Version("0")


def no_libcuda(environment: Environment, say: Say) -> Outcome:
    """Say that the loader finds no libcuda, and what helps on WSL."""
    wsl = "microsoft" in environment.kernel.casefold()
    return say.failed(
        "libcuda",
        "the loader finds no libcuda.so.1, though the driver shows a GPU",
        found="not in LD_LIBRARY_PATH, the loader's cache or the usual folders",
        wanted="libcuda.so.1 of the driver",
        remedy="set TRITON_LIBCUDA_PATH=/usr/lib/wsl/lib"
        if wsl
        else "start the container with "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility, or run ldconfig on the folder of libcuda.so.1",
        severity="warning" if wsl else "error",
        source="microsoft/WSL#8587; triton-lang/triton#3862",
    )


def compat_in_use(case: Case, library: DriverLibrary, gpus: Gpus, say: Say) -> Outcome:
    """Judge a compat library that is taken: only data-centre GPUs support it for sure."""
    kinds = {row.kind if (row := case.catalog.gpu(gpu.name)) else "unknown" for gpu in gpus.gpus}
    message = (
        f"libcuda.so.1 resolves to the compat directory ({library.version}), the driver is {gpus.driver}, "
        f"the GPU is a {gpus.gpus[0].name}"
    )
    if "consumer" not in kinds:
        return say.note("libcuda", message + ": forward compatibility, which data-centre GPUs support")
    return say.failed(
        "libcuda",
        message,
        found=f"{library.path} -> {library.target}",
        wanted=f"the libcuda of driver {gpus.driver}",
        remedy="take the compat directory off LD_LIBRARY_PATH and the loader's configuration, or update the driver",
        source="NVIDIA/nvidia-docker#1515; gpustack/gpustack#1254",
    )
