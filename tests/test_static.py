from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from machines import ON_A_NODE, catalog

from kerncheck.model.base import Missing
from kerncheck.model.environment import Environment
from kerncheck.probes import static
from kerncheck.stages import environment as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, Supervisor

NOTHING = Missing(reason="not yet")
ASK = Ask(job=ON_A_NODE, catalog=catalog(), environment=NOTHING, devices=NOTHING)
PREFIXES = ["FLA_", "TRITON_"]


def observed(python=sys.executable):
    supervisor = Supervisor(python)
    return stage.collect(ASK, [supervisor.run(run) for run in stage.runs(ASK)])


def test_this_machine_is_described_and_round_trips():
    found = observed()
    assert isinstance(found, Environment)
    assert found.python.version == ".".join(map(str, sys.version_info[:3]))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Environment) == found
    assert found.version("kerncheck") == ""


def test_an_empty_environment_and_a_bare_interpreter(tmp_path, monkeypatch):
    """A fresh interpreter without any package, no HOME, nothing on PATH: every fact is there, or says why not."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    for name in ("HOME", "CC", "LD_LIBRARY_PATH", "USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    found = observed(str(tmp_path / "bare" / "bin" / "python"))
    assert isinstance(found, Environment)
    assert found.distributions == ()
    assert found.torch == Missing(reason="torch is not installed")
    assert found.shared_files == ()
    assert found.compiler.path == ""


def test_the_users_own_variables_reach_the_probe_and_secrets_do_not(monkeypatch):
    monkeypatch.setenv("FLA_TILELANG", "0")
    monkeypatch.setenv("TRITON_TOKEN", "geheim")
    monkeypatch.setenv("TRITON_REMOTE", "redis://user:geheim@host/0")
    monkeypatch.setenv("UNRELATED", "x")
    found = observed()
    assert found.variables["FLA_TILELANG"] == "0"
    assert "geheim" not in str(found.variables)
    assert "UNRELATED" not in found.variables


def test_a_shadowing_folder_and_a_broken_package_on_the_path(tmp_path, monkeypatch):
    """Nothing is imported: a package that would end the process is only read."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text('import os\nos._exit(7)\n__version__ = "9.9.9"\n')
    info = tmp_path / "triton-9.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: triton\nVersion: 9.9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = observed()
    item = found.find("triton")
    assert (item.version, item.imported, item.location) == ("9.9.9", "9.9.9", str(tmp_path))


def test_the_home_directory_is_written_as_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    told = static.tidy(
        {"a": ["/home/someone/x", "/home/someone", "/home/someoneelse"], "b": "p=/home/someone:/x", "c": 1}
    )
    assert told == {"a": ["~/x", "~", "/home/someoneelse"], "b": "p=~:/x", "c": 1}


def test_a_fact_that_cannot_be_had_says_why():
    def broken():
        raise OSError(5, "Input/output error")

    assert static.fact(broken) == {"kind": "missing", "reason": "OSError: [Errno 5] Input/output error"}


def test_device_files_of_a_folder(tmp_path):
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-caps", "kfd", "dxg", "tty"):
        (tmp_path / name).touch()
    found = [Path(node).name for node in static.device_nodes(str(tmp_path))]
    assert found == ["dxg", "kfd", "nvidia-uvm", "nvidia0", "nvidia11", "nvidiactl"]
    assert static.device_nodes(str(tmp_path / "gone")) == []
    assert static.may_open(str(tmp_path / "nvidiactl"))
    assert not static.may_open(str(tmp_path / "nvidia9"))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.147.05  Wed Oct 25 20:27:35 UTC 2023", "525.147.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
    ],
)
def test_the_version_of_the_kernel_module(text, version):
    assert static.DRIVER.search(text)[1] == version


def test_variables_are_chosen_by_name_and_by_prefix():
    given = {"CC": "gcc", "FLA_X": "1", "FLAX": "1", "TRITON_API_KEY": "k", "TRITON_U": "http://a:b@c", "Z": "1"}
    assert static.variables(given, ["CC"], PREFIXES) == {"CC": "gcc", "FLA_X": "1"}


def answers(**groups):
    (run,) = stage.runs(ASK)
    cases = tuple(groups.get(name, {}) for name in stage.GROUPS)
    return [Answers(run=run, setup=None, cases=cases)]


def test_a_group_that_did_not_answer_leaves_the_others():
    found = stage.collect(
        ASK,
        answers(
            interpreter={"python": {"version": "3.12.3"}},
            distributions={"distributions": []},
            cache=Missing(reason="not finished after 20 s"),
        ),
    )
    assert found.triton_cache == Missing(reason="not finished after 20 s")
    assert found.python.version == "3.12.3"


@pytest.mark.parametrize("name", ["interpreter", "distributions"])
def test_without_interpreter_or_distributions_there_is_no_section(name):
    found = stage.collect(ASK, answers(**{name: Missing(reason="killed")}))
    assert isinstance(found, Missing)
    assert name in found.reason
    assert "killed" in found.reason
