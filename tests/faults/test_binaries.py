"""Broken compiled files, found without loading any of them. Each is real; each has its control, the smallest repair.

The torch beside them is a tree of small real libraries (``binary_builders``), the probe a real child; only what torch
is built for is told by hand. ``--select KC23``: where the imports are tried too, theirs are the findings.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from binary_builders import (
    CUBIN,
    CUDA_LIBRARIES,
    ERROR_NEW,
    ERROR_OLD,
    LTO,
    LZ4,
    PTX,
    SET_DEVICE,
    ZSTD,
    add_section,
    codes_of,
    conv_tree,
    copy_tree,
    entry,
    fatbin,
    image_job,
    judge_binaries,
    look,
    record,
    torch_flags,
    torch_tree,
)
from builders import CATALOG, codes, compile_c, extension, library, metadata, told, uses, versioned

from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.model.base import Broken
from kerncheck.model.environment import Gpu
from kerncheck.model.imports import Attempt, Imported, Imports, PackageImport, TorchRuntime
from kerncheck.model.job import Job

BOTH = codes_of("sm_80", "sm_90")
WARNING_OLD = "_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationESsb"


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A sound tree: a torch of CUDA 13, and causal_conv1d built for it with code for sm_80 and sm_90."""
    tree = torch_tree(tmp_path_factory.mktemp("whole"))
    add_section(conv_tree(tree, **uses(SET_DEVICE)), BOTH)
    return tree


@pytest.fixture
def tree(whole, tmp_path):
    return copy_tree(whole, tmp_path / "tree")


def built(tree: Path, *flags: str, code: bytes = BOTH, names: tuple[str, ...] = CUDA_LIBRARIES, **options) -> Path:
    """Build the extension anew."""
    return add_section(extension(tree, *torch_flags(tree, *names), *flags, **options), code)


def file_of(tree: Path) -> Path:
    return next(tree.glob("causal_conv1d_cuda*.so"))


def sound(tree: Path, *targets: str, **options) -> bool:
    """Tell whether a tree is judged sound: no finding at all, and the verdict is a pass."""
    report = judge_binaries(tree, *targets, **options)
    assert codes(report) == set(), told(report)
    return report.exit_code == 0


def errors(report) -> set[str]:
    return {found.code for found in report.findings if found.severity == "error"}


def test_a_sound_tree_passes_and_says_what_was_read(tree):
    report = judge_binaries(tree, "sm_90", "h200", "sm_80")
    assert (report.exit_code, codes(report)) == (0, set()), told(report)
    passed = {outcome.code for outcome in report.of("passed")}
    assert passed >= {"KC230", "KC231", "KC232", "KC233", "KC234", "KC235", "KC236", "KC238"}
    assert {outcome.evidence for outcome in report.of("passed")} == {"inferred"}


# KC230: another processor


def machine(path: Path, number: int) -> None:
    with path.open("r+b") as file:
        file.seek(18)
        file.write(struct.pack("<H", number))


def test_an_extension_for_aarch64_beside_another_interpreter(tree):
    machine(file_of(tree), 183 if b"\x3e" in file_of(tree).read_bytes()[18:19] else 62)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC230"}), told(report)
    assert "AArch64" in told(report)


def test_a_32_bit_extension(tree):
    data = bytearray(file_of(tree).read_bytes())
    data[4] = 1
    file_of(tree).write_bytes(data)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC230"}), told(report)
    assert "32-bit" in told(report)


def test_the_loader_passes_over_a_library_for_another_processor(tree, tmp_path):
    other = library(tmp_path / "other" / "libcudart.so.13", "cudaMalloc")
    machine(other, 183)
    assert sound(tree, environment={"LD_LIBRARY_PATH": str(other.parent)})


# KC231: a library is missing


def test_a_cuda_extension_beside_a_cpu_build_of_torch(tree, tmp_path):
    cpu = torch_tree(tmp_path / "cpu", cuda="")
    conv_tree(cpu, names=("libc10.so",))
    shutil.copy(file_of(tree), file_of(cpu))
    report = judge_binaries(cpu, cuda="", version="2.14.1+cpu")
    assert (report.exit_code, codes(report)) == (1, {"KC231"}), told(report)
    assert "CPU build of torch: libc10_cuda.so" in told(report)


