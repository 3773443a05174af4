"""Children that raise, crash, exit, stand still, are slow or are killed: each is told apart, none ends the run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from kerncheck.model.base import Broken, Missing
from kerncheck.supervise import Answers, ProbeRun, Supervisor

PROBE = """
import os, sys, time, signal, ctypes, subprocess

def setup(options):
    exec(options.get("setup", ""))
    return options

def run(case, state):
    exec(case["do"])
    return {"name": case["name"], "pid": os.getpid()}
"""


@pytest.fixture
def walk(tmp_path):
    package = tmp_path / "strange"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "probe.py").write_text(PROBE)

    def run(*cases: str, limit: float = 3.0, setup: str = "", supervisor: Supervisor | None = None) -> Answers:
        return (supervisor or Supervisor(sys.executable)).run(
            ProbeRun(
                label="test",
                probe="strange.probe",
                cases=tuple({"name": str(index), "do": code} for index, code in enumerate(cases)),
                options={"setup": setup},
                environment={"PYTHONPATH": str(tmp_path)},
                limit=limit,
                setup_limit=limit,
            )
        )

    return run


def test_healthy_cases_share_one_child(walk):
    answers = walk("pass", "pass")
    assert [answer["name"] for answer in answers.cases] == ["0", "1"]
    assert answers.cases[0]["pid"] == answers.cases[1]["pid"]
    assert answers.setup is None


def test_exception_is_reported_with_its_causes(walk):
    code = "try:\n    raise OSError('inner')\nexcept OSError as e:\n    raise ValueError('outer') from e"
    (answer,) = walk(code).cases
    assert isinstance(answer, Broken)
    assert (answer.how, answer.exception, answer.message) == ("raised", "ValueError", "outer")
    assert answer.chain == ("ValueError: outer", "OSError: inner")


def test_base_exceptions_are_reported_too(walk):
    (answer, after) = walk("class Strange(BaseException): pass\nraise Strange('x')", "pass").cases
    assert isinstance(answer, Broken)
    assert answer.exception == "Strange"
    assert after["name"] == "1"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_signal_names_the_case_and_the_next_case_still_runs(walk, name):
    first, died, after = walk("pass", f"os.kill(os.getpid(), signal.{name})", "pass").cases
    assert isinstance(died, Broken)
    assert (died.how, died.signal, died.message) == ("signal", getattr(signal, name), f"killed by {name}")
    assert first["pid"] != after["pid"]


@pytest.mark.parametrize(
    ("code", "number"), [("os._exit(0)", 0), ("os._exit(7)", 7), ("sys.exit(5)", 5), ("sys.exit('x')", 1)]
)
def test_exit_is_an_observation_whatever_its_code(walk, code, number):
    answer, after = walk(code, "pass").cases
    assert isinstance(answer, Broken)
    assert (answer.how, answer.exit_code) == ("exit", number)
    assert after["name"] == "1"


def test_standstill_is_told_from_slow_work(walk):
    stuck, busy, after = walk("time.sleep(60)", "while True: pass", "pass").cases
    assert isinstance(stuck, Broken)
    assert stuck.how == "stood_still"
    assert "strange/probe.py" in stuck.detail  # the stack, asked for from outside
    assert isinstance(busy, Missing)
    assert "slow rather than stuck" in busy.reason
    assert after["name"] == "2"


def test_work_in_a_grandchild_is_not_a_standstill(walk):
    (answer,) = walk("subprocess.run([sys.executable, '-c', 'while True: pass'])").cases
    assert isinstance(answer, Missing)


def test_kill_from_outside_and_memory_errors_are_inconclusive(walk):
    killed, memory, after = walk("os.kill(os.getpid(), signal.SIGKILL)", "raise MemoryError", "pass").cases
    assert isinstance(killed, Missing)
    assert "SIGKILL" in killed.reason
    assert isinstance(memory, Missing)
    assert "out of memory" in memory.reason
    assert after["name"] == "2"


def test_death_during_setup_leaves_every_case_unseen(walk):
    answers = walk("pass", "pass", setup="os.abort()")
    assert isinstance(answers.setup, Broken)
    assert all(isinstance(answer, Missing) and "could not start" in answer.reason for answer in answers.cases)


def test_what_libraries_print_does_not_disturb_the_answers(walk):
    answer, after = walk("print('x' * 10**6); os.write(1, b'{\"event\": \"done\"}')", "pass").cases
    assert answer["name"] == "0"
    assert after["name"] == "1"


def test_an_answer_that_is_not_json_is_the_probes_own_failure(tmp_path):
    (tmp_path / "nan").mkdir()
    (tmp_path / "nan" / "probe.py").write_text("def setup(o): pass\ndef run(c, s): return {'x': float('nan')}")
    run = ProbeRun(label="x", probe="nan.probe", cases=({},), environment={"PYTHONPATH": str(tmp_path)})
    (answer,) = Supervisor(sys.executable).run(run).cases
    assert isinstance(answer, Broken)
    assert answer.exception == "ValueError"


def test_stop_ends_children_and_their_children(walk, tmp_path):
    mark = tmp_path / "grandchild"
    code = f"subprocess.Popen(['sleep', '77']); open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(77)"
    supervisor = Supervisor(sys.executable)
    thread = threading.Thread(target=walk, args=(code,), kwargs={"limit": 60.0, "supervisor": supervisor})
    thread.start()
    until = time.monotonic() + 20
    while not (mark.exists() and mark.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    group = int(mark.read_text())
    supervisor.stop()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert gone(group)


def gone(group: int, within: float = 10.0) -> bool:
    """Wait for the end of a group: a process that was sent SIGKILL still runs until the kernel takes its turn."""
    until = time.monotonic() + within
    while members(group) and time.monotonic() < until:
        time.sleep(0.05)
    return not members(group)


def members(group: int) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(entry.name)
    return found


def test_children_see_nothing_of_the_parents_packages(tmp_path):
    (tmp_path / "look").mkdir()
    (tmp_path / "look" / "probe.py").write_text(
        "import sys\ndef setup(o): pass\n"
        "def run(c, s):\n"
        "    import kerncheck\n"
        "    return {'file': getattr(kerncheck, '__file__', None), 'loaded': 'msgspec' in sys.modules,"
        " 'flag': sys.dont_write_bytecode}"
    )
    run = ProbeRun(label="x", probe="look.probe", cases=({},), environment={"PYTHONPATH": str(tmp_path)})
    (answer,) = Supervisor(sys.executable).run(run).cases
    assert answer == {"file": None, "loaded": False, "flag": True}
    assert os.getpid()
