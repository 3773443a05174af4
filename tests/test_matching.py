from __future__ import annotations

import msgspec
import pytest
from machines import catalog

from kerncheck.catalog import decode
from kerncheck.matching import Setting, applies, every, met, some
from kerncheck.model.matrix import Condition


def condition(**parts):
    return msgspec.convert(parts, Condition, dec_hook=decode)


HERE = Setting(
    packages={"triton": "3.5.1", "torch": "2.9.1+cu128"},
    cc=("9.0",),
    tools={"nvcc": False},
    variables={"FLA_TILELANG": "0"},
    python="3.12.3",
    torch_cuda="12.8",
)


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ({}, True),
        ({"cc": ["9.0"]}, True),
        ({"cc": ["8.0"]}, False),
        ({"not_cc": ["9.0"]}, False),
        ({"cc_below": "8.0"}, False),
        ({"cc_below": "10.0"}, True),
        ({"packages": {"triton": ">=3.4.0,<3.7.1"}}, True),
        ({"packages": {"tilelang": ""}}, False),
        ({"absent": ["tilelang"]}, True),
        ({"absent": ["triton"]}, False),
        ({"tools": ["nvcc"]}, False),
        ({"without": ["nvcc"]}, True),
        ({"tools": ["ptxas"]}, None),
        ({"without": ["ptxas"]}, None),
        ({"variables": {"FLA_TILELANG": ["0"]}}, True),
        ({"variables": {"FLA_TILELANG": ["1"]}}, False),
        ({"not_variables": {"FLA_TILELANG": ["0"]}}, False),
        ({"not_variables": {"FLA_GLUON": ["0"]}}, True),
        ({"variables_set": ["FLA_TILELANG"]}, True),
        ({"variables_set": ["TRITON_PTXAS_PATH"]}, False),
        ({"python": ">=3.11"}, True),
        ({"torch_cuda": ">=13.0"}, False),
        ({"cc": ["9.0"], "tools": ["ptxas"]}, None),
        ({"cc": ["8.0"], "tools": ["ptxas"]}, False),
    ],
)
def test_conditions_have_three_answers(parts, answer):
    assert met(condition(**parts), HERE) is answer


def test_an_unknown_gpu_leaves_a_condition_open_and_none_at_all_does_not():
    blind = Setting(packages={}, cc=None)
    emulated = Setting(packages={}, cc=())
    assert met(condition(cc=["9.0"]), blind) is None
    assert met(condition(cc=["9.0"]), emulated) is False
    assert met(condition(python=">=3.11"), blind) is None


def test_every_and_some_with_unknown_answers():
    assert [every([True, None]), every([False, None]), every([])] == [None, False, True]
    assert [some([True, None]), some([False, None]), some([])] == [True, None, False]


def row(name):
    return next(row for row in catalog().known_bad if row.id == name)


@pytest.mark.parametrize(
    ("triton", "cc", "answer"),
    [
        ("3.3.1", "9.0", False),
        ("3.4.0", "9.0", True),
        ("3.5.0", "9.0", True),
        ("3.7.0", "9.0", True),
        ("3.7.1", "9.0", False),
        ("3.7.1+git1f8dc1d", "9.0", False),
        ("3.5.0", "8.0", False),
        ("3.5.0", "10.0", False),
    ],
)
def test_the_hopper_rule_speaks_of_its_range_and_its_gpu_only(triton, cc, answer):
    setting = Setting(packages={"triton": triton}, cc=(cc,), tools={"nvcc": False})
    assert applies(row("fla-640-hopper-guard-052"), setting, "0.6.0") is answer


@pytest.mark.parametrize(
    ("tilelang", "nvcc", "variables", "answer"),
    [
        (None, True, {}, True),
        ("0.1.15", False, {}, True),
        ("0.1.15", True, {}, False),
        ("0.1.15", True, {"FLA_TILELANG": "0"}, True),
        ("0.1.15", True, {"FLA_DISABLE_BACKEND_DISPATCH": "1"}, True),
    ],
)
def test_only_a_usable_tilelang_lifts_the_hopper_rule(tilelang, nvcc, variables, answer):
    packages = {"triton": "3.6.0", **({"tilelang": tilelang} if tilelang else {})}
    setting = Setting(packages=packages, cc=("9.0",), tools={"nvcc": nvcc}, variables=variables)
    assert applies(row("fla-640-hopper-guard-052"), setting, "0.6.0") is answer
