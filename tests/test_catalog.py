from __future__ import annotations

import itertools
import shutil
import time

import pytest
from machines import catalog

from kerncheck import catalog as catalogs
from kerncheck.errors import MatrixError
from kerncheck.invariants import EVERY_OP
from kerncheck.matching import Setting, applies
from kerncheck.versions import parse


@pytest.fixture
def matrices(tmp_path):
    """A copy of the real matrices, to be broken."""
    shutil.copytree(catalogs.default_directory(), tmp_path / "matrices")
    return tmp_path / "matrices"


def broken(matrices, file, old, new):
    """Replace one text in one file; return what loading says."""
    path = matrices / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(MatrixError) as caught:
        catalogs.load(matrices)
    assert "\n" not in caught.value.message
    return caught.value.message


MALFORMED = {
    "no TOML": ("cuda.toml", "[[floor]]", "[[floor", ["cuda.toml", "not valid TOML", "line"]),
    "wrong type": (
        "torch.toml",
        'cudnn = "9.24.0.43"',
        "cudnn = 9",
        ["torch.toml", "release 16 (version '2.14.0')", "cudnn", "Expected `str`"],
    ),
    "unknown field": (
        "gpus.toml",
        'cc = "12.1"',
        'cc = "12.1"\ncores = 1',
        ["gpus.toml", "gpu 1 (name 'GB10')", "cores"],
    ),
    "source absent": (
        "triton.toml",
        'source = "wheel binary: triton/backends/nvidia/bin/ptxas',
        'origin = "wheel binary: triton/backends/nvidia/bin/ptxas',
        ["triton.toml", "release 1 (version '3.0.0')", "origin"],
    ),
    "date absent": (
        "kernels/fla.toml",
        'source = "FLA#640; FLA#826; FLA#983; FLA@v0.4.2 has no guard in fla/ops/common/chunk_o.py"\ndate = 2026-11-29',
        'source = "FLA#640"',
        ["kernels/fla.toml", "known_bad 1 (id 'fla-640-hopper-gated-dqkwg')", "date"],
    ),
    "source empty": (
        "cuda.toml",
        'source = "DRV; PTXAS 11.7.99; HOST 11.7.99"',
        'source = " "',
        ["cuda.toml", "toolkit 1", "source is empty"],
    ),
    "range in prose": (
        "kernels/fla.toml",
        'torch = ">=2.7.0", triton = ">=3.3"',
        'torch = ">=2.7.0 (extra cuda/cpu)", triton = ">=3.3"',
        ["kernels/fla.toml", "release 13 (version '0.5.1')", "not a range of versions"],
    ),
    "no version": (
        "triton.toml",
        'version = "3.8.0"',
        'version = "three"',
        ["triton.toml", "release 9 (version 'three')", "not a version"],
    ),
    "version twice": (
        "torch.toml",
        'version = "2.14.0"',
        'version = "2.14.1"',
        ["torch.toml", "release", "'2.14.1' stands there twice"],
    ),
    "id twice": (
        "kernels/fla.toml",
        'id = "fla-640-hopper-guard-052"',
        'id = "fla-999-blackwell-wy-bwd-hang"',
        ["kernels/fla.toml", "fla-999-blackwell-wy-bwd-hang"],
    ),
    "unknown op": (
        "models/qwen.toml",
        "fla.modules:FusedRMSNormGated",
        "fla.modules:FusedRMSNormGatd",
        ["models/qwen.toml", "FusedRMSNormGatd", "no file under kernels/"],
    ),
    "unknown model folder": (
        "models/qwen.toml",
        'folder = "qwen3_5"',
        'folder = "qwen3_6"',
        ["models/qwen.toml", "'qwen3_6'", "transformers.toml"],
    ),
    "unknown op of a seam": (
        "transformers.toml",
        'op = "fla.ops.kda:chunk_kda"',
        'op = "fla.ops.kda:chunk_kad"',
        ["transformers.toml", "bailing_hybrid", "chunk_kad"],
    ),
    "drivers not in order": (
        "cuda.toml",
        'branch = "580"\nexact = "580.65.06"',
        'branch = "510"\nexact = "510.65.06"',
        ["cuda.toml", "floor (cuda_major 13)", "not above 525.60.13"],
    ),
    "added and removed": (
        "cuda.toml",
        "added = [100, 101, 120]",
        "added = [100, 101, 120]\nremoved = [100]",
        ["cuda.toml", "toolkit (version '12.8')", "adds and removes [100]"],
    ),
    "added but not there": (
        "cuda.toml",
        "added = [103, 121]",
        "added = [103]",
        ["cuda.toml", "toolkit (version '12.9')", "[121]"],
    ),
    "no architectures for a build": (
        "torch.toml",
        'cuda_stable = ["13.2"]',
        'cuda_stable = ["13.2", "12.9"]',
        ["torch.toml", "'2.15.0'", "no architectures for CUDA 12.9"],
    ),
    "a Python that the release excludes": (
        "torch.toml",
        'requires_python = ">=3.11"',
        'requires_python = ">=3.12"',
        ["torch.toml", "'2.15.0'", "excludes Python 3.11"],
    ),
    "no capability": ("gpus.toml", 'cc = "10.3"', 'cc = "sm_103"', ["gpus.toml", "GB300", "sm_103"]),
    "unknown tool": (
        "kernels/fla.toml",
        'tools = ["nvcc"]',
        'tools = ["nvc"]',
        ["kernels/fla.toml", "'nvc'", "no tool"],
    ),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_matrices_name_the_file_and_the_row(matrices, kind):
    file, old, new, words = MALFORMED[kind]
    message = broken(matrices, file, old, new)
    assert [word for word in words if word not in message] == [], message


def test_a_tested_combination_may_not_be_known_to_be_bad(matrices):
    path = matrices / "tested.toml"
    path.write_text(
        '[[tested]]\nid = "h100"\ndevice = "cuda"\ncc = ["9.0"]\npython = "3.12"\nsource = "a run"\ndate = 2026-11-29\n'
        'packages = { torch = "2.11.0", triton = "3.6.0", fla-core = "0.6.0" }\n'
    )
    with pytest.raises(MatrixError, match=r"tested.toml: tested \(id 'h100'\).*fla-640-hopper-guard-052"):
        catalogs.load(matrices)
    path.write_text(path.read_text().replace('"3.6.0"', '"3.8.0"'))
    assert catalogs.load(matrices).tested.tested[0].id == "h100"


def test_an_absent_file_and_an_empty_folder_are_named(matrices, tmp_path):
    (matrices / "gpus.toml").unlink()
    with pytest.raises(MatrixError, match=r"gpus.toml: cannot be read"):
        catalogs.load(matrices)
    with pytest.raises(MatrixError, match=r"torch.toml: cannot be read"):
        catalogs.load(tmp_path)


def test_the_folder_of_the_checkout_is_found():
    assert (catalogs.default_directory() / "torch.toml").is_file()


def test_loading_costs_little_cpu():
    start = time.process_time()
    catalogs.load()
    assert time.process_time() - start < 0.3  # measured 0.04 s; `kerncheck judge` may take 0.5 s in all


@pytest.mark.parametrize("name", ["qwen", "Qwen", "qwen3.5", "Qwen3.8", "qwen3_5", "QWEN3_5_TEXT"])
def test_models_are_found_by_alias_in_any_case(name):
    assert catalog().model(name).folder == "qwen3_5"


def test_models_by_type_and_unknown_ones():
    assert catalog().model_for_type("qwen3_5_text").name == "qwen"
    assert catalog().model_for_type("llama") is None
    assert catalog().model("llama") is None


def test_the_profile_of_qwen_makes_a_whole_request():
    request = catalog().model("qwen").request()
    assert (request.count("linear_attention"), request.count("full_attention")) == (24, 8)
    assert request.config["hidden_size"] == 4096
    assert request.shrink["linear_num_value_heads"] == 2 * request.shrink["linear_num_key_heads"]
    assert set(request.shrink["layer_types"]) == set(request.layer_types)
    by_role = {role: [op.op for op in request.required if op.role == role] for role in ("seam", "kernel")}
    assert [op.rpartition(":")[2] for op in by_role["seam"]] == [
        "chunk_gated_delta_rule",
        "fused_recurrent_gated_delta_rule",
        "causal_conv1d_fn",
        "causal_conv1d_update",
    ]
    assert len(by_role["kernel"]) == 3
    assert [op.op for op in request.required if not op.training] == [
        "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule",
        "causal_conv1d:causal_conv1d_update",
    ]
    seams = {seam.op for seam in catalog().seam_rows(request.folder).seams}
    assert set(by_role["seam"]) == seams


def test_every_op_of_a_kernel_file_here_has_a_row():
    from kerncheck.kernels import all_specs

    assert {spec.id for spec in all_specs() if not spec.in_torch} <= catalog().ops


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("2.9.1", "2.9.1"),
        ("2.9.1+cu128", "2.9.1"),
        ("2.14.1+cpu", "2.14.1"),
        ("2.9.1.post1", None),
        ("2.3.0a0+40ec155e58.nv24.03", None),
        ("2.10.0.dev20250924+cu128", None),
        ("2.10.0a0+gitabc", None),
        ("9.9.9", None),
        ("nonsense", None),
    ],
)
def test_a_version_of_torch_is_a_release_or_unknown(version, found):
    row = catalog().torch_release(version)
    assert (str(row.version) if row else None) == found


