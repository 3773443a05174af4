"""Makes traces as a GPU would: a host that enqueues, streams that work in order, and the profiler's events of both.

Times are microseconds. A kernel starts ``LAUNCH`` after its call ended, or when its stream is free, whichever is later.
"""

from __future__ import annotations

import contextlib
import gzip
import json

LAUNCH = 2.0
HOST, THREAD, AUTOGRAD = 900, 901, 902
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float>>(int)"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
GEMM = "void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_nn_align8>(cutlass::Params)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FORWARD = (
    "chunk_gated_delta_rule_fwd_kkt_solve_kernel",
    "recompute_w_u_fwd_kernel",
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    "chunk_fwd_kernel_o",
)
BACKWARD = (
    "chunk_bwd_kernel_dv_local",
    "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64",
    "chunk_bwd_kernel_dqkwg",
    "prepare_wy_repr_bwd_kernel",
)
CONV = ("void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4>>(ConvParamsBase)",)
CONV_BACKWARD = ("void causal_conv1d_bwd_kernel<Causal_conv1d_bwd_kernel_traits<128, 4>>(ConvParamsBwd)",)


class Maker:
    """Collects events. ``now`` is the host's time, ``free`` when each stream has done its work."""

    def __init__(self, start=1_000_000.0):
        self.now = start
        self.free = {}
        self.events = []
        self.thread = THREAD
        self.ids = 0
        self.correlations = 0
        self.external = 0

    def event(self, cat, name, start, duration, place=None, **arguments):
        pid, tid = place or (HOST, self.thread)
        item = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration}
        self.events.append({**item, "args": arguments})

    @contextlib.contextmanager
    def spanning(self, cat, name, **arguments):
        """Put an event around what the block does."""
        self.ids += 1
        start, outer, mine = self.now, self.external, self.ids
        self.external = mine
        at = len(self.events)
        yield
        self.external = outer
        self.event(cat, name, start, max(self.now - start, 0.5), **{"External id": mine, **arguments})
        self.events.insert(at, self.events.pop())

    def op(self, name, **arguments):
        return self.spanning("cpu_op", name, **arguments)

    def step(self, number):
        return self.spanning("user_annotation", f"ProfilerStep#{number}")

    def module(self, name):
        return self.spanning("python_function", f"nn.Module: {name}")

    @contextlib.contextmanager
    def backward(self, name, sequence):
        """Put a node of the autograd engine around the block, on its own thread."""
        before, self.thread = self.thread, AUTOGRAD
        numbers = {"Sequence number": sequence, "Fwd thread id": 1}
        with self.op(f"autograd::engine::evaluate_function: {name}", **numbers), self.op(name, **numbers):
            yield
        self.thread = before

    def call(self, name, duration, cat="cuda_runtime", **arguments):
        self.correlations += 1
        ids = {"External id": self.external, "correlation": self.correlations}
        self.event(cat, name, self.now, duration, **ids, **arguments)
        self.now += duration
        return self.correlations

    def work(self, cat, name, duration, correlation, stream=7, device=0, **arguments):
        start = max(self.now + LAUNCH, self.free.get((device, stream), 0.0))
        ids = {"External id": self.external, "correlation": correlation, "device": device, "stream": stream}
        self.event(cat, name, start, duration, (device, stream), **ids, **arguments)
        self.free[device, stream] = start + duration

    def launch(self, kernel, gpu, host=5.0, *, triton=False, stream=7, device=0):
        """Launch one kernel; ``gpu`` and ``host`` are its time and that of the call."""
        call, cat = ("cuLaunchKernelEx", "cuda_driver") if triton else ("cudaLaunchKernel", "cuda_runtime")
        self.work("kernel", kernel, gpu, self.call(call, host, cat), stream, device)

    def run(self, operator, kernel, gpu, host=5.0, before=2.0, **options):
        """Run one operator that launches one kernel."""
        with self.op(operator):
            self.now += before
            self.launch(kernel, gpu, host, **options)

    def copy(self, gpu, what="Memcpy HtoD (Pageable -> Device)", size=4096, stream=7):
        self.work("gpu_memcpy", what, gpu, self.call("cudaMemcpyAsync", 6.0), stream, bytes=size)

    def synchronise(self, name="cudaStreamSynchronize"):
        """Wait until all streams are done."""
        done = max(self.free.values(), default=0.0)
        self.call(name, max(3.0, done - self.now + 1.0))

    def graph(self, kernels, gpu, host=20.0):
        correlation = self.call("cudaGraphLaunch", host)
        for _ in range(kernels):
            self.work("kernel", ELEMENTWISE, gpu, correlation)

    def data(self, duration):
        with self.spanning("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            self.now += duration

    def compiling(self, duration):
        with self.spanning("user_annotation", "entire_frame_compile (dynamo_timed)"):
            self.now += duration

    def optimizer(self, kernels=4, gpu=30.0):
        with self.spanning("user_annotation", "Optimizer.step#AdamW.step"):
            for _ in range(kernels):
                self.run("aten::_fused_adamw_", "void at::native::multi_tensor_apply_kernel<at::native::Adam>()", gpu)

    def trace(self, **head):
        properties = [{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA H200"}]
        return {"schemaVersion": 1, "deviceProperties": properties, **head, "traceEvents": self.events}

    def write(self, path, **head):
        text = json.dumps(self.trace(**head))
        if str(path).endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode(), 1))
        else:
            path.write_text(text)
        return path


# Steps of a model: rows of layers, forward and backward. ``gpu`` is the time of one kernel, ``host`` that of its call.


def fused_layer(maker, number, gpu=40.0, host=5.0, *, conv=True, names=FORWARD):
    with maker.module(f"Qwen3_5GatedDeltaNet_{number}"):
        if conv:
            with maker.op("CausalConv1dFn"):
                for name in CONV:
                    maker.launch(name, gpu, host)
        with maker.op("ChunkGatedDeltaRuleFunction", **{"Sequence number": number}):
            for name in names:
                maker.launch(name, gpu, host, triton=True)


def fused_backward(maker, number, gpu=40.0, host=5.0, *, conv=True, names=BACKWARD):
    with maker.backward("ChunkGatedDeltaRuleFunctionBackward", number):
        for name in names:
            maker.launch(name, gpu, host, triton=True)
    if conv:
        with maker.backward("CausalConv1dFnBackward", 10_000 + number):
            for name in CONV_BACKWARD:
                maker.launch(name, gpu, host)


def eager_layer(maker, number, gpu=4.0, host=5.0, small=40, *, conv=True):
    """The eager reference of one layer: two triangular solves, a cumsum, a conv1d, and a lot of small work."""
    with maker.module(f"Qwen3_5GatedDeltaNet_{number}"):
        if conv:
            with maker.op("aten::conv1d"):
                maker.run("aten::_conv_depthwise2d", "void conv_depthwise2d_forward_kernel<4>()", gpu, host)
        maker.run("aten::cumsum", "void at::native::tensor_kernel_scan_innermost_dim<float>()", gpu, host)
        for _ in range(2):
            maker.run("aten::linalg_solve_triangular", "void trsm_batch_left_kernel<float>()", gpu, host)
        for _ in range(small):
            maker.run("aten::mul", ELEMENTWISE, gpu, host)


def eager_backward(maker, number, gpu=4.0, host=5.0, small=40):
    with maker.backward("MulBackward0", 20_000 + number):
        for _ in range(small):
            maker.run("aten::mul", ELEMENTWISE, gpu, host)


def matmuls(maker, count, gpu, host=5.0):
    for _ in range(count):
        maker.run("aten::mm", GEMM, gpu, host)


def training(steps=3, layers=3, body=None, between=None, maker=None):
    """Return a maker with some steps: the layers' forward and backward, the optimizer, and one synchronisation."""
    maker = maker or Maker()
    for number in range(steps):
        with maker.step(number):
            if between:
                between(maker)
            for layer in range(layers):
                body(maker, layer)
            for layer in reversed(range(layers)):
                if hasattr(body, "back"):
                    body.back(maker, layer)
            maker.optimizer()
    maker.synchronise("cudaDeviceSynchronize")
    return maker
