"""The static half of the imports: reading files, finding modules, comparing sources; no torch, nothing is loaded."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from kerncheck.probes import binaries, demangle, imports, locate, usage
from kerncheck.probes.elf import BadFileError, SharedObject, without_parameters
from kerncheck.probes.loader import Loader

SET_DEVICE = "_ZN3c104cuda9SetDeviceEab"


def build(path: Path, source: str, *flags: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-x", "none", "-o", str(path), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.fixture
def pair(tmp_path):
    """A library with a few exports, and another that needs it."""
    exports = "\n".join(f"int {name}(void) {{ return 0; }}" for name in (SET_DEVICE, "plain", *many()))
    first = build(tmp_path / "libfirst.so.1", exports, "-Wl,-soname,libfirst.so.1")
    source = "extern int plain(void), absent(void); __attribute__((weak)) extern int optional(void);\n"
    source += "int use(void) { return plain() + absent() + (optional ? optional() : 0); }"
    second = build(tmp_path / "libsecond.so", source, str(first), "-Wl,-rpath,$ORIGIN")
    return first, second


def many() -> list[str]:
    return [f"symbol_number_{index}" for index in range(500)]


def test_needed_names_paths_and_undefined_symbols(pair):
    first, second = (SharedObject(str(path)) for path in pair)
    assert second.needed[0] == "libfirst.so.1"
    assert second.runpath == ["$ORIGIN"]
    assert (first.soname, first.machine) == ("libfirst.so.1", second.machine)
    missing = {name for name, _ in second.undefined()}
    assert {"plain", "absent"} <= missing
    assert not missing & {"optional", "use", "_ITM_registerTMCloneTable", "__gmon_start__"}  # weak or its own
    first.close()
    second.close()


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_every_export_is_found_and_nothing_else(tmp_path, style):
    exports = "\n".join(f"int {name}(void) {{ return 0; }}" for name in many())
    item = SharedObject(str(build(tmp_path / "lib.so", exports, f"-Wl,--hash-style={style}")))
    assert all(item.exports(name) for name in many())
    assert not any(item.exports(name + "x") for name in many())
    assert not item.exports("symbol_number_")
    item.close()


def test_stripped_of_section_headers(tmp_path, pair):
    image = bytearray(pair[0].read_bytes())
    image[0x28:0x30] = bytes(8)  # e_shoff, e_shnum and e_shstrndx of Elf64_Ehdr: no section table
    image[0x3C:0x40] = bytes(4)
    path = tmp_path / "stripped.so"
    path.write_bytes(image)
    item = SharedObject(str(path))
    assert item.exports(SET_DEVICE)
    assert not item.exports("absent")
    item.close()


def test_similar_names_are_exported_ones(pair):
    item = SharedObject(str(pair[0]))
    assert item.starting_with("_ZN3c104cuda9SetDeviceE") == [SET_DEVICE]
    assert item.starting_with("_ZN3c104cuda9GetDeviceE") == []
    item.close()


@pytest.mark.parametrize(
    ("symbol", "stem"),
    [
        ("_ZN3c104cuda9SetDeviceEi", "_ZN3c104cuda9SetDeviceE"),
        ("_ZNK3c1017SymbolicShapeMeta18init_is_contiguousEv", "_ZNK3c1017SymbolicShapeMeta18init_is_contiguousE"),
        ("_ZN3c105ErrorC2ENS_14SourceLocationENSs", "_ZN3c105ErrorC2E"),
        ("_Z16THPVariable_WrapN2at6TensorE", "_Z16THPVariable_Wrap"),
        ("_ZN2at4_ops5emptyIfEEv", ""),  # a template: no guess
        ("ncclCommRegister", ""),
        ("_Z", ""),
        ("_ZN", ""),
    ],
)
def test_name_without_its_parameters(symbol, stem):
    assert without_parameters(symbol) == stem


def test_broken_files_are_told_apart(tmp_path, pair):
    whole = pair[0].read_bytes()
    contents = {
        "empty": b"",
        "text": b"version https://git-lfs\n" * 9,
        "half": whole[: len(whole) // 2],
        "head": whole[:20],
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadFileError):
            SharedObject(str(path))
    with pytest.raises(BadFileError, match="truncated"):
        SharedObject(str(tmp_path / "half"))
    with pytest.raises(BadFileError, match="cannot be opened"):
        SharedObject(str(tmp_path / "nowhere"))


def test_damaged_files_end_in_an_observation_never_in_another_error(tmp_path, pair):
    whole = pair[1].read_bytes()
    generator = random.Random(7)
    problems = 0
    for round_ in range(150):
        image = bytearray(whole)
        for _ in range(20):
            image[generator.randrange(len(image) if round_ % 2 else 1024)] = generator.randrange(256)
        path = tmp_path / f"damaged{round_}.so"
        path.write_bytes(image)
        loader = Loader()
        found = binaries.guarded_look(str(path), "some", loader, [])
        loader.close()
        problems += bool(found[0].get("problem"))
        assert found[0]["path"] == str(path)
    assert 20 < problems <= 150


def test_search_order_of_the_loader(tmp_path, pair, monkeypatch):
    first, _ = pair
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(first, other / first.name)
    source = "extern int plain(void); int use(void) { return plain(); }"
    tags = {"RUNPATH": "--enable-new-dtags", "RPATH": "--disable-new-dtags"}
    built = {
        name: build(tmp_path / name / "lib.so", source, str(first), f"-Wl,-rpath,{tmp_path}", f"-Wl,{flag}")
        for name, flag in tags.items()
    }

    def found(name: str) -> tuple[str, str]:
        loader = Loader()
        item = loader.open(str(built[name]))
        answer = loader.find(first.name, item)
        loader.close()
        return answer

    assert found("RUNPATH") == (str(first), "RUNPATH")
    assert found("RPATH") == (str(first), "RPATH")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other))
    assert found("RUNPATH") == (str(other / first.name), "LD_LIBRARY_PATH")
    assert found("RPATH") == (str(first), "RPATH")


def test_library_that_is_loaded_already_is_taken_again(tmp_path, pair):
    first, second = pair
    loader = Loader()
    loader.load(str(first))
    item = loader.open(str(second))
    assert loader.find("libfirst.so.1", item) == (str(first), "already loaded")
    assert loader.find("libkc_nowhere.so.1", item) == ("", "")
    loader.close()


def test_missing_symbol_is_explained_by_what_is_exported(tmp_path, pair):
    first, _ = pair
    wanted = "_ZN3c104cuda9SetDeviceEi"
    source = f"extern int {wanted}(void); int use(void) {{ return {wanted}(); }}"
    path = build(tmp_path / "ext.so", source, "-Wl,--no-as-needed", str(first), "-Wl,-rpath,$ORIGIN")
    loader = Loader()
    (facts,) = binaries.look(str(path), "some", loader, [])
    loader.close()
    (missing,) = facts["unresolved"]
    assert missing["demangled"] == "c10::cuda::SetDevice(int)"
    assert missing["similar"] == [
        {"symbol": SET_DEVICE, "demangled": "c10::cuda::SetDevice(signed char, bool)", "library": "libfirst.so.1"}
    ]


def test_no_symbols_are_missed_while_a_library_is_missing(tmp_path, pair):
    _, second = pair
    alone = tmp_path / "alone" / second.name
    alone.parent.mkdir()
    shutil.copy(second, alone)
    loader = Loader()
    (facts,) = binaries.look(str(alone), "some", loader, [])
    loader.close()
    assert facts["needed"][0] == {"name": "libfirst.so.1", "path": "", "via": ""}
    assert facts["unresolved"] == []  # the loader stops at the library; so does the explanation


def test_demangler_is_the_library_and_falls_back_to_the_tool(monkeypatch):
    expected = {"_ZN3c104cuda9SetDeviceEi": "c10::cuda::SetDevice(int)"}
    assert demangle.demangle(["_ZN3c104cuda9SetDeviceEi", "plain_c", "_Zbroken"]) == expected
    assert demangle.demangle_in("x.so: undefined symbol: _ZN3c104cuda9SetDeviceEi, version Y") == expected
    monkeypatch.setattr(demangle, "LIBRARIES", ("libkc_nowhere.so",))
    if shutil.which("c++filt"):
        assert demangle.demangle(["_ZN3c104cuda9SetDeviceEi"]) == expected
    monkeypatch.setenv("PATH", "")
    assert demangle.demangle(["_ZN3c104cuda9SetDeviceEi"]) == {}


def test_locating_runs_no_code_of_the_package(tmp_path, monkeypatch):
    (tmp_path / "kc_marker").mkdir()
    (tmp_path / "kc_marker" / "__init__.py").write_text("raise SystemExit(9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = {"python": sys.executable, "modules": ["kc_marker", "kc_nowhere"], "watch": []}
    state = binaries.setup(options)
    assert state["modules"]["kc_marker"]["origin"] == str(tmp_path / "kc_marker" / "__init__.py")
    assert state["modules"]["kc_nowhere"] == {"origin": "", "folders": []}
    assert "kc_marker" not in sys.modules
    assert str(tmp_path) in state["path"]
    assert not any(entry.endswith("kerncheck/probes") for entry in state["path"])


def test_extension_files_of_every_python_are_listed(tmp_path):
    names = ("ext.cpython-310-x86_64-linux-gnu.so", "ext.abi3.so", "ext.so", "ext.py", "extended.so", "ext.txt")
    for name in names:
        (tmp_path / name).touch()
    found = locate.extension_files("ext", [str(tmp_path), str(tmp_path / "nowhere")])
    assert [Path(path).name for path in found] == sorted(names[:3])


def test_metadata_that_is_damaged_is_no_distribution(tmp_path, monkeypatch):
    (tmp_path / "kc_empty-1.0.dist-info").mkdir()
    (tmp_path / "kc_whole-2.0.dist-info").mkdir()
    (tmp_path / "kc_whole-2.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kc-whole\nVersion: 2.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # importlib.metadata's own, about the damaged one
        found = locate.distributions(["kc-empty", "kc-whole", "kc-nowhere"])
    assert [(item["name"], item["version"]) for item in found if item["version"] != "None"] == [("kc-whole", "2.0")]


WRAPPER = """
import ext as e
from ext import inner as i
e.first(1, 2)
e.second(1, key=2)
e.third(*values)
i(1)
if hasattr(e, "newer"):
    e.newer(1)
