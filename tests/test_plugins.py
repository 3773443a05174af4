"""Plug-ins: the example is installed by pip and judged, sound and broken; a broken one is one finding about it.

The judged interpreter is one of its own: it sees the torch, triton and numpy under test, and no fla and no kerncheck.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import msgspec
import pytest

from kerncheck import kernels, plugins
from kerncheck.checks.registry import Case, all_checks
from kerncheck.cli import run
from kerncheck.commands import find_check
from kerncheck.judge import run_check
from kerncheck.model.base import Missing
from kerncheck.model.environment import Environment
from kerncheck.model.job import Job
from kerncheck.model.plugin import PluginSeen
from kerncheck.model.snapshot import Snapshot
from kerncheck.probes import numerics
from kerncheck.probes import plugins as look

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugin"
OP = "example_swiglu:swiglu"
HIDDEN = ("fla", "flash_linear", "transformers", "kerncheck", "_kerncheck", "__pycache__")
PLACE = "example_swiglu/kerncheck_plugin/"
KC002 = find_check("KC002", all_checks())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The example as pip installs it: built by its real backend, once."""
    source, folder = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, source)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder), str(source)], check=True, capture_output=True)
    return folder


@pytest.fixture
def judged(wheel, tmp_path):
    """An interpreter with the example in it, which a test may then break."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "env" / "lib" / version / "site-packages"
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith(HIDDEN) and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    for entry in wheel.iterdir():
        shutil.copytree(entry, site / entry.name)
    return site


def change(site: Path, file: str, old: str, new: str) -> None:
    """Change a text that occurs exactly once in an installed file."""
    text = (site / file).read_text()
    assert text.count(old) == 1, (file, old)
    (site / file).write_text(text.replace(old, new))


def verify(capsys, site: Path, *select: str):
    """Judge the interpreter of a site folder through the command line; return exit code and outcomes."""
    python = str(site.parents[2] / "bin" / "python")
    chosen = [word for code in select for word in ("--select", code)]
    code = run(["verify", "--device", "emulate", "--quick", "--python", python, "--format", "json", *chosen])
    return code, json.loads(capsys.readouterr().out)["outcomes"]


def of(outcomes, *statuses):
    return [(one["code"], one["subject"]) for one in outcomes if one["status"] in statuses]


@pytest.mark.torch
def test_the_example_is_judged_sound(judged, capsys):
    code, outcomes = verify(capsys, judged, "KC4", "KC002")
    assert code == 0
    codes = {f"KC4{number:02}" for number in (1, 2, 3, 4, 5, 6, 8, 10, 11)}
    assert {pair for pair in of(outcomes, "passed") if pair[1] == OP} == {(found, OP) for found in codes}
    assert ("KC002", "plug-in swiglu") in of(outcomes, "passed")
    assert of(outcomes, "failed") == []
    launched = next(one["message"] for one in outcomes if (one["code"], one["subject"]) == ("KC404", OP))
    assert launched == "launched swiglu_fwd_kernel"


def test_a_plug_in_is_found_without_running_any_code_of_it(judged, capsys):
    for file in judged.glob("example_swiglu/**/*.py"):
        file.write_text("raise SystemExit('imported')\n")
    code, outcomes = verify(capsys, judged, "KC002")
    assert (code, of(outcomes, "passed")) == (0, [("KC002", "plug-in swiglu")])
    assert OP in outcomes[0]["message"]


WRONG_KERNEL = ("example_swiglu/ops.py", "b_sig * (1 + b_gate * (1 - b_sig))", "b_sig")
BROKEN_CODE = {
    "a wrong kernel": (*WRONG_KERNEL, "KC402", "dgate wrong; dup right"),
    "an unknown form": (
        PLACE + "kerncheck.toml",
        'form = "swiglu"',
        'form = "geglu"',
        "KC411",
        "PluginError: plug-in swiglu: form 'geglu' of example_swiglu.kerncheck_plugin.forms: KeyError: 'geglu'",
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", BROKEN_CODE)
def test_broken_code_is_one_finding(judged, capsys, name):
    file, old, new, expected, told = BROKEN_CODE[name]
    change(judged, file, old, new)
    code, outcomes = verify(capsys, judged, "KC4")
    assert code == 1
    (finding,) = [one for one in outcomes if one["status"] == "failed"]
    assert (finding["code"], finding["subject"]) == (expected, OP)
    assert told in finding["message"] + finding["found"]
    if expected == "KC411":
        assert "mend the plug-in swiglu" in finding["remedy"]


BROKEN_FORMS = {
    "raise RuntimeError('no licence')": "RuntimeError: no licence",
    "raise SystemExit(3)": "SystemExit: 3",
    "": "AttributeError: module 'strange.forms' has no attribute 'FORMS'",
    "FORMS = {'one': {}}": "missing 5 required positional arguments",
    "FORMS = {'one': {'axis': 3}}": "unexpected keyword argument 'axis'",
    "FORMS = {'one': 3}": "TypeError",
    "FORMS = {'other': {}}": "KeyError: 'one'",
    "def (": "SyntaxError",
}


@pytest.mark.parametrize("code", BROKEN_FORMS)
def test_whatever_is_wrong_with_the_code_is_told_of_the_plug_in(tmp_path, monkeypatch, code):
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "forms.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "strange", raising=False)
    monkeypatch.delitem(sys.modules, "strange.forms", raising=False)
    with pytest.raises(numerics.PluginError) as raised:
        numerics.form_of({"plugin": "odd", "code": "strange.forms", "form": "one"})
    assert str(raised.value).startswith("plug-in odd: form 'one' of strange.forms: ")
    assert BROKEN_FORMS[code] in str(raised.value)


TOML = PLACE + "kerncheck.toml"
BROKEN_TEXT = {
    "not TOML": (TOML, "schema = 1", "schema = ", "kerncheck.toml is not TOML: "),
    "wrong type": (TOML, "wide = 8\nquick = true", 'wide = "8"\nquick = true', "Expected `int`, got `str`"),
    "unknown field": (TOML, "backward = true", "backwards = true", "unknown field `backwards`"),
    "newer version": (TOML, "schema = 1", "schema = 2", "Invalid enum value 2 - at `$.schema`"),
    "no such module": (TOML, 'code = "forms"', 'code = "shapes"', "code = 'shapes' names no module beside"),
    "id of ours": (TOML, 'id = "example_swiglu:swiglu"', 'id = "fla.modules.l2norm:l2norm"', "by kerncheck itself"),
    "foreign id": (TOML, 'id = "example_swiglu:swiglu"', 'id = "torch:mm"', "does not lie in the package"),
    "no quick cell": (TOML, "quick = true", "quick = false", "no cell for emulate with quick = true"),
    "no such library": (TOML, 'library = "triton"', 'library = "metal"', "Invalid enum value 'metal'"),
    "an extension of Triton": (TOML, "backward = true", 'backward = true\nextension = "x"', "'triton' has none"),
    "two cells of a name": (TOML, 'name = "summed"', 'name = "plain"', "two cells of one name"),
    "a cut behind the end": (TOML, "cuts = [7, 32]", "cuts = [7, 40]", "a cut lies behind the last token"),
    "an attribute": (
        "example_swiglu-1.0.0.dist-info/entry_points.txt",
        "example_swiglu.kerncheck_plugin",
        "example_swiglu.kerncheck_plugin:SPECS",
        "must name a package, without attribute or extra",
    ),
    "no such package": (
        "example_swiglu-1.0.0.dist-info/entry_points.txt",
        "example_swiglu.kerncheck_plugin",
        "example_swiglu.elsewhere",
        "no folder of it here holds kerncheck.toml",
    ),
}


@pytest.fixture
def site(wheel, tmp_path, monkeypatch):
    """The example on the path of this process, which reads metadata and a text of it, and imports nothing."""
    folder = tmp_path / "site"
    shutil.copytree(wheel, folder)
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


def seen_here():
    return msgspec.convert(look.found(), tuple[PluginSeen, ...])


def told_by_kc002(**changes):
    case = Case(Job(device="none"), Snapshot(environment=Environment(**{"plugins": seen_here(), **changes})), None)
    return run_check(case, KC002)


@pytest.mark.parametrize("name", BROKEN_TEXT)
def test_a_broken_description_is_one_finding(site, name):
    file, old, new, told = BROKEN_TEXT[name]
    assert [outcome.status for outcome in told_by_kc002()] == ["passed"]
    change(site, file, old, new)
    (finding,) = told_by_kc002()
    assert (finding.status, finding.subject) == ("failed", "plug-in swiglu")
    assert told in finding.message
    assert "\n" not in finding.message
    assert "example-swiglu 1.0.0" in finding.found


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"x" * (look.MOST_BYTES + 1), b"op = 3\n"], ids=range(4))
def test_an_unreadable_description_is_one_finding(site, content):
    (site / TOML).write_bytes(content)
    (finding,) = told_by_kc002()
    assert (finding.status, finding.subject) == ("failed", "plug-in swiglu")


@pytest.mark.parametrize(
    "line",
    ["x = " + "[" * 5000, "x = " + "9" * 5000, "x = 1979-05-27", "x = nan\nx = 1", "[op]", "[[op]]"],
    ids=range(6),
)
def test_strange_toml_is_one_finding(site, line):
    change(site, TOML, "schema = 1", "schema = 1\n" + line)
    (finding,) = told_by_kc002()
    assert (finding.status, finding.subject) == ("failed", "plug-in swiglu")
    assert len(finding.message) < 1000


def test_mutated_descriptions_are_read_or_told(wheel):
    text, random_ = (wheel / TOML).read_text(), random.Random(3)
    seen = PluginSeen(name="swiglu", value="example_swiglu.kerncheck_plugin", text=text, modules=("forms",))
    statuses = set()
    for _ in range(400):
        where = random_.randrange(len(text))
        new = random_.choice(['"', "[", "]", "=", "-", "0", "\n", "{", "x", ".", ""])
        mutant = text[:where] + new + text[where + random_.choice([0, 1, 7]) :]
        found = plugins.read_all((msgspec.structs.replace(seen, text=mutant),))
        json.dumps([vars(plan) for spec in found.specs for plan in spec.own_cells["emulate"]])
        statuses.add((len(found.specs), len(found.broken)))
    assert statuses == {(1, 0), (0, 1)}


def test_a_part_without_that_check_does_not_pass_over_a_broken_plug_in(judged, capsys):
    change(judged, TOML, 'code = "forms"', 'code = "shapes"')
    code, outcomes = verify(capsys, judged, "KC002")
    assert (code, of(outcomes, "failed")) == (1, [("KC002", "plug-in swiglu")])
    code, outcomes = verify(capsys, judged, "KC4")
    assert code == 3
    (told,) = [one for one in outcomes if one["subject"] == "plug-in swiglu"]
    assert (told["code"], told["status"], told["required"]) == ("KC411", "not_judged", True)
    assert "names no module beside kerncheck.toml" in told["message"]


def second(site, plugin, package):
    """Install a second distribution, with a plug-in of this name for this package."""
    shutil.copytree(site / "example_swiglu", site / package)
    shutil.copytree(site / "example_swiglu-1.0.0.dist-info", site / "other-1.0.0.dist-info")
    change(site, "other-1.0.0.dist-info/METADATA", "Name: example-swiglu", "Name: other")
    points = "other-1.0.0.dist-info/entry_points.txt"
    change(site, points, "swiglu = example_swiglu.kerncheck_plugin", f"{plugin} = {package}.kerncheck_plugin")


def test_one_op_is_described_once(site):
    second(site, "a_second", "other_swiglu")
    good, bad = sorted(told_by_kc002(), key=lambda outcome: outcome.subject)
    assert (good.subject, good.status) == ("plug-in a_second", "passed")
    assert (bad.subject, bad.status) == ("plug-in swiglu", "failed")
    assert f"op {OP} is described already, by plug-in a_second" in bad.message
    change(site, "other_swiglu/kerncheck_plugin/kerncheck.toml", 'id = "example_swiglu', 'id = "other_swiglu')
    change(site, "other_swiglu/kerncheck_plugin/kerncheck.toml", 'import_name = "example', 'import_name = "other')
    assert [outcome.status for outcome in told_by_kc002()] == ["passed", "passed"]


def test_two_plug_ins_of_one_name_are_a_finding(site):
    second(site, "swiglu", "other_swiglu")
    good, bad = sorted(told_by_kc002(), key=lambda outcome: outcome.status, reverse=True)
    assert (good.status, bad.status) == ("passed", "failed")
    assert "two installed distributions offer a plug-in swiglu, this one other" in bad.message


def test_broken_metadata_of_others_is_no_matter_and_of_a_plug_in_is_a_finding(site):
    (site / "leftover-1.0.dist-info").mkdir()
    (site / "strange-1.0.dist-info").mkdir()
    (site / "strange-1.0.dist-info" / "entry_points.txt").write_bytes(b"[console_scripts\n\xff=\n")
    assert [outcome.status for outcome in told_by_kc002()] == ["passed"]
    change(site, "example_swiglu-1.0.0.dist-info/entry_points.txt", "swiglu = example", "swiglu example")
    (finding,) = told_by_kc002()
    assert (finding.status, finding.subject) == ("failed", "plug-in example-swiglu")
    assert "its entry points cannot be read" in finding.message


def test_a_second_copy_later_on_the_path_does_not_count(site, wheel, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(site), str(wheel)])
    assert [outcome.status for outcome in told_by_kc002()] == ["passed"]


def test_no_plug_in_and_no_look_are_told_apart():
    assert [outcome.status for outcome in told_by_kc002(plugins=())] == ["not_applicable"]
    (told,) = told_by_kc002(plugins=Missing(reason="the mount is gone"))
    assert (told.status, told.required) == ("not_judged", True)
    assert "the mount is gone" in told.message


def test_the_ops_of_a_snapshot_are_known_wherever_it_is_judged(site):
    environment = msgspec.json.decode(msgspec.json.encode(Environment(plugins=seen_here())), type=Environment)
    shutil.rmtree(site / "example_swiglu")
    with plugins.plugged(environment) as found:
        (spec,) = found.specs
        assert kernels.find_spec(OP) == spec
        assert [plan.name for plan in kernels.cells_of(spec, "emulate", {})][:2] == ["plain", "summed"]
        assert (spec.runs_emulated, spec.code) == (True, "example_swiglu.kerncheck_plugin.forms")
    assert kernels.find_spec(OP) is None


def test_list_kernels_names_the_ops_of_plug_ins_and_the_broken_ones(site, capsys):
    assert run(["list", "kernels"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][-1] == [OP, "example-swiglu", "yes", "yes"]
    change(site, TOML, "schema = 1", "schema = 2")
    assert run(["list", "kernels"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("plug-in swiglu cannot be used: kerncheck.toml: ")
