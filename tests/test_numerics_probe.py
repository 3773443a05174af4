"""The probe, with real kernels: fla's in Triton's interpreter, and the calling code of causal-conv1d on a stand-in.

The stand-in is the package's own call chain (function, autograd, extension module) with torch code where the compiled
extension would be, so that our calls, counting and comparison run without a GPU. It is not what is judged.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace

import msgspec
import pytest

from kerncheck.checks.numerics_rule import margin
from kerncheck.kernels import all_specs, cells_of, find_spec
from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import Job, ModelRequest, RequiredOp
from kerncheck.model.numerics import Cell
from kerncheck.stages import numerics
from kerncheck.stages.common import Ask
from kerncheck.supervise import ProbeRun, Supervisor

pytestmark = pytest.mark.torch
CHEAP = ("l2norm", "FusedRMSNormGated", "causal_conv1d", "fused_recurrent_gated_delta_rule")
NOT_SEEN = Missing(reason="not part of this test")


def lane_run(*names, lane="fp32", quick=False):
    ops = tuple(RequiredOp(op=spec.id) for spec in all_specs() if spec.runs_emulated and spec.name in names)
    model = ModelRequest(name="m", folder="m", architecture="M", config={}, required=ops)
    job = Job(profile="ci", device="emulate", model=model, quick=quick)
    ask = Ask(job=job, catalog=None, environment=NOT_SEEN, devices=NOT_SEEN, timeout=300.0)
    return numerics.run_of(ask, (lane,), "")


def observed(run):
    answers = Supervisor(sys.executable).run(run)
    (name,) = numerics.lanes_of(answers)
    return numerics.lane(name, answers)


def worst(cell):
    return max(margin(tensor, cell.seeds).value for tensor in cell.tensors)


@pytest.mark.parametrize("lane", ["fp32", "bf16"])
def test_healthy_kernels_are_right_and_their_launches_and_tiles_are_seen(lane):
    found = observed(lane_run(*CHEAP, lane=lane))
    assert found.unusable is None
    assert found.unimportable == ()
    assert all(isinstance(cell, Cell) for cell in found.cells), found.cells
    compared = [cell for cell in found.cells if not cell.cuts and not cell.contexts]
    assert {cell.op.partition(":")[2] for cell in compared} == set(CHEAP)
    for cell in compared:
        assert cell.tensors
        assert worst(cell) < 1, (cell.name, [(t.name, margin(t, cell.seeds)) for t in cell.tensors])
        assert cell.launched_forward
        assert (cell.changed, cell.unwritten, cell.leaks) == ((), (), ())
        assert bool(cell.launched_backward) == (cell.backward == "ok")
    assert [cell.leaks for cell in found.cells if cell.cuts] == [(), ()]
    tiles = {kernel: value for cell in compared for kernel, value in cell.configurations.items()}
    assert tiles["causal_conv1d_fwd_kernel"].startswith("BD=")
    forward_only = [cell for cell in compared if cell.backward == "raised"]
    assert {cell.op.partition(":")[2] for cell in forward_only} == {"fused_recurrent_gated_delta_rule"}
    assert "NotImplementedError" in forward_only[0].backward_error


def test_upstream_gradients_reach_the_op_in_the_strides_that_models_make():
    import torch

    from kerncheck.kernels._fused import Run, differentiate

    strides = {}
    for kind in ("random", "cat", "sum"):
        x = torch.zeros(1, 8, 4, requires_grad=True)
        out = x * 1
        out.register_hook(lambda grad, kind=kind: strides.__setitem__(kind, grad.stride()))
        differentiate(Run(outputs={"y": out}), {"x": x}, {"y": torch.ones(1, 8, 4)}, kind)
    assert strides == {"random": (32, 4, 1), "cat": (96, 12, 1), "sum": (0, 0, 0)}


def test_a_write_to_the_upstream_gradient_is_seen():
    import torch

    from kerncheck.kernels._forms import Form
    from kerncheck.kernels._fused import Fused

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x * 2

        @staticmethod
        def backward(_ctx, grad):
            return grad.mul_(2)

    class Device:
        launches = staticmethod(lambda: contextlib.nullcontext([]))
        synchronize = staticmethod(lambda: None)

    call = lambda op, inputs, _plan: {"y": op(inputs["x"])}  # noqa: E731
    form = Form(axes={"x": "std", "y": "std"}, draw=None, call=call, reference=None, eagers=(), batched=True)
    plan = {"upstream": "random", "extension": ""}
    values, weights = {"x": torch.ones(1, 4, 2)}, {"y": torch.ones(1, 4, 2)}
    assert Fused(form, Greedy.apply, Device).one(values, plan, weights).changed == ("dy",)
    assert Fused(form, lambda x: x * 2, Device).one(values, plan, weights).changed == ()
    assert Fused(form, lambda x: x.data.zero_() + x, Device).one(values, plan, weights).changed == ("x",)


def test_fresh_memory_is_filled_only_inside_and_the_flag_is_restored():
    import torch

    from kerncheck.kernels._fused import Zeroed, poisoned

    with poisoned():
        inside = torch.empty(64)
        like = torch.empty_like(inside)
    assert inside.isnan().all()
    assert like.isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    del inside, like
    with Zeroed():
        zeros = [torch.empty(64), torch.empty_like(torch.ones(64)), torch.ones(2).new_empty(64), torch.empty(8, 8).t()]
    assert all((x == 0).all() for x in zeros)


def test_a_package_that_is_not_there_is_said_to_be_unimportable():
    spec = replace(find_spec("fla.modules.l2norm:l2norm"), id="no_such_package.norm:l2norm")
    plan = cells_of(spec, "emulate", {})[0]
    run = replace(lane_run("l2norm"), cases=(numerics.as_case(spec, plan, "fp32"),))
    found = observed(run)
    assert [(item.op, item.module) for item in found.unimportable] == [(spec.id, "no_such_package")]


EXTENSION = """
import torch
import torch.nn.functional as _functional


