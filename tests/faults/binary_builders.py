"""Builds trees with compiled files for the tests of what is read without loading: a torch of small real libraries,
extensions linked to it, and GPU code of chosen architectures (FX-5: a made-up fat binary in a real shared object).
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from builders import CATALOG, CONV_OPS, NOT_SEEN, conv_package, extension, job_for, library

from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.model.environment import Environment, Gpu, Gpus, TorchBuild
from kerncheck.model.job import Job
from kerncheck.model.snapshot import Snapshot
from kerncheck.report import Report
from kerncheck.stages import binaries
from kerncheck.stages.common import Ask
from kerncheck.supervise import Supervisor
from kerncheck.targets import parse_targets

CUBIN, PTX, LTO = 2, 1, 8
A, F = 0x100000, 0x200000
ZSTD, LZ4 = 0x8000, 0x2000
ERROR_NEW = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
ERROR_OLD = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
SET_DEVICE = "_ZN3c104cuda9SetDeviceEab"
SYMBOLS = {
    "libc10.so": (ERROR_NEW, "_ZN3c104impl3cow11cow_deleterEPv"),
    "libc10_cuda.so": (SET_DEVICE,),
    "libtorch_cpu.so": ("_ZN5torch7LibraryC1ENS0_4KindE",),
    "libtorch_cuda.so": ("_ZN2at4cuda4warpEv",),
    "libtorch.so": (),
    "libtorch_python.so": ("_Z16THPVariable_WrapN2at10TensorBaseE",),
}


def entry(kind: int, arch: int, *, flags: int = 0, isa: tuple[int, int] = (0, 0), size: int = 16) -> bytes:
    """Return one entry of a fat binary, as nvcc 13.0 lays it out."""
    head = struct.pack(
        "<HHIQIIHHIIIQ", kind, 0x101, 64, size, size if flags else 0, 0, isa[1], isa[0], arch, 0, 0, flags
    )
    return head.ljust(64, b"\0") + bytes(size)


def fatbin(*entries: bytes) -> bytes:
    """Return one container."""
    images = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(images)) + images


def codes_of(*names: str, isa: tuple[int, int] = (9, 0)) -> bytes:
    """Return a container with code of these names: ``sm_90a``, ``compute_100f``."""
    entries = []
    for name in names:
        kind, _, text = name.partition("_")
        flags = {"a": A, "f": F}.get(text[-1], 0)
        number = int(text.rstrip("af"))
        entries.append(
            entry(CUBIN if kind == "sm" else PTX, number, flags=flags, isa=isa if kind == "compute" else (1, 7))
        )
    return fatbin(*entries)


def add_section(path: Path, content: bytes, name: str = ".nv_fatbin") -> Path:
    """Add a section to a shared object, or replace it."""
    blob = path.with_name(path.name + ".bin")
    blob.write_bytes(content)
    subprocess.run(["objcopy", "--remove-section", name, str(path)], check=True)
    subprocess.run(["objcopy", "--add-section", f"{name}={blob}", str(path)], check=True)
    blob.unlink()
    return path


def torch_tree(folder: Path, *, cuda: str = "13.0", symbols: dict[str, tuple[str, ...]] | None = None) -> Path:
    """Build a torch of small libraries that need each other as the real ones do; without ``cuda`` a CPU build.

    A CUDA build takes its runtime from ``nvidia/cu13/lib``, by RPATH, as the wheel does.
    """
    lib, major = folder / "torch" / "lib", cuda.partition(".")[0]
    nvidia = folder / "nvidia" / f"cu{major}" / "lib"
    chosen = {**SYMBOLS, **(symbols or {})}
    runtime = [library(nvidia / f"libcudart.so.{major}", "cudaMalloc")] if cuda else []
    near = f"-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cu{major}/lib"
    built: dict[str, Path] = {}
    for name in (
        "libc10.so",
        "libc10_cuda.so",
        "libtorch_cpu.so",
        "libtorch_cuda.so",
        "libtorch.so",
        "libtorch_python.so",
    ):
        if cuda or "cuda" not in name:
            needs = needs_of(name, built, runtime)
            built[name] = library(lib / name, *chosen[name], flags=("-Wl,--no-as-needed", *map(str, needs), near))
    library(lib / "libtorch_global_deps.so", flags=("-Wl,--no-as-needed", *map(str, runtime), near))
    (folder / "torch" / "__init__.py").write_text("")
    return folder


def needs_of(name: str, built: dict[str, Path], runtime: list[Path]) -> list[Path]:
    """Return what one of torch's libraries needs."""
    if name == "libc10.so":
        return []
    if name == "libtorch_python.so":
        return list(built.values())
    return [built["libc10.so"], *(runtime if "cuda" in name else [])]


