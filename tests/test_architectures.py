from __future__ import annotations

import pytest
from machines import catalog

from kerncheck.architectures import coverage, number_of, parsed

WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize(
    ("names", "cc", "answer"),
    [
        (WHEEL, "9.0", "native"),
        (WHEEL, "8.9", "compatible"),
        (("sm_80",), "8.6", "compatible"),
        (WHEEL, "12.1", "compatible"),
        (WHEEL, "10.3", "compatible"),
        (WHEEL, "7.0", "none"),
        (WHEEL, "6.1", "none"),
        (WHEEL, "11.0", "none"),
        (("sm_90a",), "9.0", "native"),
        (("sm_90a",), "10.0", "none"),
        (("compute_100f",), "10.3", "ptx"),
        (("compute_100f",), "11.0", "none"),
        (("compute_103f",), "10.0", "none"),
        (("sm_120f",), "12.1", "compatible"),
        (("sm_100f", "sm_103a"), "10.7", "compatible"),
        (("sm_100a", "compute_100a"), "10.3", "none"),
        (("compute_100f",), "10.0", "ptx"),
        (("compute_80",), "8.6", "ptx"),
        (("compute_90",), "8.6", "none"),
        (("sm_50", "compute_90"), "12.0", "ptx"),
        ((), "9.0", "unknown"),
        (("garbage", "sm_"), "9.0", "unknown"),
        (("garbage", "sm_90"), "9.0", "native"),
        (("sm_101",), "11.0", "compatible"),
    ],
)
def test_which_code_runs_where(names, cc, answer):
    assert coverage(names, cc, catalog().torch.device_rule) == answer


def test_jetson_is_excluded_until_cuda_13_2():
    rule = catalog().torch.device_rule
    assert coverage(WHEEL, "8.7", rule, "13.0") == "none"
    assert coverage(WHEEL, "8.7", rule, "13.2") == "compatible"
    assert coverage(WHEEL, "8.7", rule, "") == "none"


def test_numbers_of_capabilities():
    assert [number_of(cc) for cc in ("9.0", "12.1", "10.3")] == [90, 121, 103]
    assert [(code.ptx, code.number, code.suffix) for code in parsed(["sm_100f", "compute_90"])] == [
        (False, 100, "f"),
        (True, 90, ""),
    ]
