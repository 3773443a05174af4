from __future__ import annotations

import pytest
from machines import EMULATED, ON_A_NODE, environment, gpus, said, statuses

from kerncheck.model.base import Missing
from kerncheck.model.environment import CacheFolder, Python, Tool
from kerncheck.model.job import Job
from kerncheck.model.snapshot import Snapshot

IMAGE = Job(profile="image")


def machine(versions=None, **changes):
    return Snapshot(environment=environment(versions, **changes), gpus=gpus())


def failed(code, snapshot, job=ON_A_NODE):
    return [outcome for outcome in said(code, snapshot, job) if outcome.status == "failed"]


def test_kc131_compiler_and_headers_are_there():
    assert statuses("KC131", machine()) == {"passed"}


@pytest.mark.parametrize("job", [ON_A_NODE, IMAGE])
def test_kc131_no_compiler(job):
    (outcome,) = failed("KC131", machine(compiler=Tool()), job)
    assert "no CC, gcc or clang on PATH" in outcome.message
    assert "apt-get install gcc" in outcome.remedy


def test_kc131_a_cc_that_names_nothing():
    (outcome,) = failed("KC131", machine(compiler=Tool(via="CC", problem="CC=icc names no program")))
    assert "CC=icc names no program" in outcome.message


def test_kc131_no_headers():
    (outcome,) = failed("KC131", machine(python=Python(version="3.12.3", headers="")))
    assert (outcome.subject, "python3-dev" in outcome.remedy) == ("Python.h", True)


def test_kc131_asks_nothing_of_the_interpreter_of_triton_or_without_triton():
    assert statuses("KC131", machine(compiler=Tool()), EMULATED) == {"not_applicable"}
    assert statuses("KC131", machine({"triton": None}, compiler=Tool())) == {"not_applicable"}
    assert "not_judged" in statuses("KC131", machine(compiler=Missing(reason="not looked")))


def cache(**facts):
    return machine(triton_cache=CacheFolder(path="/home/me/.triton/cache", **facts))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"writable": False, "problem": "Permission denied", "owner": 1001}, "owned by uid 1001"),
        ({"noexec": True, "mount": "/scratch"}, "mounted noexec (/scratch)"),
    ],
)
def test_kc132_a_cache_folder_that_cannot_be_used(facts, words):
    (outcome,) = failed("KC132", cache(**facts))
    assert outcome.severity == "error"
    assert words in outcome.message
    assert "TRITON_CACHE_DIR" in outcome.remedy


@pytest.mark.parametrize("filesystem", ["nfs4", "lustre", "gpfs"])
def test_kc132_a_network_file_system_is_a_warning_and_an_error_for_several_ranks(filesystem):
    (outcome,) = failed("KC132", cache(filesystem=filesystem, mount="/home"))
    assert outcome.severity == "warning"
    folder = CacheFolder(path="/home/me/.triton/cache", filesystem=filesystem, mount="/home")
    (outcome,) = failed("KC132", machine(triton_cache=folder, variables={"WORLD_SIZE": "16"}))
    assert outcome.severity == "error"
    assert "shared by 16 ranks" in outcome.message


@pytest.mark.parametrize("filesystem", ["ext4", "xfs", "overlay", "tmpfs", ""])
def test_kc132_a_local_folder_passes(filesystem):
    assert statuses("KC132", cache(filesystem=filesystem)) == {"passed"}


def test_kc132_is_judged_where_kernels_are_compiled():
    bad = cache(writable=False)
    assert statuses("KC132", bad, EMULATED) == {"not_applicable"}
    assert statuses("KC132", bad, IMAGE) == {"not_applicable"}
    assert statuses("KC132", machine({"triton": None})) == {"not_applicable"}
    assert statuses("KC132", machine(triton_cache=Missing(reason="stuck"))) == {"not_judged"}


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("USE_HUB_KERNELS", "NO", "error"),
        ("USE_HUB_KERNELS", "0", "error"),
        ("DISABLE_KERNEL_MAPPING", "1", "error"),
        ("TRITON_INTERPRET", "1", "error"),
        ("FLA_DISABLE_BACKEND_DISPATCH", "1", "warning"),
    ],
)
def test_kc133_a_variable_that_switches_kernels_off_is_named(name, value, severity):
    (outcome,) = failed("KC133", machine(variables={name: value}))
    assert (outcome.subject, outcome.severity) == (name, severity)
    assert f"{name}={value}" in outcome.message
    assert f"unset {name}" in outcome.remedy


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"USE_HUB_KERNELS": "YES"},
        {"USE_HUB_KERNELS": "on"},
        {"DISABLE_KERNEL_MAPPING": "0"},
        {"TRITON_INTERPRET": "0"},
        {"FLA_TILELANG": "1"},
        {"FLA_CACHE_RESULTS": "0"},
    ],
)
def test_kc133_other_values_are_no_finding(variables):
    assert statuses("KC133", machine(variables=variables)) == {"passed"}


def test_kc133_a_backend_that_is_switched_off_is_a_note():
    assert statuses("KC133", machine(variables={"FLA_TILELANG": "0"})) == {"note", "passed"}


def test_kc133_the_emulated_device_sets_its_own_variable():
    on = machine(variables={"TRITON_INTERPRET": "1"})
    assert statuses("KC133", on, EMULATED) == {"not_applicable", "passed"}


@pytest.mark.parametrize("code", ["KC131", "KC132", "KC133"])
def test_unobserved_is_never_a_pass(code):
    assert statuses(code, Snapshot()) == {"not_judged"}
