"""Seams of transformers before 5.15: imports behind an availability flag, at the top of a modelling module.

``if is_flash_linear_attention_available(): from fla.ops.gated_delta_rule import chunk_gated_delta_rule`` leaves the
module with the op or with None, once, when it is imported. A layer then keeps what it chose as an attribute (``self.x =
op or torch_op``), builds a module of the op's class, or calls the module's name. The flags ask torch for a GPU, also on
a machine that never has one: ``see_a_gpu`` lets these flags alone believe in one, for a process that judges an
environment whose GPU is elsewhere.

Releases from 5.0 on load some packages only when a layer is built (``lazy_load_kernel``); ``loads_lazily`` tells which
modules do, and their seams are not read. Runs in a probe child; all but ``see_a_gpu`` also in the user's own process.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

FLAGS = (
    "is_flash_linear_attention_available",
    "is_causal_conv1d_available",
    "is_mamba_ssm_available",
    "is_mamba_2_ssm_available",
)
"""Functions of transformers.utils.import_utils that tell whether fused ops are imported (4.39.3 to 5.14.1)."""

CUDA_FLAG = "is_torch_cuda_available"
LAZY = "lazy_load"
BOUNDARIES = ("cu_seqlens", "seq_idx")
_believed: list[bool] = []


@dataclass(frozen=True)
class Guarded:
    """One guarded import: the module's ``name`` for ``function`` of ``package.path``, the flag and the reference.

    ``fallback`` is the module's name of the eager reference; empty where the layers compute in their own code.
    """

    name: str
    function: str
    package: str
    path: str
    flag: str
    fallback: str


@dataclass(frozen=True)
class Slot:
    """A place where a model keeps an op: an attribute of a holder, and what it is now."""

    holder: Any
    name: str
    value: Any
    eager: bool


def flags_module() -> Any:
    """Return the module of transformers that holds the flags; None without transformers."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("transformers.utils.import_utils")
    return None


def syntax(module: ModuleType) -> ast.Module:
    """Return the syntax tree of a module; an empty one if there is no source."""
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return ast.Module(body=[], type_ignores=[])


def guarded_in(module: ModuleType) -> list[Guarded]:
    """Read from a module's source which ops it imports behind a flag."""
    tree = syntax(module)
    references = fallbacks(tree)
    return [
        Guarded(
            alias.asname or alias.name, alias.name, root, path, flag, references.get(alias.asname or alias.name, "")
        )
        for node in tree.body
        if isinstance(node, ast.If) and (flag := flag_of(node.test))
        for line in node.body
        if isinstance(line, ast.ImportFrom) and line.module and not line.level
        for root, _, path in [line.module.partition(".")]
        for alias in line.names
    ]


def flag_of(test: ast.expr) -> str:
    """Return the flag that a condition asks, or nothing."""
    called = (getattr(node.func, "id", "") for node in ast.walk(test) if isinstance(node, ast.Call))
    return next((name for name in called if name in FLAGS), "")


def fallbacks(tree: ast.Module) -> dict[str, str]:
    """Map each op's name to that of its reference: in ``op or reference``, and in ``a if op is None else b``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and len(node.values) == 2:
            first, second = (named(value) for value in node.values)
            found.update({first: second} if first and second else {})
        elif isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare):
            found.update(chosen(node, node.test))
    return found


def chosen(node: ast.IfExp, test: ast.Compare) -> dict[str, str]:
    """Return the pair of a choice by ``op is None`` or ``op is not None``, each side a name or a call of one."""
    op, sides = named(test.left), [named(node.body), named(node.orelse)]
    other = [side for side in sides if side and side != op]
    return {op: other[0]} if op in sides and len(other) == 1 else {}


def named(node: ast.expr) -> str:
    """Return the name that an expression is, or calls; nothing for any other expression."""
    inner = node.func if isinstance(node, ast.Call) else node
    return inner.id if isinstance(inner, ast.Name) else ""


def loads_lazily(module: ModuleType) -> bool:
    """Tell whether a module looks for kernel packages only when a layer is built or called."""
    names = (getattr(node, "name", getattr(node, "id", "")) for node in ast.walk(syntax(module)))
    return any(LAZY in str(name) for name in names)


def boundaries_passed(module: ModuleType, name: str) -> set[str]:
    """Return which boundary arguments a module's code passes to an op, other than as a plain None.

    All of them where the calls of the op cannot be found, or pass on keywords that the source does not name.
    """
    tree = syntax(module)
    callees = {name, *attributes(tree, name)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and callee(node) in callees]
    words = [word for call in calls for word in call.keywords]
    if not words or any(word.arg is None for word in words):
        return set(BOUNDARIES)
    given = [word.arg for word in words if not (isinstance(word.value, ast.Constant) and word.value.value is None)]
    return set(BOUNDARIES).intersection(filter(None, given))


def attributes(tree: ast.Module, name: str) -> set[str]:
    """Return the attributes in which layers keep an op: ``self.x = op`` and ``self.x = op or reference``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            choices = node.value.values if isinstance(node.value, ast.BoolOp) else [node.value]
            if any(isinstance(choice, ast.Name) and choice.id == name for choice in choices):
                found.add(node.targets[0].attr)
    return found


