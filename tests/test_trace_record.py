"""`kerncheck trace record`: a real child, the real profiler, a real small model; a GPU only where there is one."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kerncheck.cli import run
from kerncheck.commands import nvidia_device_node

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2,
}  # fmt: skip
EMULATED = ("--device", "emulate", "--steps", "1", "--warmup", "1")
without_gpu = pytest.mark.skipif(nvidia_device_node(), reason="there is a GPU here: see tests/gpu")


@pytest.fixture
def llama(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "traces"
    path.mkdir()
    return path


def told(capsys, *arguments):
    code = run(["trace", "record", *arguments])
    captured = capsys.readouterr()
    return code, " ".join(captured.out.split()), captured.err


@pytest.mark.torch
def test_the_cpu_alone_is_recorded_where_asked_and_proves_nothing(capsys, llama, folder):
    path = folder / "trace.json.gz"
    path.write_text("old")
    code, out, err = told(capsys, "--model", llama, "--output", str(path), *EMULATED, "--tokens", "8", "--force")
    assert code == 3
    assert "needed: KC620 trace: the trace holds no GPU kernel event" in out
    assert "recorded 1 step of 8 tokens, 1 layer with random weights, on Triton interpreter" in err
    assert list(folder.iterdir()) == [path]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {item["name"] for item in events if item.get("cat") == "user_annotation"}
    assert {"kc::model.layers.0.mlp::LlamaMLP", "ProfilerStep#1", "Optimizer.step#AdamW.step"} <= names
    assert run(["trace", str(path)]) == 3


@without_gpu
@pytest.mark.parametrize("form", ["text", "json"])
def test_without_a_gpu_nothing_is_recorded(capsys, folder, form):
    code, out, _ = told(capsys, "--model", "qwen", "--output", str(folder / "trace.json"), "--format", form)
    assert code == 3
    assert "no GPU is here, and nothing was recorded: run it on the node; --device emulate records" in out
    assert "kerncheck" in out.partition("Not judged")[0]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12: cannot open"),
        ("import os\nos.abort()", "SIGABRT"),
        ("raise MemoryError", "out of memory"),
    ],
)
def test_steps_that_cannot_run_leave_no_file(capsys, folder, monkeypatch, tmp_path, body, words):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, out, _ = told(capsys, "--model", "qwen", "--output", str(folder / "trace.json"), *EMULATED)
    assert code == 3
    assert words in out
    assert "kerncheck verify --model looks for the cause" in out
    assert list(folder.iterdir()) == []


def test_an_existing_file_is_kept(capsys, folder):
    path = folder / "trace.json"
    path.write_text("precious")
    code, out, err = told(capsys, "--model", "qwen", "--output", str(path), *EMULATED)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith("the file exists, and would be overwritten (--force, or another name)")
    assert path.read_text() == "precious"
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nobody"], "no model of this name"),
        (["--model", "qwen", "--output", "/nowhere/trace.json"], "absent or not writable"),
        (["--model", "qwen", "--select", "KC999"], "no check has the code"),
        (["--model", "qwen", "--waive", "KC621"], "gives no reason"),
        (["--model", "qwen", "--python", "/no/such/python"], "no such executable"),
        (["--model", "qwen", "--steps", "0"], "--steps"),
        (["--model", "qwen", "--warmup", "0"], "--warmup"),
        (["--model", "qwen", "--tokens", "1"], "--tokens"),
        (["--model", "qwen", "--device", "none"], "--device"),
        ([], "--model"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(capsys, folder, arguments, words):
    output = [] if "--output" in arguments else ["--output", str(folder / "trace.json")]
    code, out, err = told(capsys, *output, *EMULATED, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
    assert list(folder.iterdir()) == []


def test_no_output_is_a_usage_error(capsys):
    code, _, err = told(capsys, "--model", "qwen")
    assert code == 2
    assert "--output" in err


def test_interrupting_ends_the_child_and_leaves_nothing(tmp_path, folder):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import time\ntime.sleep(99)")
    arguments = ["trace", "record", "--model", "qwen", "--output", str(folder / "trace.json"), *EMULATED]
    process = subprocess.Popen(
        [sys.executable, "-m", "kerncheck", *arguments],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread runs here
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child = child_of(process.pid)
    assert list(folder.iterdir())  # where the trace would lie
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (130, "")
    assert "interrupted" in errors
    assert not Path(f"/proc/{child}").exists()
    assert list(folder.iterdir()) == []


def child_of(parent):
    until = time.monotonic() + 20
    listed = Path(f"/proc/{parent}/task/{parent}/children")
    while not listed.read_text().split() and time.monotonic() < until:
        time.sleep(0.1)
    return listed.read_text().split()[0]
