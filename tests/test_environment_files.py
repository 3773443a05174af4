from __future__ import annotations

import pytest
from machines import SOUND, distributions, environment, one, said, statuses

from kerncheck.model.base import Missing
from kerncheck.model.environment import Copy, Distribution, Owner, Python, SharedFile
from kerncheck.model.snapshot import Snapshot

NCCL = "nvidia/nccl/lib/libnccl.so.2"
CU12 = Owner(name="nvidia-nccl-cu12", version="2.28.9", sha256="twelve")
CU13 = Owner(name="nvidia-nccl-cu13", version="2.30.7", sha256="thirteen")


def machine(versions=None, requires=(), **changes):
    found = distributions({**SOUND, **(versions or {})}, torch=tuple(requires))
    return Snapshot(environment=environment(**{"distributions": found, **changes}))


def failed(code, snapshot):
    return {(o.subject, o.severity) for o in said(code, snapshot) if o.status == "failed"}


def test_kc114_one_family_as_torch_pins_it():
    pins = ("nvidia-nccl-cu13==2.30.7",)
    assert statuses("KC114", machine({"nvidia-nccl-cu13": "2.30.7"}, pins)) == {"passed"}
    assert statuses("KC114", machine()) == {"not_applicable"}


def test_kc114_two_families_are_a_warning_and_one_is_not():
    both = machine({"nvidia-nccl-cu11": "2.14.3", "nvidia-nccl-cu12": "2.27.3"})
    assert failed("KC114", both) == {("NVIDIA libraries", "warning")}
    assert "cu11 and cu12" in one("KC114", both).message
    assert statuses("KC114", machine({"nvidia-nccl-cu12": "2.27.3", "nvidia-cudnn-cu12": "9.10.2.21"})) == {"passed"}


def test_kc114_libraries_without_a_family_in_their_name_are_no_family():
    assert statuses("KC114", machine({"nvidia-cublas": "13.1.0.3", "nvidia-nccl-cu13": "2.30.7"})) == {"passed"}


@pytest.mark.parametrize(
    ("version", "finding"),
    [("2.27.3", set()), ("2.21.5", {("nvidia-nccl-cu12", "error")}), ("2.28.9", {("nvidia-nccl-cu12", "warning")})],
)
def test_kc114_torchs_pins_against_what_is_installed(version, finding):
    pins = ("nvidia-nccl-cu12==2.27.3; platform_system == 'Linux'",)
    assert failed("KC114", machine({"nvidia-nccl-cu12": version}, pins)) == finding


def test_kc114_nvjitlink_older_than_cusparse():
    old = machine({"nvidia-nvjitlink-cu12": "12.1.105", "nvidia-cusparse-cu12": "12.4.5"})
    assert failed("KC114", old) == {("nvidia-nvjitlink-cu12", "error")}
    same = machine({"nvidia-nvjitlink-cu12": "12.8.93", "nvidia-cusparse-cu12": "12.5.8"})
    assert failed("KC114", same) == set()


def shared(sha256, **changes):
    return machine(shared_files=(SharedFile(path=NCCL, owners=(CU12, CU13), sha256=sha256),), **changes)


def test_kc115_one_file_with_two_owners_and_whose_it_is():
    outcome = one("KC115", shared("twelve", requires=("nvidia-nccl-cu13==2.30.7",)))
    assert (outcome.status, outcome.severity, outcome.subject) == ("failed", "error", NCCL)
    assert "claimed by nvidia-nccl-cu12 2.28.9 and nvidia-nccl-cu13 2.30.7" in outcome.message
    assert "content matches nvidia-nccl-cu12" in outcome.message
    assert "pip install nvidia-nccl-cu13==2.30.7" in outcome.remedy


@pytest.mark.parametrize(
    ("sha256", "requires", "severity"),
    [
        ("thirteen", ("nvidia-nccl-cu13==2.30.7",), "warning"),
        ("other", ("nvidia-nccl-cu13==2.30.7",), "error"),
        ("", ("nvidia-nccl-cu13==2.30.7",), "error"),
        ("twelve", (), "error"),
    ],
)
def test_kc115_only_the_content_that_torch_requires_is_less_than_an_error(sha256, requires, severity):
    assert one("KC115", shared(sha256, requires=requires)).severity == severity


