from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kerncheck.probes import toolchain

MOUNTS = r"""22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / /home rw,nosuid shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/user/local\040disk rw - xfs /dev/sdb rw
32 22 0:42 / /run rw,nosuid,nodev,noexec - tmpfs tmpfs rw,size=1g
33 22 0:43 / /scratch rw - lustre mds:/scratch rw
not a mount line
"""


@pytest.mark.parametrize(
    ("path", "point", "filesystem", "noexec"),
    [
        ("/home/user/.triton/cache", "/home", "nfs4", False),
        ("/home/user/local disk/cache", "/home/user/local disk", "xfs", False),
        ("/run/x", "/run", "tmpfs", True),
        ("/runfoo", "/", "ext4", False),
        ("/scratch/a/b", "/scratch", "lustre", False),
        ("/opt", "/", "ext4", False),
    ],
)
def test_the_mount_that_holds_a_path(path, point, filesystem, noexec):
    found = toolchain.mount_of(path, MOUNTS)
    assert (found[0], found[1], "noexec" in found[2]) == (point, filesystem, noexec)


def test_without_a_mount_table_nothing_is_known():
    assert toolchain.mount_of("/opt", "") == ("", "", [])


@pytest.mark.parametrize(
    ("variables", "folder", "via"),
    [
        ({"TRITON_CACHE_DIR": "/a/b"}, "/a/b", "TRITON_CACHE_DIR"),
        ({"TRITON_HOME": "/t", "HOME": "/h"}, "/t/.triton/cache", "TRITON_HOME"),
        ({"HOME": "/h"}, "/h/.triton/cache", "HOME"),
    ],
)
def test_the_cache_folder_is_found_as_triton_finds_it(monkeypatch, variables, folder, via):
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert toolchain.cache_place() == (folder, via)


def test_without_home_the_user_database_decides(monkeypatch):
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert toolchain.cache_place()[1] == "the user database (HOME is unset)"


def test_a_cache_folder_that_will_be_made_is_tried_in_the_one_above(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not" / "yet"))
    folder = toolchain.triton_cache()
    assert (folder["exists"], folder["writable"], folder["noexec"], folder["owner"]) == (False, True, False, None)
    assert folder["filesystem"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_cache_folder_should_be_and_a_folder_that_takes_no_file(monkeypatch, tmp_path):
    assert toolchain.try_to_write(str(tmp_path)) == ""
    assert "No such file" in toolchain.try_to_write(str(tmp_path / "gone"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/self/kerncheck")
    assert toolchain.triton_cache()["writable"] is False


def test_links_are_resolved(monkeypatch, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "link"))
    assert toolchain.triton_cache()["path"] == str(tmp_path / "real")


def program(folder, name, script):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


SAYS = "echo 'Cuda compilation tools, release {0}, V{0}.86'"


def test_nvcc_by_variable_then_path_then_nothing(monkeypatch, tmp_path):
    by_variable = program(tmp_path / "cuda" / "bin", "nvcc", SAYS.format("12.9"))
    by_path = program(tmp_path / "path", "nvcc", SAYS.format("13.0"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/bin")
    assert toolchain.find_nvcc() == (str(by_variable), "CUDA_HOME")
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert toolchain.find_nvcc() == (str(by_path), "PATH")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(toolchain, "USUAL_CUDA", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "path", [])
    assert toolchain.find_nvcc() == ("", "")


def test_a_variable_without_nvcc_does_not_hide_the_one_on_path(monkeypatch, tmp_path):
    by_path = program(tmp_path / "path", "nvcc", SAYS.format("13.0"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert toolchain.find_nvcc()[0] == str(by_path)


def test_ptxas_named_by_a_variable_that_triton_reads(monkeypatch, tmp_path):
    path = program(tmp_path, "ptxas", SAYS.format("13.0"))
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(path))
    assert toolchain.find_ptxas("ptxas") == (str(path), "TRITON_PTXAS_PATH")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "gone"))
    assert toolchain.find_ptxas("ptxas")[1] != "TRITON_PTXAS_PATH"


@pytest.mark.parametrize(
    ("script", "version", "problem"),
    [
        (SAYS.format("12.9"), "12.9.86", ""),
        ("echo 'release 13.0, no more'", "13.0", ""),
        ("echo nonsense; exit 3", "", "exited with 3: nonsense"),
        ("sleep 30", "", "no answer to --version"),
    ],
)
def test_what_a_program_answers(monkeypatch, tmp_path, script, version, problem):
    monkeypatch.setattr(toolchain, "SECONDS", 0.3)
    path = str(program(tmp_path, "tool", script))
    started = time.monotonic()
    tool = toolchain.answered((path, "here"), toolchain.start(path))
    assert tool["version"] == version
    assert problem in tool["problem"]
    assert bool(problem) == bool(tool["problem"])
    assert time.monotonic() - started < 10


def test_a_program_that_cannot_be_started(tmp_path):
    path = tmp_path / "tool"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    tool = toolchain.answered((str(path), ""), toolchain.start(str(path)))
    assert tool["problem"].startswith("cannot be started")
    assert toolchain.answered(("", ""), toolchain.start(""))["path"] == ""


def test_the_compiler_as_triton_looks_for_it(monkeypatch, tmp_path):
    gcc = program(tmp_path, "gcc", "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert toolchain.compiler()["path"] == str(gcc)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert toolchain.compiler() == {
        "kind": "tool",
        "path": "",
        "via": "CC",
        "problem": "CC=no-such-compiler names no program",
    }
    monkeypatch.delenv("CC")
    gcc.rename(tmp_path / "clang")
    assert toolchain.compiler()["path"] == str(tmp_path / "clang")
    (tmp_path / "clang").unlink()
    assert toolchain.compiler()["path"] == ""


def test_libcuda_on_the_library_path_and_its_version(monkeypatch, tmp_path):
    (tmp_path / "compat").mkdir()
    (tmp_path / "compat" / "libcuda.so.570.124.06").write_bytes(b"")
    (tmp_path / "compat" / "libcuda.so.1").symlink_to("libcuda.so.570.124.06")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'empty'}:{tmp_path / 'compat'}")
    found = toolchain.libcuda()
    assert (found["version"], found["via"]) == ("570.124.06", "LD_LIBRARY_PATH")
    assert found["target"].endswith("compat/libcuda.so.570.124.06")


def test_no_libcuda_is_an_empty_path_and_no_error(monkeypatch, tmp_path):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(toolchain, "LDCONFIG", str(tmp_path / "no-ldconfig"))
    monkeypatch.setattr(toolchain, "LIBRARY_FOLDERS", (str(tmp_path),))
    assert toolchain.libcuda()["path"] == ""
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    assert toolchain.libcuda()["via"] == str(tmp_path)


def test_the_headers_of_this_interpreter():
    found = toolchain.headers()
    assert found == "" or Path(found).name == "Python.h"
    include = subprocess.run(
        [sys.executable, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert bool(found) == (Path(include) / "Python.h").is_file()
