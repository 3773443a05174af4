"""Machines written by hand, for the tests of the environment's checks: a sound H200, and changes to it."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from kerncheck import catalog as catalogs
from kerncheck.catalog import Catalog
from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.model.environment import (
    CacheFolder,
    Distribution,
    DriverLibrary,
    Environment,
    Gpu,
    Gpus,
    Python,
    Tool,
)
from kerncheck.model.job import Job
from kerncheck.model.outcome import Outcome
from kerncheck.model.snapshot import Snapshot

EMULATED = Job(profile="ci", device="emulate")
ON_A_NODE = Job(profile="node", device="cuda")
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")

SOUND = {
    "torch": "2.14.1+cu130",
    "triton": "3.8.0",
    "fla-core": "0.6.0",
    "flash-linear-attention": "0.6.0",
    "causal-conv1d": "1.7.0",
    "transformers": "5.24.0",
}
GPUS = {
    "8.0": "NVIDIA A100-SXM4-80GB",
    "9.0": "NVIDIA H200",
    "10.0": "NVIDIA B200",
    "12.1": "NVIDIA GB10",
    "7.0": "Tesla V100-SXM2-32GB",
}


@functools.cache
def catalog() -> Catalog:
    """The real catalog, read once."""
    return catalogs.load()


def distributions(versions: dict[str, str | None], **requires: tuple[str, ...]) -> tuple[Distribution, ...]:
    """Installed distributions of these versions; one whose version is None is left out."""
    return tuple(
        Distribution(name=name, version=version, requires=requires.get(name.replace("-", "_"), ()))
        for name, version in versions.items()
        if version is not None
    )


def environment(versions: dict[str, str | None] | None = None, **changes: Any) -> Environment:
    """The environment of a sound node, with other versions (None removes one) and other facts."""
    facts: dict[str, Any] = {
        "python": Python(version="3.12.3", headers="/usr/include/python3.12/Python.h"),
        "glibc": "2.39",
        "distributions": distributions({**SOUND, **(versions or {})}),
        "shared_files": (),
        "nvcc": Tool(),
        "compiler": Tool(path="/usr/bin/gcc", via="PATH"),
        "libcuda": DriverLibrary(path="/usr/lib/x86_64-linux-gnu/libcuda.so.1", version="580.159.03"),
        "triton_cache": CacheFolder(path="/scratch/cache", filesystem="ext4"),
        "nodes": NODES,
        **changes,
    }
    return Environment(**facts)


def gpus(cc: str = "9.0", driver: str = "580.159.03", cuda: str = "13.0", name: str = "") -> Gpus:
    """One GPU of a capability."""
    return Gpus(driver=driver, cuda=cuda, gpus=(Gpu(name=name or GPUS.get(cc, f"GPU {cc}"), cc=cc),))


def qwen(job: Job = ON_A_NODE) -> Job:
    """The same job for the model qwen."""
    profile = catalog().model("qwen")
    assert profile is not None
    return msgspec.structs.replace(job, model=profile.request())


def said(code: str, snapshot: Snapshot, job: Job = ON_A_NODE) -> list[Outcome]:
    """What one check says about a snapshot. A check that raises fails the test."""
    check = next(check for check in all_checks() if check.code == code)
    outcomes, crashes = judge(Case(job, snapshot, catalog()), [check])
    assert crashes == ()
    return list(outcomes)


def one(code: str, snapshot: Snapshot, job: Job = ON_A_NODE) -> Outcome:
    """The only outcome of one check."""
    (outcome,) = said(code, snapshot, job)
    return outcome


def statuses(code: str, snapshot: Snapshot, job: Job = ON_A_NODE) -> set[str]:
    """The different statuses of what one check says."""
    return {outcome.status for outcome in said(code, snapshot, job)}
