"""Call an op under test, forward and backward, and note what happens on the way. Children only."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kerncheck.kernels._entries import entries
from kerncheck.kernels._forms import Form, Plan, Tensors

ALLOCATIONS = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.empty_permuted,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
)
Fill = Callable[[], AbstractContextManager[Any]]
"""What fresh memory is filled with while the op runs: ``poisoned`` or ``Zeroed``."""


@dataclass
class Run:
    """One forward and backward run of an op: outputs, gradients by input, and what happened on the way.

    ``backward`` is ``ok``, ``no graph`` (no output can be differentiated), ``raised`` (then with ``error``).
    """

    outputs: Tensors
    gradients: Tensors = field(default_factory=dict)
    backward: str = "ok"
    error: str = ""
    changed: tuple[str, ...] = ()
    launched: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Fill memory that torch allocates without a value with NaN, so that what a kernel leaves unwritten shows.

    The fill is done in ATen and reaches compiled extensions too; it comes with deterministic algorithms, which is why
    eager runs stay outside.
    """
    before = torch.are_deterministic_algorithms_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warn_only names torch's own nondeterministic operations
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


class Zeroed(TorchDispatchMode):  # type: ignore[misc]
    """Fill such memory with zeros: NaN that is gone then came from memory that nobody wrote, not from arithmetic.

    Without any fill it proves nothing, for freed memory may hold the NaN of the last run.
    """

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        out = func(*args, **(kwargs or {}))
        fresh = func.overloadpacket in ALLOCATIONS and isinstance(out, Tensor) and out.is_floating_point()
        return out.zero_() if fresh else out


class Operators(TorchDispatchMode):  # type: ignore[misc]
    """Note which of some operators of torch run: what an op of torch itself comes down to has no other name."""

    def __init__(self, names: tuple[str, ...], ran: list[str]) -> None:
        super().__init__()
        self._names, self._ran = frozenset(names), ran

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        name = func.overloadpacket.__name__
        if name in self._names:
            self._ran.append(name)
        return func(*args, **(kwargs or {}))


def leaves(inputs: Tensors, form: Form) -> Tensors:
    """Copy the inputs into leaves of a new graph."""
    copies = {name: x.detach().clone() for name, x in inputs.items()}
    return {name: x if name in form.constant else x.requires_grad_() for name, x in copies.items()}


def loss(outputs: Tensors, weights: Tensors, kind: str) -> Tensor:
    """Make a scalar whose gradient reaches the outputs in the layout that a model makes.

    ``sum``: expanded, all strides zero, as y.sum() makes it, of the first output alone. ``cat``: a slice of a wider
    tensor, as torch.cat([q, k, v]) makes it. A contiguous upstream gradient is blind to kernels with fixed strides.
    """
    if kind == "sum":
        return next(iter(outputs.values())).sum()
    return torch.stack([beside_zeros(out, weights[name]).double() for name, out in outputs.items()]).sum()


def beside_zeros(out: Tensor, weight: Tensor) -> Tensor:
    """Return sum(out * weight), by way of a concatenation along the last axis."""
    zeros = torch.zeros_like(out)
    return (torch.cat((zeros, out, zeros), -1) * torch.cat((weight,) * 3, -1)).sum()


def differentiate(run: Run, inputs: Tensors, weights: Tensors, kind: str) -> None:
    """Fill in the gradients, or say why there are none.

    With ``random`` upstream gradients the op is given the weights themselves, so that a write to them shows.
    """
    shaped = {name: out for name, out in run.outputs.items() if out.shape == weights[name].shape}
    outputs = {name: out for name, out in shaped.items() if out.requires_grad}
    wanted = {name: x for name, x in inputs.items() if x.requires_grad}
    if not outputs:
        run.backward = "no graph"
        return
    roots: Any = list(outputs.values()) if kind == "random" else loss(outputs, weights, kind)
    upstream = [weights[name] for name in outputs] if kind == "random" else None
    grads = torch.autograd.grad(roots, list(wanted.values()), upstream, allow_unused=True)
    run.gradients = dict(zip(wanted, grads, strict=True))