def test_a_release_of_transformers_speaks_for_its_minor():
    assert str(catalog().transformers_release("5.15.0").version) == "5.15.1"
    assert catalog().transformers_release("5.8.0") is None
    assert catalog().transformers_release("5.24.0.dev0") is None


@pytest.mark.parametrize(
    ("name", "cc"),
    [
        ("NVIDIA H200", "9.0"),
        ("h200", "9.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("NVIDIA L40S", "8.9"),
        ("NVIDIA L4", "8.9"),
        ("Tesla V100-SXM2-32GB", "7.0"),
        ("NVIDIA GeForce RTX 3060", "8.6"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("sm_90", "9.0"),
        ("sm_103a", "10.3"),
        ("12.1", "12.1"),
        ("compute_75", "7.5"),
    ],
)
def test_gpus_by_name_and_by_capability(name, cc):
    assert catalog().gpu(name).cc == cc


def test_longer_names_win_and_unknown_ones_are_none():
    assert catalog().gpu("NVIDIA L40S").name == "L40S"
    assert catalog().gpu("NVIDIA GeForce RTX 3060 Ti").name == "GeForce RTX 3060 Ti"
    assert catalog().gpu("NVIDIA H2000") is None
    assert catalog().gpu("Voodoo 2") is None
    assert catalog().gpu("9.7") is None


def test_all_25_model_folders_with_seams_are_there():
    assert len(catalog().transformers.model) == 25
    assert catalog().seam_rows("llama") is None


def test_the_summary_counts_rows_of_every_file():
    files = [file for file, *_ in catalog().summary()]
    assert {"torch.toml", "cuda.toml", "gpus.toml", "triton.toml", "transformers.toml", "kernels/fla.toml"} <= set(
        files
    )


BAD = [row for row in catalogs.load().known_bad if row.cure]


def settings_of(row):
    """Every machine that a row speaks of, as far as the versions in the matrix reach: (setting, version)."""
    here = catalog()
    item = here.kernels.get(row.package)
    releases = [str(r.version) for r in (item.release or item.wheels)] if item else []
    versions = [version for version in releases if row.versions.contains(version)] or ["3.2.0", "3.5.1"]
    torch = "2.6.0" if "torch" in row.when.packages else "2.9.1"
    axes = (versions, here.triton.release, (row.when.cc or ("9.0", "10.0"))[:2], (None, "0.1.15"))
    for version, triton, cc, tilelang in itertools.product(*axes):
        packages = {"triton": str(triton.version), "torch": torch, "transformers": "5.16.1"}
        packages |= dict.fromkeys(item.package.distributions if item else (), version)
        packages |= {"tilelang": tilelang} if tilelang else {}
        packages = {name: text for name, text in packages.items() if name not in row.when.absent}
        tools = {"nvcc": False, "ptxas": True, "cc": True}
        setting = Setting(packages=packages, cc=(cc,), tools=tools, python="3.12.3", torch_cuda="13.0")
        if applies(row, setting, version if item else str(triton.version)):
            yield setting


def after(setting, cure):
    """The machine after a cure."""
    return Setting(
        packages={**setting.packages, **cure.packages},
        cc=setting.cc,
        tools={**setting.tools, **dict.fromkeys(cure.tools, True)},
        variables={**setting.variables, **cure.variables},
        python=setting.python,
        torch_cuda=setting.torch_cuda,
    )


def bad_ids(setting):
    """The errors that the matrix sees on a machine."""
    here, found = catalog(), set()
    for row in here.known_bad:
        item = here.kernels.get(row.package)
        names = item.package.distributions if item else ("triton",)
        version = next((setting.packages[name] for name in names if name in setting.packages), "")
        if version and row.severity == "error" and applies(row, setting, version):
            found.add(row.id)
    return found


@pytest.mark.parametrize("row", BAD, ids=lambda row: row.id)
def test_every_cure_lifts_its_row_and_one_of_them_brings_no_other(row):
    machines = list(settings_of(row))
    assert machines, "no machine that can be made of the matrix is in this row"
    for setting in machines[:: max(1, len(machines) // 12)]:
        before = bad_ids(setting)
        left = [bad_ids(after(setting, cure)) for cure in row.cure]
        assert [ids for ids in left if row.id in ids] == []
        assert any(ids <= before for ids in left), f"each cure brings another: {left} on {setting}"


def test_a_combination_that_is_declared_bad_may_be_known_to_be_bad(matrices):
    path = matrices / "tested.toml"
    path.write_text(
        '[[tested]]\nid = "h100"\ndevice = "cuda"\ncc = ["9.0"]\npython = "3.12"\nsource = "a run"\ndate = 2026-11-29\n'
        'packages = { torch = "2.11.0", triton = "3.6.0", fla-core = "0.6.0" }\nexit_code = 1\ncodes = ["KC114"]\n'
    )
    (row,) = catalogs.load(matrices).tested.tested
    assert not row.right


def test_rows_without_a_cure_say_why():
    for row in catalog().known_bad:
        assert row.cure or row.uncertain or row.severity == "note" or row.ops == (EVERY_OP,), row.id


def test_versions_in_the_matrix_are_in_order():
    versions = [row.version for row in catalog().torch.release]
    assert versions == sorted(versions)
    toolkits = [parse(row.version) for row in catalog().cuda.toolkit]
    assert toolkits == sorted(toolkits)
