"""The rows of the nox matrix: each kind of mistake in a file is named, each kind of answer is judged and shown."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from faults.standins import CATALOG

from kerncheck import matrix_rows
from kerncheck.matrix_rows import RowError, Seen

ROOT = Path(__file__).parents[1]
GOOD = """
[[tested]]
id = "one"
device = "emulate"
python = "3.11"
packages = { torch = "2.13.0", triton = "3.9.0", transformers = "" }
source = "a run"
date = 2026-11-29
"""
BAD = '\nexit_code = 1\ncodes = ["KC207", "KC301"]\n'


def written(folder, text):
    path = folder / "rows.toml"
    path.write_text(text)
    return path


@pytest.fixture
def row(tmp_path):
    (found,) = matrix_rows.load(written(tmp_path, GOOD))
    return found


def test_a_row_says_what_to_install_torch_first(row):
    newest = ("--upgrade", "triton==3.9.0", "transformers")
    assert matrix_rows.installs(row) == (("torch==2.13.0", "numpy"), newest)
    pinned = replace(row, packages={**row.packages, "transformers": "5.24.0"})
    assert matrix_rows.installs(pinned)[1] == ("triton==3.9.0", "transformers==5.24.0")


def test_the_packages_of_a_known_bad_row_are_installed_one_by_one(row):
    bad = replace(row, exit_code=1, codes=("KC207",), packages={"triton": "3.9.0", "transformers": "4.57.6"})
    assert matrix_rows.installs(bad) == (("torch", "numpy"), ("triton==3.9.0",), ("transformers==4.57.6",))


def test_another_build_of_torch_takes_its_place_on_the_emulated_device_only(row):
    assert matrix_rows.installs(row, "torch @ file:///cpu.whl")[0] == ("torch @ file:///cpu.whl", "numpy")
    assert matrix_rows.installs(replace(row, device="cuda"), "torch==1")[0] == ("torch==2.13.0", "numpy")


def test_a_row_says_what_to_run_and_finds_configurations_beside_its_file(row, tmp_path):
    command = matrix_rows.verify(replace(row, options=("--quick",)), "qwen", tmp_path / "r.json")
    assert command[:4] == ("kerncheck", "verify", "--model", "qwen")
    assert command[4:7] == ("--device", "emulate", "--quick")
    assert command[-4:] == ("--format", "json", "--output", str(tmp_path / "r.json"))
    (tmp_path / "mine").mkdir()
    assert matrix_rows.verify(row, "mine", tmp_path / "r.json")[3] == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('id = "one"', "", "'id' is absent"),
        ('device = "emulate"', 'device = "tpu"', "neither 'emulate' nor 'cuda'"),
        ('python = "3.11"', "python = 3.11", "'python' is a float"),
        ('python = "3.11"', 'python = "3.11"\nmay_fail = 1', "'may_fail' is a int"),
        ('python = "3.11"', 'python = "3.11"\nmodel = "qwen"', "'model' is no field"),
        ('python = "3.11"', 'python = "3.11"\nexit_code = 1', "says why it is bad"),
        ('python = "3.11"', 'python = "3.11"\ncodes = ["KC301"]', "says why it is bad"),
        ("date = 2026-11-29\n", "date = 2026-11-29\n" + GOOD, "two rows have the id 'one'"),
        ("[[tested]]", "[[rows]]", "no [[tested]] table"),
        ("[[tested]]", "[[tested", "cannot be read"),
    ],
)
def test_a_file_of_rows_that_cannot_be_used_is_named(tmp_path, old, new, words):
    with pytest.raises(RowError, match=r"rows\.toml") as caught:
        matrix_rows.load(written(tmp_path, GOOD.replace(old, new, 1)))
    assert words in str(caught.value)
    matrix_rows.load(written(tmp_path, GOOD))


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(RowError, match="cannot be read"):
        matrix_rows.load(tmp_path / "absent.toml")


def test_the_shipped_rows_can_be_used_by_both_readers():
    rows = matrix_rows.load(ROOT / "matrices" / "tested.toml")
    assert [row.id for row in rows] == [row.id for row in CATALOG.tested.tested]
    for row, known in zip(rows, CATALOG.tested.tested, strict=True):
        for name in set(matrix_rows.FIELDS):
            assert getattr(row, name) == getattr(known, name), (row.id, name)
        beside = [row.folder / model for model in row.models if "/" in model]
        assert all((path / "config.json").is_file() for path in beside)


FINE, WRONG = Seen(0, (), {"torch": "2.13.0+cpu"}), Seen(1, ("KC301",))
KNOWN = Seen(1, ("KC207", "KC301"))


@pytest.mark.parametrize(
    ("declared", "answer", "verdict"),
    [
        (GOOD, FINE, "green"),
        (GOOD, WRONG, "red"),
        (GOOD, Seen(3), "red"),
        (GOOD, Seen(0, ("KC301",)), "red"),
        (GOOD, None, "red"),
        (GOOD + BAD, KNOWN, "green"),
        (GOOD + BAD, FINE, "red"),
        (GOOD + BAD, WRONG, "red"),
        (GOOD + BAD, Seen(1, (*KNOWN.codes, "KC601")), "red"),
        (GOOD + "may_fail = true", FINE, "green"),
        (GOOD + "may_fail = true", WRONG, "red, may fail"),
    ],
)
def test_a_row_is_green_only_if_what_is_declared_was_found(tmp_path, declared, answer, verdict):
    (row,) = matrix_rows.load(written(tmp_path, declared))
    assert matrix_rows.judge(row, {"qwen": answer}, 1.0).verdict == verdict


def test_each_model_of_a_row_counts(row):
    two = replace(row, models=("a", "b"))
    assert matrix_rows.judge(two, {"a": FINE, "b": FINE}, 1.0).verdict == "green"
    result = matrix_rows.judge(two, {"a": FINE, "b": WRONG}, 1.0)
    assert (result.verdict, result.found) == ("red", "a: exit 0; b: exit 1: KC301")


def test_an_environment_that_cannot_be_built_is_red(row):
    assert matrix_rows.not_built(row, "no such release", 1.0).verdict == "red"
    assert matrix_rows.not_built(replace(row, may_fail=True), "no such release", 1.0).verdict == "red, may fail"


def test_the_table_names_what_was_installed_and_counts(row):
    results = [
        matrix_rows.judge(row, {"qwen": FINE}, 61.4),
        matrix_rows.judge(replace(row, id="two", codes=("KC301",), exit_code=1), {"qwen": WRONG}, 2.0),
        matrix_rows.not_run(replace(row, id="gpu", device="cuda")),
        matrix_rows.judge(replace(row, id="new", may_fail=True), {"qwen": WRONG}, 3.0),
    ]
    lines = matrix_rows.table(results).splitlines()
    assert lines[2] == ("| one | 3.11 | 2.13.0+cpu | 3.9.0 | newest | - | qwen | - | exit 0 | exit 0 | 61 | green |")
    assert lines[4].endswith("| needs an NVIDIA GPU | 0 | not run here |")
    assert lines[-1] == "4 rows: 2 green; 1 red, may fail; 1 not run here."
    assert {line.count("|") for line in lines[:-2]} == {lines[0].count("|")}


def test_a_report_is_read_as_kerncheck_writes_it(tmp_path):
    report = tmp_path / "report.json"
    snapshot = ROOT / "examples" / "snapshots" / "h200.json"
    command = [sys.executable, "-m", "kerncheck", "judge", str(snapshot), "--model", "qwen"]
    done = subprocess.run([*command, "--format", "json", "--output", str(report)], check=False, capture_output=True)
    answer = matrix_rows.seen(report)
    told = json.loads(report.read_text())
    assert answer.exit_code == done.returncode == told["exit_code"]
    assert set(answer.versions) >= {"torch", "triton"}
    errors = [item for item in told["outcomes"] if item["status"] == "failed" and item["severity"] == "error"]
    assert set(answer.codes) == {item["code"] for item in errors}
    assert matrix_rows.seen(tmp_path / "absent.json") is None


@pytest.mark.skipif(importlib.util.find_spec("nox") is None, reason="nox is not installed here")
def test_rows_that_need_a_gpu_are_listed_and_do_not_count(tmp_path):
    if matrix_rows.gpu_here():
        pytest.skip("this machine has a GPU")
    path = written(tmp_path, GOOD.replace('"emulate"', '"cuda"').replace("3.11", sys.version.split(" ", 1)[0][:4]))
    command = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "--envdir", str(tmp_path / "env")]
    done = subprocess.run(
        [*command, "-s", "matrix", "--", "--table", str(tmp_path / "table.md")],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "KERNCHECK_MATRIX": str(path), "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "| one | " in done.stdout
    assert "1 row: 1 not run here." in (tmp_path / "table.md").read_text()
