"""Run one cell of one op and return what was seen, as plain data. Observes and never judges. Children only."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kerncheck.kernels import _contexts, _errors
from kerncheck.kernels._forms import Form, Plan, Tensors
from kerncheck.kernels._fused import Fused, Run, Zeroed, eager_run, poisoned
from kerncheck.kernels._precision import Round

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def truth_of(form: Form, inputs: Tensors, plan: Plan, weights: Tensors) -> tuple[Run, Tensors]:
    """Return the fp64 run and the natural scales."""
    wide = {name: x.double() for name, x in inputs.items()}
    run = eager_run(form.reference, wide, form, plan, weights)
    outputs = {name: out.detach() for name, out in run.outputs.items()}
    upstream = {name: w.double() for name, w in weights.items()}
    if plan["upstream"] == "sum":
        first = next(iter(outputs))
        upstream = {first: torch.ones_like(outputs[first])}
    return run, form.natural(outputs, upstream, plan)


def eager_runs(form: Form, inputs: Tensors, plan: Plan, weights: Tensors, dtype: torch.dtype) -> list[Run]:
    """Return the eager runs in the lane's dtype (E1), and those with the kernel's precision contract (E2)."""
    runs = [eager_run(eager, inputs, form, plan, weights) for eager in form.eagers]
    if form.contract == "io" and dtype != torch.float32:
        with Round(dtype):
            runs += [eager_run(eager, inputs, form, plan, weights) for eager in form.eagers]
    return runs


def draw(form: Form, plan: Plan, dtype: torch.dtype, device: str) -> tuple[Tensors, Tensors]:
    """Draw inputs and upstream gradients of all seeds, on the CPU so that every device sees the same numbers."""
    generator = torch.Generator().manual_seed(plan["seed"])
    inputs = {name: x.to(device) for name, x in form.draw(plan, dtype, generator).items()}
    with torch.no_grad():
        outputs = form.eagers[0](inputs, plan)
    weights = {}
    for name, out in outputs.items():
        kind = torch.float32 if name in form.fp32 else dtype
        weights[name] = torch.randn(out.shape, generator=generator).to(device=device, dtype=kind)
    return inputs, form.weigh(weights)


def tensors(form: Form, fused: Run, truth: Run, eagers: list[Run], natural: Tensors, dtype: torch.dtype) -> list[Any]:
    """Return flags and error sizes of every output and every gradient."""
    found = []
    groups = [("outputs", fused.outputs, truth.outputs), ("gradients", fused.gradients, truth.gradients)]
    for group, mine, true in groups:
        for name in mine:
            want = torch.float32 if name in form.fp32 else dtype
            role = "gradient" if group == "gradients" else "state" if name in form.states else "output"
            others = [getattr(run, group)[name].detach() for run in eagers]
            scale = natural.get(name) if role == "gradient" else None
            seen = compared(mine[name], true[name].detach(), others, want, (form.axes[name], scale))
            found.append({"name": f"d{name}" if role == "gradient" else name, "role": role, **seen})
    return found


def compared(value: Any, right: Tensor, others: list[Tensor], dtype: torch.dtype, view: Any) -> dict[str, Any]:
    """Return the flags of one tensor, and the sizes of its errors where there are numbers to compare."""
    seen = {"precision": NAMES[dtype], **_errors.flags(value, right, dtype)}
    if not any(seen.get(key) for key in ("absent", "shape", "nonfinite")):
        seen["sizes"] = _errors.sizes(value.detach(), others, right, *view)
    return {**seen, "digest": "" if value is None else _errors.digest(value)}


def widened(form: Form, plan: Plan, dtype: torch.dtype, device: str, seen: list[Any]) -> None:
    """Add the eager errors over more seeds to the yardstick; the fused op does not run for it.

    The gradient of a gate has one number for each token and head, and its rounding errors are shared by whole chunks:
    on four seeds alone the eager error can be low by chance, and a healthy kernel looks bad beside it. The seeds are
    pooled in groups as large as the fused run's, since the largest of several small groups is what it must be held
    against: pooled over all, 2 of 1,480 healthy tensors on 20 fresh seeds lay at 1.00 and 1.01 of their limit.
    """
    pooled, plan = plan["seeds"], {**plan, "seeds": plan["wide"], "seed": plan["seed"] + 7}
    inputs, weights = draw(form, plan, dtype, device)
    truth, natural = truth_of(form, inputs, plan, weights)
    eagers = eager_runs(form, inputs, plan, weights, dtype)
    for item in (item for item in seen if "sizes" in item):
        gradient = item["role"] == "gradient"
        group, name = ("gradients", item["name"][1:]) if gradient else ("outputs", item["name"])
        right = getattr(truth, group)[name].detach()
        scale = max(_errors.rms(right), _errors.rms(natural[name]) if gradient and name in natural else 0.0)
        found = [getattr(run, group)[name].detach().double() for run in eagers]
        add_yardsticks(item["sizes"], _errors.by_group(found, right, form.axes[name], pooled), scale)


def add_yardsticks(sizes: dict[str, Any], groups: list[tuple[float, float | None]], scale: float) -> None:
    """Add the (error, gain) of each group of each eager run; errors in units of the fused run's own tensor."""
    mine = max(sizes["rms_reference"], sizes["natural"])
    sizes["rms_eager"] += [error / scale * mine for error, _ in groups if scale]
    sizes["gain_eager"] += [gain for _, gain in groups if gain is not None and sizes["gain_fused"] is not None]


