"""The seams of transformers' modelling code: where each is, and what it is bound to. Looks, never judges.

Since 5.15 a modelling module declares its fused ops with the decorator ``use_kernel_func_from_hub_with_fallback``: the
function below it is the eager reference; while the module is imported, the decorator looks for the op in its package
and keeps whichever it got in a closure, for good. ``functools.wraps`` makes both look like the reference from outside,
so the closure cell ``implementation`` is read. What a module declares is read from its source, independently.
Before 5.15 a module imports its ops behind a flag (``flag_seams``): then what it holds is the binding.

Private parts are found by feature, not by version; where one is missing, ``mechanism`` says so and nothing is guessed.
Runs in a probe child, and in the user's own process for ``kerncheck.guard``. Nothing here changes anything.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, ModuleType
from typing import Any

from kerncheck.compat import flag_seams
from kerncheck.probes.standins import is_standin

DECORATOR = "use_kernel_func_from_hub_with_fallback"
CELL = "implementation"
VARIABLES = ("USE_HUB_KERNELS", "DISABLE_KERNEL_MAPPING")
"""Read by transformers and by ``kernels`` when they are imported: whether kernels may come from the hub."""


@dataclass(frozen=True)
class Declared:
    """One seam as its module's source declares it: ``name`` there, the op's ``function``, ``package`` and ``path``.

    Before 5.15: the ``flag`` that decided about the import, and the module's name of the reference, the ``fallback``.
    """

    name: str
    function: str
    package: str
    path: str = ""
    flag: str = ""
    fallback: str = ""


@dataclass(frozen=True)
class Seam:
    """One seam: what was declared, the module, what the module holds now, and the wrapper with the closure.

    ``wrapper`` is None when the module holds something that the decorator did not make: it was replaced later.
    """

    declared: Declared
    module: ModuleType
    held: Any
    wrapper: FunctionType | None

    @property
    def op(self) -> str:
        """The op's id, ``fla.ops.gated_delta_rule:chunk_gated_delta_rule``."""
        path = self.declared.path
        return f"{self.declared.package}{'.' + path if path else ''}:{self.declared.function}"

    @property
    def cell(self) -> CellType | None:
        """The closure cell that holds the bound implementation."""
        return cells(self.wrapper).get(CELL) if self.wrapper else None

    @property
    def reference(self) -> Any:
        """The eager reference: the function below the decorator; None where the layers compute in their own code."""
        if self.declared.flag:
            return vars(self.module).get(self.declared.fallback)
        own = cells(self.wrapper).get("torch_function") if self.wrapper else None
        return own.cell_contents if own else getattr(self.wrapper, "__wrapped__", None)


