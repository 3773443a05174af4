from __future__ import annotations

import base64
import hashlib
import sys

import pytest

from kerncheck.probes import distributions

OPTIONS = {
    "names": ["torch", "triton", "fla-core", "flash-attn"],
    "prefixes": ["nvidia-"],
    "extras": ["cuda"],
    "modules": {"triton": ["triton"], "flash-attn": ["flash_attn"]},
    "unhashed": ["torch"],
}


def install(site, name, version, *, requires=(), files=None, record=None):
    """Write a distribution's metadata folder, and its files with a RECORD (whose hashes ``record`` overrides)."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", "License: MIT", "        ", "        more", *requires]
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n\nVersion: 9.9 of the description\n"
    )
    entries = []
    for path, content in (files or {}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        entries.append(f"{path},sha256={(record or {}).get(path) or hashed(content)},{len(content)}")
    (info / "RECORD").write_text("\n".join([*entries, f"{info.name}/RECORD,,"]) + "\n")
    return info


def hashed(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("folder", "name", "version"),
    [
        ("torch-2.13.0+cpu.dist-info", "torch", "2.13.0+cpu"),
        ("flash_attn-2.8.0.post2.dist-info", "flash_attn", "2.8.0.post2"),
        ("flash-attn-2.8.3.dist-info", "flash-attn", "2.8.3"),
        ("nvidia_nccl_cu12-2.27.3.dist-info", "nvidia_nccl_cu12", "2.27.3"),
        ("apex-0.1-py3.10.egg-info", "apex", "0.1"),
        ("fla.egg-info", "fla", None),
    ],
)
def test_names_of_metadata_folders(folder, name, version):
    match = distributions.INFO.match(folder)
    assert (match["name"], match["version"]) == (name, version)


def test_other_folders_are_no_metadata():
    assert distributions.INFO.match("torch") is None
    assert distributions.INFO.match("torch-2.13.0.data") is None


def test_names_compare_as_indexes_do():
    assert distributions.canonical("Flash_Attn.v2--x") == "flash-attn-v2-x"


def test_the_first_copy_wins_and_the_others_are_told(tmp_path):
    install(tmp_path / "user", "triton", "3.4.0")
    install(tmp_path / "base", "triton", "3.8.0")
    install(tmp_path / "base", "numpy", "2.4.0")
    found = distributions.scan([str(tmp_path / "user"), str(tmp_path / "base")], OPTIONS["names"], OPTIONS["prefixes"])
    assert list(found) == ["triton"]
    item = distributions.describe("triton", found["triton"], {**OPTIONS, "modules": {}})
    assert (item["version"], item["location"]) == ("3.4.0", str(tmp_path / "user"))
    assert item["copies"] == [{"version": "3.8.0", "location": str(tmp_path / "base")}]


def test_requirements_of_interest_with_an_extra_that_matters(tmp_path):
    requires = [
        "Requires-Dist: einops",
        'Requires-Dist: torch>=2.7.0; extra == "cuda"',
        'Requires-Dist: torch_npu==2.7.1; extra == "npu"',
        'Requires-Dist: triton==3.2; extra == "npu"',
        "Requires-Dist: nvidia-nccl-cu12==2.27.3; platform_system == 'Linux'",
    ]
    install(tmp_path, "fla-core", "0.6.0", requires=requires)
    found = distributions.scan([str(tmp_path)], OPTIONS["names"], OPTIONS["prefixes"])
    item = distributions.describe("fla-core", found["fla-core"], OPTIONS)
    assert item["version"] == "0.6.0"
    assert item["requires"] == [
        'torch>=2.7.0; extra == "cuda"',
        "nvidia-nccl-cu12==2.27.3; platform_system == 'Linux'",
    ]


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path):
    install(tmp_path, "triton", "3.8.0")
    assert list(distributions.scan([str(tmp_path / "gone"), str(tmp_path)], ["triton"], ["nvidia-"])) == ["triton"]


def test_a_folder_without_metadata_still_tells_its_version_by_its_name(tmp_path):
    (tmp_path / "triton-3.8.0.dist-info").mkdir()
    (tmp_path / "torch.egg-info").mkdir()
    found = distributions.scan([str(tmp_path)], ["triton", "torch"], ["nvidia-"])
    assert distributions.describe("triton", found["triton"], OPTIONS)["version"] == "3.8.0"
    assert distributions.describe("torch", found["torch"], OPTIONS) is None


def test_the_version_in_the_module_is_read_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text('raise SystemExit("imported")\n__version__ = "2.8.3.post1"\n')
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    file = distributions.module_file("flash_attn")
    assert file == str(package / "__init__.py")
    assert distributions.written_version(file) == "2.8.3.post1"


@pytest.mark.parametrize("text", ["__version__ = get_version()", "", "__version__: str = 'x'\nversion = '3.0'"])
def test_only_a_literal_version_counts(tmp_path, text):
    file = tmp_path / "__init__.py"
    file.write_text(text)
    assert distributions.written_version(str(file)) in ("", "x")


def test_a_version_file_beside_the_module_counts(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "_version.py").write_text("version = '1.2.3'\n")
    assert distributions.written_version(str(tmp_path / "__init__.py")) == "1.2.3"
    assert distributions.written_version("") == ""


def test_modules_that_are_not_there_have_no_file():
    assert distributions.module_file("no_such_module_anywhere") == ""
    assert distributions.module_file("json.no_such_part") == ""
    assert distributions.module_file("json.decoder").endswith("decoder.py")


def test_a_file_with_two_owners_and_whose_content_it_has(tmp_path):
    path = "nvidia/nccl/lib/libnccl.so.2"
    install(tmp_path, "nvidia-nccl-cu13", "2.30.7", files={path: b"thirteen"})
    install(tmp_path, "nvidia-nccl-cu12", "2.28.9", files={path: b"twelve"})
    found = distributions.scan([str(tmp_path)], OPTIONS["names"], OPTIONS["prefixes"])
    (shared,) = distributions.shared_files(found, [])
    assert shared["path"] == path
    assert {owner["name"]: owner["version"] for owner in shared["owners"]} == {
        "nvidia-nccl-cu13": "2.30.7",
        "nvidia-nccl-cu12": "2.28.9",
    }
    assert shared["sha256"] == next(o["sha256"] for o in shared["owners"] if o["name"] == "nvidia-nccl-cu12")


def test_a_file_that_both_write_alike_is_no_conflict(tmp_path):
    install(tmp_path, "nvidia-nccl-cu13", "2.30.7", files={"nvidia/__init__.py": b"same"})
    install(tmp_path, "nvidia-nccl-cu12", "2.28.9", files={"nvidia/__init__.py": b"same"})
    found = distributions.scan([str(tmp_path)], OPTIONS["names"], OPTIONS["prefixes"])
    assert distributions.shared_files(found, []) == []


def test_large_distributions_are_left_out_and_files_beyond_the_budget_are_not_hashed(tmp_path, monkeypatch):
    install(tmp_path, "triton", "3.8.0", files={"shared.py": b"one"})
    install(tmp_path, "torch", "2.14.1", files={"shared.py": b"two"})
    found = distributions.scan([str(tmp_path)], OPTIONS["names"], OPTIONS["prefixes"])
    assert distributions.shared_files(found, ["torch"]) == []
    monkeypatch.setattr(distributions, "MOST_BYTES", 1)
    assert [item["sha256"] for item in distributions.shared_files(found, [])] == [""]


def test_libraries_come_first_when_there_are_many_files(tmp_path, monkeypatch):
    for name, content in (("nvidia-nvtx-cu11", b"one"), ("nvidia-nvtx-cu12", b"two")):
        install(tmp_path, name, "1.0", files={"a.h": content, "lib.so.1": content * 9, "b.h": content})
    found = distributions.scan([str(tmp_path)], OPTIONS["names"], OPTIONS["prefixes"])
    monkeypatch.setattr(distributions, "MOST_FILES", 2)
    assert [item["path"] for item in distributions.shared_files(found, [])] == ["lib.so.1", "a.h"]


def test_torchs_build_from_its_own_file(tmp_path):
    (tmp_path / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\n"
        "git_version = 'abc'\nhip: Optional[str] = None\n"
    )
    build = distributions.torch_build(str(tmp_path / "__init__.py"))
    assert (build["version"], build["cuda"], build["hip"], build["git"]) == ("2.14.1+cu130", "13.0", "", "abc")
