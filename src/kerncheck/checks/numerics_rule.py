"""The rule that turns error sizes into a verdict: three errors, one budget (docs/how-it-judges.md).

Frozen constants. They were set on fla's gated delta rule in Triton's interpreter and re-tried on fresh seeds
(methods.md, 1.2, "Validation"): no null cell above 1, and every fault of the table that its lane can see above 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerncheck.model.numerics import Sizes, TensorSeen

C_RMS = 3.0  # sweep in methods.md, 1.2: 0 of 16 null cells at 3, worst null margin 0.46; 5 misses bf16 rounding faults
C_BLOCK = 6.0  # 4 gave 2 false alarms in 64 held-out null cells, 5 and 6 none
ROUND_OFF = {"fp32": 0.0, "bf16": 2.0**-9, "fp16": 2.0**-12}
"""Unit round-off of a tensor's dtype; 0 for fp32, whose share is in FLOOR."""
FLOOR = 8 * 2.0**-24
"""What fp32 arithmetic may cost beyond the eager run, in units of the tensor: eight roundings."""
GAIN_SEEDS = 4  # with fewer, the standard error of the mean is itself too uncertain
WARN = 0.5
"""From this part of the limit on, the norm rule is worth a warning; its largest null margin was 0.46. The other two
rules have wider null distributions, and a healthy kernel may come near them."""
UNCALIBRATED = 3.0
"""On a GPU the constants are not calibrated: between 1 and 3 times the limit is a warning (design.md)."""


@dataclass(frozen=True)
class Margin:
    """An error divided by its limit: right at 1 or below. ``rule`` says which of the three limits it was."""

    value: float
    rule: str
    error: float
    limit: float

    @property
    def words(self) -> str:
        """The margin for a message."""
        return f"{self.rule} {self.error:.2g}, limit {self.limit:.2g} (margin {self.value:.2g})"


def largest(values: tuple[float | None, ...]) -> float | None:
    """Return the largest of the eager errors, or None where no eager run gave one."""
    known = [abs(value) for value in values if value is not None]
    return max(known) if known else None


def margin(seen: TensorSeen, seeds: int) -> Margin | None:
    """Return the worst of the three margins of a tensor, or None where there is nothing to compare."""
    if seen.sizes is None:
        return None
    unit = ROUND_OFF[seen.precision]
    found = (of_norm(seen.sizes, unit), of_block(seen.sizes, unit), of_gain(seen.sizes, unit, seeds))
    return max((item for item in found if item is not None), key=lambda item: item.value, default=None)


def near(seen: TensorSeen) -> Margin | None:
    """Return the margin of the norm rule alone, by which a warning is given."""
    return None if seen.sizes is None else of_norm(seen.sizes, ROUND_OFF[seen.precision])


def of_norm(sizes: Sizes, unit: float) -> Margin | None:
    """Root mean square: c times the eager error, one rounding of the result, and a floor at the natural scale."""
    eager = largest(sizes.rms_eager)
    if eager is None:
        return None
    scale = max(sizes.rms_reference, sizes.natural)
    limit = C_RMS * eager + unit * sizes.rms_reference + FLOOR * scale
    return part(sizes.rms_fused, limit, scale, "relative error")


def of_block(sizes: Sizes, unit: float) -> Margin | None:
    """Worst block of 16 tokens of a head, in units of the head."""
    eager = largest(sizes.block_eager)
    if eager is None:
        return None
    return part(sizes.block_fused, C_BLOCK * eager + unit + FLOOR, 1.0, "relative error of one block")


def of_gain(sizes: Sizes, unit: float, seeds: int) -> Margin | None:
    """Gain: a scale error, or biased rounding, far below the noise of the norm. Needs several seeds."""
    eager = largest(sizes.gain_eager)
    if eager is None or sizes.gain_fused is None or sizes.gain_error is None or seeds < GAIN_SEEDS:
        return None
    scale = max(1.0, sizes.natural / sizes.rms_reference) if sizes.rms_reference else 1.0
    limit = C_RMS * eager + 5 * sizes.gain_error + unit / 2 + 2 * 2.0**-24 * scale
    return part(abs(sizes.gain_fused), limit, 1.0, "gain error")


def part(error: float, limit: float, scale: float, rule: str) -> Margin:
    """Return error / limit; a limit of zero allows no error at all."""
    value = error / limit if limit else (0.0 if error == 0 else float("inf"))
    scale = scale or 1.0
    return Margin(value=value, rule=rule, error=error / scale, limit=limit / scale)