def _padded(x, init, width):
    before = x.new_zeros(*x.shape[:2], width - 1) if init is None else init
    return torch.cat((before, x), -1).float()


def _kept(seq_idx, tap, width, length):
    if seq_idx is None:
        return 1.0
    return (_functional.pad(seq_idx, (width - 1, 0), value=-1)[:, tap : tap + length] == seq_idx)[:, None].float()


def _sums(whole, weight, bias, seq_idx):
    width = weight.shape[1]
    length = whole.shape[-1] - width + 1
    shifted = [whole[..., i : i + length] * _kept(seq_idx, i, width, length) for i in range(width)]
    taps = [x * weight[:, i, None].float() for i, x in enumerate(shifted)]
    return sum(taps) + (0 if bias is None else bias[:, None].float())


def causal_conv1d_fwd(x, weight, bias, seq_idx, init, out, final, act):
    whole = _padded(x, init, weight.shape[1])
    sums = _sums(whole, weight, bias, seq_idx)
    out.copy_(_functional.silu(sums) if act else sums)
    if final is not None:
        final.copy_(whole[..., 1 - weight.shape[1] :])


def causal_conv1d_bwd(x, weight, bias, dout, seq_idx, init, dfinal, act):
    width, length = weight.shape[1], x.shape[-1]
    whole, grad = _padded(x, init, width), dout.float()
    if act:
        sums = _sums(whole, weight, bias, seq_idx)
        gate = torch.sigmoid(sums)
        grad = grad * gate * (1 + sums * (1 - gate))
    dwhole, dweight = torch.zeros_like(whole), torch.zeros(weight.shape)
    for i in range(width):
        kept = grad * _kept(seq_idx, i, width, length)
        dwhole[..., i : i + length] += kept * weight[:, i, None].float()
        dweight[:, i] = (kept * whole[..., i : i + length]).sum((0, 2))
    if dfinal is not None:
        dwhole[..., 1 - width :] += dfinal.float()
    return dwhole[..., width - 1 :].to(x), dweight.to(weight), grad.sum((0, 2)), dwhole[..., : width - 1].to(x)


def causal_conv1d_update(x, state, weight, bias, out, act):
    whole = torch.cat((state, x), -1)
    sums = _sums(whole[..., -x.shape[-1] - weight.shape[1] + 1 :].float(), weight, bias, None)
    out.copy_(_functional.silu(sums) if act else sums)
    state.copy_(whole[..., -state.shape[-1] :])
"""
PACKAGE = """
import torch
import causal_conv1d_cuda


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, seq_idx, init, final, act):
        out = torch.empty_like(x)
        state = torch.empty(len(x), weight.shape[1] - 1, x.shape[1], dtype=x.dtype).transpose(1, 2) if final else None
        causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, seq_idx, init, out, state, act)
        ctx.save_for_backward(x, weight, bias, seq_idx, init)
        ctx.act, ctx.final = act, final
        return (out, state) if final else out

    @staticmethod
    def backward(ctx, dout, *rest):
        x, weight, bias, seq_idx, init = ctx.saved_tensors
        dfinal = rest[0] if ctx.final else None
        dx, dweight, dbias, dinit = causal_conv1d_cuda.causal_conv1d_bwd(
            x, weight, bias, dout, seq_idx, init, dfinal, ctx.act
        )
        {backward}
        return dx, dweight, None if bias is None else dbias.to(bias), None, None if init is None else dinit, None, None


