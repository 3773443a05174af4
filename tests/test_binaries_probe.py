"""What reads compiled files, against binutils and the loader itself as judges, on this machine's own libraries."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from binary_builders import add_section, codes_of, record
from builders import compile_c, library, versioned

from kerncheck.probes import static_binaries as probe
from kerncheck.probes.device_code import device_code
from kerncheck.probes.elf import BadFileError, SharedObject
from kerncheck.probes.elf_format import Image
from kerncheck.probes.loader import CACHE, Loader, kind_of, read_cache
from kerncheck.probes.records import Records
from kerncheck.probes.shadowing import number, shadowed

NEED = re.compile(r"\((NEEDED|SONAME|RPATH|RUNPATH)\).*\[(.*)\]")
SYSTEM = ("libc.so.6", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libz.so.1", "libpthread.so.0")


def system_libraries() -> list[str]:
    """Return some libraries of this machine, by the loader's cache."""
    paths = dict(read_cache(CACHE))
    return [paths[name] for name in SYSTEM if name in paths]


@contextlib.contextmanager
def opened(path: Path | str):
    item = SharedObject(str(path))
    yield item
    item.close()


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run_with(environment: dict[str, str], *command: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("path", system_libraries())
def test_the_dynamic_section_is_what_readelf_shows(path):
    shown: dict[str, list[str]] = {}
    for kind, text in NEED.findall(run("readelf", "-dW", path)):
        shown.setdefault(kind, []).append(text)
    with opened(path) as item:
        assert item.needed == shown.get("NEEDED", [])
        assert [item.soname] == shown.get("SONAME", [""])
        assert item.rpath == [part for text in shown.get("RPATH", []) for part in text.split(":")]
        assert item.runpath == [part for text in shown.get("RUNPATH", []) for part in text.split(":")]


@pytest.mark.parametrize("path", system_libraries())
def test_symbols_are_what_nm_shows(path):
    lines = [line.split() for line in run("nm", "-D", "--without-symbol-versions", path).splitlines()]
    wanted = {line[-1] for line in lines if line[0] == "U"}
    defined = {line[-1] for line in lines if len(line) == 3 and line[1] in "TtWVDBRui"}
    with opened(path) as item:
        assert {name for name, _ in item.undefined()} == wanted
        assert all(item.exports(name) for name in sorted(defined)[::7])
        assert not any(item.exports(name + "_kerncheck") for name in sorted(defined)[::7])


@pytest.mark.parametrize("path", system_libraries())
def test_versions_are_what_readelf_shows(path):
    text = run("readelf", "-VW", path)
    needs = set(re.findall(r"Name: (\S+)\s+Flags: \S+\s+Version: (\d+)", text.partition("Version needs")[2]))
    defines = re.findall(
        r"Cnt: \d+\s+Name: (\S+)", text.partition("Version definition")[2].partition("Version needs")[0]
    )
    with opened(path) as item:
        assert {(version, str(index)) for index, (_, version) in item.versions_needed.items()} == needs
        assert item.versions_defined == defines


def test_a_file_without_section_table_reads_the_same(tmp_path):
    path = compile_c(tmp_path / "a.so", "extern int g(void); int f(void) { return g(); }", "-Wl,-soname,liba.so")
    data = bytearray(path.read_bytes())
    data[0x28:0x30], data[0x3C:0x40] = bytes(8), bytes(4)
    stripped = tmp_path / "b.so"
    stripped.write_bytes(data)
    with opened(path) as one, opened(stripped) as other:
        assert one.soname == other.soname == "liba.so"
        assert [name for name, _ in one.undefined()] == [name for name, _ in other.undefined()] == ["g"]
        assert other.exports("f")
        assert not other.exports("g")


def test_the_old_hash_table_serves_as_well(tmp_path):
    path = compile_c(tmp_path / "a.so", "extern int g(void); int f(void) { return g(); }", "-Wl,--hash-style=sysv")
    with opened(path) as item:
        assert item.exports("f")
        assert not item.exports("g")
        assert [name for name, _ in item.undefined()] == ["g"]


def test_versions_of_symbols_are_told(tmp_path):
    stub = versioned(tmp_path / "libkc.so.1", "kc", "KC_2.0", "libkc.so.1")
    path = compile_c(tmp_path / "a.so", "extern int kc(void); int f(void) { return kc(); }", str(stub))
    with opened(path) as item, opened(stub) as other:
        assert [(name, item.version_of(index)) for name, index in item.undefined()] == [("kc", "KC_2.0")]
        assert "KC_2.0" in other.versions_defined


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty file"),
        (b"\x7fELF\x02\x01", "no whole ELF header"),
        (b"#!/bin/sh\n", "a script"),
        (b"MZ" + bytes(64), "a Windows library"),
        (b"!<arch>\n" + bytes(64), "a static library"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x7fELF\x02\x01\x01" + bytes(57), "no dynamic section"),
        (b"\x7fELF\x01\x01\x01" + bytes(57), "32-bit"),
        (b"\x7fELF\x02\x02\x01" + bytes(57), "big-endian"),
    ],
)
def test_what_is_no_shared_object_says_what_it_is(tmp_path, content, words):
    path = tmp_path / "a.so"
    path.write_bytes(content)
    with pytest.raises(BadFileError, match=words):
        SharedObject(str(path))


