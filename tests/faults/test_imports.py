"""Broken binaries: each is a real shared object that a real child imports. Each has its control, the smallest repair.

``stand_in_torch`` replaces torch where torch's own symbols play no part: then only what torch says of its build counts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from builders import (
    CONV_FUNCTIONS,
    FLA_OP,
    SUFFIX,
    WRAPPER,
    codes,
    compile_c,
    conv_package,
    extension,
    fla_package,
    job_for,
    judge_environment,
    library,
    metadata,
    observe,
    stand_in_torch,
    told,
    uses,
    versioned,
)

SET_DEVICE_INT = "_ZN3c104cuda9SetDeviceEi"
SET_DEVICE_NEW = "_ZN3c104cuda9SetDeviceEab"
ERROR_CXX11 = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
WARNING = "_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationE"
WARNING_OLD_ABI = WARNING + "Ssb"
COW_DELETER = "_ZN3c104impl3cow11cow_deleterEP"
NOT_INSTALLED = "that message is wrong here"
BESIDE = "-Wl,-rpath,$ORIGIN"


@pytest.fixture
def tree(tmp_path):
    """A healthy pair of wrapper and extension beside a torch that says it is built for CUDA 12.8."""
    stand_in_torch(tmp_path)
    conv_package(tmp_path)
    return tmp_path


def needs(tree: Path, soname: str, *, shipped: bool) -> None:
    """Link the extension to a library, which is shipped beside it or not (FX-2)."""
    stub = library(tree / soname)
    extension(tree, "-Wl,--no-as-needed", str(stub), BESIDE)
    if not shipped:
        stub.unlink()


def clean(tree: Path, **options) -> bool:
    report = judge_environment(tree, **options)
    assert codes(report) == set(), told(report)
    return report.exit_code == 0


def test_healthy_pair_passes_and_says_only_that_it_imports(tree):
    extension(tree)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (0, set())
    assert {outcome.evidence for outcome in report.of("passed")} == {"inferred"}
    passed = {outcome.subject: outcome.message for outcome in report.of("passed") if outcome.code == "KC208"}
    assert set(passed) == {"causal_conv1d:causal_conv1d_fn", "causal_conv1d:causal_conv1d_update"}
    assert all(message.startswith("imports") for message in passed.values())
    assert "work" not in " ".join(outcome.message for outcome in report.outcomes)


# KC202: undefined symbols


def test_symbol_of_an_older_torch_is_named_with_what_torch_exports(tree):
    beside = library(tree / "torch" / "lib" / "libc10_cuda.so", SET_DEVICE_NEW)
    shutil.copy(beside, tree / "libtorch_python.so")
    torch_library(tree, beside)
    extension(tree, "-Wl,-z,now", **uses(SET_DEVICE_INT))
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    text = told(report)
    assert "c10::cuda::SetDevice(int) (_ZN3c104cuda9SetDeviceEi) is undefined. It belongs to libc10_cuda.so" in text
    assert "SetDevice(int) is in the headers of torch 2.2 and older" in text
    assert "libc10_cuda.so exports c10::cuda::SetDevice(signed char, bool)" in text
    assert "CAUSAL_CONV1D_FORCE_BUILD=TRUE pip install --no-build-isolation" in text
    extension(tree, str(beside), f"-Wl,-rpath,{beside.parent}", **uses(SET_DEVICE_NEW))
    assert clean(tree)


def torch_library(tree: Path, needed: Path) -> None:
    """Put a libtorch_python.so beside the stand-in torch, so that the static look finds torch's exports."""
    (tree / "libtorch_python.so").unlink()
    compile_c(needed.parent / "libtorch_python.so", "", "-Wl,--no-as-needed", str(needed), BESIDE)


def test_broken_is_never_called_not_installed(tree):
    extension(tree, "-Wl,-z,now", **uses(SET_DEVICE_INT))
    report = judge_environment(tree)
    (finding,) = report.findings
    assert finding.code == "KC202"
    assert "`causal-conv1d` is not installed" in finding.message  # what transformers says ...
    assert NOT_INSTALLED in finding.message  # ... and that it is wrong
    assert "undefined symbol: _ZN3c104cuda9SetDeviceEi" in finding.found  # the real exception
    assert "causal_conv1d:causal_conv1d_fn" in finding.found


