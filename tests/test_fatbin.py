"""The reader of fat binaries: what nvcc really writes, every variant, and damage that is told where it is."""

from __future__ import annotations

import gzip
import struct
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from binary_builders import CUBIN, LTO, LZ4, PTX, ZSTD, A, F, codes_of, entry, fatbin

from kerncheck.probes.fatbin import BadFatbinError, containers, name, summary

DATA = Path(__file__).parent / "data" / "nvcc-13.0.fatbin.gz"


def read(image: bytes) -> dict:
    return summary(containers(image, 0, len(image)))


def names(image: bytes) -> list[str]:
    return [name(code["kind"], code["arch"], code["suffix"]) for code in read(image)["codes"]]


def test_what_nvcc_wrote_is_what_cuobjdump_lists():
    found = read(gzip.decompress(DATA.read_bytes()))
    counts = Counter()
    for code in found["codes"]:
        suffix = code["suffix"] if code["kind"] == "ptx" or code["suffix"] == "a" else ""  # as cuobjdump prints it
        counts[name(code["kind"], code["arch"], suffix)] += code["count"]
    assert counts == {
        "sm_90": 2, "sm_90a": 2, "sm_103": 4, "sm_100": 4, "sm_100a": 2,
        "compute_90": 1, "compute_90a": 1, "compute_100f": 1, "lto_75": 1,
        "sm_103a": 2, "sm_120": 2, "sm_110": 2, "compute_120": 1, "compute_121a": 1, "compute_110f": 1,
    }  # fmt: skip
    assert found["images"] == 4


def test_nvcc_compresses_ptx_always_and_cubins_when_told():
    codes = read(gzip.decompress(DATA.read_bytes()))["codes"]
    packed = {name(code["kind"], code["arch"], code["suffix"]): code["compressed"] for code in codes}
    assert packed["compute_90"] == 1
    assert packed["sm_90"] == 0
    assert packed["sm_120f"] == 2
    assert {code["isa"] for code in codes if code["kind"] == "ptx"} == {"9.0"}


def test_the_fixture_of_the_cases():
    image = fatbin(entry(CUBIN, 80), entry(CUBIN, 90), entry(PTX, 90))
    assert names(image) == ["sm_80", "sm_90", "compute_90"]


@pytest.mark.parametrize("each", ["sm_75", "sm_90a", "sm_100f", "sm_121a", "compute_80", "compute_90a", "compute_120f"])
def test_every_variant(each):
    assert names(codes_of(each)) == [each]


def test_compressed_entries_of_both_kinds_are_counted():
    found = read(fatbin(entry(CUBIN, 80, flags=LZ4), entry(CUBIN, 80, flags=ZSTD), entry(CUBIN, 80)))
    assert found["codes"] == [
        {"kind": "cubin", "arch": 80, "suffix": "", "count": 3, "compressed": 2, "isa": ""},
    ]


def test_the_newest_ptx_version_counts():
    found = read(fatbin(entry(PTX, 80, isa=(8, 9)), entry(PTX, 80, isa=(8, 10)), entry(PTX, 80, isa=(8, 7))))
    assert found["codes"][0]["isa"] == "8.10"


def test_several_images_with_padding_between_them():
    first, second = codes_of("sm_80", "sm_90"), codes_of("sm_90a")
    found = read(first + bytes(8) + second + bytes(72) + first)
    assert found["images"] == 3
    assert found["sets"] == [{"codes": ["sm_80", "sm_90"], "count": 2}, {"codes": ["sm_90a"], "count": 1}]


def test_an_image_without_entries_lists_nothing():
    assert read(fatbin()) == {"codes": [], "images": 0, "sets": []}
    assert read(b"") == {"codes": [], "images": 0, "sets": []}
    assert read(bytes(64)) == {"codes": [], "images": 0, "sets": []}


def test_intermediate_code_and_kinds_unknown_today_are_named():
    assert names(fatbin(entry(LTO, 75), entry(64, 90))) == ["kind64_90", "lto_75"]


def test_a_magic_number_inside_code_is_not_a_container():
    image = bytearray(codes_of("sm_80"))
    image[-8:-4] = struct.pack("<I", 0xBA55ED50)
    assert names(bytes(image)) == ["sm_80"]


GOOD = codes_of("sm_80", "sm_90")


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"rubbish!" * 4, "neither a fat binary nor padding"),
        (GOOD + b"rubbish!" * 4, "neither a fat binary nor padding"),
        (b"\0\0\0\0" + GOOD, "neither a fat binary nor padding"),
        (GOOD[:12], "ends inside the header"),
        (GOOD[:40], "damaged header"),
        (GOOD[:4] + b"\x02" + GOOD[5:], "damaged header"),
        (GOOD[:6] + b"\x08" + GOOD[7:], "damaged header"),
        (GOOD[:8] + b"\xff" * 8 + GOOD[16:], "damaged header"),
        (GOOD[:20] + b"\x3f" + GOOD[21:], "damaged entry"),
        (GOOD[:24] + b"\xff" * 8 + GOOD[32:], "damaged entry"),
        (GOOD[:44] + bytes(4) + GOOD[48:], "damaged entry"),
        (GOOD[:44] + b"\xff" * 4 + GOOD[48:], "damaged entry"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 8) + bytes(8), "ends inside the entry"),
    ],
)
def test_damage_is_told(image, words):
    with pytest.raises(BadFatbinError, match=words):
        read(image)


def test_a_section_that_ends_after_the_file():
    with pytest.raises(BadFatbinError, match="the file at"):
        list(containers(GOOD, 0, len(GOOD) + 8))


def test_more_entries_than_any_library_has(monkeypatch):
    from kerncheck.probes import fatbin as module

    monkeypatch.setattr(module, "MOST_ENTRIES", 10)
    with pytest.raises(BadFatbinError, match="more than 10 entries"):
        read(codes_of(*["sm_80"] * 12))
    with pytest.raises(BadFatbinError, match="more than 10 entries"):
        read(codes_of("sm_80") * 12)


def test_reading_does_not_grow_with_the_payload():
    import tracemalloc

    image = fatbin(entry(CUBIN, 80, size=32_000_000), entry(CUBIN, 90, size=32_000_000))
    tracemalloc.start()
    assert names(image) == ["sm_80", "sm_90"]
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_variants_come_from_flags_not_from_the_number():
    assert names(fatbin(entry(CUBIN, 90, flags=A | 0x11), entry(CUBIN, 100, flags=F | 0x11))) == ["sm_90a", "sm_100f"]
