"""Compare two runs that lived in different processes, tensor by tensor: each leaves a file, the second one compares.

Nobody waits: a run writes its own file and then looks for the other's, so whoever ends last finds both. The folder's
name is drawn at random by the parent, which also removes it.
"""

from __future__ import annotations

import os
from typing import Any

from kerncheck.probes.scene import finite

LARGEST = 1 << 20
"""Elements of a tensor that are kept: 4 MB in float32. Of a larger one, this many at even distances."""


def kept(tensor: Any) -> Any:
    """Return a tensor's values, or an even sample of them, flat in float32 on the CPU."""
    flat = tensor.detach().reshape(-1)
    step = -(-flat.numel() // LARGEST)
    return flat[::step].float().cpu().clone()


def compare(folder: str, own: str, tensors: dict[str, Any]) -> dict[str, Any] | None:
    """Leave ``{name: flat tensor}`` as ``own`` (fused or eager); return the comparison if the other is there."""
    import torch

    os.makedirs(folder, mode=0o700, exist_ok=True)
    partial = os.path.join(folder, own + ".partial")
    torch.save(tensors, partial)
    os.replace(partial, os.path.join(folder, own + ".pt"))
    other = os.path.join(folder, ("eager" if own == "fused" else "fused") + ".pt")
    if not os.path.exists(other):
        return None
    theirs = torch.load(other, weights_only=True)
    fused, eager = (tensors, theirs) if own == "fused" else (theirs, tensors)
    return differences(fused, eager)


def differences(fused: dict[str, Any], eager: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics of each tensor that both runs have, and the names that only one of them has."""
    common = [name for name in eager if name in fused]
    return {
        "tensors": [difference(name, fused[name], eager[name]) for name in common],
        "only_fused": [name for name in fused if name not in eager],
        "only_eager": [name for name in eager if name not in fused],
    }


def difference(name: str, fused: Any, eager: Any) -> dict[str, Any]:
    """Return root mean squares of the difference and of both tensors, and the largest difference; None: not finite."""
    if fused.shape != eager.shape:
        return {"name": name, "error": None, "fused": finite(rms(fused)), "eager": finite(rms(eager)), "largest": None}
    apart = fused - eager
    return {
        "name": name,
        "error": finite(rms(apart)),
        "fused": finite(rms(fused)),
        "eager": finite(rms(eager)),
        "largest": finite(apart.abs().max()) if apart.numel() else 0.0,
    }


def rms(tensor: Any) -> Any:
    """Return the root mean square, added up in double precision."""
    return tensor.double().square().mean().sqrt()