@pytest.mark.torch
def test_symbols_against_the_real_torch(tmp_path):
    conv_package(tmp_path)
    folder = Path(__import__("torch").__file__).parent / "lib"
    link = ("-Wl,--no-as-needed", f"-L{folder}", "-lc10", "-Wl,-z,now")
    extension(tmp_path, *link, **uses(WARNING_OLD_ABI))
    report = judge_environment(tmp_path, timeout=120)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    text = told(report)
    assert "The extension uses the pre-C++11 ABI (std::string as Ss), torch uses the C++11 ABI" in text
    assert "std::__cxx11::basic_string" in text.partition("libc10.so exports")[2]
    extension(tmp_path, *link, **uses(COW_DELETER + "i"))
    report = judge_environment(tmp_path, timeout=120)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    assert "libc10.so exports c10::impl::cow::cow_deleter(void*)" in told(report)
    assert "The extension was built for another torch." in told(report)
    right = COW_DELETER + "v"
    extension(tmp_path, *link, declarations=f"extern int {right}(void);", init=f"void *volatile use = {right};")
    assert clean(tmp_path, timeout=120)


def test_new_string_abi_on_a_torch_with_the_old_one(tree):
    stand_in_torch(tree, "2.4.0+cu121", "12.1", abi=False)
    extension(tree, "-Wl,-z,now", **uses(ERROR_CXX11))
    metadata(tree, "causal-conv1d", "1.7.0+cu12torch2.4cxx11abiTRUE")
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    assert "uses the C++11 ABI (__cxx11), torch was built with _GLIBCXX_USE_CXX11_ABI=0" in told(report)
    assert "was built for torch 2.4, CUDA 12" in told(report)
    metadata(tree, "causal-conv1d", "1.7.0+cu12torch2.4cxx11abiFALSE")
    extension(tree)
    assert clean(tree)


def test_new_string_abi_on_a_torch_with_the_new_one_is_another_torch(tree):
    extension(tree, "-Wl,-z,now", **uses(ERROR_CXX11))
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    assert "The extension was built for another torch." in told(report)
    assert "ABI (" not in told(report)
    stub = library(tree / "libc10.so", ERROR_CXX11)
    extension(tree, str(stub), BESIDE, **uses(ERROR_CXX11))
    assert clean(tree)


def test_python_symbol_means_another_python(tree):
    extension(tree, "-Wl,-z,now", **uses("_PyThreadState_OfAnotherRelease"))
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    assert "built for another Python than this one" in told(report)
    extension(tree)
    assert clean(tree)


def shadowed(tree: Path, name: str, wanted: str, offered: str, *link: str) -> dict[str, str]:
    """A dependency that needs a symbol of a library, with the right copy beside it and an older one in LD_LIBRARY_PATH."""
    good, old = tree / "good", tree / "old"
    right = library(good / name, wanted)
    library(old / name, offered)
    source = f"extern int {wanted}(void); int needs_it(void) {{ return {wanted}(); }}"
    needer = compile_c(tree / "libcusparse.so.12", source, str(right), "-Wl,-rpath,$ORIGIN/good", "-Wl,-z,now", *link)
    extension(tree, "-Wl,--no-as-needed", str(needer), BESIDE)
    return {"LD_LIBRARY_PATH": str(old)}


NVJITLINK = ("libnvJitLink.so.12", "__nvJitLinkComplete_12_4", "__nvJitLinkComplete_12_1")


def test_shadowed_nvjitlink_is_the_culprit_not_the_file_in_the_error(tree):
    environment = shadowed(tree, *NVJITLINK, "-Wl,--enable-new-dtags")
    report = judge_environment(tree, environment=environment)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    text = told(report)
    assert "__nvJitLinkComplete_12_4 is undefined. It belongs to libnvJitLink.so" in text
    assert "libcusparse.so.12, named by the error, is innocent" in text
    assert f"libnvJitLink.so.12 resolves to {tree}/old/libnvJitLink.so.12 (LD_LIBRARY_PATH={tree}/old)" in text
    assert "the symbol's name asks for 12.4" in text
    assert clean(tree)  # the control: the same files without the variable


