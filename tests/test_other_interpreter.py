"""``--python``: an environment without kerncheck is judged from outside, and stays byte for byte as it was."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

NOT_THERE = ("kerncheck", "msgspec", "click", "rich", "pyelftools", "elftools", "pynvml", "nvidia_ml_py")
COPIED = ("fla",)  # so that a file written into a judged package would be seen; the others are links


@pytest.fixture
def second(tmp_path):
    """A virtual environment with the installed torch, Triton, transformers and fla, and nothing of kerncheck."""
    folder = tmp_path / "second"
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    for entry in Path(metadata.distribution("torch").locate_file("")).iterdir():
        if entry.name.startswith((*NOT_THERE, "__editable__", "_")) or entry.suffix == ".pth":
            continue
        if entry.name in COPIED:
            subprocess.run(["cp", "-r", entry, site / entry.name], check=True)
        else:
            (site / entry.name).symlink_to(entry)
    return folder


def state(folder):
    """Return every entry of a folder with its kind, mode, time of change, and content or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        what = path.readlink() if path.is_symlink() else path.is_file() and hashlib.sha256(path.read_bytes()).digest()
        found[str(path.relative_to(folder))] = (facts.st_mode, facts.st_mtime_ns, what)
    return found


def verify(python, home, *options):
    command = [sys.executable, "-m", "kerncheck", "verify", "--model", "qwen", "--python", str(python), *options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [*command, "--format", "json"],
        env={**environment, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, json.loads(done.stdout)


def test_an_environment_without_kerncheck_is_judged_and_left_as_it_was(second, tmp_path):
    python = second / "bin" / "python"
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    absent = subprocess.run([python, "-c", "import kerncheck"], capture_output=True, text=True, check=False, env=plain)
    assert "No module named 'kerncheck'" in absent.stderr
    home = tmp_path / "home"
    home.mkdir()
    before = state(second)
    options = ("--device", "emulate", "--quick", "--select", "KC2", "--select", "KC3")
    code, report = verify(python, home, *options)
    assert [(one["code"], one["message"]) for one in report["outcomes"] if one["status"] == "failed"] == []
    assert code == 0, report["sentence"]
    host = report["snapshot"]["imports"]["host"]
    assert host["prefix"] == str(second)
    packages = {package["package"]: package for package in report["snapshot"]["imports"]["packages"]}
    assert packages["fla"]["root"]["result"]["file"].startswith(str(second))
    assert {one["code"] for one in report["outcomes"] if one["status"] == "passed"} >= {"KC301"}
    assert state(second) == before
    assert state(home) == {}


def test_a_fault_of_the_other_environment_is_found_and_not_that_of_ours(second, tmp_path):
    (init,) = second.glob("lib/python*/site-packages/fla/__init__.py")
    init.write_text("raise ImportError('fla: a build of another year')\n")
    before = state(second)
    code, report = verify(second / "bin" / "python", tmp_path, "--select", "KC207", "--device", "none")
    (finding,) = [one for one in report["outcomes"] if one["status"] == "failed"]
    assert (code, finding["code"]) == (1, "KC207")
    assert "a build of another year" in finding["found"]
    assert state(second) == before
