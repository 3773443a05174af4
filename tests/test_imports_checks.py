"""Judging imports from data: which code speaks, whose symbol is missing, and what is never said."""

from __future__ import annotations

import re

import msgspec
import pytest

from kerncheck.catalog import load
from kerncheck.checks import imports_symbols as symbols
from kerncheck.checks import imports_words as words
from kerncheck.checks.imports_causes import classified, diagnose
from kerncheck.checks.registry import Case, all_checks
from kerncheck.judge import judge
from kerncheck.kernels import all_specs
from kerncheck.model.base import Broken, Missing
from kerncheck.model.imports import (
    Attempt,
    Distribution,
    ElfFacts,
    Host,
    Imported,
    Imports,
    Library,
    OpImport,
    PackageImport,
    TorchRuntime,
)
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.snapshot import Snapshot
from kerncheck.stages import imports as stage
from kerncheck.stages.common import Ask

CATALOG = load()
CHECKS = [check for check in all_checks() if "KC201" <= check.code <= "KC215"]
CUDA = TorchRuntime(version="2.8.0+cu128", file="torch/__init__.py", cuda="12.8", cxx11_abi=True)
CPU = TorchRuntime(version="2.13.0+cpu", file="torch/__init__.py", cxx11_abi=True)
CONV = "causal_conv1d:causal_conv1d_fn"
NOT_SEEN = Missing(reason="not part of this test")


def model(*ops: str) -> Job:
    required = tuple(RequiredOp(op=op) for op in ops)
    request = ModelRequest(name="m", folder="qwen3_5", architecture="A", config={}, required=required)
    return Job(profile="node", model=request)


def raised(text: str, exception: str = "ImportError", *causes: str) -> Broken:
    return Broken(how="raised", message=text, exception=exception, chain=(f"{exception}: {text}", *causes))


def conv(result, *, version: str = "1.7.0", **fields) -> PackageImport:
    owned = (Distribution(name="causal-conv1d", version=version),) if version else ()
    given = {
        "known_distributions": ("causal-conv1d",),
        "known_extensions": ("causal_conv1d_cuda",),
        "distributions": owned,
        "location": "site/causal_conv1d/__init__.py" if version else "",
        "extensions": (Attempt(module="causal_conv1d_cuda", result=Missing(reason="not tried")),),
        **fields,
    }
    return PackageImport(package="causal_conv1d", root=Attempt(module="causal_conv1d", result=result), **given)


def seen(package: PackageImport | None, *, torch=CUDA, elf=(), op=None, **fields) -> Imports:
    ops = (
        (OpImport(op=CONV, package="causal_conv1d", attempt=Attempt(module="causal_conv1d", result=op)),) if op else ()
    )
    host = Host(
        python="3.11.7", executable="python", suffixes=(".cpython-311-x86_64-linux-gnu.so", ".so"), glibc="2.31"
    )
    return Imports(host=host, torch=torch, packages=(package,) if package else (), ops=ops, elf=elf, **fields)


def judged(section: Imports, job: Job | None = None):
    job = job or model(CONV)
    outcomes, crashes = judge(Case(job, Snapshot(job=job, imports=section), CATALOG), CHECKS)
    assert crashes == ()
    return outcomes


def failed(section: Imports, job: Job | None = None) -> dict[str, str]:
    found = [item for item in judged(section, job) if item.status == "failed"]
    return {item.code: f"{item.message} {item.found} {item.wanted} {item.remedy}" for item in found}


# Each string that the cases collect, with the code of its class.