def test_shadowing_path_that_rpath_overrules_passes(tree):
    environment = shadowed(tree, *NVJITLINK, "-Wl,--disable-new-dtags")
    assert clean(tree, environment=environment)


def test_older_nccl_in_a_dependency(tree):
    environment = shadowed(tree, "libnccl.so.2", "ncclCommRegister", "ncclCommInitRank", "-Wl,--enable-new-dtags")
    report = judge_environment(tree, environment=environment)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    assert f"libnccl.so.2 resolves to {tree}/old/libnccl.so.2" in told(report)
    assert "Another, most often older NCCL was found first" in told(report)
    assert clean(tree)


# KC203 and KC204: libraries


def test_missing_cuda_runtime_of_the_right_major(tree):
    needs(tree, "libcudart.so.12", shipped=False)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC203"})
    text = told(report)
    assert "libcudart.so.12 is not found; causal_conv1d_cuda" in text
    assert "never rename" in text
    assert NOT_INSTALLED in text
    needs(tree, "libcudart.so.12", shipped=True)
    assert clean(tree)


@pytest.mark.parametrize(("soname", "major"), [("libcudart.so.11.0", "11"), ("libcublas.so.11", "11")])
def test_library_of_another_cuda_major(tree, soname, major):
    needs(tree, soname, shipped=False)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC204"})
    assert f"built for CUDA {major} ({soname}" in told(report)
    assert "torch 2.8.0+cu128 is built for CUDA 12.8" in told(report)
    needs(tree, "libcudart.so.12", shipped=True)
    assert clean(tree)


def test_cuda_extension_on_a_cpu_build_of_torch_is_broken_not_absent(tree):
    stand_in_torch(tree, "2.13.0+cpu", None)
    needs(tree, "libcudart.so.12", shipped=False)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC204"})
    assert "torch 2.13.0+cpu is a CPU build" in told(report)
    stand_in_torch(tree)
    needs(tree, "libcudart.so.12", shipped=True)
    assert clean(tree)


def test_other_cuda_found_by_a_workaround_is_a_warning(tree):
    stand_in_torch(tree, "2.14.1+cu130", "13.0")
    stub = library(tree / "elsewhere" / "libcudart.so.12")
    extension(tree, "-Wl,--no-as-needed", str(stub))
    broken = judge_environment(tree)
    assert (broken.exit_code, codes(broken)) == (1, {"KC204"})
    report = judge_environment(tree, environment={"LD_LIBRARY_PATH": str(stub.parent)})
    assert (report.exit_code, codes(report)) == (0, {"KC204"})
    assert [finding.severity for finding in report.findings] == ["warning"]
    assert "brings the CUDA 12 library" in told(report)
    stand_in_torch(tree)
    assert clean(tree, environment={"LD_LIBRARY_PATH": str(stub.parent)})


def test_other_missing_library(tree):
    needs(tree, "libkc_unheard_of.so.3", shipped=False)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC203"})
    assert "install what ships libkc_unheard_of.so.3" in told(report)
    needs(tree, "libkc_unheard_of.so.3", shipped=True)
    assert clean(tree)


def test_driver_library_is_left_to_the_node_where_no_gpu_is(tree):
    needs(tree, "libnvidia-kc.so.1", shipped=False)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (3, set())
    assert any("the NVIDIA driver" in outcome.message for outcome in report.unjudged)
    stand_in_torch(tree, gpu=True)
    beside_a_gpu = judge_environment(tree)
    assert (beside_a_gpu.exit_code, codes(beside_a_gpu)) == (1, {"KC203"})
    needs(tree, "libnvidia-kc.so.1", shipped=True)
    assert clean(tree)


# KC205: system libraries