def test_kc115_many_files_of_the_same_owners_are_one_finding_that_names_a_library():
    header = SharedFile(path="nvidia/nccl/include/nccl.h", owners=(CU12, CU13), sha256="twelve")
    library = SharedFile(path=NCCL, owners=(CU12, CU13), sha256="twelve")
    outcome = one("KC115", machine(shared_files=(header, header, library)))
    assert outcome.subject == NCCL
    assert "(and 2 more files)" in outcome.message


def test_kc115_shared_headers_alone_are_a_warning():
    header = SharedFile(path="nvidia/nccl/include/nccl.h", owners=(CU12, CU13), sha256="twelve")
    assert one("KC115", machine(shared_files=(header,))).severity == "warning"


def test_kc115_no_shared_file_and_no_look():
    assert statuses("KC115", machine()) == {"passed"}
    assert statuses("KC115", machine(shared_files=Missing(reason="not read"))) == {"not_judged"}


def written(version, imported):
    item = Distribution(name="triton", version=version, imported=imported, module="/x/triton/__init__.py")
    return Snapshot(environment=environment(distributions=(item,)))


@pytest.mark.parametrize(
    ("version", "imported", "status"),
    [
        ("3.7.1", "3.7.1", "passed"),
        ("3.7.1+git12", "3.7.1", "passed"),
        ("3.7.1", "3.4.0", "failed"),
        ("2.8.3", "2.8.3.post1", "note"),
        ("3.7.1", "", "not_applicable"),
        ("3.7.1", "unknown", "not_applicable"),
    ],
)
def test_kc118_metadata_against_the_module(version, imported, status):
    outcomes = said("KC118", written(version, imported))
    assert status in {outcome.status for outcome in outcomes}
    assert ("failed" in {outcome.status for outcome in outcomes}) == (status == "failed")


def placed(torch, extension, *, user="", path="", copies=()):
    items = (
        Distribution(name="torch", version="2.8.0", location=torch, copies=copies),
        Distribution(name="flash-attn", version="2.8.3", location=extension),
    )
    variables = {"PYTHONPATH": path} if path else {}
    python = Python(version="3.12.3", user_site=user)
    return Snapshot(environment=environment(distributions=items, python=python, variables=variables))


SYSTEM, USER = "/usr/local/lib/python3.12/dist-packages", "~/.local/lib/python3.12/site-packages"


def test_kc119_an_extension_of_the_user_site_beside_torch_of_the_image():
    outcome = next(o for o in said("KC119", placed(SYSTEM, USER, user=USER)) if o.status == "failed")
    assert (outcome.subject, outcome.severity) == ("flash-attn", "error")
    assert SYSTEM in outcome.message
    assert USER in outcome.message
    assert "PYTHONNOUSERSITE=1" in outcome.remedy


def test_kc119_pythonpath_is_named_where_it_is_the_cause():
    outcome = next(o for o in said("KC119", placed("/opt/torch", SYSTEM, path="/opt/torch:/x")) if o.status == "failed")
    assert "unset PYTHONPATH" in outcome.remedy


def test_kc119_an_environment_over_the_systems_packages_is_meant_so():
    assert statuses("KC119", placed(SYSTEM, "/venv/lib/python3.12/site-packages")) == {"passed"}
    below = (Copy(version="2.7.0", location=SYSTEM),)
    layered = placed("/venv/lib/python3.12/site-packages", "/venv/lib/python3.12/site-packages", copies=below)
    assert statuses("KC119", layered) == {"note"}


def test_kc119_a_copy_in_the_user_site_that_hides_another_version():
    snapshot = placed(USER, USER, user=USER, copies=(Copy(version="2.7.0", location=SYSTEM),))
    assert failed("KC119", snapshot) == {("torch", "warning")}
    same = placed(USER, USER, user=USER, copies=(Copy(version="2.8.0", location=SYSTEM),))
    assert failed("KC119", same) == set()


def test_kc119_two_metadata_folders_in_one_place():
    snapshot = placed(SYSTEM, SYSTEM, copies=(Copy(version="2.7.0", location=SYSTEM),))
    assert failed("KC119", snapshot) == {("torch", "warning")}


def test_kc119_without_locations_nothing_is_said():
    assert statuses("KC119", machine()) == {"not_judged"}


@pytest.mark.parametrize("code", ["KC114", "KC115", "KC118", "KC119"])
def test_unobserved_is_never_a_pass(code):
    assert statuses(code, Snapshot()) == {"not_judged"}
