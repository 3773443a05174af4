"""Kernels with known answers, which prove the emulated device before anything is judged on it. Children only.

The inputs are small integers and powers of two, so that every answer is exact in fp32 and bf16; the casts sit on the
ties where truncation, rounding half up and rounding to even differ. No ``from __future__ import annotations``: Triton
reads the annotations of kernels as objects.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, N803

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

N = 16


@triton.jit
def add_kernel(x, y, out, N: tl.constexpr):
    """Store out = x + y, [N]."""
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def dot_kernel(x, y, out, N: tl.constexpr):
    """Store out = x @ y in fp32, [N, N]."""
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision="ieee"))


@triton.jit
def cast_kernel(x, out, N: tl.constexpr):
    """Store out = x in the type of out, [N]."""
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def sum_kernel(x, total, largest, running, N: tl.constexpr):
    """Sum, maximum and cumulative sum of x, [N]."""
    at = tl.arange(0, N)
    b_x = tl.load(x + at)
    tl.store(total, tl.sum(b_x, 0))
    tl.store(largest, tl.max(b_x, 0))
    tl.store(running + at, tl.cumsum(b_x, 0))


@triton.jit
def loop_kernel(x, out, N: tl.constexpr):
    """Store out = the cube of each entry, by a loop whose counter is cast; [N]."""
    at = tl.arange(0, N)
    b_x = tl.load(x + at)
    b_out = tl.full([N], 1.0, dtype=x.dtype.element_ty)
    for i in range(3):
        if i.to(tl.int64) < 3:
            b_out = b_out * b_x
    tl.store(out + at, b_out)


def numbers(dtype: torch.dtype) -> tuple[Any, Any]:
    """Return two vectors [N] of small signed integers: sums and products of them are exact in bf16."""
    x = torch.tensor([(-1) ** i * (i % 4) for i in range(N)], dtype=torch.float32)
    y = torch.tensor([2 - i % 5 for i in range(N)], dtype=torch.float32)
    return x.to(dtype), y.to(dtype)


def wrong_in(dtype: torch.dtype) -> list[str]:
    """Return the names of the computations that did not give the known answer in this dtype."""
    x, y = numbers(dtype)
    square, other = torch.outer(x, y), torch.outer(y, x)
    out, running, cubes = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    product = torch.empty(N, N)
    total, largest = torch.empty(1, dtype=dtype), torch.empty(1, dtype=dtype)
    add_kernel[(1,)](x, y, out, N=N)
    dot_kernel[(1,)](square, other, product, N=N)
    sum_kernel[(1,)](x, total, largest, running, N=N)
    loop_kernel[(1,)](x, cubes, N=N)
    answers = {
        "add": (out, x + y),
        "dot": (product, square.double() @ other.double()),
        "sum": (total[0], x.double().sum()),
        "maximum": (largest[0], x.max()),
        "cumulative sum": (running, x.double().cumsum(0)),
        "loop": (cubes, x**3),
    }
    return [name for name, (found, wanted) in answers.items() if not bool((found.double() == wanted.double()).all())]


def wrong_casts() -> list[str]:
    """Return what is wrong with the cast from fp32 to bf16 at ties: 2**-7 is the spacing of bf16 above 1."""
    ties = torch.tensor([1 + k * 2.0**-8 for k in range(N // 2)] + [-1 - k * 2.0**-8 for k in range(N // 2)])
    wide, narrow = torch.empty(N), torch.empty(N, dtype=torch.bfloat16)
    cast_kernel[(1,)](ties, narrow, N=N)
    cast_kernel[(1,)](narrow, wide, N=N)
    known = torch.tensor([1 + k * 2.0**-6 for k in (0, 0, 0.5, 1, 1, 1, 1.5, 2)])
    return [] if bool((wide == torch.cat((known, -known))).all()) else ["cast"]


def wrong() -> list[str]:
    """Run everything; return the computations with a wrong answer, as ``name in dtype``."""
    names = [f"{name} in fp32" for name in wrong_in(torch.float32)]
    names += [f"{name} in bf16" for name in wrong_in(torch.bfloat16)]
    return names + [f"{name} to bf16" for name in wrong_casts()]