def callee(call: ast.Call) -> str:
    """Return the last name of what is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def parameters(target: Any, module: ModuleType, name: str) -> list[str]:
    """Return the arguments of an op that can reach it: of the boundaries, only those that the module's code passes."""
    function = getattr(target, "forward", target) if isinstance(target, type) else target
    try:
        names = [word for word in inspect.signature(function).parameters if word != "self"]
    except (TypeError, ValueError):
        return []
    passed = boundaries_passed(module, name)
    return [word for word in names if word not in BOUNDARIES or word in passed]


# Where a model keeps an op


def slots(model: Any, module: ModuleType, name: str, held: Any, reference: Any) -> list[Slot]:
    """Return every place in a model where an op, or its reference, is kept: those that a call goes through."""
    functions = [item for item in (held, reference) if callable(item) and not isinstance(item, type)]
    classes = [item for item in (held, reference) if isinstance(item, type)]
    found = [Slot(module, name, held, eager=False)] if held in functions else []
    for part in model.modules():
        if type(part) in classes:
            found.append(Slot(part, "forward", part.forward, type(part) is reference))
        kept = [(key, value) for key, value in vars(part).items() if any(value is item for item in functions)]
        found += [Slot(part, key, value, value is reference) for key, value in kept]
    return found


@contextlib.contextmanager
def replaced(slot: Slot, value: Any) -> Iterator[None]:
    """Put something in a slot's place for the length of the block."""
    own = slot.name in vars(slot.holder)
    setattr(slot.holder, slot.name, value)
    try:
        yield
    finally:
        if own:
            setattr(slot.holder, slot.name, slot.value)
        else:
            delattr(slot.holder, slot.name)


# A GPU that is elsewhere


def see_a_gpu() -> bool:
    """Let the flags, and no other code, see a GPU from now on; tell whether that was needed.

    Must run before modelling code is imported. torch answers everybody else as before. Modelling code that asks torch
    for the current GPU while a layer is built (4.57) is told the CPU, which is where the model lies.
    """
    import torch

    module = flags_module()
    if module is None or _believed or torch.cuda.is_available() or not any(hasattr(module, name) for name in FLAGS):
        return bool(_believed)
    torch.cuda.is_available = answering(torch.cuda.is_available, asked_by_a_flag, answer=True)
    torch.cuda.current_device = answering(torch.cuda.current_device, asked_by_a_model, answer="cpu")
    if hasattr(module, CUDA_FLAG):
        setattr(module, CUDA_FLAG, answering(getattr(module, CUDA_FLAG), asked_by_a_flag, answer=True))
    for name in FLAGS:
        getattr(getattr(module, name, None), "cache_clear", bool)()
    _believed.append(True)
    return True


def answering(function: Callable[..., Any], asked_by: Callable[[Any], bool], *, answer: Any) -> Callable[..., Any]:
    """Return a function that gives an answer to some callers and asks the original for all others."""

    def answered(*args: Any, **kwargs: Any) -> Any:
        return answer if asked_by(sys._getframe(1)) else function(*args, **kwargs)  # noqa: SLF001 - no other way

    return answered


def asked_by_a_flag(frame: Any) -> bool:
    """Tell whether one of transformers' flags asks."""
    return frame.f_code.co_name in FLAGS and frame.f_globals.get("__name__") == "transformers.utils.import_utils"


def asked_by_a_model(frame: Any) -> bool:
    """Tell whether modelling code asks."""
    return str(frame.f_globals.get("__name__", "")).startswith("transformers.models.")


def believed() -> bool:
    """Tell whether the flags of this process see a GPU that is not there."""
    return bool(_believed)


def flag_says(name: str) -> tuple[bool, bool]:
    """Return what a flag answers, and what it would answer today if it had kept no answer."""
    module = flags_module()
    flag = getattr(module, name, None)
    if flag is None:
        return False, False
    cuda = getattr(module, CUDA_FLAG, None)
    fresh = getattr(cuda, "__wrapped__", None)
    if fresh is not None and cuda is not None and fresh() and not cuda():  # the GPU was hidden when it was first asked
        return bool(flag()), True
    return bool(flag()), bool(getattr(flag, "__wrapped__", flag)())