def torch_flags(folder: Path, *names: str) -> list[str]:
    """Return the flags that link an extension to torch's libraries, as its build helper does (no RPATH)."""
    lib = folder / "torch" / "lib"
    return ["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", *(str(lib / name) for name in names)]


CUDA_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libc10_cuda.so", "libtorch_cuda.so")


def conv_tree(folder: Path, *flags: str, names: tuple[str, ...] = CUDA_LIBRARIES, **options: str) -> Path:
    """Build causal_conv1d beside a torch, its extension linked to torch's libraries; return the extension."""
    conv_package(folder)
    return extension(folder, *torch_flags(folder, *names), *flags, **options)


def record(folder: Path, distribution: str, *files: Path, version: str) -> Path:
    """Write the RECORD of a distribution for files as they are now."""
    place = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    place.mkdir(exist_ok=True)
    lines = []
    for file in files:
        data = file.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{file.relative_to(folder)},sha256={digest},{len(data)}\n")
    (place / "RECORD").write_text("".join(lines))
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    return place


def copy_tree(source: Path, target: Path) -> Path:
    """Copy a built tree, so that a test may break it."""
    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
    return target


def image_job(*targets: str, driver: str = "", ops: tuple[str, ...] = CONV_OPS) -> Job:
    """Return the job of an image for these targets."""
    import msgspec

    job = job_for(*ops, profile="image")
    return msgspec.structs.replace(job, targets=parse_targets(targets, CATALOG), driver=driver)


def look(  # noqa: PLR0913 - a machine has as many parts
    tree: Path,
    job: Job,
    *,
    cuda: str = "13.0",
    version: str = "2.14.1",
    environment: dict[str, str] | None = None,
    gpus: tuple[Gpu, ...] = (),
    driver: str = "",
) -> Snapshot:
    """Run the real probe in a child that sees the tree first; what torch is built for is told by hand."""
    ask = Ask(job=job, catalog=CATALOG, environment=NOT_SEEN, devices=NOT_SEEN, timeout=30.0)
    extra = {"PYTHONPATH": str(tree), **(environment or {})}
    planned = [replace(run, environment={**run.environment, **extra}) for run in binaries.runs(ask)]
    section = binaries.collect(ask, [Supervisor(sys.executable).run(run) for run in planned])
    seen = Environment(torch=TorchBuild(version=version, cuda=cuda))
    return Snapshot(job=job, binaries=section, environment=seen, gpus=Gpus(gpus=gpus, driver=driver))


def judge_binaries(
    tree: Path, *targets: str, job: Job | None = None, select: str = "KC23", **options: object
) -> Report:
    """Read a tree's compiled files for an image, judge them, and report. Without a target it is sm_90."""
    job = job or image_job(*(targets or ("sm_90",)))
    snapshot = look(tree, job, **options)
    chosen = [check for check in all_checks() if check.code.startswith(select) and "binaries" in check.needs]
    outcomes, crashes = judge(Case(job, snapshot, CATALOG), chosen)
    assert crashes == ()
    return Report(version="test", job=job, snapshot=snapshot, outcomes=outcomes, crashes=crashes)
