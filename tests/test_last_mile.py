"""The last mile: what the first launch on the node needs, judged in an image. Snapshots, then real broken compilers."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from kerncheck import catalog as catalogs
from kerncheck.checks import last_mile as checks
from kerncheck.checks.registry import Case
from kerncheck.cli import run
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.environment import (
    CacheFolder,
    Distribution,
    DriverLibrary,
    Environment,
    LastMile,
    Python,
    Tool,
    Trial,
)
from kerncheck.model.job import Job, Target
from kerncheck.model.snapshot import Snapshot
from kerncheck.probes import last_mile as probe

CATALOG = catalogs.load()
ALL = (checks.launcher, checks.driver_library, checks.toolkit_variables, checks.cache, checks.bindings)
IMAGE = Job(profile="image", targets=(Target(text="h200", cc="9.0", name="H200"),))
GOOD_MILE = LastMile(uid=1000, user="app", home="~", root_filesystem="overlay", trial=Trial(compiler="/usr/bin/gcc"))
GOOD = Environment(
    python=Python(version="3.12.4", headers="/usr/local/include/python3.12/Python.h"),
    distributions=(Distribution(name="transformers", version="5.24.0"), Distribution(name="triton", version="3.9.0")),
    compiler=Tool(path="/usr/bin/gcc", via="PATH"),
    libcuda=DriverLibrary(),
    triton_cache=CacheFolder(path="~/.triton/cache", mount="/", filesystem="overlay"),
    last_mile=GOOD_MILE,
)


def judged(environment, job=IMAGE):
    outcomes, crashes = judge(Case(job, Snapshot(environment=environment), CATALOG), ALL)
    assert crashes == ()
    return outcomes


def told(outcomes, status="failed"):
    return [(item.code, item.subject, item.severity) for item in outcomes if item.status == status]


def changed(mile=None, **fields):
    last = msgspec.structs.replace(GOOD_MILE, **(mile or {}))
    return msgspec.structs.replace(GOOD, last_mile=last, **fields)


def test_a_good_image_passes_everything():
    outcomes = judged(GOOD)
    assert told(outcomes) == []
    assert {item.code for item in outcomes if item.status == "passed"} == {"KC150", "KC151", "KC152", "KC153", "KC154"}
    launcher = next(item for item in outcomes if item.code == "KC150")
    assert launcher.evidence == "rehearsed"


FAULTS = [
    ("ldconfig", changed({"ldconfig": False}), ("KC151", "ldconfig", "error")),
    (
        "stub",
        changed(libcuda=DriverLibrary(path="/usr/local/cuda/lib64/stubs/libcuda.so.1", via="LD_LIBRARY_PATH")),
        ("KC151", "libcuda", "error"),
    ),
    (
        "driver in the image",
        changed(libcuda=DriverLibrary(path="/usr/lib/libcuda.so.1", version="535.183.01", via="loader cache")),
        ("KC151", "libcuda", "warning"),
    ),
    (
        "no compute",
        changed(variables={"NVIDIA_DRIVER_CAPABILITIES": "graphics,utility"}),
        ("KC152", "NVIDIA_DRIVER_CAPABILITIES", "error"),
    ),
    (
        "no utility",
        changed(variables={"NVIDIA_DRIVER_CAPABILITIES": "compute"}),
        ("KC152", "NVIDIA_DRIVER_CAPABILITIES", "warning"),
    ),
    (
        "hidden GPUs",
        changed(variables={"NVIDIA_VISIBLE_DEVICES": "void"}),
        ("KC152", "NVIDIA_VISIBLE_DEVICES", "warning"),
    ),
    (
        "no home",
        changed({"user": "", "home": ""}, triton_cache=CacheFolder(path="/app/~/.triton/cache", via="HOME", mount="/")),
        ("KC153", "Triton cache", "warning"),
    ),
    (
        "root folder as home",
        changed({"user": "", "home": "/"}, triton_cache=CacheFolder(path="/.triton/cache", writable=False, owner=0)),
        ("KC153", "Triton cache", "warning"),
    ),
    (
        "another user's cache",
        changed(triton_cache=CacheFolder(path="/cache", via="TRITON_CACHE_DIR", writable=False, owner=0, mount="/")),
        ("KC153", "Triton cache", "warning"),
    ),
    (
        "a mount of the build",
        changed(triton_cache=CacheFolder(path="~/.triton/cache", mount="/home/app/.triton", filesystem="ext4")),
        ("KC153", "Triton cache", "warning"),
    ),
]


@pytest.mark.parametrize(("environment", "finding"), [item[1:] for item in FAULTS], ids=[item[0] for item in FAULTS])
def test_each_fault_is_one_finding(environment, finding):
    outcomes = judged(environment)
    assert told(outcomes) == [finding]
    failed = next(item for item in outcomes if item.status == "failed")
    assert failed.found
    assert failed.remedy


CONTROLS = {
    "all capabilities": changed(variables={"NVIDIA_DRIVER_CAPABILITIES": "all", "NVIDIA_VISIBLE_DEVICES": "all"}),
    "both capabilities": changed(variables={"NVIDIA_DRIVER_CAPABILITIES": "utility, compute"}),
    "empty capabilities": changed(variables={"NVIDIA_DRIVER_CAPABILITIES": ""}),
    "libcuda named": changed({"ldconfig": False}, variables={"TRITON_LIBCUDA_PATH": "/usr/lib64"}),
    "compat": changed(libcuda=DriverLibrary(path="/usr/local/cuda/compat/libcuda.so.1", via="loader cache")),
    "a build that sees a GPU": changed(libcuda=DriverLibrary(path="/usr/lib/libcuda.so.1"), nodes=("/dev/nvidia0",)),
    "cache by a variable": changed(
        {"user": "", "home": ""}, triton_cache=CacheFolder(path="/cache", via="TRITON_CACHE_DIR", mount="/")
    ),
    "root with the root folder as home": changed({"uid": 0, "user": "root", "home": "/"}),
    "a laptop's own partition": changed(
        {"root_filesystem": "ext4"}, triton_cache=CacheFolder(path="~/.triton/cache", mount="/home", filesystem="ext4")
    ),
    "root": changed({"uid": 0, "user": "root"}),
}


@pytest.mark.parametrize("environment", CONTROLS.values(), ids=CONTROLS)
def test_what_is_right_is_no_finding(environment):
    assert told(judged(environment)) == []


def test_root_is_told_that_another_user_is_not_shown():
    notes = told(judged(CONTROLS["root"]), "note")
    assert notes == [("KC153", "run-time user", "error")]
    assert told(judged(changed({"uid": 0, "user": "root", "cache_for_others": True})), "note") == []


def test_a_cache_under_tmp_is_a_note():
    folder = CacheFolder(path="/tmp/triton", via="TRITON_CACHE_DIR", mount="/")
    notes = [item for item in judged(changed(triton_cache=folder)) if item.status == "note"]
    assert [item.subject for item in notes] == ["Triton cache"]


@pytest.mark.parametrize(("model", "status"), [(None, "not_judged"), (CATALOG.model("qwen").request(), "passed")])
def test_flags_of_older_transformers_are_asked_as_if_a_gpu_were_there(model, status):
    older = changed(distributions=(*GOOD.distributions[1:], Distribution(name="transformers", version="5.12.1")))
    outcome = next(item for item in judged(older, Job(profile="image", model=model)) if item.code == "KC154")
    assert outcome.status == status
    assert "torch.cuda.is_available()" in outcome.message


@pytest.mark.parametrize("profile", ["node", "ci"])
def test_only_images_are_judged(profile):
    outcomes = judged(FAULTS[0][1], Job(profile=profile))
    assert {item.status for item in outcomes} == {"not_applicable"}


def test_without_triton_there_is_nothing_to_ask():
    bare = changed({"ldconfig": False}, distributions=())
    assert told(judged(bare)) == []


def test_what_could_not_be_looked_at_is_no_pass():
    outcomes = judged(changed({"trial": Missing(reason="the compiler went away")}))
    launcher = [item for item in outcomes if item.code == "KC150"]
    assert [(item.status, item.required) for item in launcher] == [("not_judged", True)]


def test_a_missing_compiler_is_left_to_its_own_check():
    outcomes = judged(changed(compiler=Tool()))
    assert [item.status for item in outcomes if item.code == "KC150"] == ["not_applicable"]


# Real compilers, real breakage: the whole command, in a child, with a Triton of this release's layout.


@pytest.fixture
def triton(tmp_path, monkeypatch):
    """Put a package with Triton's metadata and a C file with the includes of Triton's own on the import path."""
    home = tmp_path / "site" / "triton" / "backends" / "nvidia"
    (home / "include").mkdir(parents=True)
    (home / "include" / "cuda.h").write_text("#include <stdlib.h>\n")
    includes = ("<dlfcn.h>", "<stdbool.h>", "<stddef.h>", "<stdio.h>", "<Python.h>")
    (home / "driver.c").write_text('#include "cuda.h"\n' + "".join(f"#include {name}\n" for name in includes))
    (tmp_path / "site" / "triton" / "__init__.py").write_text('__version__ = "3.9.0"\n')
    info = tmp_path / "site" / "triton-3.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 3.9.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("CC", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES", "TRITON_LIBCUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def verified(tmp_path, select="KC150"):
    report = tmp_path / "report.json"
    arguments = ["verify", "--profile", "image", "--target", "h200", "--select", select, "--format", "json"]
    code = run([*arguments, "--output", str(report)])
    outcomes = json.loads(report.read_text())["outcomes"]
    return code, [item for item in outcomes if item["code"].startswith(select)]


def wrapper(tmp_path, text):
    program = tmp_path / "cc"
    program.write_text(f'#!/bin/sh\nexec {GCC} {text} "$@"\n')
    program.chmod(0o755)
    return str(program)


GCC = shutil.which("gcc") or "gcc"
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to break")


@needs_gcc
def test_a_whole_compiler_passes(triton, monkeypatch):
    monkeypatch.setenv("CC", wrapper(triton, ""))
    code, outcomes = verified(triton)
    assert code == 0, outcomes
    assert [(item["status"], item["evidence"]) for item in outcomes] == [("passed", "rehearsed")]


@needs_gcc
def test_a_compiler_without_the_c_library_fails(triton, monkeypatch):
    own = subprocess.run([GCC, "-print-file-name=include"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("CC", wrapper(triton, f"-nostdinc -isystem {own}"))
    code, outcomes = verified(triton)
    assert code == 1
    assert "the C library's headers are absent" in outcomes[0]["message"]
    assert "libc6-dev" in outcomes[0]["remedy"]


@needs_gcc
def test_a_compiler_without_a_linker_fails(triton, monkeypatch):
    folder = triton / "programs"
    folder.mkdir()
    for name in ("as", "sh"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("CC", GCC)
    monkeypatch.setenv("PATH", str(folder))
    code, outcomes = verified(triton)
    assert code == 1
    assert "no assembler or linker" in outcomes[0]["message"]
    assert "binutils" in outcomes[0]["remedy"]


def test_the_probe_tells_who_may_write(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    inside = closed / "inside"
    inside.mkdir()
    inside.chmod(0o777)
    assert probe.for_others(str(inside)) is False  # nobody else gets through the folder above it
    closed.chmod(0o711)
    assert probe.for_others(str(inside)) == reachable(tmp_path)
    closed.chmod(0o777)
    assert probe.for_others(str(closed / "not yet")) == reachable(tmp_path)


def reachable(path: Path) -> bool:
    """Tell whether every folder above pytest's own lets others through (it makes one of mode 700)."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents if folder != Path("/"))
