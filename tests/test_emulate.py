"""The emulated device: repairs of Triton's interpreter, proof by known answers, launches, configurations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kerncheck

pytestmark = pytest.mark.torch
SOURCE = Path(kerncheck.__file__).parent
BOOT = f"""
import json, sys, types
package = types.ModuleType("kerncheck")
package.__path__ = [{str(SOURCE)!r}]
sys.modules["kerncheck"] = package
from kerncheck.devices import emulate
def tell(**facts): print("TOLD " + json.dumps(facts))
def refused(prepare):
    try:
        prepare({{}})
    except emulate.DeviceUnusableError as error:
        return str(error)
"""


def child(code, **environment):
    """Run code in a fresh interpreter where nothing of the parent's environment is imported; return what it told."""
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", BOOT + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**variables, "OMP_NUM_THREADS": "1", **environment},
        timeout=300,
        check=False,
    )
    lines = [line[5:] for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1])


def test_the_repaired_device_proves_itself_and_counts_launches(tmp_path):
    kernels = tmp_path / "some_kernels.py"
    kernels.write_text(
        textwrap.dedent("""
        import triton
        import triton.language as tl

        @triton.autotune(configs=[triton.Config({"N": n}, num_warps=w) for n in (4, 8) for w in (1, 2)], key=[])
        @triton.jit
        def fill(out, value, N: tl.constexpr):
            tl.store(out + tl.program_id(0) * N + tl.arange(0, N), value)

        @triton.jit
        def masked(x, out, length, N: tl.constexpr):
            for i in tl.static_range(0, 2):
                mask = (i < length) & (tl.arange(0, N) < 2)
                tl.store(out + i * N + tl.arange(0, N), tl.load(x + tl.arange(0, N), mask=mask, other=7))
        """)
    )
    told = child(
        """
        facts = emulate.prepare({})
        import torch, some_kernels
        out, inside = torch.zeros(16), []
        with emulate.launches() as outer:
            some_kernels.fill[lambda meta: (16 // meta["N"],)](out, 3.0)
            with emulate.launches() as inner:
                inside.append(emulate.inside())
                some_kernels.fill[lambda meta: (16 // meta["N"],)](out, 4.0)
        first = emulate.configurations()["fill"]
        emulate.take_configuration(1)
        some_kernels.fill[lambda meta: (16 // meta["N"],)](out, 5.0)
        second = emulate.configurations()["fill"]
        emulate.take_configuration(2)
        some_kernels.fill[lambda meta: (16 // meta["N"],)](out, 5.0)
        some_kernels.fill.warmup(out, 6.0, grid=(1,))
        x, masked = torch.arange(4.0), torch.zeros(8)
        some_kernels.masked[(1,)](x, masked, 1, N=4)
        configs = [first, second, emulate.configurations()["fill"]]
        tell(facts=facts, outer=outer, inner=inner, inside=inside, configs=configs, out=out.tolist(),
             masked=masked.tolist(), blocks=emulate.blocks()["fill"])
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert told["facts"]["device"] == "emulate"
    assert told["outer"] == ["fill", "fill"]
    assert told["inner"] == ["fill"]
    assert told["inside"] == [False]
    assert told["configs"] == ["N=4", "N=8", "N=4"]
    assert told["out"] == [5.0] * 16
    assert told["masked"] == [0.0, 1.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0]
    assert told["blocks"] == 4


def test_operations_inside_a_kernel_can_be_told_from_the_models_own():
    told = child(
        """
        emulate.prepare({})
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from kerncheck.kernels import _known_answer
        class Count(TorchDispatchMode):
            own = interpreters = 0
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if emulate.inside():
                    self.interpreters += 1
                else:
                    self.own += 1
                return func(*args, **(kwargs or {}))
        x, out = torch.ones(16), torch.empty(16)
        with Count() as count:
            _known_answer.add_kernel[(1,)](x, x, out, N=16)
        tell(own=count.own, interpreters=count.interpreters, after=emulate.inside())
        """
    )
    assert told["own"] == 0
    assert told["interpreters"] > 0
    assert told["after"] is False


NOT_REPAIRED = "triton_bf16.compute_by_value = lambda interpreter: None"
TRUNCATES = """
import numpy
triton_bf16.rounded = lambda x: (numpy.atleast_1d(x).astype("f4").view("u4") >> 16).astype("u2")
"""


@pytest.mark.parametrize(
    ("broken", "wrong"),
    [(NOT_REPAIRED, "in bf16"), (TRUNCATES, "cast to bf16")],
    ids=["not repaired", "truncates"],
)
def test_a_device_that_computes_something_else_is_refused(broken, wrong):
    told = child(f"from kerncheck.compat import triton_bf16\n{broken}\ntell(why=refused(emulate.prepare))")
    assert "known answer" in told["why"]
    assert wrong in told["why"]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.6.0", "numpy 2.4 refuses"),
        ("3.10.0", "has not been tried"),
        ("3.7.1+git123", ""),
    ],
)
def test_versions_of_triton_that_were_not_tried_are_refused_by_name(version, words):
    told = child(
        f"""
        emulate_version = {version!r}
        import os
        os.environ["TRITON_INTERPRET"] = "1"
        import triton
        triton.__version__ = emulate_version
        tell(why=refused(emulate.prepare))
        """
    )
    if words:
        assert told["why"].startswith(f"triton {version} cannot be emulated")
        assert words in told["why"]
        assert "3.7.1" in told["why"]
    else:
        assert told["why"] is None


def test_switching_the_interpreter_on_after_triton_is_refused():
    assert "before triton is imported" in child("import triton\ntell(why=refused(emulate.prepare))")["why"]


def test_bf16_is_widened_exactly_and_rounded_as_torch_does():
    import numpy
    import torch

    from kerncheck.compat.triton_bf16 import rounded, widened

    bits = numpy.random.default_rng(0).integers(0, 2**32, 200_000, dtype=numpy.uint32)
    values = torch.from_numpy(bits.view(numpy.float32).copy())
    wanted = values.to(torch.bfloat16)
    found = torch.from_numpy(widened(rounded(values.numpy())).copy())
    assert torch.equal(found.isnan(), values.isnan())
    assert torch.equal(found[~values.isnan()], wanted[~values.isnan()].float())
    scalar = rounded(numpy.float32(1.5))
    assert scalar.shape == ()


def test_loop_ranges_are_ranges():
    from kerncheck.compat.triton_interpreter import LoopIndex, LoopRange

    numbers = LoopRange(2, 8, 3)
    assert list(numbers) == [2, 5]
    assert len(numbers) == 2
    assert numbers[1] == 5
    assert 5 in numbers
    assert all(isinstance(number, LoopIndex) for number in numbers)


def test_the_cuda_device_refuses_where_there_is_none():
    told = child(
        """
        from kerncheck.devices import cuda
        tell(why=refused(cuda.prepare), inside=cuda.inside(), configurations=cuda.configurations())
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    assert told == {"why": "torch sees no CUDA device", "inside": False, "configurations": {}}


def test_the_cuda_device_counts_entries_where_triton_has_no_launch_hook(tmp_path):
    kernels = tmp_path / "one_kernel.py"
    kernels.write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef fill(out):\n    tl.store(out, 1.0)\n"
    )
    told = child(
        """
        from kerncheck.devices import cuda
        import torch, one_kernel
        from triton.runtime.jit import JITFunction
        before, raised = JITFunction.run, ""
        with cuda.entered() as seen:
            try:
                one_kernel.fill[(1,)](torch.zeros(1))
            except Exception as error:
                raised = str(error)
        with cuda.launches() as hooked:
            pass
        tell(seen=seen, raised=raised, restored=JITFunction.run is before, hooked=hooked)
        """,
        PYTHONPATH=str(tmp_path),
        CUDA_VISIBLE_DEVICES="",
    )
    assert told["seen"] == ["fill"]
    assert "driver" in told["raised"]
    assert told["restored"]
    assert told["hooked"] == []


