"""Standing between a model and what its seams bind: the same function runs, everything is put back."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest

from kerncheck.compat.interpose import ATTENTION, bound_seams, interposed

TOY = '''
"""Modelling code in the form that transformers 5.15 and later gives it."""
import functools

def use_kernel_func_from_hub_with_fallback(func_name, package):
    def decorator(torch_function):
        implementation = found.get(func_name, torch_function)
        is_new_implementation = implementation is not torch_function
        applicable_params = ("x", "seq_idx") if is_new_implementation else ("x",)
        @functools.wraps(torch_function)
        def wrapped(*args, **kwargs):
            assert func_name and package and (is_new_implementation or torch_function)
            kwargs = {name: value for name, value in kwargs.items() if name in applicable_params}
            return implementation(*args, **kwargs)
        return wrapped
    return decorator

def fused(x, seq_idx=None):
    return ("fused", x, seq_idx)

found = {"conv_fn": fused}

@use_kernel_func_from_hub_with_fallback("conv_fn", "conv_package")
def conv_fn(x, **kwargs):
    return ("eager", x)

@use_kernel_func_from_hub_with_fallback("scan", "scan_package")
def torch_scan(x, **kwargs):
    return ("eager", x)

def eager_attention_forward(x):
    return ("attention", x)

class Interface(dict):
    pass

ALL_ATTENTION_FUNCTIONS = Interface()

class Model:
    def __init__(self, config):
        self.config = config
    def modules(self):
        return [self]
    def __call__(self, x):
        attend = ALL_ATTENTION_FUNCTIONS.get(self.config._attn_implementation, eager_attention_forward)
        return conv_fn(x, seq_idx=7, other=1), torch_scan(x, seq_idx=7), attend(x)
'''


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "modeling_toy.py").write_text(TOY)
    package = tmp_path / "toy_models"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "modeling_toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("toy_models.modeling_toy")
    yield module.Model(SimpleNamespace(_attn_implementation="eager"))
    for name in ("toy_models.modeling_toy", "toy_models"):
        sys.modules.pop(name, None)


UNTOUCHED = (("fused", 1, 7), ("eager", 1), ("attention", 1))


def watched(model):
    seen = []

    def around(bound, function):
        def call(*args, **kwargs):
            seen.append((bound.name, bound.kind, kwargs))
            return function(*args, **kwargs)

        return call

    with interposed(model, around):
        assert model(1) == UNTOUCHED
    return seen


def test_each_seam_is_seen_with_what_reaches_it_and_runs_what_was_bound(model):
    assert watched(model) == [
        ("conv_fn", "package", {"seq_idx": 7}),
        ("scan", "eager", {}),
        (ATTENTION, "eager", {}),
    ]


def test_everything_is_put_back_also_after_an_exception(model):
    before = bound_seams(model)

    def around(_bound, _function):
        def call(*_args, **_kwargs):
            raise ValueError("broken")

        return call

    with pytest.raises(ValueError, match="broken"), interposed(model, around):
        model(1)
    assert bound_seams(model) == before
    assert model(1) == UNTOUCHED
    assert not sys.modules[type(model).__module__].ALL_ATTENTION_FUNCTIONS


def test_a_function_that_somebody_replaced_is_reached_too(model):
    module = sys.modules[type(model).__module__]
    module.conv_fn = lambda x, **_kwargs: ("fused", x, 7)
    assert watched(model)[0][:2] == ("conv_fn", "replaced")
    assert model(1) == UNTOUCHED


def test_what_a_seam_takes_is_what_reaches_the_function(model):
    seams = {bound.name: bound for bound in bound_seams(model)}
    assert seams["conv_fn"].parameters == ("x", "seq_idx")
    assert seams["conv_fn"].op == "conv_package:conv_fn"
    assert seams["conv_fn"].target.endswith("modeling_toy.fused")
    assert seams["scan"].parameters == ("x",)