STRINGS = [
    ("/p/x.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "KC202", "libc10_cuda.so"),
    ("/p/x.so: undefined symbol: _ZN2at4_ops5zeros4callEN3c108ArrayRefIlEE", "KC202", "libtorch_cpu.so"),
    ("/p/x.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb", "KC202", "pre-C++11 ABI"),
    ("/p/x.so: undefined symbol: _ZN4c10d8TCPStoreC1ESsRKNS_15TCPStoreOptionsE", "KC202", "torch.distributed"),
    ("/p/x.so: undefined symbol: _ZTVN3c105ErrorE", "KC202", "libc10.so"),
    ("/p/libtorch_cuda.so: undefined symbol: ncclMemFree", "KC202", "libnccl.so.2"),
    (
        "libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        "KC202",
        "asks for 12.4",
    ),
    ("/p/x.so: undefined symbol: cquantize_blockwise_fp16_nf4", "KC202", "bitsandbytes"),
    ("/p/x.so: undefined symbol: some_c_function", "KC202", "no row of loader.toml"),
    (
        "/p/x.so: symbol cudnnAdd version libcudnn.so.9 not defined in file libcudnn.so.9 with link time reference",
        "KC202",
        "libcudnn",
    ),
    ("libcudart.so.11.0: cannot open shared object file: No such file or directory", "KC204", "CUDA 11"),
    ("libcudart.so.12: cannot open shared object file: No such file or directory", "KC203", "never rename"),
    ("libcudnn_adv.so.9: cannot open shared object file: No such file or directory", "KC203", "CUDNN_HOME"),
    ("libc10_cuda.so: cannot open shared object file: No such file or directory", "KC203", "torch"),
    ("libmpi.so.40: cannot open shared object file: No such file or directory", "KC203", "libmpi.so.40"),
    ("/lib/libc.so.6: version `GLIBC_2.32' not found (required by /p/x.so)", "KC205", "glibc 2.31"),
    ("/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /p/x.so)", "KC205", "libstdc++"),
    ("/p/x.so: file too short", "KC214", "cut off"),
    ("/p/x.so: failed to map segment from shared object: Operation not permitted", "KC214", "noexec"),
    ("/p/x.so: wrong ELF class: ELFCLASS32", "KC214", "word size"),
    ("/p/x.so: cannot open shared object file: Permission denied", "KC214", "may not read"),
    ("/p/x.so: cannot allocate memory in static TLS block", "KC214", "order of imports"),
    (
        "Python version mismatch: module was compiled for Python 3.10, but the interpreter",
        "KC206",
        "built for Python 3.10",
    ),
    ("No module named 'causal_conv1d_cuda'", "KC206", "not installed beside"),
    ("No module named 'einops'", "KC213", "einops"),
    ("cannot import name 'triton_key' from 'triton.compiler.compiler'", "KC207", "triton_key"),
]


@pytest.mark.parametrize(("text", "code", "word"), STRINGS, ids=[f"{code}-{word}" for _, code, word in STRINGS])
def test_each_string_has_one_code_and_names_its_cause(text, code, word):
    found = failed(seen(conv(raised(text))))
    assert set(found) == {code}
    assert word in found[code]
    assert text[:120] in found[code]  # the real exception is shown
    assert "that message is wrong here, the package is installed and broken" in found[code]


def test_every_pattern_is_met_by_a_string():
    texts = [text for text, _, _ in STRINGS]
    extra = ["/p/x.so: invalid ELF header", "dynamic module does not define module export function (PyInit_x)"]
    extra.append("module 'triton' has no attribute 'jit'")
    for row in CATALOG.loader.message:
        assert any(re.search(row.pattern, text) for text in (*texts, *extra)), row.pattern


@pytest.mark.parametrize(
    ("chain", "cause"),
    [
        (("ImportError: flash_attn is not built", "ImportError: /p/x.so: undefined symbol: _ZN3c10"), "symbol"),
        (
            (
                "RuntimeError: cannot load",
                "OSError: libcudart.so.12: cannot open shared object file: No such file or directory",
            ),
            "library",
        ),
        (("ModuleNotFoundError: No module named 'fallback'", "ImportError: /p/x.so: file too short"), "file"),
        (("ImportError: needs einops", "ModuleNotFoundError: No module named 'einops'"), "module"),
        (("TypeError: wrong type", "ModuleNotFoundError: No module named 'optional'"), None),
        (("ValueError: x",), None),
    ],
)
def test_the_loader_is_heard_through_wrappers_and_handled_exceptions_are_not_blamed(chain, cause):
    row, _ = classified(Broken(how="raised", message="", chain=chain), CATALOG.loader.message)
    assert (row.cause if row else None) == cause


@pytest.mark.parametrize(
    ("symbol", "abi"),
    [
        ("_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", "C++11"),
        ("_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningEEERKNS_14SourceLocationESsb", "pre-C++11"),
        ("_ZN5torch7LibraryC1ENS0_4KindESsN3c108optionalINS2_11DispatchKeyEEEPKcj", "pre-C++11"),
        ("_ZN4c10d8TCPStoreC1ESsRKNS_15TCPStoreOptionsE", "pre-C++11"),
        ("_ZN3c104cuda9SetDeviceEi", ""),
        ("_ZN2at9ClassSsomething3runEv", ""),  # Ss inside an identifier
        ("_ZN2at3addERKNS_6TensorES2_", ""),
        ("_ZNK3c1017SymbolicShapeMeta18init_is_contiguousEv", ""),
    ],
)
def test_string_abi_of_a_symbol(symbol, abi):
    assert symbols.abi_of(symbol) == abi


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("1.5.0.post8+cu12torch2.6cxx11abiTRUE", {"cuda": "12", "torch": "2.6", "abi": "TRUE"}),
        ("1.4.0+cu122torch2.4cxx11abifalse", {"cuda": "122", "torch": "2.4", "abi": "false"}),
        ("1.2.1118torch2.1", {}),
        ("1.7.0", {}),
    ],
)
def test_wheel_tags(version, tag):
    assert symbols.wheel_tag(version) == tag