# devices/cuda.py chooses a configuration by wrapping Triton's real autotuner: here over the interpreter, without a GPU

TUNED = """
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

def too_large(_arguments):
    raise OutOfResources(300_000, 232_448, "shared memory")

def fits(configs, arguments, **_):
    return [config for config in configs if config.kwargs["N"] <= arguments["length"]]

def measured(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]

SIZES = (4, 8, 16, 64)
@triton.autotune(
    configs=[triton.Config({"N": n}, pre_hook=too_large if n == 8 else None) for n in SIZES],
    key=["length"],
    prune_configs_by={"early_config_prune": fits},
    do_bench=measured,
)
@triton.jit
def fill(out, length, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), N)
"""


def test_on_a_gpu_each_configuration_that_fits_is_taken_in_turn(tmp_path):
    (tmp_path / "tuned_kernels.py").write_text(TUNED)
    told = child(
        """
        from kerncheck.devices import cuda
        cuda.note_configurations()
        import torch, tuned_kernels
        ran = []
        for index in (0, 1, 2, 3, 4, 0):
            cuda.take_configuration(index)
            out = torch.zeros(64, dtype=torch.int32)
            tuned_kernels.fill[(1,)](out, 16)
            ran.append((index, int(out[0]), cuda.configurations()["fill"].split(",")[0]))
        tell(ran=ran, left=[config.kwargs["N"] for config in tuned_kernels.fill.configs])
        """,
        PYTHONPATH=str(tmp_path),
        TRITON_INTERPRET="1",
    )
    refused = [2, 4, "N: 4"]  # it does not fit: the autotuner's own choice ran, and is what is recorded
    again = [4, 4, "N: 4"]  # 64 is pruned for this length, so the fourth is the first
    assert told["ran"] == [[0, 4, "N: 4"], [1, 4, "N: 4"], refused, [3, 16, "N: 16"], again, [0, 4, "N: 4"]]
    assert told["left"] == [4, 8, 16, 64]
