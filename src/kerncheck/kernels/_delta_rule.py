"""The gated delta rule, three times: inputs, the fp64 truth, and eager code in the precision of the kernel.

The recurrence (Yang et al., Gated Delta Networks, arXiv 2412.06464, equation 10), for one head with state S [K, V]:

    S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - k_t^T exp(g_t) S_{t-1}))^T,    o_t = scale S_t^T q_t

``recurrence`` walks the tokens one by one. ``chunked`` is the parallel form (section 3 there), with the matrix products
of the kernel, so that rounding their operands gives the kernel's own rounding error. Shapes: S seeds, T tokens, H key
heads, HV value heads (HV a multiple of H), K and V head sizes. Children only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kerncheck.kernels._precision import stored

EPSILON = 1e-6  # of the l2 norm inside the kernels, under the root: fla 0.6.0, modules/norm/l2norm.py
CHUNK = 64  # fla 0.6.0's default chunk_size, ops/gated_delta_rule/chunk.py
Power = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor]
SEGMENT = 16  # tokens between the states that are kept when a large recurrence is differentiated
LARGE = 2**28  # bytes of states beyond which only those are kept and the others computed again


def gates(regime: str, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Draw log-gates [S, T, HV] in fp32.

    ``weak`` forgets over hundreds of tokens, so that errors in what is carried between chunks show; ``model`` is the
    initialisation of Qwen3.5 (A uniform in 0.01 to 16, dt_bias 1); in ``extreme`` the first half of the heads forgets
    at once and the second half almost nothing (1e-4); ``edge`` has tokens with no decay and one with a very strong one.
    ``short`` is weak: its queries and keys are short instead.
    """
    seeds, length, heads = shape
    raw = torch.randn(shape, generator=generator)
    low, high, bias = {"model": (0.01, 16.0, 1.0)}.get(regime, (0.02, 1.0, 0.0))
    rate = torch.empty(seeds, 1, heads).uniform_(low, high, generator=generator)
    gate = -rate * F.softplus(raw + bias)
    if regime == "extreme":
        gate[..., : heads // 2] = -60 * F.softplus(raw[..., : heads // 2])
        gate[..., heads // 2 :] = -1e-4
    if regime == "edge":
        gate[:, ::5] = 0
        gate[:, length // 3] = -30
    return gate


def draw(plan: dict[str, Any], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw the inputs of all seeds, rounded once to the dtype of the lane; the log-gates stay fp32, as in the model."""
    sizes, seeds, length = plan["sizes"], plan["seeds"], sum(plan["lengths"])
    key, value = (seeds, length, sizes["H"], sizes["K"]), (seeds, length, sizes["HV"], sizes["V"])
    inputs = {
        "q": torch.randn(key, generator=generator),
        "k": torch.randn(key, generator=generator),
        "v": torch.randn(value, generator=generator),
        "beta": torch.rand(value[:3], generator=generator),
    }
    if plan["regime"] == "edge":
        inputs["k"][:, 7::40] = 0
        inputs["q"][:, 11::40] = 0
        inputs["beta"][:, 3::7] = 0
        inputs["beta"][:, 5::7] = 1
        inputs["v"][..., sizes["HV"] // 2 :, :] *= 100
    if plan["regime"] == "short":
        inputs["q"][:, ::3] *= 1e-3
        inputs["k"][:, ::2] *= 1e-3
    drawn = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    drawn["g"] = gates(plan["regime"], value[:3], generator)
    if plan["initial_state"]:
        shape = (seeds, len(plan["lengths"]), sizes["HV"], sizes["K"], sizes["V"])
        drawn["h0"] = torch.randn(shape, generator=generator) * 0.3
    return drawn


def unit(x: Tensor) -> Tensor:
    """Return x with l2 norm one along the last dimension: x / sqrt(sum x^2 + 1e-6)."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + EPSILON)


def shared(x: Tensor, heads: int) -> Tensor:
    """Repeat the key heads [S, T, H, K] so that each serves HV / H value heads that stand side by side."""
    return x.repeat_interleave(heads // x.shape[2], dim=2)


def steps(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Walk some tokens. State [S, HV, K, V], the rest [S, t, HV, ...]; returns outputs [S, t, HV, V] and the state."""
    outputs = []
    for q_t, k_t, v_t, g_t, beta_t in zip(*(x.unbind(1) for x in (q, k, v, g, beta)), strict=True):
        state = state * g_t.exp()[..., None, None]
        written = (v_t - (state * k_t[..., None]).sum(-2)) * beta_t[..., None]
        state = state + k_t[..., None] * written[..., None, :]
        outputs.append((state * q_t[..., None]).sum(-2))
    return torch.stack(outputs, 1), state


def recurrence(inputs: dict[str, Tensor], state: Tensor, walk: Any = steps) -> tuple[Tensor, Tensor]:
    """The truth for one sequence: token by token, in the dtype given (fp64); keeps few states when it is large."""
    heads = inputs["v"].shape[2]
    q = shared(unit(inputs["q"]), heads) * inputs["q"].shape[-1] ** -0.5
    k = shared(unit(inputs["k"]), heads)
    rest = (q, k, inputs["v"], inputs["g"], inputs["beta"])
    if state.numel() * state.element_size() * q.shape[1] <= LARGE:
        found: tuple[Tensor, Tensor] = walk(state, *rest)
        return found
    outputs = []
    for pieces in zip(*(x.split(SEGMENT, 1) for x in rest), strict=True):
        output, state = checkpoint(walk, state, *pieces, use_reentrant=False)
        outputs.append(output)
    return torch.cat(outputs, 1), state


class UnitLowerInverse(torch.autograd.Function):  # type: ignore[misc]
    """The inverse of a unit lower triangular matrix, whose gradient is two matrix products, as in the kernel."""

    @staticmethod
    def forward(ctx: Any, strictly_lower: Tensor) -> Tensor:
        """Return (I + L)^-1 for L [..., C, C]; what L holds on and above the diagonal is not read."""
        eye = torch.eye(strictly_lower.shape[-1], dtype=strictly_lower.dtype, device=strictly_lower.device)
        inverse = torch.linalg.solve_triangular(
            strictly_lower, eye.expand_as(strictly_lower), upper=False, unitriangular=True
        )
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Return -A^T dA A^T below the diagonal."""
        (inverse,) = ctx.saved_tensors
        turned = inverse.transpose(-1, -2)
        return -(turned @ (grads[0] @ turned)).tril(-1)


def chunks(x: Tensor) -> Tensor:
    """Turn [S, T, HV, ...] into [S, HV, N, C, ...], padded with zeros to whole chunks."""
    padding = -x.shape[1] % CHUNK
    x = F.pad(x.movedim(2, 1), (0, 0) * (x.dim() - 3) + (0, padding))
    return x.unflatten(2, (-1, CHUNK))


def running(x: Tensor) -> Tensor:
    """Sum along the last axis, one by one in the dtype of x (torch.cumsum adds fp32 up in fp64)."""
    sums = [x[..., 0]]
    for entry in x.unbind(-1)[1:]:
        sums.append(sums[-1] + entry)
    return torch.stack(sums, -1)


def base_2(x: Tensor) -> Tensor:
    """Return summed log-gates in base 2, as the kernels sum them."""
    return running(x) * (1 / math.log(2))


def base_e(x: Tensor) -> Tensor:
    """Return summed log-gates in base e."""
    return x.cumsum(-1)


def chunked(inputs: dict[str, Tensor], state: Tensor, power: Power = Tensor.exp, summed: Power = base_e) -> Pair:
    """The same for one sequence, chunk by chunk, in fp32 whatever the inputs' dtype; differentiable by autograd.

    ``summed`` adds log-gates up, and ``power`` turns the sums into factors.
    """
    heads, length = inputs["v"].shape[2], inputs["v"].shape[1]
    wide = {name: tensor.float() for name, tensor in inputs.items() if name != "h0"}
    q = chunks(shared(unit(wide["q"]), heads)) * wide["q"].shape[-1] ** -0.5
    k = chunks(shared(unit(wide["k"]), heads))
    v, beta = chunks(wide["v"]), chunks(wide["beta"])[..., None]
    total = summed(chunks(wide["g"]))
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = power((total[..., :, None] - total[..., None, :]).masked_fill(~lower, -math.inf))
    within = stored((k @ k.transpose(-1, -2)) * decay * beta)
    solved = UnitLowerInverse.apply(within.tril(-1))
    written, read = solved @ (v * beta), solved @ (k * beta * power(total)[..., None])
    scores = stored((q @ k.transpose(-1, -2)) * decay)
    state, outputs = state.float(), []
    for n in range(total.shape[2]):
        fresh = written[:, :, n] - read[:, :, n] @ state
        carried = (q[:, :, n] @ state) * power(total[:, :, n])[..., None]
        outputs.append(carried + scores[:, :, n] @ fresh)
        last = total[:, :, n, -1]
        faded = fresh * power(last[..., None] - total[:, :, n])[..., None]
        state = state * stored(power(last))[..., None, None] + k[:, :, n].transpose(-1, -2) @ faded
    return torch.cat(outputs, 2)[:, :, :length].movedim(1, 2), state


def by_sequence(rule: Any, inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """Run a rule on each packed sequence alone. Returns ``o`` [S, T, HV, V] and ``ht`` [S, N, HV, K, V] if asked."""
    seeds, _, heads, value = inputs["v"].shape
    outputs, states, start = [], [], 0
    for number, length in enumerate(plan["lengths"]):
        piece = {name: x[:, start : start + length] for name, x in inputs.items() if name != "h0"}
        zero = inputs["v"].new_zeros(seeds, heads, inputs["q"].shape[-1], value)
        output, state = rule(piece, inputs["h0"][:, number] if "h0" in inputs else zero)
        outputs.append(output)
        states.append(state)
        start += length
    found = {"o": torch.cat(outputs, 1), "ht": torch.stack(states, 1)}
    return found if plan["options"].get("states", True) else {"o": found["o"]}


def reference(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """The truth, for inputs in fp64."""
    return by_sequence(recurrence, inputs, plan)


def eager(inputs: dict[str, Tensor], plan: dict[str, Any], rule: Any = chunked) -> dict[str, Tensor]:
    """What a careful eager model computes: fp32 inside, outputs in the dtype of v, states in fp32."""
    found = by_sequence(rule, inputs, plan)
    return {**found, "o": found["o"].to(inputs["v"].dtype)}


def eager_base2(inputs: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """The same with gates summed in base 2 and fp32, as the kernels do.

    A second yardstick: sums of strong gates round in units of 1e-4, a few weak ones among them decide the error of a
    block, and the ratio of two such errors has heavy tails. The larger of two roundings does not.
    """
    return eager(inputs, plan, lambda piece, state: chunked(piece, state, torch.exp2, base_2))


def natural(outputs: dict[str, Tensor], upstream: dict[str, Tensor], plan: dict[str, Any]) -> dict[str, Tensor]:
    """Natural scales of gradients whose true value can cancel to nothing (methods.md, 1.2, rule 2).

    The gradient of a log-gate is a sum of terms of the size of sum_v |do o| for each later token, and of the final
    state's share at the end of a sequence; under strong decay the terms cancel. [S, T, HV], like the gate.
    """
    scale = (outputs["o"] * upstream["o"]).abs().sum(-1)
    if "ht" in upstream:
        share = (outputs["ht"] * upstream["ht"]).abs().sum((-1, -2))
        ends = torch.tensor(plan["lengths"]).cumsum(0) - 1
        scale = scale.index_add(1, ends.to(scale.device), share)
    return {"g": scale}