def causal_conv1d_fn(
    x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, activation=None
):
    return Convolution.apply(x, weight, bias, seq_idx, initial_states, return_final_states, activation == "silu")


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None):
    out = torch.empty_like(x)
    causal_conv1d_cuda.causal_conv1d_update(x, conv_state, weight, bias, out, activation == "silu")
    return out
"""
CONFIG = {"linear_num_key_heads": 1, "linear_key_head_dim": 8, "linear_num_value_heads": 1, "linear_value_head_dim": 8}


def convolution_cells(folder, extension=EXTENSION, backward="pass", lane="bf16"):
    (folder / "causal_conv1d_cuda.py").write_text(extension)
    (folder / "causal_conv1d.py").write_text(PACKAGE.replace("{backward}", backward))
    specs = [spec for spec in all_specs() if spec.package == "causal-conv1d"]
    plans = [(spec, plan) for spec in specs for plan in cells_of(spec, "cuda", CONFIG)]
    short = [(spec, replace(plan, lengths=tuple(min(x, 300) for x in plan.lengths), repeats=1)) for spec, plan in plans]
    run = ProbeRun(
        label="convolution",
        probe="numerics",
        cases=tuple(numerics.as_case(spec, plan, lane) for spec, plan in short),
        options={"device": "emulate", "gpu": ""},
        environment={**lane_run("l2norm").environment, "PYTHONPATH": str(folder)},
    )
    return {(cell.op.partition(":")[2], cell.name): cell for cell in observed(run).cells}


@pytest.mark.parametrize("lane", ["fp32", "bf16"])
def test_calls_of_causal_conv1d_agree_with_the_truth_and_its_entries_are_counted(tmp_path, lane):
    cells = convolution_cells(tmp_path, lane=lane)
    assert all(isinstance(cell, Cell) for cell in cells.values()), cells
    for (name, _), cell in cells.items():
        assert cell.leaks == ()
        if cell.cuts:
            continue
        assert worst(cell) < 1, (name, cell.name, cell.tensors)
        assert cell.launched_forward[0].startswith("causal_conv1d_")
        assert cell.unrepeated == ()
        assert cell.backward == ("no graph" if name == "causal_conv1d_update" else "ok"), cell.backward_error
    assert cells["causal_conv1d_fn", "packed"].launched_backward == ("causal_conv1d_bwd",)
    assert [x.name for x in cells["causal_conv1d_update", "one token"].tensors] == ["y", "ht"]


def test_a_backward_that_fails_without_a_bias_is_seen_as_raised(tmp_path):
    cells = convolution_cells(tmp_path, backward="dbias = dbias.to(bias.dtype)")
    raised = {name for (_, name), cell in cells.items() if cell.backward == "raised"}
    assert raised == {"a slice of a concatenation", "packed", "with states"}
    assert "NoneType" in cells["causal_conv1d_fn", "packed"].backward_error
    assert cells["causal_conv1d_fn", "summed, bias"].backward == "ok"


def test_a_state_that_is_not_updated_and_a_wrong_forward_are_seen(tmp_path):
    stale = EXTENSION.replace("    state.copy_(whole[..., -state.shape[-1] :])\n", "")
    noisy = stale.replace(
        "out.copy_(_functional.silu(sums) if act else sums)\n    if",
        "out.copy_(_functional.silu(sums * 1.5) if act else sums)\n    if",
    )
    assert noisy != stale != EXTENSION
    cells = convolution_cells(tmp_path, noisy)
    update = cells["causal_conv1d_update", "one token"]
    assert {t.name for t in update.tensors if margin(t, update.seeds).value > 1} == {"ht"}
    forward = cells["causal_conv1d_fn", "packed"]
    assert {t.name for t in forward.tensors if margin(t, forward.seeds).value > 1} == {"y"}


def test_an_extension_that_aborts_ends_its_cell_and_not_the_run(tmp_path):
    cells = convolution_cells(
        tmp_path, EXTENSION.replace("    whole = torch.cat((state, x), -1)\n", "    import os\n    os.abort()\n")
    )
    dead = {name for (name, _), cell in cells.items() if not isinstance(cell, Cell)}
    assert dead == {"causal_conv1d_update"}
    why = cells["causal_conv1d_update", "one token"].why
    assert isinstance(why, Broken)
    assert why.signal == 6


def test_the_section_of_real_cells_survives_json():
    found = observed(lane_run("l2norm", quick=True))
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
