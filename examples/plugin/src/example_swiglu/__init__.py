"""SwiGLU as one fused op, forward and backward."""

from example_swiglu.ops import swiglu

__all__ = ["swiglu"]
