"""Repairs to Triton's interpreter, so that real kernels compute on a CPU what they compute on a GPU.

The interpreter (``TRITON_INTERPRET=1``) runs kernels with numpy. Seven things are wrong in it for us:

- the autotuner benchmarks, and there is no device to time on: ``choose_without_timing``;
- a loop counter and a scalar argument of a compiled kernel answer ``.to(dtype)``, plain numbers do not (Liger's kernels
  ask it of their eps): ``LoopIndex``, ``ScalarArgument``;
- functions of the device library are empty, and answer None (Liger's RMS norm takes ``rsqrt`` from there): ``library``;
- every call of a device function scans all of ``triton.language`` for something to patch, which takes 40 % of the time
  of a delta rule and finds nothing, since the launch around it has patched: ``PatchOnce``;
- a comparison keeps the type of its operands, so that a scalar one, once broadcast, is an int32 mask that loads refuse
  ("mask has unsupported dtype", fla's convolution with an initial state): ``truth``;
- bf16 is stored as uint16 and computed as if it were integers (errors of 1e11; triton-lang/triton#11584,
  #10945), and casts to bf16 truncate: ``compat/triton_bf16.py``.

Everything here touches private parts, so it applies to versions that were seen to work, and refuses others by name.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from kerncheck.devices.base import DeviceUnusableError

WORKING = ("3.7.1", "3.8.0", "3.9.0")
"""Seen to pass the known-answer kernels and the fault table (tests/power), 2026-08, with numpy 2.4, on CPython 3.11."""
REFUSED = {
    "3.6.0": "its interpreter calls int() on one-element arrays, which numpy 2.4 refuses",
    "3.4.0": "it does not accept the heuristics of fla 0.6.0",
}
PARTS = {
    "InterpreterBuilder": ("binary_op", "unary_op", "create_dot", "create_fma", "cast_impl", "create_atomic_rmw"),
    "ReduceOps": ("sum", "min_max", "to_tensor"),
    "ScanOps": ("cumsum", "cumprod"),
    "InterpretedFunction": ("run",),
    "GridExecutor": ("__call__",),
    "_LangPatchScope": ("restore",),
}


class LoopIndex(int):
    """A loop counter that answers ``.to(dtype)``, as the counters of compiled kernels do."""

    def to(self, dtype: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return the counter as a Triton scalar of this dtype."""
        from triton.runtime import interpreter

        return interpreter.interpreter_semantic.to_tensor(int(self), False).to(dtype)  # noqa: FBT003