@pytest.mark.parametrize(("soname", "major"), [("libcudart.so.12", "12"), ("libcudart.so.11.0", "11")])
def test_a_cuda_runtime_of_another_major(tree, tmp_path, soname, major):
    stub = library(tmp_path / soname, "cudaMalloc")
    built(tree, str(stub))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC231"}), told(report)
    assert f"{soname} of CUDA {major}" in told(report)
    assert "rename" not in told(report)
    right = tree / "nvidia/cu13/lib/libcudart.so.13"
    built(tree, str(right))
    assert sound(tree)


def test_right_code_and_wrong_runtime_are_told_apart(tree, tmp_path):
    built(
        tree,
        str(library(tmp_path / "libcudart.so.12", "cudaMalloc")),
        code=codes_of("sm_80", "sm_90", "sm_100", "sm_120"),
    )
    report = judge_binaries(tree, "sm_90", "sm_120")
    assert codes(report) == {"KC231"}
    assert [outcome.status for outcome in report.outcomes if outcome.code == "KC235"] == ["passed", "passed"]


def test_an_unknown_library_is_named_with_the_file_that_needs_it(tree, tmp_path):
    stub = library(tmp_path / "libvendor_conv.so.3", "vendor")
    built(tree, str(stub))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC231"}), told(report)
    assert "libvendor_conv.so.3" in told(report)
    built(tree, str(stub), f"-Wl,-rpath,{stub.parent}")
    assert sound(tree)


def test_a_library_that_lies_where_nobody_looks(tree):
    adv = library(tree / "nvidia/cudnn/lib/libcudnn_adv.so.9", "cudnnAdv")
    built(tree, str(adv))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC231"}), told(report)
    assert f"lies at {adv}" in told(report)
    built(tree, str(adv), "-Wl,-rpath,$ORIGIN/nvidia/cudnn/lib")
    assert sound(tree)


def test_torch_itself_lacks_a_library(tmp_path):
    tree = torch_tree(tmp_path, cuda="99.0")  # a major that no system has, so that nothing but torch's own is found
    report = judge_binaries(tree, cuda="99.0")
    assert codes(report) == set(), told(report)
    (tree / "nvidia/cu99/lib/libcudart.so.99").unlink()
    report = judge_binaries(tree, cuda="99.0")
    assert (report.exit_code, codes(report)) == (1, {"KC231"}), told(report)
    assert "libcudart.so.99 is missing" in told(report)
    assert "nvidia-cuda-runtime" in told(report)


def test_a_library_of_the_driver_is_left_to_the_node(tree, tmp_path):
    built(tree, str(library(tmp_path / "libcuda.so.1", "cuInit")))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (0, set()), told(report)
    assert any("which only a node has" in note.message for note in report.of("note"))


# KC232: a library from the wrong place


def links(tree: Path, *flags: str) -> Path:
    """Give torch a libcusparse that wants nvJitLink 12.4, which lies beside it (FX-4)."""
    good = node(tree / "nvidia/nvjitlink/lib/libnvJitLink.so.12", "__nvJitLinkComplete_12_4")
    sparse = tree / "nvidia/cusparse/lib/libcusparse.so.12"
    source = (
        "extern int __nvJitLinkComplete_12_4(void); int cusparseCreate(void) { return __nvJitLinkComplete_12_4(); }"
    )
    rpath = "-Wl,-rpath,$ORIGIN/../../nvjitlink/lib"
    compile_c(sparse, source, "-Wl,-soname,libcusparse.so.12", *flags, rpath, str(good))
    near = "-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cusparse/lib"
    parts = [str(tree / "torch/lib" / name) for name in ("libc10.so",)]
    library(
        tree / "torch/lib/libtorch_cuda.so",
        "_ZN2at4cuda4warpEv",
        flags=("-Wl,--no-as-needed", str(sparse), *parts, near),
    )
    return sparse


def node(path: Path, symbol: str) -> Path:
    return versioned(path, symbol, "libnvJitLink.so.12", "libnvJitLink.so.12")


@pytest.fixture
def old(tmp_path):
    """An older nvJitLink in a folder of its own."""
    return node(tmp_path / "old" / "libnvJitLink.so.12", "__nvJitLinkComplete_12_1")


def test_an_older_nvjitlink_comes_first_by_ld_library_path(tree, old):
    links(tree, "-Wl,--enable-new-dtags")
    report = judge_binaries(tree, environment={"LD_LIBRARY_PATH": str(old.parent)})
    assert (report.exit_code, codes(report)) == (1, {"KC232"}), told(report)
    assert f"resolves to {old}" in told(report)
    assert "__nvJitLinkComplete_12_4" in told(report)
    assert sound(tree)


