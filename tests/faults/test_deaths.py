"""Imports that hang, crash, exit or raise what nobody catches: each in a child, each a verdict of its own.

The torch here is a stand-in: what is under test is how an import ends, not torch.
"""

from __future__ import annotations

import pytest
from builders import (
    FLA_OP,
    WRAPPER,
    codes,
    conv_package,
    extension,
    fla_package,
    job_for,
    judge_environment,
    stand_in_torch,
    told,
)

HEALTHY = '__version__ = "0.6.0"\n'
LIMIT = 5.0


@pytest.fixture
def tree(tmp_path):
    return stand_in_torch(tmp_path)


def ends(tree, code: str, *, timeout: float = 30.0, more: str = ""):
    """Judge a package ``fla`` whose import runs this code, then the control: the same package without it."""
    fla_package(tree, root=HEALTHY + code)
    report = judge_environment(tree, job=job_for(FLA_OP), timeout=timeout)
    fla_package(tree, root=HEALTHY + more)
    control = judge_environment(tree, FLA_OP)
    assert (control.exit_code, codes(control)) == (0, set()), told(control)
    return report


SLEEP = "import time\ndef wait_for_the_server():\n    time.sleep(1000)\nwait_for_the_server()\n"
LOCK = "import threading\nlock = threading.Lock()\nlock.acquire()\ndef take_it_twice():\n    lock.acquire()\ntake_it_twice()\n"
PIPE = "import os\nreader, writer = os.pipe()\ndef read_forever():\n    os.read(reader, 1)\nread_forever()\n"


@pytest.mark.parametrize(
    ("code", "frame"),
    [(SLEEP, "wait_for_the_server"), (LOCK, "take_it_twice"), (PIPE, "read_forever")],
    ids=["sleep", "lock", "pipe"],
)
def test_standstill_shows_its_stack(tree, code, frame):
    report = ends(tree, code, timeout=LIMIT)
    assert (report.exit_code, codes(report)) == (1, {"KC210"})
    assert f"innermost first: {frame} (" in told(report)
    assert "importing fla does not return" in told(report)


def test_standstill_inside_an_extension(tree):
    conv_package(tree)
    extension(tree, declarations="extern unsigned sleep(unsigned);", init="sleep(1000);")
    report = judge_environment(tree, timeout=LIMIT)
    assert (report.exit_code, codes(report)) == (1, {"KC210"})
    assert "causal_conv1d/__init__.py:5" in told(report)
    extension(tree)
    assert codes(judge_environment(tree)) == set()


def test_busy_loop_is_slow_not_stuck(tree):
    report = ends(tree, "while True:\n    pass\n", timeout=LIMIT)
    assert (report.exit_code, codes(report)) == (3, set())
    assert any("not finished" in outcome.message for outcome in report.unjudged)


CRASHES = {
    "SIGSEGV": ("", "*(volatile int *)0 = 1;"),
    "SIGABRT": ("extern void abort(void);", "abort();"),
    "SIGFPE": ("", "volatile int zero = 0; zero = 7 / zero;"),
    "SIGILL": ("", "__builtin_trap();"),
}


@pytest.mark.parametrize("name", CRASHES)
def test_crash_in_an_extension(tree, name):
    declarations, init = CRASHES[name]
    conv_package(tree)
    extension(tree, declarations=declarations, init=init)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC209"})
    text = told(report)
    assert f"importing causal_conv1d kills the process with {name}" in text
    assert "causal_conv1d/__init__.py:5" in text  # the frame that imports the extension
    extension(tree)
    assert codes(judge_environment(tree)) == set()


def test_kill_from_outside_is_inconclusive(tree):
    report = ends(tree, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert (report.exit_code, codes(report)) == (3, set())
    assert any("SIGKILL" in outcome.message for outcome in report.unjudged)


def test_running_out_of_memory_is_inconclusive(tree):
    report = ends(tree, 'raise MemoryError("cannot allocate")\n')
    assert (report.exit_code, codes(report)) == (3, set())


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ('print("no licence found", flush=True)\nimport os\nos._exit(0)\n', 0),
        ("import os\nos._exit(7)\n", 7),
        ("import sys\nsys.exit(3)\n", 3),
        ("raise SystemExit\n", 0),
        ('import sys\nsys.exit("no licence found")\n', 1),
    ],
    ids=["_exit0", "_exit7", "sys.exit3", "SystemExit", "text"],
)
def test_exit_is_a_finding_whatever_its_code(tree, code, number):
    report = ends(tree, code)
    assert (report.exit_code, codes(report)) == (1, {"KC211"})
    assert f"ends the process with exit code {number}" in told(report)
    if code.startswith("print"):
        assert "its last output: no licence found" in told(report)


