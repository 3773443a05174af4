"""Checks of compiled files on sections written by hand: what each says, what it leaves open, and how it is counted."""

from __future__ import annotations

import msgspec
import pytest
from machines import catalog

from kerncheck.checks.binaries_device import driver_cuda
from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.model.base import Broken, Missing
from kerncheck.model.binaries import Binaries, BinaryFile, Code, DeviceCode, ImageSet, Package, Record, Shadowing
from kerncheck.model.environment import Environment, Gpu, Gpus, Owner, SharedFile, TorchBuild
from kerncheck.model.imports import Attempt, Imported, Imports, Library, PackageImport, TorchRuntime, Unresolved
from kerncheck.model.job import Job
from kerncheck.model.outcome import Outcome
from kerncheck.model.snapshot import Snapshot
from kerncheck.targets import parse_targets

NAME = "causal_conv1d_cuda"
PATH = f"/site/{NAME}.so"
X86_64 = "64-bit x86-64"


def code(*names: str, isa: str = "", problem: str = "") -> DeviceCode:
    """Return device code of these architectures in one fat binary."""
    codes = []
    for name in names:
        kind, _, text = name.partition("_")
        suffix = text[-1] if text[-1] in "af" else ""
        kinds = {"sm": "cubin", "compute": "ptx"}
        codes.append(
            Code(kind=kinds[kind], arch=int(text.rstrip("af")), suffix=suffix, isa=isa if kind == "compute" else "")
        )
    sets = (ImageSet(codes=tuple(names), count=1),)
    return DeviceCode(sections=(".nv_fatbin",), codes=tuple(codes), images=1, sets=sets, problem=problem)


def file(**fields) -> BinaryFile:
    given = {
        "path": PATH,
        "package": "causal_conv1d",
        "module": NAME,
        "header": "64-bit x86-64",
        "device": code("sm_90"),
    }
    return BinaryFile(**{**given, **fields})


def section(*files: BinaryFile, torch: tuple[BinaryFile, ...] = (), installed: str = "causal-conv1d 1.7.0") -> Binaries:
    package = Package(
        package="causal_conv1d", extensions=(NAME,), installed=(installed,) if installed else (), files=files
    )
    return Binaries(
        header="64-bit x86-64", torch_folder="/site/torch", torch_abi="C++11", torch=torch, packages=(package,)
    )


def judged(
    seen: Binaries | Missing, code: str, *targets: str, job: Job | None = None, cuda: str = "13.0", **sections
) -> list[Outcome]:
    """Return what one check says of a section, for an image with these targets."""
    job = job or Job(profile="image", targets=parse_targets(targets, catalog()))
    given = {"environment": Environment(torch=TorchBuild(version="2.14.1", cuda=cuda)), "gpus": Gpus(), **sections}
    case = Case(job, Snapshot(job=job, binaries=seen, **given), catalog())
    outcomes, crashes = judge(case, [check for check in all_checks() if check.code == code])
    assert crashes == ()
    return list(outcomes)


def one(*arguments, **options) -> Outcome:
    (outcome,) = judged(*arguments, **options)
    return outcome


CODES = [f"KC{number}" for number in range(230, 240)]


@pytest.mark.parametrize("code", CODES)
def test_a_section_that_was_not_observed_is_never_a_pass(code):
    outcome = one(Missing(reason="the child died"), code, "sm_90")
    assert (outcome.status, outcome.required, outcome.message) == ("not_judged", True, "the child died")


@pytest.mark.parametrize("code", CODES)
def test_nothing_installed_is_not_applicable(code):
    assert one(section(installed=""), code, "sm_90", cuda="").status == "not_applicable"


@pytest.mark.parametrize("code", [code for code in CODES if code not in ("KC235", "KC236", "KC237", "KC239")])
def test_a_package_whose_files_could_not_be_looked_at_is_not_judged(code):
    broken = Binaries(
        header="64-bit x86-64", packages=(Package(package="causal_conv1d", problem="not finished after 60 s"),)
    )
    outcome = one(broken, code, "sm_90")
    assert (outcome.status, outcome.required) == ("not_judged", True)
    assert "not finished" in outcome.message


@pytest.mark.parametrize("code", CODES)
def test_a_sound_file_passes_every_check(code):
    record = Record(distribution="causal-conv1d", version="1.7.0", sha256="A", size=5)
    whole = section(
        file(size=5, sha256="A", records=(record,), needed=(Library(name="libc.so.6", path="/lib/libc.so.6"),))
    )
    assert one(whole, code, "sm_90").status == "passed"