def test_an_rpath_outranks_the_shadow_which_is_a_warning(tree, old):
    links(tree, "-Wl,--disable-new-dtags")
    report = judge_binaries(tree, environment={"LD_LIBRARY_PATH": str(old.parent)})
    assert (report.exit_code, codes(report), errors(report)) == (0, {"KC232"}, set()), told(report)
    assert "would resolve" in told(report)


def test_an_older_nvjitlink_is_in_the_process_already(tree, old):
    links(tree, "-Wl,--disable-new-dtags")
    report = judge_binaries(tree, environment={"LD_PRELOAD": str(old)})
    assert (report.exit_code, codes(report)) == (1, {"KC232"}), told(report)
    assert "LD_PRELOAD" in told(report)


def test_another_copy_with_all_that_is_wanted_is_no_finding(tree, tmp_path):
    links(tree, "-Wl,--enable-new-dtags")
    same = node(tmp_path / "same" / "libnvJitLink.so.12", "__nvJitLinkComplete_12_4")
    assert sound(tree, environment={"LD_LIBRARY_PATH": str(same.parent)})


def nccl(tree: Path) -> None:
    """Let torch take ncclCommRegister from the NCCL of its own package, by RUNPATH."""
    own = library(tree / "nvidia/nccl/lib/libnccl.so.2", "ncclCommRegister", "ncclAllReduce")
    near = "-Wl,--enable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../../nvidia/nccl/lib"
    source = "extern int ncclCommRegister(void); int _ZN2at4cuda4warpEv(void) { return ncclCommRegister(); }"
    soname = "-Wl,-soname,libtorch_cuda.so"
    compile_c(tree / "torch/lib/libtorch_cuda.so", source, soname, str(own), near)


def test_an_older_nccl_of_the_system_shadows_torchs_own(tree, tmp_path):
    nccl(tree)
    foreign = library(tmp_path / "system" / "libnccl.so.2.15.5", "ncclAllReduce", soname="libnccl.so.2")
    (foreign.parent / "libnccl.so.2").symlink_to(foreign.name)
    report = judge_binaries(tree, environment={"LD_LIBRARY_PATH": str(foreign.parent)})
    assert (report.exit_code, codes(report)) == (1, {"KC232"}), told(report)
    assert "2.15.5" in told(report)
    assert "ncclCommRegister" in told(report)
    assert sound(tree)


def test_nccl_without_a_symbol_that_torch_wants(tree):
    nccl(tree)
    library(tree / "nvidia/nccl/lib/libnccl.so.2", "ncclAllReduce")
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC234"}), told(report)
    assert "ncclCommRegister" in told(report)
    assert "libnccl.so.2" in told(report)


@pytest.mark.parametrize(("version", "found"), [("9.1.0", {"KC232"}), ("9.30.0", set())])
def test_an_older_cudnn_with_every_symbol_is_refused_by_torch(tree, tmp_path, version, found):
    own = library(tree / "nvidia/cudnn/lib/libcudnn.so.9", "cudnnCreate")
    record(tree, "nvidia-cudnn-cu13", own, version="9.20.0.48")
    near = "-Wl,--enable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cudnn/lib"
    library(tree / "torch/lib/libtorch_cuda.so", "_ZN2at4cuda4warpEv", flags=("-Wl,--no-as-needed", str(own), near))
    foreign = library(tmp_path / "system" / f"libcudnn.so.{version}", "cudnnCreate", soname="libcudnn.so.9")
    (foreign.parent / "libcudnn.so.9").symlink_to(foreign.name)
    report = judge_binaries(tree, environment={"LD_LIBRARY_PATH": str(foreign.parent)})
    assert (report.exit_code, codes(report)) == (1 if found else 0, found), told(report)