@pytest.mark.parametrize(
    ("soname", "version", "has"),
    [("libc.so.6", "GLIBC_2.99", "glibc 2."), ("libstdc++.so.6", "GLIBCXX_3.4.99", "GLIBCXX_3.4.")],
    ids=["glibc", "libstdc++"],
)
def test_wheel_of_a_newer_system(tree, soname, version, has):
    stub = versioned(tree / "stub" / soname, "kc_fake", version, soname)
    extension(tree, "-Wl,--no-as-needed", str(stub), **uses("kc_fake"))
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC205"})
    text = told(report)
    assert f"needs {version}, which" in text
    assert soname in text
    assert f"this machine has {has}" in text
    assert NOT_INSTALLED in text
    extension(tree)
    assert clean(tree)


# KC206: pairs


def test_extension_lacks_a_function_that_the_wrapper_calls(tree):
    extension(tree, functions={"causal_conv1d_fwd": 8, "causal_conv1d_bwd": 12})
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC206"})
    assert "calls causal_conv1d_cuda.causal_conv1d_update, which the extension does not have" in told(report)
    extension(tree)
    assert clean(tree)


def test_extension_takes_another_number_of_arguments(tree):
    extension(tree, functions={**CONV_FUNCTIONS, "causal_conv1d_fwd": 7})
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC206"})
    assert "passes 8 arguments to causal_conv1d_cuda.causal_conv1d_fwd, which takes 7" in told(report)
    extension(tree)
    assert clean(tree)


def test_wrapper_that_chooses_between_two_call_shapes_passes(tree):
    older = "    if older:\n        causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, seq_idx, None, x, None)\n    return causal"
    conv_package(tree, WRAPPER.replace("seq_idx=None):\n    return causal", "seq_idx=None):\n" + older, 1))
    extension(tree, functions={**CONV_FUNCTIONS, "causal_conv1d_fwd": 7})
    assert clean(tree)
    extension(tree, functions={**CONV_FUNCTIONS, "causal_conv1d_fwd": 6})
    assert codes(judge_environment(tree)) == {"KC206"}


def test_wrapper_without_its_extension(tree):
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC206"})
    assert "the extension causal_conv1d_cuda is not installed beside its wrapper" in told(report)
    assert NOT_INSTALLED in told(report)
    extension(tree)
    assert clean(tree)


def test_extension_for_another_python(tree):
    other = ".cpython-36m-x86_64-linux-gnu.so"
    extension(tree, suffix=other)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC206"})
    assert "the extension is built for another Python" in told(report)
    assert other in told(report)
    (tree / f"causal_conv1d_cuda{other}").rename(tree / f"causal_conv1d_cuda{SUFFIX}")
    assert clean(tree)


def test_name_that_the_wrapper_imports_from_its_extension(tree):
    conv_package(tree, WRAPPER + "\nfrom causal_conv1d_cuda import causal_conv1d_varlen\n")
    extension(tree)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC206"})
    assert "the extension causal_conv1d_cuda has no causal_conv1d_varlen" in told(report)
    extension(tree, functions={**CONV_FUNCTIONS, "causal_conv1d_varlen": 3})
    assert clean(tree)


def test_module_that_is_not_the_installed_version_is_a_warning(tree):
    extension(tree)
    conv_package(tree, version="1.5.0.post8")
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (0, {"KC206"})
    assert "says that it is 1.7.0, the metadata says causal-conv1d 1.5.0.post8" in told(report)
    conv_package(tree, version="1.7.0+cu12torch2.8cxx11abitrue")
    assert clean(tree)


# KC201, KC207, KC208, KC213


def test_missing_package_on_a_cuda_build_and_on_a_cpu_build(tmp_path):
    stand_in_torch(tmp_path)
    report = judge_environment(tmp_path)
    assert (report.exit_code, codes(report)) == (1, {"KC201"})
    assert "not installed" in told(report)
    stand_in_torch(tmp_path, "2.13.0+cpu", None)
    on_cpu = judge_environment(tmp_path)
    assert codes(on_cpu) == set()
    assert [outcome.subject for outcome in on_cpu.of("not_applicable") if outcome.code == "KC201"] == ["causal_conv1d"]
    extension(conv_package(tmp_path))
    assert clean(tmp_path)


