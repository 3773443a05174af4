"""Pages: what a report says stands on them, they load nothing, and a browser shows them at 400 and 1,400 pixels."""

from __future__ import annotations

import html as markup
import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from kerncheck import report_command
from kerncheck.checks.registry import Case, all_checks
from kerncheck.cli import run
from kerncheck.formats.json import document, indented
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.numerics import Cell, Lane, Numerics, Sizes, TensorSeen
from kerncheck.model.snapshot import Snapshot
from kerncheck.model.step import Gradients, OnDevice, Run, Step, Work
from kerncheck.pages import content, markdown
from kerncheck.report import Report

ROOT = Path(__file__).parents[1]
H100 = ROOT / "examples" / "snapshots" / "h100.json"
TRACE = ROOT.parent / "shared" / "traces" / "a100_training_rank3.json.gz"
CHROMIUM = shutil.which("chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update"),
    *("--disable-background-networking", "--disable-sync", "--enable-logging=stderr", "--v=0"),
    *("--virtual-time-budget=4000", "--dump-dom"),
]
pytest.importorskip("matplotlib", reason="pages need the extra `report`")


def tensor(name, error, role="output"):
    sizes = Sizes(
        rms_reference=1.0, natural=0.0, rms_fused=error, rms_eager=(3e-3,), block_fused=error, block_eager=(4e-3,)
    )
    return TensorSeen(name=name, role=role, precision="bf16", sizes=sizes)


def step_run(operations, launches):
    work = Work(phase="forward", layer=0, operations=operations, launches=launches)
    tail = Work(phase="optimizer", layer=-1, operations={"addcmul_": 9999})
    return Run(
        layer_types=("linear_attention",),
        dtype="float32",
        tokens=64,
        phase="done",
        loss=1.0,
        raised=None,
        work=(work, tail),
        uses=(),
        gradients=Gradients(),
        alone=(),
    )


def whole_report():
    """A report with a step, numerics and a finding: dk is forty times as wrong as it may be."""
    op = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
    tensors = (tensor("o", 3e-3), tensor("dk", 0.5, "gradient"))
    cell = Cell(
        op=op,
        name="weak <gates>",
        regime="weak",
        lengths=(150,),
        seeds=4,
        tensors=tensors,
        launched_forward=("fwd",),
        launched_backward=("bwd",),
    )
    fused, eager = step_run({"mul": 7}, {"chunk_fwd_kernel_o": 3}), step_run({"mul": 40, "bmm": 12}, {})
    model = ModelRequest(name="qwen", folder="", architecture="", config={}, required=(RequiredOp(op=op),))
    job = Job(device="emulate", profile="ci", model=model)
    seen = Snapshot(
        job=job,
        numerics=Numerics(evidence="emulated", lanes=(Lane(name="bf16", cells=(cell,)),)),
        step=Step(
            evidence="emulated",
            devices=(OnDevice(device="Triton interpreter", fused=fused, eager=eager, comparison=None),),
        ),
    )
    checks = [check for check in all_checks() if check.code == "KC402"]
    outcomes, crashes = judge(Case(job, seen, None), checks)
    return Report(version="0.1.0", job=job, snapshot=seen, outcomes=outcomes, crashes=crashes)


