"""What the model's probes share: when a stand-in speaks for a compiled op, and what must not differ between runs."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from kerncheck.probes import scene

CONV = "causal_conv1d:causal_conv1d_fn"
UPDATE = "causal_conv1d:causal_conv1d_update"
REQUEST = {"required": [{"op": CONV}, {"op": UPDATE, "training": False}, {"op": "fla.ops:x"}]}


@pytest.fixture
def torch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.delitem(sys.modules, "causal_conv1d", raising=False)
    yield torch
    sys.modules.pop("causal_conv1d", None)


@pytest.mark.torch
def test_a_cpu_build_gets_a_stand_in_for_what_training_requires(torch, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert scene.bind_standins("emulate", REQUEST) == (CONV,)
    assert scene.models.is_standin(sys.modules["causal_conv1d"].causal_conv1d_fn)


@pytest.mark.torch
def test_a_cuda_build_without_the_package_is_judged_as_it_is(torch, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(scene.importlib.util, "find_spec", lambda _name: None)
    assert scene.bind_standins("emulate", REQUEST) == ()
    assert "causal_conv1d" not in sys.modules


@pytest.mark.torch
def test_a_cuda_build_with_the_package_needs_a_stand_in_on_the_cpu(torch, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(scene.importlib.util, "find_spec", lambda _name: object())
    assert scene.bind_standins("emulate", REQUEST) == (CONV,)


@pytest.mark.parametrize(("device", "request_"), [("cuda", REQUEST), ("emulate", {"required": [{"op": "fla.ops:x"}]})])
def test_a_gpu_and_a_model_without_compiled_ops_get_none(device, request_):
    assert scene.bind_standins(device, request_) == ()


@pytest.mark.torch
def test_dropout_is_off_in_modules_and_in_attributes():
    import torch

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_dropout, self.drop = 0.1, torch.nn.Dropout(0.5)

    model = Attention().train()
    scene.without_dropout(model)
    assert (model.attention_dropout, model.drop.p, model.training) == (0.0, 0.0, True)


@pytest.mark.parametrize(("fields", "routes"), [({"num_experts": 8}, True), ({"num_experts": 0}, False), ({}, False)])
def test_experts_are_read_from_the_configuration(fields, routes):
    assert scene.routes_tokens(SimpleNamespace(**fields)) is routes


def test_out_of_memory_is_passed_on_and_everything_else_is_data():
    with pytest.raises(MemoryError):
        scene.failure(MemoryError("full"))
    told = scene.failure(NotImplementedError("no backward"))
    assert (told["exception"], told["message"]) == ("NotImplementedError", "no backward")


@pytest.mark.parametrize(("value", "told"), [(1.5, 1.5), (float("nan"), None), (float("inf"), None)])
def test_numbers_that_are_not_finite_are_none(value, told):
    assert scene.finite(value) == told
