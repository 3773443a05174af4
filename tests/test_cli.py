"""The command line: bad input gets one line and exit 2, never a traceback; a bug of ours is 4; options are frozen."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import msgspec
import pytest

from kerncheck.checks.registry import all_checks
from kerncheck.cli import cli, run
from kerncheck.model.snapshot import Snapshot

ROOT = Path(__file__).parents[1]
KERNCHECK = [sys.executable, "-m", "kerncheck"]

OPTIONS = {
    "verify": "model profile device target driver packing training quick select ignore waive fail_on python timeout"
    " form output verbose dry_run",
    "snapshot": "model profile device target driver packing training quick python timeout output",
    "report": "file model html markdown",
    "judge": "file model profile target driver packing training select ignore waive fail_on form output verbose",
    "explain": "code",
    "list": "what",
    "pins": "model gpu python torch driver machine prebuilt output",
    "selftest": "model device python form",
    "trace": "",  # a group: its commands stand in test_tracing_cli.py
    "warm": "model target python timeout cache_dir tokens batch tensor_parallel dtype node_sets keep_ir",
}


def test_every_command_is_listed_here():
    assert set(OPTIONS) == set(cli.commands)


@pytest.mark.parametrize("command", sorted(OPTIONS))
def test_options_do_not_creep_in(command):
    names = [parameter.name for parameter in cli.commands[command].params]
    assert sorted(names) == sorted(OPTIONS[command].split())


def bad(capsys, *arguments: str) -> str:
    assert run(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["verify", "--model", "no-such-model"], "no-such-model"),
        (["verify", "--profile", "node", "--device", "emulate"], "exclude each other"),
        (["verify", "--profile", "ci", "--device", "cuda"], "exclude each other"),
        (["verify", "--select", "KC9"], "no check has the code 'KC9'"),
        (["verify", "--waive", "KC101"], "gives no reason"),
        (["verify", "--python", "/no/such/python"], "no such executable"),
        (["verify", "--output", "/no/such/folder/report.json"], "absent or not writable"),
        (["verify", "--timeout", "0"], "--timeout"),
        (["verify", "--packing", "nonsense"], "--packing"),
        (["verify", "--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
        (["explain", "KC999"], "KC999"),
        (["list", "nonsense"], "nonsense"),
        (["judge", "/no/such/file"], "/no/such/file"),
        (["judge", "/"], "directory"),
    ],
)
def test_bad_usage(capsys, arguments, told):
    message = bad(capsys, *arguments)
    assert told in message
    assert len([line for line in message.splitlines() if line.startswith(("kerncheck:", "Error"))]) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\x00\xff\xfe",
        b'{"schema": "one"}',
        b'{"unknown": 1}',
        b'{"environment": {"kind": "nonsense"}}',
        b'{"environment": {"kind": "missing"}}',
        b'{"snapshot": 3}',
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b'{"numerics": {"kind": "numerics", "cases": 5}}',
    ],
    ids=range(14),
)
def test_an_unreadable_snapshot_is_one_line(capsys, tmp_path, content):
    file = tmp_path / "snapshot.json"
    file.write_bytes(content)
    message = bad(capsys, "judge", str(file))
    assert len(message.splitlines()) == 1
    assert str(file) in message


def test_a_snapshot_of_a_newer_version_is_refused(capsys, tmp_path):
    file = tmp_path / "snapshot.json"
    file.write_text('{"schema": 99}')
    assert "version 99" in bad(capsys, "judge", str(file))


def test_mutated_snapshots_never_crash_the_judge(capsys, tmp_path):
    text = (ROOT / "examples" / "snapshots" / "h100.json").read_text()
    random_ = random.Random(7)
    file = tmp_path / "mutated.json"
    for _ in range(300):
        file.write_text(mutated(text, random_))
        assert run(["judge", str(file), "--model", "qwen"]) in (1, 2, 3)
    assert "Traceback" not in capsys.readouterr().err


def mutated(text: str, random_: random.Random) -> str:
    """Cut, swap or overwrite a piece of JSON text."""
    start = random_.randrange(len(text))
    end = min(len(text), start + random_.choice((1, 2, 8, 40)))
    piece = random_.choice(("", "0", '"', "null", "[]", "{}", "-1e308", "9" * 30, "\\u0000", text[start:end][::-1]))
    return text[:start] + piece + text[end:]


def test_an_empty_snapshot_is_inconclusive(capsys, tmp_path):
    file = tmp_path / "empty.json"
    file.write_text("{}")
    assert run(["judge", str(file)]) == 3
    assert capsys.readouterr().out.splitlines()[-1].endswith("exit 3")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(("name", "code"), [("h100", 1), ("h200", 3)])
def test_the_exit_code_is_the_same_in_every_format(capsys, form, name, code):
    file = ROOT / "examples" / "snapshots" / f"{name}.json"
    assert run(["judge", str(file), "--model", "qwen", "--format", form]) == code
    output = capsys.readouterr().out
    assert (json.loads(output)["exit_code"] == code) if form == "json" else output.rstrip().endswith(f"exit {code}")


def test_judge_reads_the_snapshot_inside_a_report_and_stdin(capsys, tmp_path):
    file = ROOT / "examples" / "snapshots" / "h100.json"
    report = tmp_path / "report.json"
    assert run(["judge", str(file), "--model", "qwen", "--format", "json", "--output", str(report)]) == 1
    assert run(["judge", str(report), "--model", "qwen"]) == 1
    done = subprocess.run(
        [*KERNCHECK, "judge", "-", "--model", "qwen"], input=report.read_bytes(), capture_output=True, check=False
    )
    assert done.returncode == 1
    assert "KC" in capsys.readouterr().out


def test_output_is_written_whole_and_kept_when_the_call_is_bad(capsys, tmp_path):
    target = tmp_path / "report.txt"
    target.write_text("old")
    assert run(["judge", "/no/such/file", "--output", str(target)]) == 2
    assert target.read_text() == "old"
    assert run(["judge", str(ROOT / "examples" / "snapshots" / "h100.json"), "--output", str(target)]) in (1, 3)
    assert target.read_text().rstrip().splitlines()[-1].split()[-2] == "exit"
    assert [path.name for path in tmp_path.iterdir()] == ["report.txt"]


def test_selection_makes_a_partial_verdict(capsys):
    file = str(ROOT / "examples" / "snapshots" / "h200.json")
    run(["judge", file, "--model", "qwen", "--select", "KC1"])
    assert "(partial: --select KC1)" in capsys.readouterr().out.splitlines()[-1]


def test_a_waiver_is_visible_and_changes_the_code(capsys):
    file = str(ROOT / "examples" / "snapshots" / "h100.json")
    assert run(["judge", file, "--model", "qwen", "--select", "KC1", "--format", "json"]) == 1
    failed = [one for one in json.loads(capsys.readouterr().out)["outcomes"] if one["status"] == "failed"]
    codes = sorted({one["code"] for one in failed if one["severity"] == "error"})
    waivers = [part for code in codes for part in ("--waive", f"{code}=known, ticket 7")]
    assert run(["judge", file, "--model", "qwen", "--select", "KC1", *waivers]) != 1
    told = capsys.readouterr()
    assert "[waived: known, ticket 7]" in " ".join(told.out.split())
    assert told.err == ""


def test_a_waiver_that_matches_nothing_says_what_there_is(capsys):
    file = str(ROOT / "examples" / "snapshots" / "h100.json")
    assert run(["judge", file, "--model", "qwen", "--select", "KC1", "--waive", "KC112:no-such-thing=old"]) == 1
    told = capsys.readouterr()
    assert "--waive KC112:no-such-thing matches no finding; the findings of KC112 are about" in told.err
    subject = told.err.partition("are about ")[2].split(",")[0].strip()
    assert f"kerncheck explain KC112; its subject is {subject}" in " ".join(told.out.split())


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.code)
def test_explain_prints_the_page(capsys, check):
    assert run(["explain", check.code.lower()]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{check.code}  {check.title}")
    assert check.page in output


@pytest.mark.parametrize("what", ["checks", "kernels", "models", "matrix"])
def test_lists_are_not_empty(capsys, what):
    assert run(["list", what]) == 0
    assert capsys.readouterr().out.strip()


def test_a_broken_installation_exits_4(tmp_path):
    (tmp_path / "click.py").write_text("raise ImportError('broken on purpose')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*KERNCHECK, "verify"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 4
    assert "exit 4" in done.stderr
    assert done.stdout == ""


def test_a_check_that_raises_exits_4_and_is_named(capsys, monkeypatch):
    from kerncheck import commands
    from kerncheck.checks.registry import check

    def boom(case, say):
        raise ZeroDivisionError("on purpose")
        yield

    monkeypatch.setattr(commands, "all_checks", lambda: (check("KC199", "boom", needs=("environment",))(boom),))
    assert run(["judge", str(ROOT / "examples" / "snapshots" / "h200.json")]) == 4
    assert "KC199 crashed, a bug in kerncheck: ZeroDivisionError: on purpose" in capsys.readouterr().out


def test_a_closed_pipe_keeps_the_verdict():
    command = f"{' '.join(KERNCHECK)} judge {ROOT}/examples/snapshots/h100.json --model qwen -v; echo code $? >&2"
    done = subprocess.run(["bash", "-c", f"({command}) | head -1"], capture_output=True, text=True, check=False)
    assert "code 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_ends_all_children(tmp_path, number):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import time\ntime.sleep(99)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [*KERNCHECK, "verify", "--model", "qwen", "--device", "emulate"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, preexec_fn=heed_interrupts, text=True, **pipes)  # noqa: PLW1509 - no thread runs here
    until = time.monotonic() + 20
    while len(children(process.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    assert children(process.pid)
    before = children(process.pid)
    process.send_signal(number)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert output == ""
    assert "interrupted" in errors
    assert not [pid for pid in before if Path(f"/proc/{pid}").exists() and state(pid) != "Z"]


def heed_interrupts() -> None:
    """Undo what a shell does to jobs in its background, and their children inherit: SIGINT is ignored there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_help_names_every_exit_code(capsys):
    assert run(["--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    for text in ("0 passed", "1 findings", "2 bad usage", "3 inconclusive", "4 a bug", "130 interrupted"):
        assert text in help_text


def test_version(capsys):
    from kerncheck import __version__

    assert run(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_json_reports_follow_their_schema(capsys):
    import jsonschema

    schema = json.loads((ROOT / "docs" / "report-v1.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for name in ("h100", "h200"):
        run(["judge", str(ROOT / "examples" / "snapshots" / f"{name}.json"), "--model", "qwen", "--format", "json"])
        report = json.loads(capsys.readouterr().out)
        assert [error.message for error in validator.iter_errors(report)] == []
        assert len(list(validator.iter_errors({**report, "verdict": "fine", "exit_code": "0"}))) == 2


def test_the_schema_in_docs_is_current():
    from kerncheck.formats.json import schema

    assert json.loads((ROOT / "docs" / "report-v1.schema.json").read_text()) == schema(), "python docs/make_checks.py"


def test_snapshots_round_trip():
    for path in (ROOT / "examples" / "snapshots").glob("*.json"):
        first = msgspec.json.decode(path.read_bytes(), type=Snapshot)
        assert msgspec.json.decode(msgspec.json.encode(first), type=Snapshot) == first


def test_commands_have_help():
    for name, command in cli.commands.items():
        assert isinstance(command, click.Command)
        assert command.help, name
