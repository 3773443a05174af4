"""Kimi delta attention: inputs, the fp64 truth, and eager code in the precision of the kernel. Children only.

The gated delta rule whose gate is a vector over the key channels (Kimi Linear, arXiv 2510.26692, equation 1). For one
head with state S [K, V]:

    S_t = (I - beta_t k_t k_t^T) Diag(exp(g_t)) S_{t-1} + beta_t k_t v_t^T,    o_t = scale S_t^T q_t

``recurrence`` walks the tokens one by one; ``chunked`` is the parallel form. Shapes as in ``_delta_rule``, and
g [S, T, HV, K].
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kerncheck.kernels import _delta_rule
from kerncheck.kernels._delta_rule import CHUNK, LARGE, Pair, Power, UnitLowerInverse, chunks, shared, unit
from kerncheck.kernels._precision import stored

LOWER_BOUND = -5.0  # linear_lower_bound of glm5_next, kda_lower_bound of bailing_hybrid (transformers 5.24.0)


def gates(regime: str, shape: tuple[int, int, int, int], generator: torch.Generator) -> Tensor:
    """Draw log-gates [S, T, HV, K] in fp32, from a rate for each head and a bias for each channel, as the layers do.

    ``weak`` forgets over hundreds of tokens; ``model`` is the initialisation of Kimi Linear (A uniform in 1 to 16,
    steps of 0.001 to 0.1); ``bounded`` the gate of GLM 5 and Bailing, between -5 and 0; in ``extreme`` half of the
    channels forgets at once, the rest almost nothing; ``edge`` has tokens and channels with no decay, and strong ones.
    """
    seeds, _, heads, channels = shape
    low, high = {"model": (1.0, 16.0), "bounded": (0.5, 4.0)}.get(regime, (0.02, 1.0))
    rate = torch.empty(seeds, 1, heads, 1).uniform_(low, high, generator=generator)
    raw = torch.randn(shape, generator=generator)
    if regime == "model":
        step = (
            torch.empty(seeds, 1, heads, channels).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
        )
        return -rate * F.softplus(0.5 * raw + step + torch.log(-torch.expm1(-step)))
    if regime == "bounded":
        return LOWER_BOUND * torch.sigmoid(rate * (raw - 2))
    gate = -rate * F.softplus(raw)
    if regime == "extreme":
        gate[..., : channels // 2] = -60 * F.softplus(raw[..., : channels // 2])
        gate[..., channels // 2 :] = -1e-4
    if regime == "edge":
        gate[:, ::5] = 0
        gate[:, shape[1] // 3] = -30
        gate[..., 3], gate[..., 5] = 0, -30
    return gate


def draw(plan: dict[str, Any], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw the inputs of all seeds; the gates stay fp32, with ``low_gate`` rounded to the dtype of the lane."""
    inputs = _delta_rule.draw(plan, dtype, generator)
    sizes = plan["sizes"]
    shape = (plan["seeds"], sum(plan["lengths"]), sizes["HV"], sizes["K"])
    inputs["g"] = gate_of(plan, gates(plan["regime"], shape, generator), dtype).float()
    return inputs


