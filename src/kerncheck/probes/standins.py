"""Eager stand-ins for compiled kernel packages, which cannot run on a CPU. Labelled, and never counted as fused."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import sys
import types
from typing import Any

MARK = "__kerncheck_standin__"
"""Set on the stand-in module and on its functions. Whoever reads a binding reports these as stand-ins."""


def is_standin(thing: Any) -> bool:
    """Tell whether a function or module is one of our stand-ins."""
    return getattr(thing, MARK, False) is True


VERSION = "0+kerncheck.standin"


class Described(importlib.metadata.Distribution):
    """What importlib.metadata tells of a stand-in: transformers before 5.0 asks it whether a package is installed."""

    def read_text(self, filename: str) -> str | None:
        """Return the metadata file; there is no other."""
        return f"Metadata-Version: 2.1\nName: causal-conv1d\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        """Return the path itself: a stand-in has no files."""
        return path


class Finder:
    """Lets importlib.metadata find the stand-in."""

    @staticmethod
    def find_spec(_name: str, _path: Any = None, _target: Any = None) -> None:
        """Find no module: the stand-in is in sys.modules."""

    @staticmethod
    def find_distributions(context: Any) -> list[Described]:
        """Return the stand-in when it is asked for by its name."""
        return [Described()] if str(context.name).replace("_", "-") == "causal-conv1d" else []


def describe_standin() -> None:
    """Let importlib.metadata know the stand-in, unless it knows the package."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("causal-conv1d")
        return
    sys.meta_path.append(Finder)


def standin_causal_conv1d() -> types.ModuleType:
    """Put a labelled eager package ``causal_conv1d`` in sys.modules; return it.

    Must run before transformers' modelling code is imported. Raises RuntimeError if the real package is loaded.
    """
    present = sys.modules.get("causal_conv1d")
    if present is not None and is_standin(present):
        return present
    if present is not None:
        raise RuntimeError("causal_conv1d is already imported: a stand-in would come too late")
    module = types.ModuleType("causal_conv1d", "Eager stand-in of kerncheck for the compiled package.")
    module.__spec__ = importlib.machinery.ModuleSpec("causal_conv1d", None)  # transformers asks find_spec
    module.__version__ = VERSION  # type: ignore[attr-defined]
    for item in (module, causal_conv1d_fn, causal_conv1d_update):
        setattr(item, MARK, True)
    module.causal_conv1d_fn = causal_conv1d_fn  # type: ignore[attr-defined]
    module.causal_conv1d_update = causal_conv1d_update  # type: ignore[attr-defined]
    sys.modules["causal_conv1d"] = module
    describe_standin()
    return module


def causal_conv1d_fn(  # noqa: PLR0913, PLR0917 - the signature of the package
    x: Any,
    weight: Any,
    bias: Any = None,
    seq_idx: Any = None,
    initial_states: Any = None,
    return_final_states: bool = False,  # noqa: FBT001, FBT002
    final_states_out: Any = None,
    activation: str | None = None,
) -> Any:
    """Depthwise causal convolution: x (B, D, T), weight (D, W), seq_idx (B, T) integer; returns (B, D, T) like x.

    A tap counts only where ``seq_idx`` is the same at both tokens; tokens with a negative index give 0 (padding), as
    in the package's CUDA kernel. Raises ValueError for an activation that the package does not know.
    """
    import torch
    from torch.nn.functional import pad

    check_activation(activation)
    width, length = weight.shape[-1], x.shape[-1]
    past = x.new_zeros(*x.shape[:2], width - 1) if initial_states is None else initial_states
    padded = torch.cat([past.to(x.dtype), x], dim=-1)
    total = torch.zeros_like(x, dtype=torch.float32)
    for tap in range(width):
        term = padded[..., tap : tap + length].float() * weight[:, tap, None].float()
        if seq_idx is not None:
            earlier = pad(seq_idx, (width - 1, 0), value=-1)[:, tap : tap + length]
            term = term * ((earlier == seq_idx) & (seq_idx >= 0))[:, None, :]
        total = total + term
    out = finish(total, bias, activation, x.dtype)
    if seq_idx is not None:
        out = out * (seq_idx >= 0)[:, None, :]
    if not return_final_states:
        return out
    final = padded[..., padded.shape[-1] - (width - 1) :]
    return out, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update(  # noqa: PLR0913, PLR0917 - the signature of the package
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> Any:
    """One decode step: x (B, D) or (B, D, T), conv_state (B, D, S >= W - 1), changed in place; returns like x.

    The ring buffer (cache_seqlens) and the batch gather (conv_state_indices) are not imitated: ValueError.
    """
    import torch

    if cache_seqlens is not None or conv_state_indices is not None:
        raise ValueError("kerncheck's stand-in for causal_conv1d_update has no cache_seqlens or indices")
    check_activation(activation)
    steps = x.unsqueeze(-1) if x.dim() == 2 else x
    state, width, length = conv_state.shape[-1], weight.shape[-1], steps.shape[-1]
    whole = torch.cat([conv_state.to(steps.dtype), steps], dim=-1)
    conv_state.copy_(whole[..., -state:])
    windows = whole[..., -(length + width - 1) :].unfold(-1, width, 1)
    out = finish((windows.float() * weight[:, None, :].float()).sum(-1), bias, activation, x.dtype)
    return out.squeeze(-1) if x.dim() == 2 else out


def check_activation(activation: str | None) -> None:
    """Refuse what the package refuses."""
    if activation not in (None, "silu", "swish"):
        raise ValueError("activation must be None, silu, or swish")


def finish(total: Any, bias: Any, activation: str | None, dtype: Any) -> Any:
    """Add the bias, apply the activation, and return to the input's dtype."""
    from torch.nn.functional import silu

    total = total if bias is None else total + bias[:, None].float()
    return (silu(total) if activation else total).to(dtype)
