"""Calls of ops with the shapes, dtypes and layouts of a model; values do not matter, since nothing is computed.

A call is plain data: ``op``, ``modules`` (where its module may be, the newest first), ``form`` (as in ``kernels``),
``layout`` (``plain``: a batch of sequences of one length; ``varlen``: several packed into one row), ``batch``,
``tokens`` (of one sequence; of the whole row in ``varlen``), ``sizes`` (H and HV heads of K and V elements, D channels
with W taps), ``dtype``, ``offsets`` (dtype of cu_seqlens), ``initial_state``, ``final_state`` and ``backward``.
The layouts are those of Qwen3.5's layers (transformers 5.24, modeling_qwen3_5.py). Children only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

Call = dict[str, Any]
Forward = Callable[[], Any]
EPSILON = 1e-6  # rms_norm_eps of Qwen3.5 and of fla's l2norm; a run-time value, it decides no constant


class UnknownOpError(Exception):
    """The op cannot be imported, or no form of call is known for it."""


def find(call: Call) -> Any:
    """Import the op. Raises UnknownOpError when none of its modules has it."""
    module, _, name = call["op"].partition(":")
    problems = []
    for candidate in dict.fromkeys((module, *call["modules"])):
        try:
            return getattr(importlib.import_module(candidate), name)
        except (ImportError, AttributeError) as error:
            problems.append(f"{type(error).__name__}: {error}")
    raise UnknownOpError("; ".join(problems))


def prepare(call: Call) -> Forward:
    """Draw the inputs and return the forward pass, which returns the output that gradients flow from."""
    make = FORMS.get(call["form"])
    if make is None:
        raise UnknownOpError(f"no call is known for ops of the form {call['form']!r}")
    return make(find(call), call)


def tensor(call: Call, *shape: int, dtype: str = "") -> Any:
    """Return an input of some shape that asks for a gradient if the call has a backward pass."""
    import torch

    return torch.zeros(shape, dtype=getattr(torch, dtype or call["dtype"]), requires_grad=call["backward"])


def offsets(call: Call) -> Any:
    """Return cu_seqlens of three sequences of different lengths, or None in the plain layout."""
    import torch

    total = call["tokens"]
    if call["layout"] == "plain":
        return None
    bounds = [0, total // 4 + 1, total // 2 + 1, total] if total >= 8 else [0, total]
    return torch.tensor(bounds, dtype=getattr(torch, call["offsets"]))


def delta_rule(function: Any, call: Call) -> Forward:
    """Prepare chunk_gated_delta_rule or fused_recurrent_gated_delta_rule: q, k [B, T, H, K], v [B, T, HV, V]."""
    size, batch, tokens = call["sizes"], call["batch"], call["tokens"]
    bounds = offsets(call)
    rows = batch if bounds is None else len(bounds) - 1
    state = (rows, size["HV"], size["K"], size["V"])
    given = {
        "q": tensor(call, batch, tokens, size["H"], size["K"]),
        "k": tensor(call, batch, tokens, size["H"], size["K"]),
        "v": tensor(call, batch, tokens, size["HV"], size["V"]),
        "g": tensor(call, batch, tokens, size["HV"], dtype="float32"),
        "beta": tensor(call, batch, tokens, size["HV"]),
        "initial_state": tensor(call, *state, dtype="float32") if call["initial_state"] else None,
        "output_final_state": call["final_state"],
        "use_qk_l2norm_in_kernel": True,
        "cu_seqlens": bounds,
    }
    return lambda: function(**given)[0]


def l2norm(function: Any, call: Call) -> Forward:
    """Prepare l2norm of keys [B, T, H, K]."""
    size = call["sizes"]
    keys = tensor(call, call["batch"], call["tokens"], size["H"], size["K"])
    return lambda: function(keys)


def gated_rms_norm(module: Any, call: Call) -> Forward:
    """Prepare FusedRMSNormGated of rows [B * T * HV, V], with a weight in the dtype of the model."""
    import torch

    size = call["sizes"]
    rows = call["batch"] * call["tokens"] * size["HV"]
    norm = module(size["V"], eps=EPSILON, activation="silu", dtype=getattr(torch, call["dtype"]))
    x, gate = tensor(call, rows, size["V"]), tensor(call, rows, size["V"])
    return lambda: norm(x, gate)


def convolution(function: Any, call: Call) -> Forward:
    """Prepare causal_conv1d with its Triton backend: x [B, T, D] with a weight [D, W] and SiLU, without a bias."""
    size = call["sizes"]
    given = {
        "x": tensor(call, call["batch"], call["tokens"], size["D"]),
        "weight": tensor(call, size["D"], size["W"]),
        "activation": "silu",
        "backend": "triton",
        "output_final_state": call["final_state"],
        "cu_seqlens": offsets(call),
    }
    return lambda: function(**given)[0]


FORMS: dict[str, Callable[[Any, Call], Forward]] = {
    "chunk_delta_rule": delta_rule,
    "recurrent_delta_rule": delta_rule,
    "l2norm": l2norm,
    "gated_rms_norm": gated_rms_norm,
    "fla_conv": convolution,
}


def backward(output: Any) -> None:
    """Run the backward pass for a contiguous gradient, as the model's next operation hands one over."""
    import torch

    torch.autograd.backward(output, torch.empty_like(output, memory_format=torch.contiguous_format))