def test_same_torch_version_is_judged_by_symbols_alone():
    text = "/p/x.so: undefined symbol: _ZN4c10d8TCPStoreC1ESsRKNS_15TCPStoreOptionsE"
    cu126 = msgspec.structs.replace(CUDA, version="2.6.0+cu126", cuda="12.6")
    cu124 = msgspec.structs.replace(CUDA, version="2.6.0+cu124", cuda="12.4", cxx11_abi=False)
    assert set(failed(seen(conv(raised(text)), torch=cu126))) == {"KC202"}
    good = Imported(module="causal_conv1d", version="1.7.0")
    assert failed(seen(conv(good), torch=cu124, op=Imported(module="causal_conv1d", type="function"))) == {}


def test_vendor_torch_gets_no_range_that_no_row_gives():
    vendor = msgspec.structs.replace(CUDA, version="2.3.0a0+40ec155e58.nv24.03")
    text = "/p/x.so: undefined symbol: _ZNK3c1017SymbolicShapeMeta18init_is_contiguousEv"
    told = failed(seen(conv(raised(text)), torch=vendor))["KC202"]
    assert "built for another torch" in told
    assert not re.search(r"torch 2\.\d+ (and|or) (older|newer)", told)


def test_missing_and_broken_differ_and_a_cpu_build_excuses_only_the_missing():
    gone = msgspec.structs.replace(
        conv(raised("No module named 'causal_conv1d'", "ModuleNotFoundError"), version=""),
        root=Attempt(
            module="causal_conv1d",
            result=raised("No module named 'causal_conv1d'", "ModuleNotFoundError"),
            missing="causal_conv1d",
        ),
    )
    assert set(failed(seen(gone))) == {"KC201"}
    assert failed(seen(gone, torch=CPU)) == {}
    assert failed(seen(gone), Job()) == {}  # no model asks for it
    hip = msgspec.structs.replace(CPU, hip="6.3")
    assert set(failed(seen(gone, torch=hip))) == {"KC201"}
    broken = conv(raised("/p/x.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"))
    assert set(failed(seen(broken, torch=CPU))) == {"KC202"}


def test_metadata_without_a_module_is_said_so():
    empty = msgspec.structs.replace(
        conv(raised("No module named 'causal_conv1d'", "ModuleNotFoundError"), location=""),
        root=Attempt(module="causal_conv1d", result=raised("No module named 'causal_conv1d'"), missing="causal_conv1d"),
    )
    assert "causal-conv1d 1.7.0 is installed without the module" in failed(seen(empty))["KC201"]


def test_broken_torch_is_one_finding_and_hides_all_others():
    torch = raised("/t/libtorch_cuda.so: undefined symbol: ncclCommRegister", "ImportError")
    elf = ElfFacts(
        path="/t/libtorch_cuda.so",
        package="torch",
        role="torch",
        needed=(Library(name="libnccl.so.2", path="/old/libnccl.so.2", via="LD_LIBRARY_PATH"),),
    )
    section = seen(conv(raised("anything")), torch=torch, elf=(elf,))
    assert set(failed(section)) == {"KC212"}
    told = failed(section)["KC212"]
    assert "libnccl.so.2 resolves to /old/libnccl.so.2" in told
    assert "libtorch_cuda.so, named by the error, is innocent" in told
    waiting = [item for item in judged(section) if item.status == "not_judged" and item.required]
    assert [item.message for item in waiting] == ["torch does not import (KC212)"]


def test_torch_that_could_not_be_looked_at_is_inconclusive():
    outcomes = judged(seen(None, torch=Missing(reason="not finished after 120 s")))
    assert [item.code for item in outcomes if item.required and item.status == "not_judged"] == ["KC212"]