RAISED = {
    "KeyboardInterrupt": ("raise KeyboardInterrupt\n", True),
    "Stop": ("class Stop(BaseException):\n    pass\nraise Stop('outside of Exception')\n", True),
    "GeneratorExit": ("raise GeneratorExit\n", True),
    "RecursionError": ("def again():\n    again()\nagain()\n", False),
    "SyntaxError": ("def broken(:\n", False),
    "AttributeError": ("import json\njson.no_such_function()\n", False),
    "Unreadable": (
        "class Unreadable(Exception):\n    def __str__(self):\n        raise ValueError\nraise Unreadable\n",
        False,
    ),
    "RuntimeError": (
        "try:\n    int('x')\nexcept ValueError as error:\n    raise RuntimeError('wrapped') from error\n",
        False,
    ),
}


@pytest.mark.parametrize("name", RAISED)
def test_whatever_is_raised_is_shown(tree, name):
    code, uncaught = RAISED[name]
    report = ends(tree, code)
    assert (report.exit_code, codes(report)) == (1, {"KC207"})
    text = told(report)
    assert f"importing fla raises {name}:" in text
    assert ("It is no Exception, so that no library catches it" in text) is uncaught
    assert ("that message is wrong here" in text) is not uncaught
    if name == "RuntimeError":
        assert "RuntimeError: wrapped; caused by ValueError" in text


def test_huge_output_before_the_failure(tree):
    report = ends(tree, "for _ in range(40):\n    print('x' * 1_000_000)\nraise OSError('after all that')\n")
    assert (report.exit_code, codes(report)) == (1, {"KC207"})
    assert "OSError: after all that" in told(report)
    assert len(told(report)) < 5000


def test_closed_reply_channel_is_neither_a_pass_nor_an_exit_of_the_package(tree):
    report = ends(tree, "import os\nos.closerange(3, 64)\n")
    assert (report.exit_code, codes(report)) == (3, set())
    assert any("closed the channel" in outcome.message for outcome in report.unjudged)


def test_op_whose_module_crashes_takes_no_other_op_along(tree):
    conv = FLA_OP.replace("gated_delta_rule:chunk_gated_delta_rule", "common:helper")
    fla_package(tree, op="import os\nos.abort()\n")
    (tree / "fla" / "ops" / "common").mkdir()
    (tree / "fla" / "ops" / "common" / "__init__.py").write_text("def helper(x):\n    return x\n")
    report = judge_environment(tree, job=job_for(FLA_OP, conv))
    assert (report.exit_code, codes(report)) == (1, {"KC209"})
    assert conv in {outcome.subject for outcome in report.of("passed")}
    fla_package(tree)
    assert codes(judge_environment(tree, job=job_for(FLA_OP, conv))) == set()


def test_import_that_leaves_a_thread_and_a_child_behind_passes(tree):
    code = (
        "import subprocess, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "subprocess.Popen(['sleep', '1000'])\n"
    )
    report = ends(tree, code)
    assert (report.exit_code, codes(report)) == (0, set())


@pytest.mark.parametrize(
    ("code", "words"), [("import os\nos.abort()", "SIGABRT"), ("import os\nos._exit(0)", "exit code 0")]
)
def test_torch_itself_dies(tree, code, words):
    conv_package(tree)
    extension(tree)
    stand_in_torch(tree, more=code)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC212"})
    assert words in told(report)
    stand_in_torch(tree)
    assert codes(judge_environment(tree)) == set()


def test_death_of_one_package_leaves_the_others_judged(tree):
    conv_package(tree, WRAPPER + "\nimport os\nos.abort()\n")
    extension(tree)
    fla_package(tree)
    report = judge_environment(tree, job=job_for("causal_conv1d:causal_conv1d_fn", FLA_OP))
    assert (report.exit_code, codes(report)) == (1, {"KC209"})
    assert FLA_OP in {outcome.subject for outcome in report.of("passed")}