def test_initialisation_that_raises(tree):
    raises = (
        "extern void *PyExc_RuntimeError; extern void PyErr_SetString(void *, const char *);",
        'PyErr_SetString(PyExc_RuntimeError, "no CUDA context, said the extension"); return 0;',
    )
    extension(tree, declarations=raises[0], init=raises[1])
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC207"})
    assert "RuntimeError: no CUDA context, said the extension" in told(report)
    extension(tree)
    assert clean(tree)


def test_wrapper_that_hides_its_extensions_error(tree):
    hiding = "try:\n    import causal_conv1d_cuda\nexcept ImportError:\n    causal_conv1d_cuda = None\n"
    conv_package(tree, WRAPPER.replace("import causal_conv1d_cuda\n", hiding))
    extension(tree, "-Wl,-z,now", **uses(SET_DEVICE_INT))
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    asserting = WRAPPER.replace("import causal_conv1d_cuda\n", hiding + "assert causal_conv1d_cuda, 'build me'\n")
    conv_package(tree, asserting)
    assert codes(judge_environment(tree)) == {"KC202"}
    extension(tree)
    assert clean(tree)


def test_op_that_is_none_although_the_package_imports(tree):
    extension(tree)
    conv_package(tree, WRAPPER + "\ncausal_conv1d_update = None\n")
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC208"})
    assert "causal_conv1d_update is None in causal_conv1d" in told(report)
    assert "causal_conv1d:causal_conv1d_fn" in {outcome.subject for outcome in report.of("passed")}
    conv_package(tree)
    assert clean(tree)


def test_op_that_moved_to_another_module(tmp_path):
    stand_in_torch(tmp_path)
    fla_package(tmp_path, op=None)
    report = judge_environment(tmp_path, FLA_OP)
    assert (report.exit_code, codes(report)) == (1, {"KC208"})
    assert "No module named 'fla.ops.gated_delta_rule'" in told(report)
    fla_package(tmp_path)
    assert clean(tmp_path, job=job_for(FLA_OP))


def test_name_that_another_half_of_the_package_lacks(tmp_path):
    stand_in_torch(tmp_path)
    fla_package(tmp_path, op="from fla.ops import renamed_helper\n")
    report = judge_environment(tmp_path, FLA_OP)
    assert (report.exit_code, codes(report)) == (1, {"KC208"})
    assert "cannot import name 'renamed_helper' from 'fla.ops'" in told(report)
    fla_package(tmp_path)
    assert clean(tmp_path, job=job_for(FLA_OP))


@pytest.mark.parametrize("where", ["root", "op"])
def test_dependency_that_is_not_installed(tmp_path, where):
    stand_in_torch(tmp_path)
    line = "import kc_einops.layers\n"
    fla_package(
        tmp_path, root='__version__ = "0.6.0"\n' + (line if where == "root" else ""), op=line if where == "op" else ""
    )
    report = judge_environment(tmp_path, FLA_OP)
    assert (report.exit_code, codes(report)) == (1, {"KC213"})
    assert "fla needs the module kc_einops, which is not installed" in told(report)
    fla_package(tmp_path)
    assert clean(tmp_path, job=job_for(FLA_OP))


def test_fla_that_raises_is_not_called_missing(tmp_path):
    stand_in_torch(tmp_path)
    fla_package(tmp_path, root='raise ImportError("fla: undefined symbol: _ZN3c104cuda9SetDeviceEi")\n')
    report = judge_environment(tmp_path, FLA_OP)
    assert (report.exit_code, codes(report)) == (1, {"KC202"})
    assert NOT_INSTALLED in told(report)
    fla_package(tmp_path)
    assert clean(tmp_path, job=job_for(FLA_OP))


# KC212: torch