@pytest.mark.parametrize(("version", "found"), [("9.23.0", {"KC232"}), ("9.20.0", set())])
def test_a_part_of_cudnn_that_only_another_install_has(tree, tmp_path, version, found):
    own = library(tree / "nvidia/cudnn/lib/libcudnn.so.9", "cudnnCreate")
    library(own.parent / "libcudnn_ops.so.9", "cudnnOps")
    record(tree, "nvidia-cudnn-cu13", own, version="9.20.0.48")
    near = "-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cudnn/lib"
    library(tree / "torch/lib/libtorch_cuda.so", "_ZN2at4cuda4warpEv", flags=("-Wl,--no-as-needed", str(own), near))
    assert sound(tree)
    for part in ("ops", "ext"):
        library(tmp_path / "system" / f"libcudnn_{part}.so.{version}", "cudnnPart", soname=f"libcudnn_{part}.so.9")
        (tmp_path / "system" / f"libcudnn_{part}.so.9").symlink_to(f"libcudnn_{part}.so.{version}")
    report = judge_binaries(tree, environment={"LD_LIBRARY_PATH": str(tmp_path / "system")})
    assert (report.exit_code, codes(report), errors(report)) == (0, found, set()), told(report)
    assert [item.subject for item in report.findings] == (["libcudnn_ext.so.9"] if found else [])


def test_a_workaround_through_ld_library_path_brings_two_runtimes(tree, tmp_path):
    stub = library(tmp_path / "cuda12" / "libcudart.so.12", "cudaMalloc")
    built(tree, str(stub))
    report = judge_binaries(tree, environment={"LD_LIBRARY_PATH": str(stub.parent)})
    assert (report.exit_code, codes(report), errors(report)) == (0, {"KC232"}, set()), told(report)
    assert "two CUDA runtimes" in told(report)


# KC233: the system is too old


def test_a_newer_glibc_is_wanted(tree, tmp_path):
    stub = versioned(tmp_path / "stub" / "libc.so.6", "kc_fake", "GLIBC_2.99", "libc.so.6")
    built(tree, "-nostdlib", str(stub), **uses("kc_fake"))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC233"}), told(report)
    assert "GLIBC_2.99" in told(report)
    assert "base image" in told(report)


def test_a_newer_libstdcxx_is_wanted(tree, tmp_path):
    stub = versioned(tmp_path / "stub" / "libstdc++.so.6", "kc_fake", "GLIBCXX_3.4.99", "libstdc++.so.6")
    built(tree, str(stub), **uses("kc_fake"))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC233"}), told(report)
    assert "GLIBCXX_3.4.99" in told(report)
    assert "LD_LIBRARY_PATH" in told(report)


# KC234: undefined symbols


@pytest.mark.parametrize("symbol", ["_ZN3c104cuda9SetDeviceEi", "_ZN3c104cuda9SetDeviceEa"])
def test_a_symbol_of_another_torch_is_shown_beside_what_is_exported(tree, symbol):
    built(tree, **uses(symbol))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC234"}), told(report)
    assert "another torch" in told(report)
    assert "libc10_cuda.so exports c10::cuda::SetDevice(signed char, bool)" in told(report)
    built(tree, **uses(SET_DEVICE))
    assert sound(tree)


def test_the_extension_has_the_newer_cxx_abi(tmp_path):
    tree = torch_tree(tmp_path, symbols={"libc10.so": (ERROR_OLD,)})
    add_section(conv_tree(tree, **uses(ERROR_NEW)), BOTH)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC234"}), told(report)
    assert "C++11 ABI (__cxx11)" in told(report)
    assert "_GLIBCXX_USE_CXX11_ABI=0" in told(report)
    built(tree, **uses(ERROR_OLD))
    assert sound(tree)


def test_the_extension_has_the_older_cxx_abi(tree):
    built(tree, **uses(WARNING_OLD))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC234"}), told(report)
    assert "pre-C++11 ABI (std::string as Ss)" in told(report)


def test_one_extension_and_two_flavours_of_one_torch(tmp_path):
    store = "_ZN4c10d8TCPStoreC1ESsRKNS_15TCPStoreOptionsE"
    first, second = (
        torch_tree(tmp_path / name, symbols={"libtorch_cpu.so": names})
        for name, names in (("cu124", (store,)), ("cu126", ()))
    )
    add_section(conv_tree(first, **uses(store)), BOTH)
    conv_tree(second)
    shutil.copy(file_of(first), file_of(second))
    assert sound(first, version="2.6.0+cu124")
    assert codes(judge_binaries(second, version="2.6.0+cu126")) == {"KC234"}


def test_a_symbol_of_a_newer_cuda_runtime(tree):
    runtime = tree / "nvidia/cu13/lib/libcudart.so.13"
    built(tree, str(runtime), **uses("cudaGetDriverEntryPointByVersion"))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC234"}), told(report)
    assert "another CUDA runtime" in told(report)
    library(runtime, "cudaMalloc", "cudaGetDriverEntryPointByVersion")
    assert sound(tree)