def unwritten(fused: Fused, inputs: Tensors, plan: Plan, weights: Tensors, seen: list[Any]) -> list[str]:
    """Return the tensors that hold NaN only when fresh memory does: their kernels left a part of them unwritten."""
    if not any(item.get("nonfinite") for item in seen):
        return []
    plain = fused.all(inputs, plan, weights, fill=Zeroed)
    values = {**plain.outputs, **{f"d{name}": x for name, x in plain.gradients.items()}}
    return [item["name"] for item in seen if item.get("nonfinite") and bool(values[item["name"]].isfinite().all())]


def repeated(fused: Fused, inputs: Tensors, plan: Plan, weights: Tensors, first: Run) -> list[dict[str, Any]]:
    """Run again as often as the plan says; return the tensors that were not bit for bit the same.

    ``spread`` is the largest difference; ``bound`` is what a change of the order of a sum may do: twice the largest
    rounding of the tensor itself, max |(x + 0.3) - 0.3 - x| (the rule of FlashAttention's tests).
    """
    spread: dict[str, float] = {}
    values = {**first.outputs, **{f"d{name}": x for name, x in first.gradients.items()}}
    for _ in range(plan["repeats"]):
        again = fused.all(inputs, plan, weights)
        others = {**again.outputs, **{f"d{name}": x for name, x in again.gradients.items()}}
        for name, x in values.items():
            if not same(x, others[name]):
                spread[name] = max(spread.get(name, 0.0), distance(x, others[name]))
    return [{"name": name, "spread": size, "bound": 2 * rounding(values[name])} for name, size in spread.items()]


def distance(one: Tensor | None, other: Tensor | None) -> float:
    """Largest difference of two tensors; infinite where one is absent or not finite."""
    if one is None or other is None:
        return math.inf
    size = float((one.double() - other.double()).abs().max())
    return size if math.isfinite(size) else math.inf


def rounding(x: Tensor | None) -> float:
    """Largest change that adding and taking away 0.3 makes in the tensor's own dtype."""
    return 0.0 if x is None else float(((x + 0.3) - 0.3 - x).abs().max())


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Tell whether two tensors have the same bits, NaN included."""
    if one is None or other is None:
        return one is other
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(one.isnan(), other.isnan()))


def leaks(fused: Fused, inputs: Tensors, plan: Plan) -> list[int]:
    """Change every token from some position on, for a few positions; return those that changed an earlier output.

    No tolerance: what a causal op returns before the change must be bit for bit the same.
    """
    generator = torch.Generator().manual_seed(plan["seed"] + 1)
    timed = {name for name, axes in fused.form.axes.items() if "t" in axes}
    found = []
    with torch.no_grad(), poisoned():
        before = fused.forward(inputs, plan)
        for start in plan["cuts"]:
            other = {name: x.clone() for name, x in inputs.items()}
            for name in timed & set(other):
                tail = other[name][:, start:]
                noise = torch.rand(tail.shape, generator=generator).to(tail)
                other[name][:, start:] = -noise if name == "g" else noise
            after = fused.forward(other, plan)
            if any(not same(before[name][:, :start], after[name][:, :start]) for name in timed & set(before)):
                found.append(start)
    return found


def missing_slopes(fused: Fused, inputs: Tensors, plan: Plan, weights: Tensors, names: list[str]) -> dict[str, float]:
    """Slope of the op's own forward along a random direction of each input, by central differences in fp32.

    Tells a gradient that is missing from an input that the op does not depend on (methods.md, 2, step 3).
    """
    generator, slopes = torch.Generator().manual_seed(plan["seed"] + 2), {}
    for name in names:
        step = torch.randn(inputs[name].shape, generator=generator).to(inputs[name]) * 1e-2
        totals = []
        for sign in (1, -1):
            with torch.no_grad():
                outputs = fused.forward({**inputs, name: inputs[name] + sign * step}, plan)
            totals.append(float(sum((outputs[key] * weights[key]).double().sum() for key in outputs)))
        slopes[name] = (totals[0] - totals[1]) / 2e-2
    return slopes


def cell(form: Form, function: Any, plan: Plan, device: Any) -> dict[str, Any]:
    """Run one cell and return everything that was seen."""
    dtype = DTYPES[plan["lane"]]
    inputs, weights = draw(form, plan, dtype, device.TORCH_DEVICE)
    fused = Fused(form, function, device)
    if plan["cuts"]:
        return {"leaks": leaks(fused, inputs, plan)}
    if plan["contexts"]:
        return {"contexts": _contexts.observed(fused, inputs, plan, weights)}
    run = fused.all(inputs, plan, weights)
    truth, natural = truth_of(form, inputs, plan, weights)
    eagers = eager_runs(form, inputs, plan, weights, dtype)
    seen = tensors(form, run, truth, eagers, natural, dtype)
    if plan["wide"]:
        widened(form, plan, dtype, device.TORCH_DEVICE, seen)
    gone = [
        item["name"][1:] for item in seen if item["role"] == "gradient" and (item.get("absent") or item.get("zero"))
    ]
    return {
        "tensors": [_errors.short(item) for item in seen],
        "backward": run.backward,
        "backward_error": run.error,
        "changed": list(run.changed),
        "unwritten": unwritten(fused, inputs, plan, weights, seen),
        "slopes": _errors.short(missing_slopes(fused, inputs, plan, weights, gone)) if dtype == torch.float32 else {},
        "repeats": plan["repeats"],
        "unrepeated": [_errors.short(item) for item in repeated(fused, inputs, plan, weights, run)],
        "launched_forward": list(run.launched[0]),
        "launched_backward": list(run.launched[1]),
    }
