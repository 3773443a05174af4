"""bf16 by value in Triton's interpreter, which stores it as uint16 and computes on the bit patterns.

Operands are widened to fp32 (exact), the operation is done there, and the result is rounded once to nearest, ties to
even, as the hardware rounds. Methods that only move bits (select, reshape, load, store, transpose) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BIT_OPERATIONS = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "where")
QUIET_NAN = 0x7FC0  # IEEE 754: exponent all ones, the first bit of the significand set


def widened(bits: Any) -> Any:
    """Return fp32 values of bf16 bit patterns: the upper half of the fp32 pattern, exactly."""
    import numpy as np

    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def rounded(values: Any) -> Any:
    """Return bf16 bit patterns (uint16) of fp32 values, rounded to nearest, ties to even."""
    import numpy as np

    wide = np.asarray(values, dtype=np.float32)
    bits = np.atleast_1d(wide).view(np.uint32)
    nearest = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(np.atleast_1d(wide)), np.uint16(QUIET_NAN), nearest).reshape(wide.shape)


class ByValue:
    """Wraps methods of one loaded interpreter module."""

    def __init__(self, interpreter: Any) -> None:
        import triton.language as tl

        self.module, self.tl = interpreter, tl
        self.handle = interpreter.TensorHandle

    def is_bf16(self, handle: Any) -> bool:
        """Tell whether this is a block or scalar of bf16 (a pointer to bf16 is not)."""
        return isinstance(handle, self.handle) and handle.dtype == self.tl.bfloat16

    def up(self, handle: Any) -> Any:
        """Return the handle as fp32 if it is bf16, else as it is."""
        return self.handle(widened(handle.data), self.tl.float32) if self.is_bf16(handle) else handle

    def down(self, handle: Any) -> Any:
        """Return an fp32 result as bf16; what a comparison returned stays boolean."""
        return handle if handle.data.dtype == bool else self.handle(rounded(handle.data), self.tl.bfloat16)

    def computed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a builder method whose result has the type of its operands."""

        def method(builder: Any, *args: Any) -> Any:
            on_bits = any(getattr(arg, "__name__", "") in BIT_OPERATIONS for arg in args)
            if on_bits or not any(self.is_bf16(arg) for arg in args):
                return original(builder, *args)
            return self.down(original(builder, *(self.up(arg) for arg in args)))

        return method

    def dot(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``create_dot``: products and sums in the accumulator's type, which is fp32 for bf16 operands."""

        def create_dot(builder: Any, a: Any, b: Any, d: Any, *args: Any) -> Any:
            result = original(builder, self.up(a), self.up(b), self.up(d), *args)
            return self.down(result) if self.is_bf16(d) else result

        return create_dot

    def cast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``cast_impl`` (default rounding: nearest, ties to even)."""

        def cast_impl(builder: Any, source: Any, target: Any) -> Any:
            to_bf16 = target.scalar == self.tl.bfloat16
            if to_bf16 and self.is_bf16(source):
                return source
            if to_bf16:
                single = source.dtype == self.tl.float32
                return self.down(source if single else original(builder, source, self.tl.float32))
            if self.is_bf16(source):
                wide = self.up(source)
                return wide if target.scalar == self.tl.float32 else original(builder, wide, target)
            return original(builder, source, target)

        return cast_impl

    def converted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``create_fp_to_fp``, which casts with a rounding mode: only truncation differs from a cast."""

        def create_fp_to_fp(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
            truncate = rounding == self.module._ir.ROUNDING_MODE.RTZ  # noqa: SLF001
            if target.scalar == self.tl.bfloat16 and not truncate and not source.dtype.is_fp8():
                return builder.cast_impl(source, target)
            return original(builder, self.up(source), target, rounding)

        return create_fp_to_fp

    def no_atomics(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``create_atomic_rmw``: an atomic sum of bit patterns would be silently wrong, so refuse it."""

        def create_atomic_rmw(builder: Any, operation: Any, pointer: Any, value: Any, *args: Any) -> Any:
            if self.is_bf16(value):
                raise TypeError("atomic operations on bf16 are not emulated")
            return original(builder, operation, pointer, value, *args)

        return create_atomic_rmw

    def reduced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a reduction or a scan: accumulate in fp32, round the results to bf16."""

        def method(operation: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            tensor = tensor[0] if isinstance(tensor, tuple) else tensor
            if not self.is_bf16(tensor.handle):
                return original(operation, tensor, *args, **kwargs)
            wide = self.tl.core.tensor(self.up(tensor.handle), self.retyped(tensor.type, self.tl.float32))
            return self.narrowed(original(operation, wide, *args, **kwargs))

        return method

    def narrowed(self, result: Any) -> Any:
        """Return the fp32 tensors of a result as bf16; indices stay what they are."""
        if isinstance(result, (tuple, list)):
            return type(result)(self.narrowed(item) for item in result)
        if result.dtype != self.tl.float32:
            return result
        return self.tl.core.tensor(self.down(result.handle), self.retyped(result.type, self.tl.bfloat16))

    def retyped(self, kind: Any, dtype: Any) -> Any:
        """Return a block or scalar type with another element type."""
        return self.tl.block_type(dtype, list(kind.shape)) if kind.is_block() else dtype

    def constant(self, builder: Any, value: float) -> Any:
        """Return a bf16 constant: ``get_bf16``, which triton before 3.9 lacks."""
        return self.down(builder.get_fp32(value))


def compute_by_value(interpreter: Any) -> None:
    """Replace the methods of the interpreter module that compute on bf16."""
    wrap, builder = ByValue(interpreter), interpreter.InterpreterBuilder
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_rsqrt", "create_erf"):
        setattr(builder, name, wrap.computed(getattr(builder, name)))
    builder.create_dot = wrap.dot(builder.create_dot)
    builder.cast_impl = wrap.cast(builder.cast_impl)
    builder.create_fp_to_fp = wrap.converted(builder.create_fp_to_fp)
    builder.create_atomic_rmw = wrap.no_atomics(builder.create_atomic_rmw)
    builder.get_bf16 = lambda self, value: wrap.constant(self, value)  # noqa: PLW0108 - binds the builder
    for holder, names in ((interpreter.ReduceOps, ("sum", "min_max")), (interpreter.ScanOps, ("cumsum", "cumprod"))):
        for name in names:
            setattr(holder, name, wrap.reduced(getattr(holder, name)))
