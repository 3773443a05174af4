"""Raw statistics of three errors against the truth: no judgement here. Children only.

Every tensor is viewed as [rows, tokens, heads, size]: blocks are 16 tokens of one head (methods.md, 1.2, rule 3).
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

BLOCK = 16
QUIET_HEAD = 2.0**-10
"""A head this much quieter than the whole tensor is judged on the scale of the tensor: with the head's own scale, the
error of values that underflow in both fused and eager code would be infinite."""


def arranged(x: Tensor, axes: str) -> Tensor:
    """View a tensor as [rows, tokens, heads, size] by its axes: s seed, n sequence, t token, h head, others size.

    Without tokens, the first size axis takes their place (rows of a state, channels of a weight).
    """
    order = sorted(range(len(axes)), key=lambda at: "sn".find(axes[at]) if axes[at] in "sn" else 2)
    x = x.permute(order)
    axes = "".join(axes[at] for at in order)
    rows = sum(axis in "sn" for axis in axes)
    x, rest = x.flatten(0, rows - 1), axes[rows:]
    x = x.movedim(1 + rest.index("h"), 2) if "h" in rest else x.unsqueeze(2)
    return x.flatten(3) if x.dim() > 3 else x.unsqueeze(3)


def rms(x: Tensor) -> float:
    """Root mean square of all entries, in fp64."""
    return math.sqrt(float(x.double().square().mean())) if x.numel() else 0.0


def head_rms(x: Tensor) -> Tensor:
    """Root mean square for each row and head: [rows, 1, heads]."""
    return x.square().mean((1, 3)).sqrt()[:, None]


def worst_block(error: Tensor, scale: Tensor) -> float:
    """Largest root mean square of an error over 16 tokens of a head, in units of that head's scale."""
    squares = error.square().mean(3)
    tokens = squares.shape[1]
    padded = F.pad(squares, (0, 0, 0, -tokens % BLOCK)).unflatten(1, (-1, BLOCK)).sum(2)
    counts = [min(BLOCK, tokens - start) for start in range(0, tokens, BLOCK)]
    blocks = (padded / torch.tensor(counts, device=padded.device)[None, :, None]).sqrt()
    return float((blocks / scale).nan_to_num(0.0).max())


def gains(found: Tensor, truth: Tensor) -> list[float] | None:
    """For each seed, how much larger than the truth: <found, truth> / <truth, truth> - 1."""
    flat, true = found.double().flatten(1), truth.flatten(1)
    power = true.square().sum(1)
    if not bool((power > 0).all()):
        return None
    return [float(gain) for gain in ((flat * true).sum(1) / power - 1)]


def by_group(found: list[Tensor], truth: Tensor, axes: str, size: int) -> list[tuple[float, float | None]]:
    """Return (root mean square of the error, mean gain) of every run over each group of ``size`` seeds."""
    seeds = axes.index("s")
    parts = [(x.split(size, seeds), truth.split(size, seeds)) for x in found]
    pairs = [pair for run, true in parts for pair in zip(run, true, strict=True)]
    return [(rms(x - true), mean_and_error(gains(x, true))[0]) for x, true in pairs]


def mean_and_error(values: list[float] | None) -> tuple[float | None, float | None]:
    """Mean over seeds and its standard error; the error is unknown for one seed."""
    if values is None:
        return None, None
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def flags(found: Tensor | None, truth: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """What is wrong with a tensor before any number is compared."""
    if found is None:
        return {"absent": True}
    if found.shape != truth.shape:
        return {"shape": f"{list(found.shape)}, wanted {list(truth.shape)}"}
    broken = int((~found.isfinite() & truth.isfinite()).sum())
    zero = bool((found == 0).all()) and bool((truth != 0).any())
    wrong = "" if found.dtype == dtype else f"{found.dtype}, wanted {dtype}".replace("torch.", "")
    return {"nonfinite": broken, "zero": zero, "dtype": wrong}


def sizes(found: Tensor, eagers: list[Tensor], truth: Tensor, axes: str, natural: Tensor | None) -> dict[str, Any]:
    """Error sizes of the fused result and of each eager one."""
    true = arranged(truth, axes)
    scale = head_rms(true)
    nat = 0.0
    if natural is not None:
        nat, scale = rms(natural), scale.maximum(head_rms(arranged(natural, axes)))
    scale = scale.clamp(min=max(rms(true), nat) * QUIET_HEAD)
    errors = [arranged(x.double(), axes) - true for x in (found, *eagers)]
    mean, error = mean_and_error(gains(found, truth))
    return {
        "rms_reference": rms(true),
        "natural": nat,
        "rms_fused": rms(errors[0]),
        "rms_eager": [rms(x) for x in errors[1:]],
        "block_fused": worst_block(errors[0], scale),
        "block_eager": [worst_block(x, scale) for x in errors[1:]],
        "gain_fused": mean,
        "gain_error": error,
        "gain_eager": [mean_and_error(gains(x, truth))[0] for x in eagers],
    }


def digest(x: Tensor) -> str:
    """Checksum of a tensor's bits, by which two snapshots tell whether a kernel still gives the same result."""
    flat = x.detach().contiguous().cpu().flatten()
    return f"{zlib.crc32(flat.view(torch.uint8).numpy().tobytes()):08x}"


def short(value: Any) -> Any:
    """Round floats to four digits, so that snapshots stay small; what is not finite becomes None."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [short(item) for item in value]
    return {key: short(item) for key, item in value.items()} if isinstance(value, dict) else value