def eager_run(compute: Callable[..., Tensors], inputs: Tensors, form: Form, plan: Plan, weights: Tensors) -> Run:
    """Run eager code forward and backward."""
    given = leaves(inputs, form)
    run = Run(outputs=compute(given, plan))
    differentiate(run, given, {name: w.to(run.outputs[name].dtype) for name, w in weights.items()}, plan["upstream"])
    return run


class Fused:
    """Calls the op under test on a device."""

    def __init__(self, form: Form, function: Any, device: Any) -> None:
        self.form, self.function, self.device = form, function, device

    def forward(self, inputs: Tensors, plan: Plan) -> Tensors:
        """Run the forward alone, seed by seed unless the op takes them as a batch."""
        if self.form.batched:
            return self.form.call(self.function, inputs, plan)
        seeds = len(next(iter(inputs.values())))
        found = [
            self.form.call(self.function, {name: x[s : s + 1] for name, x in inputs.items()}, plan)
            for s in range(seeds)
        ]
        return {name: torch.cat([outputs[name] for outputs in found]) for name in found[0]}

    def one(self, inputs: Tensors, plan: Plan, weights: Tensors, *, fill: Fill = poisoned) -> Run:
        """Run forward and backward once on one batch; note launches and which inputs were changed."""
        given = leaves(inputs, self.form)
        weights = {name: w.detach().clone() for name, w in weights.items()}
        watched = {**{name: x.detach() for name, x in given.items()}, **{f"d{name}": w for name, w in weights.items()}}
        kept = {name: x.clone() for name, x in watched.items()}
        with fill(), self.watch(plan) as forward:
            run = Run(outputs=self.form.call(self.function, given, plan))
            self.device.synchronize()
        with fill(), self.watch(plan) as backward:
            try:
                differentiate(run, given, weights, plan["upstream"])
                self.device.synchronize()
            except Exception as error:
                if type(error).__name__ == "OutOfMemoryError":
                    raise  # says nothing about the op
                run.backward, run.error = "raised", f"{type(error).__name__}: {error}"[:500]
        run.changed = tuple(name for name, x in kept.items() if not torch.equal(x, watched[name]))
        run.launched = (tuple(forward), tuple(backward))
        return run

    @contextlib.contextmanager
    def watch(self, plan: Plan) -> Iterator[list[str]]:
        """Collect the kernels launched in this block: Triton's, entries into an extension, or torch's own operators."""
        ran: list[str] = []
        counted = Operators(self.form.operators, ran) if self.form.operators else contextlib.nullcontext()
        with self.device.launches() as launched, entries(plan["extension"]) as entered, counted:
            names: list[str] = []
            yield names
            names += [*launched, *entered, *ran]

    def all(self, inputs: Tensors, plan: Plan, weights: Tensors, *, fill: Fill = poisoned) -> Run:
        """Run all seeds, and put seed by seed together what ran alone."""
        if self.form.batched:
            return self.one(inputs, plan, weights, fill=fill)
        seeds = len(next(iter(inputs.values())))
        runs = [self.one(pick(inputs, s), plan, pick(weights, s), fill=fill) for s in range(seeds)]
        first = next((run for run in runs if run.backward != "ok"), runs[0])
        return Run(
            outputs=joined([run.outputs for run in runs]),
            gradients=joined([run.gradients for run in runs]) if first.backward == "ok" else {},
            backward=first.backward,
            error=first.error,
            changed=tuple(sorted({name for run in runs for name in run.changed})),
            launched=runs[0].launched,
        )


def pick(tensors: Tensors, seed: int) -> Tensors:
    """Return one seed's slice of all tensors, with its leading axis."""
    return {name: x[seed : seed + 1] for name, x in tensors.items()}


def joined(parts: list[Tensors]) -> Tensors:
    """Concatenate tensors of the seeds by name; None where one of them is."""
    return {
        name: None if any(part[name] is None for part in parts) else torch.cat([part[name].detach() for part in parts])
        for name in parts[0]
    }