def test_a_name_of_another_pythons_c_api(tree):
    built(tree, **uses("PyKerncheck_OnlyInAnotherPython"))
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC234"}), told(report)
    assert "another Python" in told(report)


def test_symbols_are_grouped_by_what_they_mean(tree):
    symbols = ("_ZN3c104cuda9SetDeviceEi", "_ZN2at4_ops3addEi", WARNING_OLD, "ncclCommRegister")
    declared = "".join(f"extern int {symbol}(void);" for symbol in symbols)
    built(tree, declarations=declared, init="".join(f"{symbol}();" for symbol in symbols))
    report = judge_binaries(tree)
    assert codes(report) == {"KC234"}
    assert len(report.findings) == 3
    assert any("2 symbols" in found.message for found in report.findings)


def test_a_symbol_that_a_sibling_exports_is_no_finding(tree):
    record(tree, "causal-conv1d", library(tree / "causal_conv1d" / "libshared.so", "kc_shared"), version="1.7.0")
    built(tree, **uses("kc_shared"))
    assert sound(tree)


# KC235: architectures


@pytest.mark.parametrize(
    ("names", "target", "found"),
    [
        (("sm_75", "sm_80", "sm_90"), "v100", {"KC235"}),
        (("sm_90a",), "b200", {"KC235"}),
        (("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"), "11.0", {"KC235"}),
        (("sm_80", "sm_86"), "rtx 4090", set()),
        (("sm_100f",), "10.3", set()),
    ],
)
def test_which_code_covers_which_target(tree, names, target, found):
    add_section(file_of(tree), codes_of(*names))
    report = judge_binaries(tree, target)
    assert (report.exit_code, codes(report)) == (1 if found else 0, found), told(report)
    if found:
        assert " ".join(sorted(names)) in told(report) or all(name in told(report) for name in names)


def test_of_several_targets_only_the_uncovered_one_fails(tree):
    report = judge_binaries(tree, "sm_80", "h200", "sm_120")
    assert (report.exit_code, codes(report)) == (1, {"KC235"})
    assert [found.subject for found in report.findings] == ["causal_conv1d_cuda on sm_120"]
    assert "sm_80 sm_90" in told(report)
    assert "sm_80, H200, sm_120" in told(report)
    assert "CUDA >= 12.8" in report.findings[0].remedy
    assert "ignores TORCH_CUDA_ARCH_LIST" in report.findings[0].remedy


def test_real_gpus_are_judged_by_the_same_code(tree):
    gpus = (Gpu(name="NVIDIA B200", cc="10.0"), Gpu(name="NVIDIA H200", cc="9.0"))
    job = Job(profile="node", device="cuda", model=image_job("sm_90").model)
    report = judge_binaries(tree, job=job, gpus=gpus)
    assert codes(report) == {"KC235"}
    assert [found.subject for found in report.findings] == ["causal_conv1d_cuda on NVIDIA B200"]


def test_only_sm_120_on_a_gb10_is_a_warning(tree):
    add_section(file_of(tree), codes_of("sm_90", "sm_120"))
    report = judge_binaries(tree, "gb10")
    assert (report.exit_code, codes(report), errors(report)) == (0, {"KC235"}, set())
    assert "a launch on the GPU decides" in told(report)


def test_compressed_entries_and_several_images_are_read(tree):
    first = fatbin(entry(CUBIN, 80, flags=ZSTD), entry(PTX, 80, flags=LZ4, isa=(8, 4)))
    second = fatbin(entry(CUBIN, 90, flags=ZSTD | 0x100000), entry(LTO, 75))
    add_section(file_of(tree), first + bytes(40) + second)
    assert sound(tree, "sm_80", "sm_90")
    report = judge_binaries(tree, "sm_75")
    assert codes(report) == {"KC235"}
    assert "compute_80 sm_80 sm_90a" in told(report) or "sm_80" in told(report)
    messages = [outcome.message for outcome in judge_binaries(tree, "sm_80").of("passed") if outcome.code == "KC235"]
    assert "in 1 of 2 fat binaries" in messages[0]


def test_an_empty_list_of_architectures_tells_nothing(tree):
    add_section(file_of(tree), fatbin())
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (3, set()), told(report)
    assert any(outcome.code == "KC235" for outcome in report.unjudged)