@pytest.mark.parametrize(
    ("names", "target", "status"),
    [
        (("sm_80", "sm_90"), "sm_100", "failed"),
        (("sm_75", "sm_80", "sm_90"), "6.1", "failed"),
        (("sm_75", "sm_80", "sm_90"), "v100", "failed"),
        (("sm_90a",), "b200", "failed"),
        (("sm_90",), "a100", "failed"),
        (("sm_100a",), "b300", "failed"),
        (("sm_103f",), "b200", "failed"),
        (("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"), "11.0", "failed"),
        (("compute_90a",), "b200", "failed"),
        (("compute_120",), "h200", "failed"),
        (("sm_80", "sm_86"), "rtx 4090", "passed"),
        (("sm_80",), "8.6", "passed"),
        (("sm_100",), "10.3", "passed"),
        (("sm_100f",), "10.3", "passed"),
        (("sm_90a",), "h200", "passed"),
        (("sm_70", "sm_80"), "v100", "passed"),
        (("sm_120", "sm_121"), "12.1", "passed"),
        (("compute_80",), "h200", "passed"),
        ((), "h200", "not_judged"),
    ],
)
def test_which_code_covers_which_target(names, target, status):
    outcome = one(section(file(device=code(*names))), "KC235", target)
    assert outcome.status == status
    assert all(name in outcome.message for name in names)


def test_an_unknown_interpreter_is_not_compared():
    unknown = msgspec.structs.replace(section(file()), header="")
    outcome = one(unknown, "KC230", "sm_90")
    assert (outcome.status, outcome.required) == ("not_judged", False)


@pytest.mark.parametrize(
    ("version", "number", "words"),
    [
        ("1.7.0", "sm_120", "nvcc of CUDA >= 12.8"),
        ("1.7.0", "12.1", "nvcc of CUDA >= 12.8"),
        ("1.7.0", "11.0", "nvcc of CUDA >= 13.0"),
        ("1.7.0", "6.1", "no release of its setup"),
        ("1.5.0.post8", "6.1", "no release of its setup"),
        ("1.5.0.post8", "7.0", "build it here (its setup ignores"),
        ("9.9", "6.1", "TORCH_CUDA_ARCH_LIST=6.1"),
    ],
)
def test_the_remedy_knows_what_the_setup_of_the_release_builds(version, number, words):
    seen = section(file(device=code("sm_89")), installed=f"causal-conv1d {version}")
    outcome = one(seen, "KC235", number)
    assert outcome.status == "failed"
    assert words in outcome.remedy


def test_a_package_without_known_architectures_is_built_by_the_usual_variable():
    package = Package(
        package="vendor", extensions=("vendor._C",), installed=("vendor 1.0",), files=(file(package="vendor"),)
    )
    outcome = one(Binaries(header="64-bit x86-64", packages=(package,)), "KC235", "b200")
    assert "TORCH_CUDA_ARCH_LIST=10.0 pip install" in outcome.remedy


def test_on_a_node_the_visible_gpus_count_and_a_node_without_one_is_inconclusive():
    node = Job(profile="node", device="cuda")
    assert one(section(file()), "KC235", job=node, gpus=Gpus(gpus=(Gpu(name="H200", cc="9.0"),))).status == "passed"
    blind = one(section(file()), "KC235", job=node, gpus=Missing(reason="no NVML"))
    assert (blind.status, blind.required) == ("not_judged", True)
    assert "no NVML" in blind.message


def test_the_emulated_device_asks_for_no_gpu_code():
    assert one(section(file()), "KC235", job=Job(profile="ci", device="emulate")).status == "not_applicable"


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("580", "13.0"),
        ("580.65.06", "13.0"),
        ("575.57.08", "12.9"),
        ("570", "12.8"),
        ("570.10", "12.6"),
        ("525", "12.0"),
        ("390", ""),
        ("", ""),
    ],
)
def test_the_cuda_version_of_a_declared_driver(driver, cuda):
    job = Job(profile="image", driver=driver)
    snapshot = Snapshot(environment=Environment(), gpus=Gpus())
    assert driver_cuda(Case(job, snapshot, catalog())) == (driver, cuda)


def test_a_real_driver_says_its_cuda_version_itself():
    node = Job(profile="node", device="cuda")
    gpus = Gpus(driver="535.104.05", cuda="12.2", gpus=(Gpu(name="RTX 3090", cc="8.6"),))
    outcome = one(section(file(device=code("compute_80", isa="8.7"))), "KC237", job=node, gpus=gpus)
    assert (outcome.status, outcome.severity) == ("failed", "error")
    assert "CUDA 12.2" in outcome.found


def test_an_unknown_ptx_version_is_a_warning():
    outcome = one(section(file(device=code("compute_80", isa="77.0"))), "KC237", "8.6")
    assert (outcome.status, outcome.severity) == ("failed", "warning")


