"""Eager code in the precision of a kernel: operands of matrix products rounded as the kernel rounds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_active: list[torch.dtype] = []
MATMULS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.baddbmm)


class Round(TorchDispatchMode):  # type: ignore[misc]
    """Round the fp32 operands of matrix products to a 16-bit dtype; products and sums stay fp32. Backward too."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __enter__(self) -> Any:
        """Switch on, also for ``stored``."""
        _active.append(self._dtype)
        return super().__enter__()

    def __exit__(self, *about: object) -> None:
        """Switch off."""
        super().__exit__(*about)
        _active.pop()

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        if func.overloadpacket in MATMULS:
            args = tuple(self._rounded(value) for value in args)
        return func(*args, **(kwargs or {}))

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype == torch.float32:
            return value.to(self._dtype).to(torch.float32)
        return value


class Stored(torch.autograd.Function):  # type: ignore[misc]
    """The identity, whose gradient is rounded as a kernel rounds it that keeps it in 16 bit."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        """Return x."""
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        """Return the gradient, rounded while a ``Round`` is switched on."""
        return grads[0].to(_active[-1]).to(grads[0].dtype) if _active else grads[0]


def stored(x: Tensor) -> Tensor:
    """Mark a matrix whose gradient the kernel rounds before anything is computed from it, gates included."""
    marked: Tensor = Stored.apply(x)
    return marked