def test_pipes_folders_and_absent_files_do_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.so")
    for path, words in (
        (tmp_path / "pipe.so", "not a regular file"),
        (tmp_path, "not a regular"),
        (tmp_path / "no", "opened"),
    ):
        with pytest.raises(BadFileError, match=words):
            SharedObject(str(path))


# The loader's search, with the real loader as the judge


ASK = "extern const char *where(void); const char *ask(void) { return where(); }"
HOLD = "extern const char *where(void); void *p = where;"
WHERE = """
#include <stdio.h>
#include <dlfcn.h>
int main(int count, char **names) {
    void *first = count > 2 ? dlopen(names[2], RTLD_NOW) : 0;
    void *one = dlopen(names[1], RTLD_NOW);
    if (!one) { puts(dlerror()); return 1; }
    const char *(*ask)(void) = dlsym(one, "ask");
    puts(ask());
    return 0;
}
"""


@pytest.fixture(scope="module")
def opener(tmp_path_factory):
    """A program that loads a library and prints which copy of libkc.so answered."""
    path = tmp_path_factory.mktemp("opener") / "opener"
    path.with_suffix(".c").write_text(WHERE)
    subprocess.run(["gcc", "-w", str(path.with_suffix(".c")), "-o", str(path), "-ldl"], check=True)
    return path


def copy_of(folder: Path, name: str = "libkc.so") -> Path:
    """Build a library that answers with the name of its folder."""
    return compile_c(folder / name, f'const char *where(void) {{ return "{folder.name}"; }}', f"-Wl,-soname,{name}")


@pytest.mark.parametrize(
    ("flags", "variable", "taken"),
    [
        (("-Wl,--disable-new-dtags,-rpath,$ORIGIN/own",), "", "own"),
        (("-Wl,--disable-new-dtags,-rpath,$ORIGIN/own",), "other", "own"),
        (("-Wl,--enable-new-dtags,-rpath,$ORIGIN/own",), "", "own"),
        (("-Wl,--enable-new-dtags,-rpath,$ORIGIN/own",), "other", "other"),
        (("-Wl,--enable-new-dtags,-rpath,$ORIGIN/own",), "absent:other", "other"),
        ((), "other", "other"),
        (("-Wl,--disable-new-dtags,-rpath,$ORIGIN/none:$ORIGIN/own",), "", "own"),
    ],
)
def test_the_search_is_the_loaders(tmp_path, monkeypatch, opener, flags, variable, taken):
    own, _ = copy_of(tmp_path / "own"), copy_of(tmp_path / "other")
    asks = compile_c(
        tmp_path / "libasks.so",
        "extern const char *where(void); const char *ask(void) { return where(); }",
        *flags,
        str(own),
    )
    folders = ":".join(str(tmp_path / name) for name in variable.split(":")) if variable else ""
    really = subprocess.run(
        [opener, asks], capture_output=True, text=True, env={"LD_LIBRARY_PATH": folders}, check=True
    )
    assert really.stdout.strip() == taken
    monkeypatch.setenv("LD_LIBRARY_PATH", folders)
    with contextlib.closing(Loader()) as loader, opened(asks) as item:
        assert Path(loader.find("libkc.so", item)[0]).parent.name == taken


