"""Traces of the published shape: a step of 1,714,382 CPU calls and 269,448 GPU operations, then of 118,316 and 18,060.

Before: 14.4 s of enqueueing over 10.3 s of GPU work, the eager references of a model with 24 gated delta net layers.
After: the same layers on fused kernels; its times were not published, here the GPU is behind the host. Written event by
event: no trace is held in memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float>>(int)"
FORWARD = (
    ("chunk_gated_delta_rule_fwd_kkt_solve_kernel", True),
    ("recompute_w_u_fwd_kernel", True),
    ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", True),
    ("chunk_fwd_kernel_o", True),
    ("void causal_conv1d_fwd_kernel<Traits<128, 4>>(ConvParamsBase)", False),
)
BACKWARD = (
    ("chunk_bwd_kernel_dv_local", True),
    ("chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64", True),
    ("chunk_bwd_kernel_dqkwg", True),
    ("prepare_wy_repr_bwd_kernel", True),
    ("void causal_conv1d_bwd_kernel<Traits<128, 4>>(ConvParamsBwd)", False),
)
LAYERS = 24


@dataclass(frozen=True)
class Shape:
    """How many calls and operations, and how long they take (seconds)."""

    calls: int
    operations: int
    enqueue: float
    busy: float
    fused: bool

    def part(self, share: float) -> Shape:
        """Return a smaller trace with the same proportions."""
        numbers = [int(self.calls * share), int(self.operations * share)]
        return Shape(*numbers, self.enqueue * share, self.busy * share, fused=self.fused)


BEFORE = Shape(1_714_382, 269_448, 14.4, 10.3, fused=False)
AFTER = Shape(118_316, 18_060, 1.2, 2.2, fused=True)


class Writer:
    """Writes events and keeps the two clocks: the host's, and the time at which the GPU is done."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.now = self.free = 1_000_000.0
        self.calls = self.operations = self.external = 0

    def event(self, text: str) -> None:
        """Write one event."""
        self.file.write(",\n" + text)

    def host(self, category: str, name: str, start: float, duration: float, more: str = "") -> None:
        """Write an event of the host, which counts as a call unless it is a range."""
        self.calls += category != "user_annotation"
        self.event(
            f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": 9, "tid": 9, "ts": {start:.3f}, '
            f'"dur": {duration:.3f}, "args": {{"External id": {self.external}{more}}}}}'
        )

    def operator(self, name: str, kernel: str, cost: float, gpu: float, inner: int, *, triton: bool = False) -> None:
        """Write an operator that takes ``cost`` on the host, with ``inner`` others inside, and its kernel."""
        self.external += 1
        start = self.now
        self.host("cpu_op", name, start, cost)
        for number in range(inner):
            self.host("cpu_op", "aten::as_strided", start + 0.1 * (number + 1), 0.05)
        self.operations += 1
        more = f', "correlation": {self.operations}'
        launch, category = ("cuLaunchKernelEx", "cuda_driver") if triton else ("cudaLaunchKernel", "cuda_runtime")
        self.host(category, launch, start + cost * 0.6, cost * 0.3, more)
        begin = max(self.free, start + cost * 0.9 + 2.0)
        self.event(
            f'{{"ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7, "ts": {begin:.3f}, '
            f'"dur": {gpu:.3f}, "args": {{"External id": {self.external}{more}, "device": 0, "stream": 7}}}}'
        )
        self.free = begin + gpu
        self.now = start + cost


def write(path: Path, shape: Shape) -> None:
    """Write a trace of exactly this many calls and operations in one step."""
    cost, gpu = 1e6 * shape.enqueue / shape.operations, 1e6 * shape.busy / shape.operations
    inner = shape.calls // shape.operations - 2
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": [\n')
        file.write('{"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 1, "args": {"name": "python"}}')
        writer = Writer(file)
        if shape.fused:
            fused(writer, cost, gpu, inner)
        else:
            eager(writer, cost, gpu, inner)
        while writer.operations < shape.operations:
            writer.operator("aten::mul" if not shape.fused else "aten::mm", kernel_of(shape), cost, gpu, inner)
        for _ in range(shape.calls - writer.calls):
            writer.host("cpu_op", "aten::view", writer.now - 0.5, 0.1)
        writer.host("user_annotation", "ProfilerStep#10", 1_000_000.0 - 1, writer.now - 1_000_000.0 + 1)
        file.write("\n]}\n")


def kernel_of(shape: Shape) -> str:
    """Return what most of the kernels are."""
    return "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64" if shape.fused else ELEMENTWISE


def fused(writer: Writer, cost: float, gpu: float, inner: int) -> None:
    """Write the fused kernels of every layer, forward and backward."""
    for names, operator in (
        (FORWARD, "ChunkGatedDeltaRuleFunction"),
        (BACKWARD, "ChunkGatedDeltaRuleFunctionBackward"),
    ):
        for _ in range(LAYERS):
            for name, triton in names:
                writer.operator(operator, name, cost, gpu, inner, triton=triton)


def eager(writer: Writer, cost: float, gpu: float, inner: int) -> None:
    """Write the operators of every layer that only the eager references run."""
    for _ in range(LAYERS):
        writer.operator("aten::conv1d", "void conv_depthwise2d_forward_kernel<4>()", cost, gpu, inner)
        writer.operator("aten::cumsum", "void at::native::tensor_kernel_scan_innermost_dim<float>()", cost, gpu, inner)
        for _ in range(2):
            writer.operator("aten::linalg_solve_triangular", "void trsm_left_kernel<float>()", cost, gpu, inner)


if __name__ == "__main__":
    for name, shape in (("before", BEFORE), ("after", AFTER)):
        write(Path(f"{name}.json"), shape)
        print(json.dumps({name: f"{shape.calls:,} calls, {shape.operations:,} GPU operations"}))