def test_without_a_target_hardware_is_inconclusive(tree):
    job = image_job()
    report = judge_binaries(tree, job=job)
    assert (report.exit_code, codes(report)) == (3, set())
    assert [outcome.code for outcome in report.unjudged] == ["KC235"]
    assert "--target" in report.unjudged[0].remedy


def test_a_file_without_a_section_table_is_inconclusive(tree):
    data = bytearray(file_of(tree).read_bytes())
    data[0x28:0x30] = bytes(8)
    data[0x3C:0x40] = bytes(4)
    file_of(tree).write_bytes(data)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (3, set()), told(report)
    assert any("no section table" in outcome.message for outcome in report.unjudged)


# KC236: no device code


def test_an_extension_built_on_a_machine_without_nvcc(tree):
    subprocess.run(["objcopy", "--remove-section", ".nv_fatbin", str(file_of(tree))], check=True)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC236"}), told(report)
    assert "FORCE_CUDA=1" in told(report)


def test_an_extension_with_code_for_amd_gpus_only(tree):
    subprocess.run(["objcopy", "--rename-section", ".nv_fatbin=.hip_fatbin", str(file_of(tree))], check=True)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC236"}), told(report)
    assert "AMD" in told(report)


def test_device_code_in_a_library_of_the_same_package_counts(tree):
    kernels = add_section(library(tree / "causal_conv1d" / "libkernels.so", "launch"), BOTH)
    extension(tree, *torch_flags(tree, *CUDA_LIBRARIES), str(kernels), "-Wl,-rpath,$ORIGIN/causal_conv1d")
    record(tree, "causal-conv1d", kernels, file_of(tree), version="1.7.0")
    assert sound(tree)


# KC237: PTX only


@pytest.mark.parametrize(
    ("isa", "driver", "exit_code", "errors_found"),
    [
        ((8, 7), "535.104", 1, {"KC237"}),
        ((8, 7), "570", 0, set()),
        ((8, 5), "560.35.05", 0, set()),
        ((9, 0), "570.124.06", 1, {"KC237"}),
        ((8, 7), "", 0, set()),
    ],
)
def test_ptx_newer_than_the_driver_is_refused(tree, isa, driver, exit_code, errors_found):
    add_section(file_of(tree), codes_of("compute_80", isa=isa))
    report = judge_binaries(tree, job=image_job("8.6", driver=driver))
    assert (report.exit_code, codes(report), errors(report)) == (exit_code, {"KC237"}, errors_found), told(report)
    add_section(file_of(tree), codes_of("sm_86", "compute_80", isa=isa))
    assert sound(tree, job=image_job("8.6", driver=driver))


# KC238: files that cannot be read


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
        (b"", "empty file"),
        (bytes(4096), "zeros"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"\x7fELF", "no whole ELF header"),
    ],
    ids=["lfs", "empty", "zeros", "page", "four bytes"],
)
def test_what_is_no_shared_object(tree, content, words):
    file_of(tree).write_bytes(content)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC238"}), told(report)
    assert words in told(report)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_truncated_extension(tree, part):
    data = file_of(tree).read_bytes()
    file_of(tree).write_bytes(data[: int(len(data) * part)])
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC238"}), told(report)


def test_a_truncated_library_of_torch(tree):
    file = tree / "torch/lib/libtorch_cuda.so"
    file.write_bytes(file.read_bytes()[:3000])
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC238"}), told(report)
    assert "libtorch_cuda.so" in told(report)


def test_a_damaged_library_that_the_extension_needs(tree):
    helper = library(tree / "causal_conv1d" / "libhelper.so", "helper")
    built(tree, str(helper), "-Wl,-rpath,$ORIGIN/causal_conv1d")
    assert sound(tree)
    helper.write_bytes(b"garbage")
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC238"}), told(report)
    assert "libhelper.so cannot be read" in told(report)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (BOTH[:100], "damaged header"),
        (BOTH + b"garbage!" * 3, "neither a fat binary nor padding"),
        (BOTH[:20] + b"\xff\xff\xff\xff" + BOTH[24:], "damaged entry"),
        (b"not code" * 20, "neither a fat binary nor padding"),
    ],
    ids=["cut", "tail", "entry", "text"],
)
def test_damaged_device_code(tree, content, words):
    add_section(file_of(tree), content)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC238"}), told(report)
    assert words in told(report)