@pytest.mark.parametrize("middle", [(), ("-Wl,--enable-new-dtags,-rpath,$ORIGIN/nothing",)])
def test_an_rpath_is_inherited_unless_there_is_a_runpath(tmp_path, opener, middle):
    """A library without an RPATH is found through that of the one that needs its needer; a RUNPATH ends that."""
    own = copy_of(tmp_path / "own")
    between = tmp_path / "own" / "libbetween.so"
    compile_c(between, ASK.replace("ask", "relay"), "-Wl,-soname,libbetween.so", *middle, str(own))
    first = compile_c(
        tmp_path / "libfirst.so",
        "extern const char *relay(void); const char *ask(void) { return relay(); }",
        "-Wl,--disable-new-dtags,-rpath,$ORIGIN/own", "-Wl,--allow-shlib-undefined", str(between),
    )  # fmt: skip
    really = run_with({}, opener, first)
    with contextlib.closing(Loader()) as loader:
        names = [Path(item.path).name for item in loader.load(str(first))]
    assert ("libkc.so" in names) == (really.returncode == 0) == (not middle)


def test_a_loaded_name_is_taken_again_wherever_it_lies(tmp_path):
    own, other = copy_of(tmp_path / "own"), copy_of(tmp_path / "other")
    asks = compile_c(
        tmp_path / "libasks.so",
        HOLD,
        f"-Wl,-rpath,{own.parent}",
        str(own),
    )
    with contextlib.closing(Loader()) as loader, opened(asks) as item:
        loader.load(str(other))
        assert loader.find("libkc.so", item)[0] == str(other)


def test_a_library_for_another_processor_is_passed_over(tmp_path):
    wrong, right = copy_of(tmp_path / "wrong"), copy_of(tmp_path / "right")
    data = bytearray(wrong.read_bytes())
    data[18:20] = struct.pack("<H", 183)
    wrong.write_bytes(data)
    flag = f"-Wl,-rpath,{wrong.parent}:{right.parent}"
    asks = compile_c(tmp_path / "libasks.so", HOLD, flag, str(right))
    with contextlib.closing(Loader()) as loader, opened(asks) as item:
        assert loader.find("libkc.so", item)[0] == str(right)
    assert "AArch64" in kind_of(str(wrong))


def test_the_cache_is_what_ldconfig_prints():
    tool = shutil.which("ldconfig", path="/sbin:/usr/sbin:" + os.environ["PATH"])
    if tool is None or not Path(CACHE).exists():
        pytest.skip("this system has no loader cache")
    line = re.compile(r"^\s*(\S+) \(([^)]*)\) => (\S+)$")
    printed = [match.groups() for match in map(line.match, run(tool, "-p").splitlines()) if match]
    assert list(read_cache(CACHE)) == [
        (name, path) for name, kind, path in printed if "x86-64" in kind or "AArch64" in kind
    ]


@pytest.mark.parametrize("content", [b"", b"glibc-ld.so.cache1.1", b"glibc-ld.so.cache1.1" + b"\xff" * 400, bytes(999)])
def test_a_damaged_cache_is_no_cache(tmp_path, content):
    path = tmp_path / "ld.so.cache"
    path.write_bytes(content)
    assert list(read_cache(str(path))) == []
    assert list(read_cache(str(tmp_path / "absent"))) == []


# Shadowing, RECORD, device code


