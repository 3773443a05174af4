"""Eager code in the precision of a kernel: operands of matrix products rounded as the kernel rounds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MATMULS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.baddbmm)


class Round(TorchDispatchMode):  # type: ignore[misc]
    """Round the fp32 operands of matrix products to a 16-bit dtype; products and sums stay fp32. Backward too."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        if func.overloadpacket in MATMULS:
            args = tuple(self._rounded(value) for value in args)
        return func(*args, **(kwargs or {}))

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype == torch.float32:
            return value.to(self._dtype).to(torch.float32)
        return value
