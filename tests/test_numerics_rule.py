"""The rule: three limits, their floors, and what each of them is for."""

from __future__ import annotations

import math

import pytest

from kerncheck.checks.numerics_rule import C_BLOCK, C_RMS, margin, of_block, of_gain, of_norm
from kerncheck.model.numerics import Sizes, TensorSeen


def sizes(**changes):
    healthy = {
        "rms_reference": 1.0,
        "natural": 0.0,
        "rms_fused": 4e-3,
        "rms_eager": (1.7e-3, 3.5e-3),
        "block_fused": 6e-3,
        "block_eager": (2e-3, 5e-3),
        "gain_fused": 1e-5,
        "gain_error": 1e-4,
        "gain_eager": (2e-5, 1e-5),
    }
    return Sizes(**{**healthy, **changes})


def seen(precision="bf16", **changes):
    return TensorSeen(name="dk", role="gradient", precision=precision, sizes=sizes(**changes))


def test_a_healthy_tensor_is_below_half_its_limit():
    assert margin(seen(), 4).value < 0.5


def test_the_yardstick_is_the_larger_eager_error():
    limit = of_norm(sizes(), 0.0).limit
    assert limit == pytest.approx(C_RMS * 3.5e-3, rel=1e-3)
    assert of_block(sizes(), 0.0).limit == pytest.approx(C_BLOCK * 5e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"rms_fused": 0.05}, "relative error"),
        ({"block_fused": 0.1}, "relative error of one block"),
        ({"gain_fused": 2.0**-8}, "gain error"),
    ],
)
def test_each_limit_alone_can_fail_a_tensor(change, rule):
    worst = margin(seen(**change), 4)
    assert worst.value > 1
    assert worst.rule == rule
    assert "limit" in worst.words


def test_gain_needs_four_seeds():
    assert margin(seen(gain_fused=2.0**-8), 3).value < 1
    assert of_gain(sizes(gain_error=None), 0.0, 4) is None
    assert of_gain(sizes(gain_fused=None), 0.0, 4) is None


def test_a_truth_that_cancels_may_be_off_by_roundings_of_its_terms():
    cancelled = {
        "rms_reference": 1e-9,
        "rms_fused": 1e-7,
        "rms_eager": (0.0,),
        "block_fused": 0.0,
        "block_eager": (0.0,),
    }
    assert margin(seen("fp32", **cancelled, natural=1.0, gain_fused=None), 4).value < 1
    assert margin(seen("fp32", **cancelled, natural=0.0, gain_fused=None), 4).value > 1


def test_a_16_bit_result_may_be_rounded_once_more_and_fp32_not():
    exact = {"rms_eager": (0.0,), "block_eager": (0.0,), "rms_fused": 1.7e-3, "block_fused": 1.7e-3, "gain_fused": None}
    assert margin(seen("bf16", **exact), 4).value < 1
    assert margin(seen("fp16", **exact), 4).value > 1
    assert margin(seen("fp32", **exact), 4).value > 1


def test_without_numbers_there_is_no_margin():
    assert margin(TensorSeen(name="o", role="output", precision="fp32"), 4) is None
    lost = {"rms_eager": (None,), "block_eager": (None,), "gain_eager": (None,)}
    assert margin(seen(**lost), 4) is None


def test_no_error_is_allowed_where_the_limit_is_zero():
    nothing = {"rms_reference": 0.0, "rms_eager": (0.0,), "gain_fused": None}
    assert of_norm(sizes(**nothing, rms_fused=0.0), 0.0).value == 0
    assert math.isinf(of_norm(sizes(**nothing, rms_fused=1e-30), 0.0).value)