@pytest.mark.parametrize(
    ("path", "version"), [("a/libnccl.so.2.15.5", "2.15.5"), ("a/libnccl.so.2", ""), ("libx.so", "")]
)
def test_the_version_in_a_file_name(path, version):
    assert number(path) == version


def test_only_watched_libraries_can_be_shadowed(tmp_path, monkeypatch):
    own, other = copy_of(tmp_path / "own"), copy_of(tmp_path / "other")
    asks = compile_c(
        tmp_path / "libasks.so",
        HOLD,
        f"-Wl,-rpath,{own.parent}",
        str(own),
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other.parent))
    with contextlib.closing(Loader()) as loader, opened(asks) as item:
        assert shadowed(item, loader, ("libcudart",), []) == []
        found = shadowed(item, loader, ("libkc",), [])
    assert [(one["path"], one["expected"], one["taken"], one["lacks"]) for one in found] == [
        (str(other), str(own), True, [])
    ]


def test_record_lines_of_every_form(tmp_path):
    folder = tmp_path / "some_package-1.2.3+cu12.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text(
        'a.py,sha256=x,1\nlib/a.so,sha256=AAA,10\n"lib/odd,name.so.1",sha256=BBB,20\nlib/b.so.12,,\n../../bin/c.so,sha256=C,5\n'
    )
    records = Records([str(tmp_path)])
    assert records.installed(["Some.Package", "absent"]) == ["some-package 1.2.3+cu12"]
    assert [Path(path).name for path in records.binaries(["some-package"])] == [
        "a.so",
        "odd,name.so.1",
        "b.so.12",
        "c.so",
    ]
    assert records.of(str(tmp_path / "lib/odd,name.so.1")) == [
        {"distribution": "some-package", "version": "1.2.3+cu12", "sha256": "BBB", "size": 20}
    ]
    assert records.of(str(tmp_path / "lib/b.so.12"))[0]["size"] is None
    assert records.of(str(tmp_path / "none.so")) == []


def test_hashing_ends_with_its_budget(tmp_path, monkeypatch):
    from kerncheck.probes import records as module

    file = tmp_path / "a.so"
    file.write_bytes(bytes(100))
    record(tmp_path, "one", file, version="1.0")
    monkeypatch.setattr(module, "MOST_HASHED", 150)
    records = Records([str(tmp_path)])
    assert records.digest(str(file)) == records.of(str(file))[0]["sha256"]
    assert records.digest(str(file)) == ""
    assert records.digest(str(tmp_path / "absent")) == ""


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({".nv_fatbin": ("sm_80",)}, [".nv_fatbin"]),
        ({"__nv_relfatbin": ("sm_80",)}, ["__nv_relfatbin"]),
        ({"__nv_relfatbin": ("sm_80",), ".nv_fatbin": ("sm_90",)}, [".nv_fatbin"]),
        ({}, []),
    ],
)
def test_executable_code_comes_before_relocatable(tmp_path, sections, names):
    path = library(tmp_path / "a.so", "f")
    for section, code in sections.items():
        add_section(path, codes_of(*code), section)
    with contextlib.closing(Image(str(path))) as image:
        assert device_code(image).get("sections", []) == names


def test_modules_are_told_from_libraries(tmp_path):
    state = probe.State(
        {"executable": "", "path": [str(tmp_path)], "suffixes": [".cpython-311-x86_64-linux-gnu.so", ".abi3.so", ".so"],
         "modules": {}, "watch": (), "libraries": ()}
    )  # fmt: skip
    found = {
        name: probe.module_of(str(tmp_path / name), state)
        for name in (
            "a/_C.abi3.so",
            "a/_C.cpython-311-x86_64-linux-gnu.so",
            "plain.so",
            "lib/libx.so",
            "a/_C.cpython-310-x86_64-linux-gnu.so",
            "a/x.so.1",
        )
    }
    assert list(found.values()) == ["a._C", "a._C", "plain", "", "", ""]