@pytest.fixture
def report_file(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(indented(document(whole_report())))
    return path


def made(file, tmp_path):
    out = tmp_path / "out.html"
    assert run(["report", str(file), "--html", str(out)]) == 0
    return out.read_text()


def test_a_page_says_what_the_report_says(report_file, tmp_path):
    page = made(report_file, tmp_path)
    told = json.loads(report_file.read_text())
    (finding,) = [item for item in told["outcomes"] if item["status"] == "failed"]
    for text in (told["sentence"], finding["message"], finding["remedy"], "kerncheck explain KC402"):
        assert markup.escape(text, quote=False) in page.replace("&#39;", "'").replace("&#34;", '"')
    assert "chunk_gated_delta_rule: dk" in page  # a row of the margins
    assert "eager references" in page
    assert "9999" not in page  # the optimizer is not what kernels replace
    assert page.count("<svg") == 2


def test_numbers_of_the_charts():
    found = content.numbers(whole_report().snapshot)
    assert found.operations == [("kernels of packages", 0.0, 3.0), ("mul", 40.0, 7.0), ("bmm", 12.0, 0.0)]
    worst, _ = found.margins
    assert worst[0] == "chunk_gated_delta_rule: dk"
    assert worst[1]["bf16"] > 10


def test_a_page_loads_nothing(report_file, tmp_path):
    page = made(report_file, tmp_path)
    assert not re.search(r'(?:src|href)="(?!#|data:,)', page)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in re.sub(r"url\(#", "", page)


def test_ids_of_a_page_are_unique(report_file, tmp_path):
    ids = re.findall(r'\bid="([^"]+)"', made(report_file, tmp_path))
    assert len(ids) == len(set(ids))


def test_a_report_without_sections_makes_a_page_without_charts(tmp_path, capsys):
    file = tmp_path / "h100.json"
    assert run(["judge", str(H100), "--model", "qwen", "--select", "KC1", "--format", "json"]) == 1
    file.write_text(capsys.readouterr().out)
    page = made(file, tmp_path)
    assert "<svg" not in page
    assert "KC112" in page
    assert "NVIDIA H100" in page


def test_hostile_text_stays_text(tmp_path):
    told = document(whole_report())
    item = msgspec.structs.replace(told.outcomes[0], message="<script>alert(1)</script> | *x*")
    file = tmp_path / "run.json"
    file.write_text(indented(msgspec.structs.replace(told, outcomes=(item,))))
    assert "<script>" not in made(file, tmp_path)
    page = content.page(msgspec.structs.replace(told, outcomes=(item,)), whole_report().snapshot, "run.json")
    assert "<script>" not in markdown.render(page, content.Numbers())


def test_markdown_for_a_pull_request(report_file, capsys):
    assert run(["report", str(report_file), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("### kerncheck: **failed**")
    assert "**KC402** error:" in text
    assert "| mul | 40 | 7 |" in text


@pytest.mark.skipif(not TRACE.exists(), reason="the sample traces (shared/traces) are not on this machine")
def test_a_trace_is_judged_and_drawn(tmp_path):
    page = made(TRACE, tmp_path)
    for text in ("Timeline of one step", "GPU 3 stream 7", "Launch lead", "9,450 launches", "GPU time by family"):
        assert text in page
    assert page.count("<svg") == 3
    assert len(page) < 400_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("{", "not valid JSON"),
        ('{"schema": "kerncheck.report/1"}', "not a report"),
        ('{"schema": "kerncheck.report/1", "outcomes": 3}', "not a report"),
        ("PK\x03\x04", "not valid JSON"),
    ],
)
def test_what_is_no_report_is_one_line(tmp_path, capsys, text, words):
    file, out = tmp_path / "x.json", tmp_path / "out.html"
    file.write_text(text)
    out.write_text("before")
    assert run(["report", str(file), "--html", str(out)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
    assert out.read_text() == "before"


def test_another_version_of_the_report_is_named(report_file, capsys, tmp_path):
    file = tmp_path / "later.json"
    file.write_text(report_file.read_text().replace("kerncheck.report/1", "kerncheck.report/7"))
    assert run(["report", str(file), "--markdown"]) == 2
    assert "kerncheck.report/7" in capsys.readouterr().err


def test_asking_for_nothing_and_lacking_the_extra(report_file, capsys, tmp_path, monkeypatch):
    assert run(["report", str(report_file)]) == 2
    assert "--html OUT" in capsys.readouterr().err
    monkeypatch.setattr(report_command, "EXTRA", ("jinja2", "no_such_plotting_library"))
    assert run(["report", str(report_file), "--html", str(tmp_path / "o.html")]) == 2
    assert "needs no_such_plotting_library (pip install 'kerncheck[report]')" in capsys.readouterr().err
    assert run(["report", str(report_file), "--markdown"]) == 0


LOOK = """<iframe id="f" style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe><pre id="out"></pre>
<script>
document.getElementById("f").onload = () => {{
  const d = document.getElementById("f").contentDocument, root = d.documentElement;
  const stops = [...d.querySelectorAll('a[href], summary, [tabindex="0"]')];
  const reached = stops.filter(stop => {{ stop.focus(); return d.activeElement === stop; }}).length;
  const sizes = [...d.querySelectorAll("p, li, td, dd, h1, h2, h3")].map(e => parseFloat(getComputedStyle(e).fontSize));
  const small = [...d.querySelectorAll("svg text")].map(e => e.getBoundingClientRect().height).filter(h => h > 0);
  document.getElementById("out").textContent = JSON.stringify({{ scroll: root.scrollWidth, width: root.clientWidth,
    stops: stops.length, reached, font: Math.min(...sizes), chart: Math.min(...small, 99) }});
}};
</script>"""


def looked_at(page, width, folder):
    """Show a page in a frame of this width; return what a script measured there, and what the console said."""
    file = folder / "look.html"
    file.write_text(LOOK.format(width=width, page=markup.escape(page)))
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1500,1000", f"file://{file}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    measured = re.search(r'<pre id="out">(.+?)</pre>', done.stdout, re.DOTALL)
    assert measured, done.stderr[-2000:]
    return json.loads(markup.unescape(measured[1])), [row for row in done.stderr.splitlines() if "CONSOLE" in row]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed here; CI installs it")
@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_shows_it(report_file, tmp_path, width):
    seen, console = looked_at(made(report_file, tmp_path), width, tmp_path)
    assert console == []
    assert seen["scroll"] <= seen["width"] <= width  # nothing makes the whole page scroll sideways
    assert seen["reached"] == seen["stops"] > 3
    assert seen["font"] >= 14
    assert seen["chart"] >= 9


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed here; CI installs it")
@pytest.mark.skipif(not TRACE.exists(), reason="the sample traces (shared/traces) are not on this machine")
def test_a_browser_shows_a_trace(tmp_path):
    seen, console = looked_at(made(TRACE, tmp_path), 400, tmp_path)
    assert console == []
    assert seen["scroll"] <= seen["width"] <= 400
    assert seen["chart"] >= 9


def test_the_console_of_the_browser_is_heard(tmp_path):
    """The control of the two above: a page with a broken script is not silent, and a wide one scrolls."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed here; CI installs it")
    seen, console = looked_at("<div style='width:900px'>x</div><p>x<script>nobody.knows()</script>", 400, tmp_path)
    assert console
    assert seen["scroll"] >= 900


def test_missing_sections_have_no_numbers():
    assert content.numbers(Snapshot()) == content.Numbers()
    assert isinstance(Snapshot().trace, Missing)
