"""Pins: what they choose, what they say, and that what they choose passes our own checks of the environment."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import product

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from kerncheck import catalog as catalogs
from kerncheck import pin_sheet, pins
from kerncheck.checks.registry import Case, all_checks
from kerncheck.cli import run
from kerncheck.errors import MatrixError, UsageError
from kerncheck.formats import constraints
from kerncheck.judge import judge
from kerncheck.model.environment import (
    CacheFolder,
    Distribution,
    DriverLibrary,
    Environment,
    Gpu,
    Gpus,
    Python,
    Tool,
    TorchBuild,
)
from kerncheck.model.job import Job, Target
from kerncheck.model.snapshot import Snapshot
from kerncheck.models import resolve
from kerncheck.sound import objections
from kerncheck.wheels import Place, lacking, wheel_name

CATALOG = catalogs.load()
PTXAS = ("ptxas", "ptxas_blackwell")
QWEN = resolve("qwen", CATALOG)
ENVIRONMENT_CHECKS = [check for check in all_checks() if check.code.startswith("KC1")]
DRIVERS = {"11": ("450.80.02", "11.0"), "12": ("525.60.13", "12.0"), "13": ("580.65.06", "13.0")}  # cuda.toml, floor


def wanted(*gpus, **more):
    given = {"python": "3.12", "torch": None, "driver": None, "machine": None, "prebuilt": False, **more}
    return pins.wish({"gpu": gpus, **given}, QWEN, CATALOG)


def found(*gpus, **more):
    answer = pins.search(wanted(*gpus, **more), CATALOG)
    assert isinstance(answer, pins.Found), pin_sheet.conflict_lines(answer)
    return answer


def conflict(*gpus, **more):
    answer = pins.search(wanted(*gpus, **more), CATALOG)
    assert isinstance(answer, pins.Conflict), pins.summary(answer.combination)
    return answer


def text_of(answer):
    return constraints.render(pin_sheet.sheet(answer, CATALOG))


def pinned(text):
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {requirement.name: requirement for requirement in map(Requirement, lines)}


def installed(text):
    """Return the version that each exact pin of a constraints file installs."""
    exact = {name: next(iter(requirement.specifier)).version for name, requirement in pinned(text).items()}
    return {name: version for name, version in exact.items() if name not in ("torchvision", "kernels")}


def snapshot(answer):
    """Return, written by hand, the snapshot of a machine on which the printed pins are installed."""
    text, wish = text_of(answer), answer.wanted
    versions, cuda = installed(text), answer.combination.cuda
    ptxas = {name: Tool(path=f"/opt/{name}", version=getattr(answer.combination.triton, name) or "") for name in PTXAS}
    floor, offered = DRIVERS[cuda.partition(".")[0]]
    environment = Environment(
        python=Python(version=f"{wish.python}.1", machine=wish.machine, headers="/usr/include/Python.h"),
        glibc="2.36",
        distributions=tuple(Distribution(name=name, version=version) for name, version in sorted(versions.items())),
        torch=TorchBuild(version=versions["torch"], cuda=cuda),
        nvcc=Tool(),
        ptxas=ptxas["ptxas"],
        ptxas_blackwell=ptxas["ptxas_blackwell"] if ptxas["ptxas_blackwell"].version else Tool(),
        compiler=Tool(path="/usr/bin/gcc", version="12.2", via="PATH"),
        libcuda=DriverLibrary(path="/usr/lib/libcuda.so.1", target=f"/usr/lib/libcuda.so.{floor}", version=floor),
        driver_module=floor,
        triton_cache=CacheFolder(path="/home/app/.triton/cache", filesystem="ext4"),
        nodes=("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"),
    )
    gpus = tuple(Gpu(name=f"NVIDIA {gpu.name}", cc=gpu.cc, index=index) for index, gpu in enumerate(wish.gpus))
    return Snapshot(environment=environment, gpus=Gpus(driver=floor, cuda=offered, gpus=gpus))


def findings(answer, profile="node"):
    targets = answer.wanted.gpus if profile == "image" else ()
    driver = DRIVERS[answer.combination.cuda.partition(".")[0]][0] if profile == "image" else ""
    job = Job(profile=profile, device="none", model=QWEN, targets=targets, driver=driver)
    seen = snapshot(answer)
    if profile == "image":
        seen = Snapshot(environment=seen.environment)
    outcomes, crashes = judge(Case(job, seen, CATALOG), ENVIRONMENT_CHECKS)
    assert crashes == ()
    judged = {outcome.code for outcome in outcomes if outcome.status == "passed"}
    assert len(judged) >= 8, judged  # the snapshot is one that the checks can judge
    return [outcome for outcome in outcomes if outcome.status == "failed"]


def told(outcomes):
    return [f"{item.code} {item.subject}: {item.message}" for item in outcomes]


@pytest.mark.parametrize("profile", ["node", "image"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("gpu", ["h100", "h200", "a100", "b200", "b300", "rtx 4090", "gb200", "gh200", "gb10"])
def test_pins_pass_our_own_checks(gpu, python, profile):
    assert told(findings(found(gpu, python=python), profile)) == []


@pytest.mark.parametrize("row", CATALOG.gpus.gpu, ids=lambda row: row.name)
def test_every_gpu_has_sound_pins_or_named_rows(row):
    answer = pins.search(wanted(row.name), CATALOG)
    if isinstance(answer, pins.Found):
        assert told(findings(answer)) == []
    else:
        lines = pin_sheet.conflict_lines(answer)[1:]
        assert lines
        assert all(re.match(r"\s+(kernels/)?\w+\.toml: \w+( \(\w+ '?[^)]*'?\))?: ", line) for line in lines)


def test_the_checks_would_see_unsound_pins():
    """The control: the same snapshot with one version exchanged does fire."""
    good = found("h200")
    older = next(row for row in CATALOG.triton.release if str(row.version) == "3.6.0")
    torch = next(row for row in CATALOG.torch.release if str(row.version) == "2.11.0")
    bad = replace(good, combination=replace(good.combination, torch=torch, cuda="13.0", triton=older))
    assert findings(good) == []
    assert any("640" in line for line in told(findings(bad))) or any("Hopper" in line for line in told(findings(bad)))


@pytest.mark.parametrize(
    ("options", "torch", "cuda"),
    [
        ({}, None, None),
        ({"driver": "580"}, None, None),
        ({"driver": "550"}, "+cu126", "12.6"),  # no CUDA 13 below driver 580
        ({"driver": "550.54.14"}, "+cu126", "12.6"),
        ({"torch": "2.12"}, "==2.12.1", "13.0"),
        ({"torch": "2.14+cu126"}, "==2.14.1+cu126", "12.6"),
        ({"python": "3.10"}, "==2.14.1", "13.0"),  # 2.15 has no wheel for 3.10
    ],
)
def test_wishes_are_met(options, torch, cuda):
    answer = found("h200", **options)
    line = str(pinned(text_of(answer))["torch"])
    newest = max(row.version for row in CATALOG.torch.release)
    assert (torch or f"=={newest}") in line
    assert cuda in (None, answer.combination.cuda)


def test_a_known_bad_row_leads_to_an_older_cuda():
    answer = found("b300")
    assert Version(answer.combination.cuda) < Version("13.0")
    assert "kernels/causal_conv1d.toml: known_bad (id 'cc1d-105-sm103')" in text_of(answer)


def test_all_gpus_are_served_at_once():
    assert told(findings(found("a100", "h200", "b200"))) == []


def test_gpus_that_exclude_each_other_are_a_conflict_with_both_rows():
    """B300 forbids CUDA 13 (a row of causal-conv1d), H200 the Triton of every torch for CUDA 12.8 (a row of fla)."""
    lines = "\n".join(pin_sheet.conflict_lines(conflict("b300", "h200")))
    assert "known_bad (id 'cc1d-105-sm103')" in lines
    assert "known_bad (id 'fla-640-hopper-guard-052')" in lines


@pytest.mark.parametrize("gpu", ["b300", "v100"])
def test_nothing_newer_is_sound(gpu):
    """Brute force over finished combinations agrees with the search: with no newer torch does anything go."""
    answer = found(gpu)
    kernels = {name: [row.version for row in (item.release or item.wheels)][-3:] for name, item in kernel_items()}
    for _, chosen in pins.torch_choices(answer.wanted, CATALOG):
        if chosen.torch.version == answer.combination.torch.version:
            break
        tritons = [row for row in CATALOG.triton.release if chosen.torch.triton.contains(row.version)]
        for triton, *versions in product(tritons, *kernels.values()):
            whole = replace(chosen, triton=triton, kernels=dict(zip(kernels, versions, strict=True)))
            whole = replace(whole, transformers=CATALOG.transformers.release[-1])
            assert [item for item in objections(whole, answer.wanted, CATALOG) if not item.caution]
    assert not [item for item in objections(answer.combination, answer.wanted, CATALOG) if not item.caution]


def kernel_items():
    return pins.kernel_files(QWEN, CATALOG).items()


def test_a_conflict_names_the_rows(capsys):
    code = run(["pins", "--model", "qwen", "--gpu", "h200", "--torch", "2.11", "--python", "3.12"])
    printed = capsys.readouterr()
    assert code == 1
    assert printed.out == ""
    assert "kernels/fla.toml: known_bad (id 'fla-640-hopper-guard-052')" in printed.err
    assert "triton >= 3.7.1" in printed.err
    assert f"without --torch: {pins.summary(found('h200').combination)}" in printed.err


def test_a_release_whose_triton_is_unknown_is_a_conflict():
    lines = pin_sheet.conflict_lines(conflict("h200", torch="2.12.0"))
    assert any("torch.toml: release (version '2.12.0'): wants triton ==3.7.0" in line for line in lines)


def test_a_driver_that_is_too_old_is_named():
    lines = "\n".join(pin_sheet.conflict_lines(conflict("h200", torch="2.15", driver="570")))
    assert "cuda.toml: floor (cuda_major 13): CUDA 13.2 needs driver >= 580.65.06, declared is 570" in lines


def test_output_is_a_file_that_pip_reads(tmp_path):
    file = tmp_path / "constraints.txt"
    assert run(["pins", "--model", "qwen", "--gpu", "a100", "--python", "3.12", "--output", str(file)]) == 0
    names = set(pinned(file.read_text()))
    assert names == {
        *("torch", "torchvision", "triton", "causal-conv1d", "fla-core"),
        *("flash-linear-attention", "transformers", "kernels"),
    }


def test_another_model_gets_its_own_packages(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [1]}')
    file = tmp_path / "constraints.txt"
    assert run(["pins", "--model", str(tmp_path), "--gpu", "h200", "--python", "3.12", "--output", str(file)]) == 0
    names = set(pinned(file.read_text()))
    assert {"causal-conv1d", "mamba-ssm", "transformers"} <= names
    assert "fla-core" not in names


def test_a_model_without_kernels_has_nothing_to_pin(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 4}')
    assert run(["pins", "--model", str(tmp_path), "--gpu", "h200"]) == 2


def test_a_name_with_a_line_break_stays_a_comment():
    model = QWEN.__class__(**{**{name: getattr(QWEN, name) for name in QWEN.__struct_fields__}, "name": "a\ntorch==1"})
    answer = pins.search(replace(wanted("a100"), model=model), CATALOG)
    assert str(pinned(text_of(answer))["torch"]) == str(pinned(text_of(found("a100")))["torch"])


def test_a_published_wheel_is_named_exactly():
    text = text_of(found("a100", torch="2.10"))
    assert "prebuilt: causal_conv1d-1.7.0+cu12torch2.10cxx11abiTRUE-cp312-cp312-linux_x86_64.whl" in text
    assert "nvcc" not in text


def test_prebuilt_alone_takes_an_older_torch():
    answer = found("a100", prebuilt=True)
    assert "prebuilt: causal_conv1d-" in text_of(answer)
    assert answer.combination.torch.version < found("a100").combination.torch.version
    assert pins.summary(answer.combination) in text_of(found("a100"))


def test_a_build_is_described():
    text = text_of(found("h200", torch="2.14"))
    assert "build needed, no prebuilt wheel fits" in text
    assert "wanted: causal_conv1d-1.7.0+cu13torch2.14cxx11abiTRUE-cp312-cp312-linux_x86_64.whl" in text
    assert "toolkit: nvcc 13.0" in text
    assert "compiler: gcc <= 15 or clang <= 20 (cuda.toml: toolkit (version '13.0')), C++20" in text
    assert "pip install --no-build-isolation --no-deps causal-conv1d==1.7.0" in text
    assert "sm_90" in text


def place(torch, cuda, python="3.12", machine="x86_64"):
    return Place(torch=CATALOG.torch_release(torch), cuda=cuda, python=python, machine=machine)


def wheels(version):
    return next(row for row in CATALOG.kernels["causal_conv1d"].wheels if str(row.version) == version)


@pytest.mark.parametrize(
    ("version", "there", "name"),
    [
        ("1.6.1", place("2.11.0", "12.8"), "+cu12torch2.11cxx11abiTRUE-cp312-cp312-linux_x86_64.whl"),
        ("1.4.0", place("2.4.1", "12.1", "3.10"), "+cu122torch2.4cxx11abiFALSE-cp310-cp310-linux_x86_64.whl"),
        ("1.7.0", place("2.9.1", "13.0", "3.13", "aarch64"), "+cu13torch2.9cxx11abiTRUE-cp313-cp313-linux_aarch64.whl"),
    ],
)
def test_wheel_names(version, there, name):
    assert wheel_name(CATALOG.kernels["causal_conv1d"], wheels(version), there) == f"causal_conv1d-{version}{name}"


@pytest.mark.parametrize(
    ("version", "there", "why"),
    [
        ("1.7.0", place("2.10.0", "12.8"), ""),
        ("1.7.0", place("2.10.0", "13.0"), ""),
        ("1.7.0", place("2.10.0", "12.8", machine="aarch64"), ""),
        ("1.7.0", place("2.11.0", "12.8"), "none is for torch 2.11"),
        ("1.7.0", place("2.10.0", "12.8", "3.14"), "none is for Python 3.14"),
        ("1.7.0", place("2.8.0", "13.0"), "of its wheels none is for torch 2.8 with cu13"),
        ("1.7.0", place("2.6.0", "12.4", machine="aarch64"), "none is for torch 2.6 with cu12 on aarch64"),
        ("1.5.2", place("2.7.1", "12.6", machine="aarch64"), "none is for aarch64"),
        ("1.5.2", place("2.7.1", "13.0"), "none is for cu13"),
        ("1.5.2", place("2.4.1", "12.1", "3.13"), "of its wheels none is for torch 2.4 with cu12"),
        ("1.5.2", place("2.4.1", "12.1", "3.12"), ""),
    ],
)
def test_which_wheels_exist(version, there, why):
    said = lacking(wheels(version), there)
    assert (why in said) if why else said == ""


@pytest.mark.parametrize(
    ("torch", "name"), [("2.11.0", "cu13torch2.11cxx11abiTRUE"), ("2.5.1", "cu12torch2.5cxx11abiFALSE")]
)
def test_the_check_of_wheels_names_the_same_file(torch, name):
    """KC120 gives the name that pins give: with the ABI of the installed torch."""
    versions = {"torch": torch, "causal-conv1d": "1.6.2.post1"}
    release = CATALOG.torch_release(torch)
    environment = Environment(
        python=Python(version="3.12.1"),
        distributions=tuple(Distribution(name=item, version=version) for item, version in versions.items()),
        torch=TorchBuild(version=torch, cuda=release.pypi_cuda),
    )
    checks = [check for check in ENVIRONMENT_CHECKS if check.code == "KC120"]
    outcomes, _ = judge(Case(Job(model=QWEN), Snapshot(environment=environment), CATALOG), checks)
    assert f"causal_conv1d-1.6.2.post1+{name}-cp312-cp312-linux_x86_64.whl" in outcomes[0].wanted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu": ("h2000",)}, "--gpu 'h2000': no GPU"),
        ({"gpu": ("gb200", "h200"), "machine": "x86_64"}, "need aarch64 and x86_64 machines"),
        ({"python": "2.7"}, "--python 2.7"),
        ({"python": "3"}, "--python 3"),
        ({"torch": "1.13"}, "--torch 1.13"),
        ({"torch": "2.14+cpu"}, "--torch 2.14+cpu"),
        ({"driver": "new"}, "--driver 'new'"),
    ],
)
def test_wrong_wishes_are_usage_errors(options, said):
    given = {"gpu": ("h200",), "python": "3.12", "torch": None, "driver": None, "machine": None, "prebuilt": False}
    with pytest.raises(UsageError, match=re.escape(said)):
        pins.wish({**given, **options}, QWEN, CATALOG)


def test_a_capability_has_no_machine_of_its_own():
    assert wanted("sm_90").machine == "x86_64"
    assert wanted("sm_90").gpus == (Target(text="sm_90", cc="9.0"),)
    assert wanted("gh200").machine == "aarch64"


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "kernels/causal_conv1d.toml",
            '{ torch = ["2.4"], python = ["3.13"] }',
            '{ torch = ["2.3"], python = ["3.13"] }',
            "kernels/causal_conv1d.toml: wheels (version '1.5.2'), exclude: '2.3' is none of the values",
        ),
        (
            "kernels/causal_conv1d.toml",
            '{ torch = ["2.4"], python = ["3.13"] }',
            "{}",
            "kernels/causal_conv1d.toml: wheels (version '1.5.2'), exclude: a set without any list",
        ),
        ("image.toml", 'text = "No space left', 'text = "(No space left', "image.toml: build ("),
        ("gpus.toml", 'machine = "aarch64"', 'machine = "arm"', "gpus.toml: gpu"),
    ],
)
def test_rows_that_pins_read_are_checked(tmp_path, file, old, new, said):
    folder = tmp_path / "matrices"
    shutil.copytree(CATALOG.directory, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(MatrixError, match=re.escape(said)):
        catalogs.load(folder)