class ScalarArgument(float):
    """A float argument that answers ``.to(dtype)``, as those of compiled kernels do; a plain number otherwise."""

    def to(self, dtype: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return the argument as a Triton scalar of this dtype."""
        from triton.runtime import interpreter

        return interpreter.interpreter_semantic.to_tensor(float(self), False).to(dtype)  # noqa: FBT003


class LoopRange(Sequence[int]):
    """Python's ``range``, with counters that kernels can cast. Host code of the same module sees it too."""

    def __init__(self, *bounds: Any) -> None:
        self._range = builtins.range(*(int(bound) for bound in bounds))

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        return self._range[index]

    def __iter__(self) -> Iterator[int]:
        return map(LoopIndex, self._range)


def check_version() -> str:
    """Return Triton's version if the repairs are known to work with it; raise DeviceUnusableError otherwise."""
    import triton

    version = str(triton.__version__)
    release = re.match(r"\d+\.\d+\.\d+", version)
    name = release.group() if release else version
    if name not in WORKING:
        why = REFUSED.get(name, "its interpreter has not been tried")
        raise DeviceUnusableError(f"triton {version} cannot be emulated: {why}; known to work: {', '.join(WORKING)}")
    return version


def check_parts(interpreter: Any) -> None:
    """Raise DeviceUnusableError, naming what is missing, unless every private part that is repaired is there."""
    lost = [
        f"{holder}.{part}"
        for holder, parts in PARTS.items()
        for part in parts
        if not hasattr(getattr(interpreter, holder, None), part)
    ]
    lost += [] if hasattr(interpreter, "_implicit_cvt") else ["_implicit_cvt"]
    if lost:
        raise DeviceUnusableError(f"Triton's interpreter has no {', '.join(lost)}: it is not the one that we repair")


def switch_on() -> None:
    """Set ``TRITON_INTERPRET``, which Triton reads when a kernel is decorated: too late once fla is imported."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    if "triton" in sys.modules:
        raise DeviceUnusableError("TRITON_INTERPRET=1 must be set before triton is imported")
    os.environ["TRITON_INTERPRET"] = "1"


class Tuning:
    """Takes one configuration of each autotuned kernel without timing it, and notes which one was taken.

    ``index`` counts the configurations that differ in their tile sizes: numbers of warps and stages mean nothing
    to the interpreter. It wraps around, so that every kernel has an answer. ``taken`` maps a kernel's name to the
    tiles that it last ran with.
    """

    def __init__(self) -> None:
        self.index = 0
        self.taken: dict[str, str] = {}
        self._seen: dict[int, int] = {}

    def prune(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for ``Autotuner.prune_configs`` that leaves one configuration."""

        def prune_configs(tuner: Any, *args: Any, **kwargs: Any) -> list[Any]:
            kept = original(tuner, *args, **kwargs)
            tiles: dict[str, Any] = {}
            for config in kept:
                tiles.setdefault(repr(sorted(config.kwargs.items())), config)
            return [list(tiles.values())[self.index % len(tiles)]]

        return prune_configs

    def run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for ``Autotuner.run`` that forgets the choices made for another index."""

        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            if self._seen.setdefault(id(tuner), self.index) != self.index:
                tuner.cache.clear()
                self._seen[id(tuner)] = self.index
            result = original(tuner, *args, **kwargs)
            config = getattr(tuner, "best_config", None)
            if config is not None and config.kwargs:
                tiles = ",".join(f"{name}={value}" for name, value in sorted(config.kwargs.items()))
                self.taken[tuner.base_fn.__name__] = tiles
            return result

        return run


TUNING = Tuning()


class PatchOnce:
    """Patches ``triton.language`` once for each launch instead of once for each call of a device function."""

    def __init__(self, interpreter: Any) -> None:
        import triton.language as tl

        self._languages = (tl, tl.core)
        self._nothing = interpreter._LangPatchScope  # noqa: SLF001
        self._original = interpreter._patch_lang  # noqa: SLF001
        self._known: dict[Any, frozenset[int]] = {}
        self._patched: frozenset[int] = frozenset()

    def needed(self, function: Any) -> frozenset[int]:
        """Return which of triton's two language modules a kernel or device function sees."""
        if function not in self._known:
            values = [value for value in function.__globals__.values() if isinstance(value, ModuleType)]
            self._known[function] = frozenset(id(value) for value in values if value in self._languages)
        return self._known[function]

    def patch(self, function: Any) -> Any:
        """Replace ``_patch_lang``: do nothing where this launch has patched everything that the function sees."""
        needed = self.needed(function)
        if needed <= self._patched:
            return self._nothing()
        self._patched |= needed
        return self._original(function)

    def launch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``GridExecutor.__call__``, which undoes its patches when it ends."""

        def launched(executor: Any, *args: Any, **kwargs: Any) -> Any:
            outer, self._patched = self._patched, frozenset()
            try:
                return original(executor, *args, **kwargs)
            finally:
                self._patched = outer

        return launched


def truth(interpreter: Any) -> None:
    """Give the results of comparisons the type int1, as the compiler does."""
    import triton.language as tl

    original = interpreter.InterpreterBuilder.binary_op

    def binary_op(builder: Any, *args: Any) -> Any:
        result = original(builder, *args)
        if result.data.dtype == bool:
            result.dtype = tl.int1
        return result

    interpreter.InterpreterBuilder.binary_op = binary_op


def scalars(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a replacement for ``_implicit_cvt``, which hands arguments to a kernel, that lets floats be cast."""

    def converted(argument: Any) -> Any:
        return ScalarArgument(argument) if type(argument) is float else original(argument)

    return converted


def library() -> None:
    """Give the device library's ``rsqrt`` a body: that of Triton's own. Kernels import it by name, so before them."""
    import triton.language as tl
    from triton.language.extra import libdevice

    def rsqrt(x: Any, _semantic: Any = None) -> Any:
        return tl.math.rsqrt(x)

    libdevice.rsqrt = rsqrt


def choose_without_timing() -> None:
    """Make the autotuner take a configuration instead of timing all of them."""
    from triton.runtime import autotuner

    tuner = autotuner.Autotuner
    tuner._bench = lambda *_args, **_kwargs: [0.0, 0.0, 0.0]  # noqa: SLF001
    tuner.prune_configs = TUNING.prune(tuner.prune_configs)
    tuner.run = TUNING.run(tuner.run)


def repair() -> str:
    """Repair the interpreter of this process, once; return Triton's version. Raises DeviceUnusableError."""
    switch_on()
    version = check_version()
    from triton.runtime import interpreter

    from kerncheck.compat import triton_bf16

    if not hasattr(interpreter, "kerncheck_repaired"):
        check_parts(interpreter)
        interpreter.range = LoopRange
        choose_without_timing()
        truth(interpreter)
        library()
        interpreter._implicit_cvt = scalars(interpreter._implicit_cvt)  # noqa: SLF001
        once = PatchOnce(interpreter)
        interpreter._patch_lang = once.patch  # noqa: SLF001
        interpreter.GridExecutor.__call__ = once.launch(interpreter.GridExecutor.__call__)
        triton_bf16.compute_by_value(interpreter)
        interpreter.kerncheck_repaired = True
    return version