# KC239: overwritten files


def test_an_extension_that_something_overwrote(tree):
    record(tree, "causal-conv1d", file_of(tree), version="1.7.0")
    assert sound(tree)
    with file_of(tree).open("ab") as file:
        file.write(b"\0")
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report), errors(report)) == (0, {"KC239"}, set())
    assert "causal-conv1d 1.7.0" in told(report)


def test_an_nccl_that_another_wheel_overwrote(tree):
    nccl(tree)
    own = tree / "nvidia/nccl/lib/libnccl.so.2"
    record(tree, "nvidia-nccl-cu13", own, version="2.30.7")
    data = bytearray(own.read_bytes())
    data[-1] ^= 1
    own.write_bytes(data)
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report)) == (0, {"KC239"}), told(report)
    assert "sha256" in told(report)
    assert "nvidia-nccl-cu13==2.30.7" in told(report)


def test_a_conda_package_patches_its_files_after_its_record(tree):
    place = record(tree, "causal-conv1d", file_of(tree), version="1.7.0")
    (place / "INSTALLER").write_text("conda\n")
    with file_of(tree).open("ab") as file:
        file.write(b"\0")
    assert sound(tree)


# Together with the imports


def both(tree: Path, result: Imported | Broken):
    """Judge the files of a tree whose extension was imported with this result."""
    job = image_job("sm_90")
    snapshot = look(tree, job)
    attempt = Attempt(module="causal_conv1d_cuda", result=result)
    package = PackageImport(package="causal_conv1d", root=attempt, extensions=(attempt,))
    torch = TorchRuntime(version="2.14.1", file="", cuda="13.0")
    import msgspec

    snapshot = msgspec.structs.replace(snapshot, imports=Imports(torch=torch, packages=(package,)))
    checks = [check for check in all_checks() if check.code.startswith("KC23")]
    outcomes, _ = judge(Case(job, snapshot, CATALOG), checks)
    return outcomes


def test_a_tried_import_outranks_what_the_file_says(tree):
    built(tree, **uses("_ZN3c104cuda9SetDeviceEi"))
    broken = Broken(how="raised", exception="ImportError", message="undefined symbol: _ZN3c104cuda9SetDeviceEi")
    for result in (broken, Imported(module="causal_conv1d_cuda")):
        outcomes = both(tree, result)
        assert [outcome for outcome in outcomes if outcome.status == "failed"] == []
        assert [outcome.code for outcome in outcomes if outcome.status == "note"] == ["KC234"]


def test_no_import_outranks_a_missing_architecture(tree):
    add_section(file_of(tree), codes_of("sm_80a"))
    outcomes = both(tree, Imported(module="causal_conv1d_cuda"))
    assert {outcome.code for outcome in outcomes if outcome.status == "failed"} == {"KC235"}


# What must pass, or not apply


def test_a_cpu_build_of_torch_without_extensions_is_not_applicable(tmp_path):
    tree = torch_tree(tmp_path, cuda="")
    report = judge_binaries(tree, job=Job(profile="ci", device="emulate"), cuda="", version="2.14.1+cpu")
    assert {outcome.status for outcome in report.outcomes} == {"not_applicable"}


def test_an_editable_package_without_metadata_is_read_all_the_same(tree):
    for place in tree.glob("causal_conv1d-*.dist-info"):
        shutil.rmtree(place)
    report = judge_binaries(tree, "sm_100")
    assert codes(report) == {"KC235"}


def test_a_module_that_is_no_known_extension_only_warns(tree, tmp_path):
    optional = extension(
        tree / "causal_conv1d", str(library(tmp_path / "libgone.so.1", "gone")), "-Wl,--no-as-needed", name="_extra"
    )
    extension(tree / "causal_conv1d", "-Wl,--no-as-needed", str(tmp_path / "libgone.so.1"), name="_extra")
    record(tree, "causal-conv1d", optional, file_of(tree), version="1.7.0")
    report = judge_binaries(tree)
    assert (report.exit_code, codes(report), errors(report)) == (0, {"KC231"}, set()), told(report)


def test_fla_has_no_compiled_files(tmp_path):
    tree = torch_tree(tmp_path)
    metadata(tree, "fla-core", "0.6.0")
    report = judge_binaries(tree, job=image_job("sm_90", ops=("fla.ops.gated_delta_rule:chunk_gated_delta_rule",)))
    assert codes(report) == set()