try:
    e.newest(1)
except AttributeError:
    pass
other.first(1)
e.__doc__
"""


def test_uses_of_an_extension(tmp_path):
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "latin.py").write_bytes(b"# \xff\n")
    found = {(use["name"], use["arguments"]) for use in usage.calls([str(tmp_path)], ["ext"])}
    assert found == {("first", 2), ("second", None), ("third", None), ("inner", 1)}
    assert usage.calls([str(tmp_path)], []) == []


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("f(arg0: torch.Tensor, arg1: int) -> None\n\nmore", (2, 2)),
        ("f(a: Optional[Tuple[int, int]], b: int = 3) -> Dict[str, int]", (1, 2)),
        ("f() -> None", (0, 0)),
        ("f(*args, **kwargs)\nOverloaded function.", (None, None)),
        ("g(a) -> None", (None, None)),
        ("computes something", (None, None)),
        ("", (None, None)),
        (None, (None, None)),
    ],
)
def test_arguments_that_a_docstring_tells(document, expected):
    assert usage.arity("f", document) == expected


def test_second_name_is_tried_only_when_the_first_is_absent(tmp_path, monkeypatch):
    (tmp_path / "kc_fa3_interface.py").write_text("def flash_attn_func():\n    return 1\n")
    (tmp_path / "kc_broken.py").write_text("raise OSError('broken')\n")
    (tmp_path / "kc_bare.py").write_text("flash_attn_func = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def tried(*modules: str) -> dict:
        return imports.import_op({"modules": list(modules), "attribute": "flash_attn_func"})

    found = tried("kc_flash_attn_3", "kc_fa3_interface")
    assert (found["module"], found["result"]["present"]) == ("kc_fa3_interface", True)
    assert tried("kc_bare", "kc_fa3_interface")["module"] == "kc_fa3_interface"
    assert tried("kc_broken", "kc_fa3_interface")["result"]["exception"] == "OSError"
    nowhere = tried("kc_flash_attn_3", "kc_nowhere")
    assert (nowhere["module"], nowhere["missing"]) == ("kc_flash_attn_3", "kc_flash_attn_3")
    inner = tried("kc_flash_attn_3.interface", "kc_fa3_interface")
    assert inner["module"] == "kc_fa3_interface"


def test_what_an_import_maps_into_the_process(tmp_path, monkeypatch):
    import _ctypes  # one extension of the standard library that is mapped for certain

    if getattr(_ctypes, "__file__", None):
        assert any(path.endswith(Path(_ctypes.__file__).name) for path in imports.mapped())
    assert all(path.startswith("/") for path in imports.mapped())