def mechanism() -> dict[str, Any]:
    """Return which mechanism the installed transformers has and what it wants of ``kernels``. Imports transformers.

    ``mechanism`` is ``seam`` (5.15 and later), ``flags`` (before) or ``unknown``; see ``mechanism_of`` for a model's.
    ``root_only`` tells that an op is looked up among the attributes of the imported package only (5.15 and 5.16).
    """
    import transformers
    from transformers.utils import import_utils

    decorator = decorator_function()
    flags = hasattr(import_utils, "is_flash_linear_attention_available") or hasattr(
        import_utils, "is_mamba_ssm_available"
    )
    source = inspect.getsource(decorator) if decorator else ""
    return {
        "transformers": transformers.__version__,
        "mechanism": "seam" if decorator else "flags" if flags else "unknown",
        "root_only": bool(decorator) and source.count("import_module") < 2,
        "kernels": kernels_package(import_utils),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def mechanism_of(modules: Iterable[ModuleType], general: str) -> str:
    """Return the mechanism of a model's own code.

    Before 5.15: ``lazy`` where it loads packages only when a layer is built, ``unknown`` where something else binds.
    """
    code = list(modules)
    if general != "flags" or not code:
        return general
    if any(not seam.declared.flag for seam in seams_of(code)):
        return "unknown"
    return "lazy" if any(flag_seams.loads_lazily(module) for module in code) else "flags"


def decorator_function() -> Any:
    """Return transformers' decorator, or None."""
    with contextlib.suppress(ImportError):
        from transformers.integrations import hub_kernels

        return getattr(hub_kernels, DECORATOR, None)
    return None


def kernels_package(import_utils: Any) -> dict[str, Any]:
    """Return the version of ``kernels``, the window that transformers accepts, and whether it is used."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("kernels")
        available = getattr(import_utils, "is_kernels_available", lambda: False)()
        return {"version": version, "window": window(import_utils), "available": bool(available)}
    return {"version": "", "window": window(import_utils), "available": False}


def window(import_utils: Any) -> str:
    """Return the versions of ``kernels`` that transformers accepts; nothing if it does not tell."""
    bounds = [getattr(import_utils, name, None) for name in ("KERNELS_MIN_VERSION", "KERNELS_MAX_VERSION")]
    return f">={bounds[0]},<{bounds[1]}" if all(bounds) else ""


def declared_in(module: ModuleType) -> list[Declared]:
    """Read from a module's source which seams it declares; nothing if there is no source."""
    functions = [node for node in flag_seams.syntax(module).body if isinstance(node, ast.FunctionDef)]
    return [found for node in functions for call in node.decorator_list if (found := declaration(node.name, call))]


def declaration(name: str, node: ast.expr) -> Declared | None:
    """Return the seam that a decorator declares, or None if it is another decorator."""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", getattr(node.func, "attr", "")) != DECORATOR:
        return None
    names = ("func_name", "package", "internal_path")
    given = dict(zip(names, node.args, strict=False)) | {word.arg: word.value for word in node.keywords if word.arg}
    texts = {key: value.value for key, value in given.items() if isinstance(value, ast.Constant)}
    function = str(texts.get("func_name", ""))
    return Declared(name, function, str(texts.get("package", "")), internal_path(function, texts.get("internal_path")))


def internal_path(function: str, given: Any = None) -> str:
    """Return the path inside the package where transformers looks for an op."""
    with contextlib.suppress(ImportError):
        from transformers.integrations import hub_kernels

        return str(getattr(hub_kernels, "_KERNELS_INTERNAL_PATH_MAPPINGS", {}).get(function, given) or "")
    return str(given or "")


def seams_of(modules: Iterable[ModuleType]) -> list[Seam]:
    """Return the seams of modelling modules: those declared in the source, else those that are seen in closures.

    Where transformers has no decorator, the imports behind flags are the seams.
    """
    old = decorator_function() is None
    return [
        Seam(item, module, vars(module).get(item.name), wrapper_of(item, vars(module).get(item.name)))
        for module in modules
        for item in declared_in(module) or in_closures(module) or (behind_flags(module) if old else [])
    ]


def behind_flags(module: ModuleType) -> list[Declared]:
    """Return the seams of a module before 5.15."""
    return [
        Declared(item.name, item.function, item.package, item.path, item.flag, item.fallback)
        for item in flag_seams.guarded_in(module)
    ]


def wrapper_of(declared: Declared, held: Any) -> FunctionType | None:
    """Return the decorator's wrapper that a module holds for a seam; None where it holds that of another op."""
    wrapper = wrapper_in(held)
    other = wrapper is not None and text(wrapper, "func_name") not in ("", declared.function)
    return None if other else wrapper


def in_closures(module: ModuleType) -> list[Declared]:
    """Find seams without source: functions of the module that hold an implementation in their closure."""
    found = {name: wrapper_in(value) for name, value in vars(module).items() if callable(value)}
    return [
        Declared(
            name,
            text(wrapper, "func_name") or name,
            text(wrapper, "package"),
            internal_path(text(wrapper, "func_name")),
        )
        for name, wrapper in found.items()
        if wrapper is not None and wrapper.__module__ == module.__name__
    ]


def text(wrapper: FunctionType, name: str) -> str:
    """Return a text from a closure, or nothing."""
    cell = cells(wrapper).get(name)
    return str(cell.cell_contents) if cell else ""


def wrapper_in(held: Any) -> FunctionType | None:
    """Return the decorator's wrapper in what a module holds: the function itself, or inside of a ``kernels`` layer."""
    if isinstance(held, FunctionType):
        return held if CELL in cells(held) else None
    forward = getattr(type(held), "forward", None)
    inner = cells(forward).get("func") if isinstance(forward, FunctionType) else None
    return wrapper_in(inner.cell_contents) if inner else None


def cells(function: Any) -> dict[str, CellType]:
    """Return the closure of a function by name."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def modules_behind(classes: Iterable[type]) -> list[ModuleType]:
    """Return the modules that define these classes or what they derive from, inside modelling code only."""
    names = {base.__module__ for item in classes for base in item.__mro__}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules and is_modelling(sys.modules[name])]


def is_modelling(module: ModuleType) -> bool:
    """Tell whether a module is modelling code: it names transformers' decorator, or is one of its model folders."""
    return DECORATOR in vars(module) or module.__name__.startswith("transformers.models.")


def layer_classes(module: ModuleType) -> Iterator[type]:
    """Yield the classes that a modelling module uses, its own and imported ones."""
    return (item for item in vars(module).values() if isinstance(item, type) and hasattr(item, "forward"))


def binding(seam: Seam) -> dict[str, Any]:
    """Return what a seam is bound to, as plain data. ``bound`` is hub, package, standin, eager or replaced."""
    kind, target = bound_to(seam)
    return {
        "name": seam.declared.name,
        "module": seam.module.__name__,
        "function": seam.declared.function,
        "package": seam.declared.package,
        "op": seam.op,
        "bound": kind,
        "target": dotted(target) if target is not None else f"the layers' own code in {seam.module.__name__}",
        "file": file_of(target),
        "parameters": accepted(seam, target),
    }


def bound_to(seam: Seam) -> tuple[str, Any]:
    """Return the kind of what is bound, and the function."""
    if seam.declared.flag and seam.held is None:
        return "eager", seam.reference
    replaced = vars(seam.held).get("forward") if hasattr(seam.held, "__dict__") and seam.wrapper else None
    own = getattr(type(seam.held), "forward", None)
    if replaced is not None and getattr(replaced, "__func__", replaced) is not own:
        return "hub", replaced
    if seam.cell is None:
        return kind_of_replacement(seam), seam.held
    implementation = seam.cell.cell_contents
    if implementation is seam.reference:
        return "eager", implementation
    return ("standin" if is_standin(implementation) else "package"), implementation


def kind_of_replacement(seam: Seam) -> str:
    """Say what somebody put in a seam's place: the op itself, the module's reference, a stand-in, something else."""
    plain = inspect.unwrap(seam.held) if callable(seam.held) else seam.held
    if is_standin(plain):
        return "standin"
    if str(getattr(plain, "__module__", "")).partition(".")[0] == seam.declared.package:
        return "package"
    code = getattr(plain, "__code__", None)
    own = code is not None and code.co_filename == seam.module.__file__ and code.co_name == seam.declared.name
    return "eager" if own else "replaced"


def dotted(target: Any) -> str:
    """Return ``module.name`` of a function."""
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{getattr(target, '__module__', '?')}.{name}"


def file_of(target: Any) -> str:
    """Return the file that defines a function: of a compiled one, its module's."""
    with contextlib.suppress(TypeError, OSError, ValueError):
        return str(inspect.getsourcefile(inspect.unwrap(target)) or "")
    return str(getattr(sys.modules.get(getattr(target, "__module__", "")), "__file__", "") or "")


def accepted(seam: Seam, target: Any) -> list[str]:
    """Return the names of the arguments that reach the implementation: transformers drops all other keywords."""
    if seam.declared.flag:
        return flag_seams.parameters(target, seam.module, seam.declared.name) if target is not None else []
    known = cells(seam.wrapper).get("applicable_params") if seam.wrapper else None
    if known is not None:
        return [str(name) for name in known.cell_contents]
    with contextlib.suppress(TypeError, ValueError):
        return list(inspect.signature(target).parameters)
    return []