def test_hidden_device_code_is_open_not_absent():
    hidden = section(file(device=Missing(reason="the file has no section table")))
    outcome = one(hidden, "KC236", "sm_90")
    assert (outcome.status, outcome.message) == ("not_judged", "the file has no section table")


def test_damaged_device_code_is_told_once():
    damaged = section(file(device=code("sm_90", problem="its device code is damaged: entry at byte 16")))
    assert one(damaged, "KC238", "sm_90").status == "failed"
    assert {outcome.status for outcome in judged(damaged, "KC236", "sm_90")} == {"not_judged"}
    assert {outcome.status for outcome in judged(damaged, "KC235", "sm_90")} == {"not_applicable"}


def test_a_file_that_two_distributions_claim_is_left_to_kc115():
    records = (Record(distribution="a", version="1", sha256="A", size=5),)
    changed = section(file(size=6, records=records))
    assert one(changed, "KC239").status == "failed"
    owners = (Owner(name="a", version="1", sha256="A"), Owner(name="b", version="2", sha256="B"))
    shared = Environment(
        torch=TorchBuild(version="2.14.1", cuda="13.0"), shared_files=(SharedFile(path=f"{NAME}.so", owners=owners),)
    )
    assert {outcome.status for outcome in judged(changed, "KC239", environment=shared)} <= {"passed", "not_judged"}


SHADOW = Shadowing(
    name="libcudnn.so.9", path="/old/libcudnn.so.9", expected="/own/libcudnn.so.9", via="LD_LIBRARY_PATH"
)


@pytest.mark.parametrize(
    ("fields", "status", "severity"),
    [
        ({"lacks": ("cudnnX",)}, "failed", "error"),
        ({"lacks": ("cudnnX",), "taken": False}, "failed", "warning"),
        ({"version": "9.1.0", "wanted": "9.20.0.48"}, "failed", "error"),
        ({"version": "9.1.0", "wanted": "9.20.0.48", "name": "libcublas.so.13"}, "failed", "warning"),
        ({"version": "9.1.0", "wanted": "9.20.0.48", "taken": False}, "passed", "error"),
        ({"version": "9.30.0", "wanted": "9.20.0.48"}, "note", "error"),
        ({}, "note", "error"),
    ],
)
def test_a_shadow_is_judged_by_what_is_taken_and_what_it_lacks(fields, status, severity):
    torch = file(path="/site/torch/lib/libtorch_cuda.so", package="torch", role="torch", module="")
    shadow = msgspec.structs.replace(SHADOW, **fields)
    seen = section(torch=(msgspec.structs.replace(torch, shadowed=(shadow,)),), installed="")
    outcome = one(seen, "KC232")
    assert (outcome.status, outcome.severity) == (status, severity)


def test_an_import_that_went_through_leaves_a_note():
    attempt = Attempt(module=NAME, result=Imported(module=NAME))
    imports = Imports(
        torch=TorchRuntime(version="2.14.1", file="", cuda="13.0"),
        packages=(PackageImport(package="causal_conv1d", root=attempt, extensions=(attempt,)),),
    )
    seen = section(file(unresolved=(Unresolved(symbol="_ZN3c104cuda9SetDeviceEi"),)))
    assert one(seen, "KC234").status == "failed"
    note = one(seen, "KC234", imports=imports)
    assert note.status == "note"
    assert "went through" in note.message


def test_a_torch_that_does_not_import_is_told_by_the_imports():
    torch = file(
        path="/site/torch/lib/libtorch_cuda.so", role="torch", module="", needed=(Library(name="libnccl.so.2"),)
    )
    seen = section(torch=(torch,), installed="")
    assert one(seen, "KC231").status == "failed"
    imports = Imports(torch=Broken(how="raised", exception="ImportError", message="libnccl.so.2: cannot open"))
    assert one(seen, "KC231", imports=imports).status == "note"


@pytest.mark.parametrize(("listed", "status"), [((), "passed"), (("sm_75",), "failed"), (("sm_90",), "passed")])
def test_torchs_empty_list_is_replaced_by_the_code_in_its_library(listed, status):
    torch = file(path="/site/torch/lib/libtorch_cuda.so", role="torch", module="", device=code("sm_90"))
    imports = Imports(torch=TorchRuntime(version="2.14.1", file="", cuda="13.0", arch_list=listed))
    assert one(section(torch=(torch,), installed=""), "KC106", "h200", imports=imports).status == status


def test_torchs_empty_list_without_its_library_tells_nothing():
    imports = Imports(torch=TorchRuntime(version="2.14.1", file="", cuda="13.0"))
    assert one(section(installed=""), "KC106", "h200", imports=imports).status == "not_judged"


def test_the_section_survives_json():
    seen = Snapshot(binaries=section(file(shadowed=(SHADOW,), elsewhere={"a": "b"}, unread={"c": "d"})))
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Snapshot) == seen