def test_absent_section_judges_nothing():
    outcomes, crashes = judge(Case(model(CONV), Snapshot(), CATALOG), CHECKS)
    assert crashes == ()
    assert {item.status for item in outcomes} == {"not_judged"}


def test_unfinished_import_is_neither_a_pass_nor_a_finding():
    section = seen(conv(Missing(reason="not finished after 120 s")))
    assert failed(section) == {}
    assert not [item for item in judged(section) if item.status == "passed" and item.code not in {"KC212", "KC201"}]
    assert [item.code for item in judged(section) if item.required and item.status == "not_judged"] == ["KC208"]


@pytest.mark.parametrize(("how", "code"), [("signal", "KC209"), ("stood_still", "KC210"), ("exit", "KC211")])
def test_deaths_have_codes_of_their_own_and_no_library_is_said_to_hide_them(how, code):
    broken = Broken(how=how, message="died", signal=11, exit_code=0)
    package = msgspec.structs.replace(conv(broken), root=Attempt(module="causal_conv1d", result=broken, ordinary=False))
    found = failed(seen(package))
    assert set(found) == {code}
    assert "that message is wrong here" not in found[code]


def test_two_ops_with_one_cause_make_one_finding():
    good = Imported(module="causal_conv1d", version="1.7.0")
    ops = tuple(
        OpImport(
            op=f"causal_conv1d:{name}", package="causal_conv1d", attempt=Attempt(module="causal_conv1d", result=gone)
        )
        for name, gone in (("a", raised("No module named 'kc'")), ("b", raised("No module named 'kc'")))
    )
    section = msgspec.structs.replace(seen(conv(good)), ops=ops)
    assert set(failed(section)) == {"KC213"}
    assert "lost ops: causal_conv1d:a, causal_conv1d:b" in failed(section)["KC213"]


def test_remedies_keep_torch_and_never_remove_anything():
    for text, _, _ in STRINGS:
        for told in failed(seen(conv(raised(text)))).values():
            assert "uninstall" not in told
            for command in re.findall(r"pip install [^;]+", told):
                assert "--no-deps" in command or "causal-conv1d (with an nvcc" in command or "nvidia" in told


def test_remedy_of_a_compiled_package_builds_and_of_another_one_does_not():
    case = Case(model(CONV), Snapshot(), CATALOG)
    compiled = words.rebuild(case, conv(raised("x"), version="1.6.0+cu12torch2.8cxx11abiTRUE"))
    assert compiled.startswith("CAUSAL_CONV1D_FORCE_BUILD=TRUE pip install --no-build-isolation --no-cache-dir")
    assert compiled.endswith("--no-binary causal-conv1d causal-conv1d==1.6.0")
    owned = (
        Distribution(name="fla-core", version="0.6.0"),
        Distribution(name="flash-linear-attention", version="0.6.0"),
    )
    plain = PackageImport(package="fla", root=Attempt(module="fla"), distributions=owned)
    assert "--no-binary" not in words.rebuild(case, plain)
    assert words.rebuild(case, plain).endswith("fla-core==0.6.0 flash-linear-attention==0.6.0")


def test_every_package_of_the_catalog_is_imported_without_a_model_and_only_needed_ops_with_one():
    def planned(job: Job) -> dict[str, list[str]]:
        ask = Ask(job=job, catalog=CATALOG, environment=NOT_SEEN, devices=NOT_SEEN)
        return {target.package: list(target.ops) for target in stage.targets(ask)}

    assert {op for ops in planned(Job()).values() for op in ops} == {
        spec.id for spec in all_specs() if not spec.in_torch
    }
    assert planned(model(CONV)) == {"causal_conv1d": [CONV]}
    assert planned(model("some_new.kernels:fused")) == {"some_new": ["some_new.kernels:fused"]}
    assert planned(model()) == {}


def test_diagnosis_of_nothing_is_empty():
    case = Case(model(), Snapshot(imports=seen(None)), CATALOG)
    assert diagnose(case).causes == ()
    statuses = {item.code: item.status for item in judged(seen(None), model())}
    assert statuses.pop("KC212") == "passed"
    assert set(statuses.values()) == {"not_judged", "not_applicable"}


def test_codes_of_this_file_are_those_of_the_family():
    assert [check.code for check in CHECKS] == [f"KC2{number:02}" for number in range(1, 16)]