def test_torch_that_another_nccl_breaks_is_one_finding(tree):
    lib = tree / "torch" / "lib"
    library(tree / "new" / "libnccl.so.2", "ncclCommRegister")
    library(tree / "old" / "libnccl.so.2", "ncclCommInitRank")
    source = "extern int ncclCommRegister(void); int use(void) { return ncclCommRegister(); }"
    found = f"-L{tree}/new", "-l:libnccl.so.2", "-Wl,-z,now"
    compile_c(lib / "libtorch_cuda.so", source, *found)
    compile_c(lib / "libtorch_python.so", "", "-Wl,--no-as-needed", f"-L{lib}", "-ltorch_cuda", BESIDE)
    load = f"import ctypes\nctypes.CDLL({str(lib / 'libtorch_cuda.so')!r})"
    stand_in_torch(tree, more=load)
    extension(tree)
    report = judge_environment(tree, environment={"LD_LIBRARY_PATH": str(tree / "old")})
    assert (report.exit_code, codes(report)) == (1, {"KC212"})
    text = told(report)
    assert "ncclCommRegister is undefined. It belongs to libnccl.so.2" in text
    assert "libtorch_cuda.so, named by the error, is innocent" in text
    assert f"libnccl.so.2 resolves to {tree}/old/libnccl.so.2" in text
    assert [outcome.message for outcome in report.unjudged] == ["torch does not import (KC212)"]
    assert clean(tree, environment={"LD_LIBRARY_PATH": str(tree / "new")})


def test_torch_that_is_not_there(tmp_path):
    stand_in_torch(tmp_path, more="raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    report = judge_environment(tmp_path)
    assert (report.exit_code, codes(report)) == (1, {"KC212"})
    stand_in_torch(tmp_path)
    assert codes(judge_environment(tmp_path)) == {"KC201"}


# KC214: files


@pytest.mark.parametrize("size", [0, 100, 6000])
def test_extension_file_that_is_cut_off(tree, size):
    path = extension(tree)
    os.truncate(path, size)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC214"})
    assert path.name in told(report)
    extension(tree)
    assert clean(tree)


def test_git_lfs_pointer_in_place_of_the_extension(tree):
    path = extension(tree)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n" * 30)
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC214"})
    assert "no complete shared object" in told(report)
    extension(tree)
    assert clean(tree)


def test_shared_object_that_is_no_python_module(tree):
    library(tree / f"causal_conv1d_cuda{SUFFIX}", "nothing_of_python")
    report = judge_environment(tree)
    assert (report.exit_code, codes(report)) == (1, {"KC214"})
    assert "not this Python module" in told(report)
    extension(tree)
    assert clean(tree)


# KC215: what an import says


def test_rollback_to_the_cpu_is_right_without_a_gpu_and_wrong_beside_one(tmp_path):
    said = "import warnings\nwarnings.warn('Triton is not supported on current platform, roll back to CPU.')\n"
    fla_package(tmp_path, root='__version__ = "0.6.0"\n' + said)
    stand_in_torch(tmp_path)
    assert clean(tmp_path, job=job_for(FLA_OP))
    stand_in_torch(tmp_path, gpu=True)
    report = judge_environment(tmp_path, FLA_OP)
    assert (report.exit_code, codes(report)) == (1, {"KC215"})
    assert "chose the CPU" in told(report)


def test_line_on_stderr_is_heard_as_well_as_a_warning(tmp_path):
    stand_in_torch(tmp_path)
    fla_package(tmp_path, root='import sys\nsys.stderr.write("RuntimeError: Failed to find C compiler.\\n")\n')
    report = judge_environment(tmp_path, FLA_OP)
    assert (report.exit_code, codes(report)) == (1, {"KC215"})
    fla_package(tmp_path)
    assert clean(tmp_path, job=job_for(FLA_OP))


# The environment of the user


def test_empty_environment(tree, monkeypatch):
    extension(tree)
    for name in list(os.environ):
        monkeypatch.delenv(name)
    assert clean(tree)


def test_observation_round_trips_and_leaves_nothing_behind(tree):
    import msgspec

    from kerncheck.model.snapshot import Snapshot

    extension(tree)
    before = sorted(path.relative_to(tree) for path in tree.rglob("*"))
    snapshot = observe(tree, job_for("causal_conv1d:causal_conv1d_fn"))
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot
    assert sorted(path.relative_to(tree) for path in tree.rglob("*")) == before