def gate_of(plan: dict[str, Any], gate: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gate as the layer hands it over: in fp32, or (Bailing) in the dtype of the hidden states."""
    return gate.to(dtype) if plan["options"].get("low_gate") else gate


def steps(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Pair:
    """Walk some tokens. State [S, HV, K, V], the rest [S, t, HV, ...]; returns outputs [S, t, HV, V] and the state."""
    outputs = []
    for q_t, k_t, v_t, g_t, beta_t in zip(*(x.unbind(1) for x in (q, k, v, g, beta)), strict=True):
        state = state * g_t.exp()[..., None]
        written = (v_t - (state * k_t[..., None]).sum(-2)) * beta_t[..., None]
        state = state + k_t[..., None] * written[..., None, :]
        outputs.append((state * q_t[..., None]).sum(-2))
    return torch.stack(outputs, 1), state


def recurrence(inputs: dict[str, Tensor], state: Tensor) -> Pair:
    """The truth for one sequence, token by token, in the dtype given."""
    return _delta_rule.recurrence(inputs, state, steps)


def base_2(gates_: Tensor) -> Tensor:
    """Sum log-gates [..., C, K] over the tokens of a chunk in base 2 and fp32, one by one, as the kernels do."""
    return _delta_rule.base_2(gates_.transpose(-1, -2)).transpose(-1, -2)


def base_e(gates_: Tensor) -> Tensor:
    """Sum log-gates [..., C, K] over the tokens of a chunk in base e."""
    return gates_.cumsum(-2)


def within(q: Tensor, k: Tensor, total: Tensor, power: Power) -> Pair:
    """Return q_i . k_j and k_i . k_j with the decay from j to i by channel, [S, HV, C, C], zero above the diagonal."""
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()[..., None]
    decay = power((total[..., :, None, :] - total[..., None, :, :]).masked_fill(~lower, -math.inf))
    faded = k[..., None, :, :] * decay
    return (q[..., :, None, :] * faded).sum(-1), (k[..., :, None, :] * faded).sum(-1)


def scores(q: Tensor, k: Tensor, total: Tensor, power: Power) -> Pair:
    """The same, computed again for the backward where the products by channel would take much memory."""
    if q.numel() * CHUNK * q.element_size() <= LARGE:
        return within(q, k, total, power)
    found: Pair = checkpoint(within, q, k, total, power, use_reentrant=False)
    return found


def chunked(inputs: dict[str, Tensor], state: Tensor, power: Power = Tensor.exp, summed: Any = base_e) -> Pair:
    """The same for one sequence, chunk by chunk, in fp32 whatever the inputs' dtype; differentiable by autograd."""
    heads, length = inputs["v"].shape[2], inputs["v"].shape[1]
    wide = {name: tensor.float() for name, tensor in inputs.items() if name != "h0"}
    queries = chunks(shared(unit(wide["q"]), heads)) * wide["q"].shape[-1] ** -0.5
    keys = chunks(shared(unit(wide["k"]), heads))
    values, betas, totals = chunks(wide["v"]), chunks(wide["beta"])[..., None], summed(chunks(wide["g"]))
    state, outputs = state.float(), []
    for q, k, v, beta, total in zip(*(x.unbind(2) for x in (queries, keys, values, betas, totals)), strict=True):
        read, mixed = scores(q, k, total, power)
        solved = UnitLowerInverse.apply((stored(mixed) * beta).tril(-1))
        grown = power(total)
        fresh = solved @ (v * beta) - (solved @ (k * grown * beta)) @ state
        outputs.append((q * grown) @ state + stored(read) @ fresh)
        last = total[..., -1:, :]
        faded = k * power(last - total)
        state = state * stored(power(last)).transpose(-1, -2) + faded.transpose(-1, -2) @ fresh
    return torch.cat(outputs, 2)[:, :, :length].movedim(1, 2), state


def reference(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """The truth, for inputs in fp64."""
    return _delta_rule.by_sequence(recurrence, inputs, plan)


def eager(inputs: dict[str, Tensor], plan: dict[str, Any], rule: Any = chunked) -> dict[str, Tensor]:
    """What a careful eager model computes: fp32 inside, outputs in the dtype of v, states in fp32."""
    dtype = inputs["v"].dtype
    found = _delta_rule.by_sequence(rule, {**inputs, "g": gate_of(plan, inputs["g"], dtype)}, plan)
    return {**found, "o": found["o"].to(dtype)}


def eager_base2(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """The same with gates summed in base 2, a second yardstick (see ``_delta_rule.eager_base2``)."""
    return eager(inputs, plan, lambda piece, state: chunked(piece, state, torch.exp2, base_2))


def eager_recurrent(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """What a model computes without the recurrent kernel: the recurrence in fp32."""
    wide = {name: x.float() for name, x in inputs.items()}
    return {**(found := reference(wide, plan)), "o": found["o"].to(inputs["v"].dtype)}


def natural(outputs: dict[str, Tensor], upstream: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """Natural scale of the gates' gradients, whose true value can cancel to nothing: [S, T, HV, K].

    As for the gated delta rule, by channel: sum_v |do o| is a sum over K channels, of random sign, so a channel's term
    is that divided by sqrt(K); at the end of a sequence comes the final state's own share.
    """
    channels = plan["sizes"]["K"]
    term = (outputs["o"] * upstream["o"]).abs().sum(-1, keepdim=True) / math.sqrt(channels)
    scale = term.expand(*term.shape[:-1], channels)
    if "ht" in upstream:
        share = (outputs["ht"] * upstream["ht"]).abs().sum(-1)
        ends = torch.tensor(plan["lengths"]).cumsum(0) - 1
        scale = scale.index_add(1, ends.to(scale.device), share)
    return {"g": scale}
