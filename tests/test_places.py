"""Watching a model run: whose work it is, forward and backward; and comparing two runs that never met."""

from __future__ import annotations

import functools

import pytest

pytestmark = pytest.mark.torch


@functools.cache
def toy():
    """Return a model of two layers: a mixer that calls a seam, and an MLP."""
    import torch

    class Mixer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.seam = None

        def forward(self, x):
            before = x.exp()
            return self.seam(self.inner(before)) if self.seam else self.inner(before).sin()

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer, self.mlp = Mixer(), torch.nn.Linear(4, 4)

        def forward(self, x):
            return x + self.mlp(self.mixer(x)).tanh()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer(), Layer()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    return Model


def watched(model, launched, seam=None):
    import torch

    from kerncheck.probes.places import Ledger, Watch, counting

    ledger = Ledger(launched, busy=lambda: False)
    watch = Watch(model, 2, ledger)
    if seam:
        for layer in model.layers:
            layer.mixer.seam = seam(watch)
    with watch.hooked(), counting(ledger):
        loss = model(torch.ones(3, 4, requires_grad=True)).square().sum()
        with watch.backward(loss):
            loss.backward()
    return ledger


def counts(ledger, name):
    return {
        (place.phase, place.layer, place.block, place.seam): found[name]
        for place, found in ledger.operations.items()
        if found[name]
    }


def test_forward_and_backward_work_belong_to_the_layer_that_caused_them():
    ledger = watched(toy()(), [])
    assert counts(ledger, "sin") == {("forward", layer, "Mixer", ""): 1 for layer in (0, 1)}
    assert counts(ledger, "cos") == {("backward", layer, "Mixer", ""): 1 for layer in (0, 1)}
    assert counts(ledger, "tanh_backward") == {("backward", layer, "", ""): 1 for layer in (0, 1)}
    assert counts(ledger, "pow")[("forward", -1, "", "")] == 1


def test_what_a_caller_made_is_not_the_callee_s():
    ledger = watched(toy()(), [])
    modules = {place.module for place, found in ledger.operations.items() if place.phase == "backward" and found["mul"]}
    assert "Mixer" in modules  # exp's backward: made by Mixer before it called Linear
    assert "Linear" not in modules


def test_launches_are_booked_where_they_happen_in_both_directions():
    import torch

    launched = []

    class Op(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            launched.append("forward_kernel")
            return x.sin()

        @staticmethod
        def backward(_ctx, gradient):
            launched.extend(["backward_kernel", "backward_kernel"])
            return gradient

    def seam(watch):
        def call(x):
            with watch.seam("op", x) as outputs:
                result = Op.apply(x)
                outputs.append(result)
            return result

        return call

    ledger = watched(toy()(), launched, seam)
    booked = {(place.phase, place.layer, place.seam): dict(found) for place, found in ledger.launches.items()}
    assert booked == {
        ("forward", 0, "op"): {"forward_kernel": 1},
        ("forward", 1, "op"): {"forward_kernel": 1},
        ("backward", 0, "op"): {"backward_kernel": 2},
        ("backward", 1, "op"): {"backward_kernel": 2},
    }


def test_an_exception_leaves_the_place_where_it_was_raised_and_no_hook():
    import torch

    from kerncheck.probes.places import Ledger, Watch, counting

    model = toy()()

    def fails(x):
        raise ValueError("broken")

    model.layers[1].mixer.seam = fails
    ledger = Ledger([], busy=lambda: False)
    watch = Watch(model, 2, ledger)
    with pytest.raises(ValueError, match="broken"), watch.hooked(), counting(ledger):
        model(torch.ones(3, 4))
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert watch.place.layer == -1


def test_views_and_allocations_launch_nothing():
    import torch

    from kerncheck.probes.places import Ledger, counting

    ledger = Ledger([], busy=lambda: False)
    with counting(ledger):
        x = torch.empty(4, 4)
        x.view(16).reshape(4, 4).transpose(0, 1).detach()
        x.fill_(1.0)
        x + x
    (found,) = ledger.operations.values()
    assert found == {"fill_": 1, "add": 1}


def test_what_the_interpreter_does_inside_of_a_kernel_is_not_the_model_s():
    import torch

    from kerncheck.probes.places import Ledger, counting

    inside = []
    ledger = Ledger([], busy=lambda: bool(inside))
    with counting(ledger):
        torch.ones(2) + 1
        inside.append(1)
        torch.ones(2) * 2
    (found,) = ledger.operations.values()
    assert found == {"ones": 1, "add": 1}


def test_a_follower_knows_the_layer_and_lets_go():
    import torch

    from kerncheck.probes.places import Follower

    model, seen = toy()(), []
    follower = Follower(model, 2)
    for layer in model.layers:
        layer.mixer.seam = lambda x: seen.append(follower.layer) or x
    with follower.hooked():
        model(torch.ones(3, 4))
    assert seen == [0, 1]
    assert follower.layer == -1
    assert not any(layer._forward_pre_hooks for layer in model.layers)


def test_a_copied_call_keeps_the_strides_that_decide_what_an_op_copies():
    """Kimi Linear passes slices of one projection: alone on contiguous ones, KDA seemed to copy less (KC603)."""
    import torch

    from kerncheck.probes.step import detached

    whole = torch.randn(2, 6, 9, requires_grad=True)
    part, spread = whole.split(3, dim=-1)[1], torch.ones(1).expand(4)
    (copied, other), named = detached(((part, spread), {"scale": 2.0}))
    assert (copied.stride(), copied.requires_grad, copied.is_leaf) == (part.stride(), True, True)
    assert torch.equal(copied, part)
    assert copied.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    assert (other.tolist(), named) == ([1.0] * 4, {"scale": 2.0})


# Two runs that never met


def test_the_second_run_compares_and_the_first_does_not(tmp_path):
    import torch

    from kerncheck.probes import exchange

    folder = str(tmp_path / "meet")
    eager = {"output": torch.ones(4), "only": torch.ones(1)}
    assert exchange.compare(folder, "eager", eager) is None
    told = exchange.compare(folder, "fused", {"output": torch.tensor([1.0, 1.0, 1.0, 3.0])})
    assert told["tensors"] == [{"name": "output", "error": 1.0, "fused": 12**0.5 / 2, "eager": 1.0, "largest": 2.0}]
    assert (told["only_fused"], told["only_eager"]) == ([], ["only"])
    assert (tmp_path / "meet").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("fused", [[1.0, float("nan")], [1.0, float("inf")], [1.0, 2.0, 3.0]])
def test_what_is_not_finite_or_of_another_shape_has_no_difference(fused):
    import torch

    from kerncheck.probes import exchange

    told = exchange.difference("x", torch.tensor(fused), torch.tensor([1.0, 2.0]))
    assert told["error"] is None


def test_large_tensors_are_sampled_evenly():
    import torch

    from kerncheck.probes import exchange

    whole = torch.arange(exchange.LARGEST + 5, dtype=torch.float64)
    kept = exchange.kept(whole)
    assert kept.numel() == exchange.LARGEST // 2 + 3
    assert kept[1] == 2.0
    assert exchange.kept(whole[:7]).numel() == 7
