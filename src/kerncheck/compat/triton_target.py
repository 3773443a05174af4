"""Triton with a driver that answers for an absent GPU: launches are noted, then compiled, never run. Children only.

The one place that touches Triton's private parts for compile-ahead. Written against triton 3.7.1 and 3.9.0: hooks
``knobs.runtime.jit_cache_hook`` and ``knobs.compilation.listener``, and in the launch ``JITFunction.run``,
``Autotuner.run``, ``_bench`` and ``check_disk_cache``.

Two steps. In the *survey* every launch of an op is noted with the constants and types that Triton would compile it
for, each configuration of each autotuned kernel included, and nothing is compiled. Then single launches are compiled
by the very call that a node makes, so that the entries in Triton's cache are those that the node looks up.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import types
from collections.abc import Callable, Iterator
from typing import Any

from kerncheck.compat import triton_repeats
from kerncheck.probes import cubin

OLDEST = (3, 4)  # the first with ``triton.knobs``, whose hooks this module stands on
MOST_CHARACTERS = 4000


class UnsupportedTritonError(Exception):
    """This Triton lacks the hooks that compile-ahead stands on. Says nothing about its kernels."""


class Launch:
    """One compilation that a launch asks for. ``number`` counts the configurations of a tuned kernel from 1."""

    def __init__(self, kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.kernel, self.arguments, self.options = kernel, arguments, options
        self.name, self.module = str(kernel.__name__), str(kernel.__module__)
        self.id = ""
        self.grid: list[int] = []
        self.choice: dict[str, Any] = {}
        self.number, self.of = 1, 1
        self.constants: dict[str, Any] = {}
        self.types: dict[str, str] = {}

    def family(self) -> str:
        """Return what configurations have in common that may come to the same code (``compat/triton_repeats.py``)."""
        rest = {name: value for name, value in self.choice.items() if name != "num_stages"}
        fixed = {name: value for name, value in self.constants.items() if name not in self.choice}
        return str((self.module, self.name, fixed, self.types, rest))

    def label(self) -> str:
        """Return the kernel and its configuration, as messages name it."""
        choice = ", ".join(f"{name}={value}" for name, value in self.choice.items())
        return f"{self.name}[{choice}]"


class Survey:
    """What the launches since the last ``take`` asked for: each distinct compilation once, in the order of launch."""

    def __init__(self) -> None:
        self.active = False
        self._launches: dict[str, Launch] = {}
        self._open: Launch | None = None
        self._tuning: tuple[dict[str, Any], int, int] | None = None
        self._elsewhere: dict[str, str] = {}

    def take_elsewhere(self) -> dict[str, str]:
        """Return which functions fla would hand to another backend, and to which; forget it."""
        found, self._elsewhere = self._elsewhere, {}
        return found

    def send_elsewhere(self, function: str, backend: str) -> None:
        """Note that fla would hand a function to another backend."""
        self._elsewhere[function] = backend

    def take(self) -> list[Launch]:
        """Return what was noted, and forget it."""
        found = list(self._launches.values())
        self._launches = {}
        return found

    def note(self, run: Callable[..., Any], kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Let Triton specialise one launch; ``compilation`` hears of it and stops it there.

        The kernel's in-memory cache is emptied first: what this process compiled before must not hide a launch.
        """
        kernel.device_caches.clear()
        grid = options.pop("grid")
        held = {name: light(item) for name, item in options.items()}
        self._open = Launch(kernel, tuple(light(item) for item in arguments), held)
        self._open.grid = shape_of(grid, kernel, arguments, options)
        try:
            run(kernel, *arguments, grid=grid, warmup=True, **options)
        finally:
            self._open = None

    def compilation(self, **told: Any) -> bool:
        """Be Triton's ``jit_cache_hook``: in the survey note what would be compiled, and say that it is done."""
        launch = self._open
        if launch is None:
            return False
        describe(launch, told["compile"])
        if self._tuning is not None:
            launch.choice, launch.number, launch.of = self._tuning
        identity = f"{launch.module}.{launch.name} {told['key']}"
        launch.id = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._launches.setdefault(launch.id, launch)
        return True

    @contextlib.contextmanager
    def tuning(self, config: Any, number: int, of: int) -> Iterator[None]:
        """Say that the launches within are those of one configuration of an autotuned kernel."""
        choice = {name: value for name, value in config.all_kwargs().items() if (name, value) != ("num_ctas", 1)}
        self._tuning = (choice, number, of)
        try:
            yield
        finally:
            self._tuning = None


SURVEY = Survey()


def light(item: Any) -> Any:
    """Return a stand-in for a tensor that Triton specialises alike: same dtype and alignment, one element."""
    import torch

    if not isinstance(item, torch.Tensor):
        return item
    small = torch.empty(64, dtype=item.dtype)
    return small[:1] if item.data_ptr() % 16 == 0 else small[1:2]


def shape_of(grid: Any, kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[int]:
    """Return the grid of a launch."""
    named = dict(zip(kernel.arg_names, arguments, strict=False))
    sizes = grid({**named, **options}) if callable(grid) else grid
    return [int(size) for size in sizes]


def describe(launch: Launch, compilation: dict[str, Any]) -> None:
    """Fill in what Triton specialised a launch for, by parameter name; an untuned kernel's options are its choice.

    A type ends in ``:16`` where the compiled code relies on a value divisible by 16. An integer that is 1 is a
    constant for Triton.
    """
    names = launch.kernel.arg_names
    aligned = {name_of(names, path) for path, attributes in compilation["configs"][0].items() if attributes}
    launch.constants = {name_of(names, path): plain(value) for path, value in compilation["constants"].items()}
    launch.types = {
        name: f"{kind}:16" if name in aligned else str(kind)
        for name, kind in compilation["signature"].items()
        if kind != "constexpr"
    }
    launch.choice = {name: compilation[name] for name in ("num_warps", "num_stages")}


def name_of(names: list[str], path: tuple[int, ...]) -> str:
    """Return the parameter at a path of Triton's; an element of a tuple has its index behind the name."""
    return names[path[0]] + "".join(f"[{index}]" for index in path[1:])


def plain(value: Any) -> Any:
    """Return a constant as JSON data."""
    value = getattr(value, "value", value)
    return value if isinstance(value, (bool, int, str, type(None))) else str(value)


class StandIn:
    """Answers what Triton and fla ask a CUDA driver about the target. Nothing can be launched on it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        properties = {
            "max_shared_mem": facts["shared_memory"],
            "max_num_regs": 65536,  # 32-bit registers of a multiprocessor, the same from cc 5.0 to 12.1
            "multiprocessor_count": facts["multiprocessors"],
            "warpSize": 32,
        }
        self.utils = types.SimpleNamespace(get_device_properties=lambda _device: dict(properties))

    def get_current_target(self) -> Any:
        """Return Triton's word for the target."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._facts["arch"], 32)

    def get_current_device(self) -> int:
        """Return the index of the only GPU."""
        return 0

    def set_current_device(self, _device: int) -> None:
        """Stay on the only GPU."""

    def get_current_stream(self, _device: int | None = None) -> int:
        """Return the default stream."""
        return 0

    def get_device_interface(self) -> Any:
        """Return the module that benchmarks synchronise by."""
        import torch

        return torch.cuda

    def get_active_torch_device(self) -> Any:
        """Return the device that tensors say they are on."""
        import torch

        return torch.device("cuda", 0)


def stand_in(facts: dict[str, Any]) -> None:
    """Make Triton answer for a target and note launches. ``arch`` is 90 for sm_90; sizes in bytes.

    Raises UnsupportedTritonError for a Triton without the hooks.
    """
    import triton

    version = tuple(int(part) for part in str(triton.__version__).split(".")[:2])
    if version < OLDEST:
        raise UnsupportedTritonError(f"compile-ahead needs triton 3.4 or later, this is {triton.__version__}")
    from triton.runtime.driver import driver

    driver.set_active(StandIn(facts))
    triton_repeats.remember()
    note_launches()


def note_launches() -> None:
    """Make every launch a note in the survey, and nothing else. Works with a real driver too."""
    from triton import knobs
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    really_run = JITFunction.run

    def run(kernel: Any, *arguments: Any, warmup: bool, **options: Any) -> Any:
        if SURVEY.active and not warmup:
            return SURVEY.note(really_run, kernel, arguments, options)
        return really_run(kernel, *arguments, warmup=True, **options)

    really_tune = Autotuner.run

    def tune(tuner: Any, *arguments: Any, **options: Any) -> Any:
        if SURVEY.active:
            tuner.cache.clear()  # what an earlier call chose must not hide the configurations of this one
        return really_tune(tuner, *arguments, **options)

    JITFunction.run = run
    Autotuner.run = tune
    Autotuner._bench = bench  # noqa: SLF001
    Autotuner.check_disk_cache = never_stored
    knobs.runtime.jit_cache_hook = SURVEY.compilation


def bench(tuner: Any, *arguments: Any, config: Any, **options: Any) -> list[float]:
    """Take one configuration's turn in the autotuner: launch it once, measure nothing."""
    configs = tuner.configs
    number = next((index for index, item in enumerate(configs, 1) if item is config), len(configs))
    with SURVEY.tuning(config, number, len(configs)):
        tuner.fn.run(*arguments, **{**options, **config.all_kwargs()})
    return [0.0, 0.0, 0.0]


def never_stored(_tuner: Any, _key: Any, _configs: Any, benchmark: Callable[[], Any]) -> bool:
    """Walk the configurations, and read and write no timings: zeros in the cache would choose for a node for good."""
    benchmark()
    return False


@contextlib.contextmanager
def surveying() -> Iterator[None]:
    """Note launches within this block instead of compiling them."""
    SURVEY.active = True
    try:
        yield
    finally:
        SURVEY.active = False


def compile_launch(launch: Launch, note: str = "") -> dict[str, Any]:
    """Compile one launch for the target, or take it from Triton's cache. Returns plain data; never raises Exception.

    Sizes are bytes, ``registers`` and ``local_memory`` those of one thread, ``seconds`` of CPU time, ptxas included
    (wall time tells more of what else the machine does). Where it did not compile, ``exception`` and ``error`` say
    why, and ``detail`` holds what the compiler printed meanwhile. The file ``note`` names the launch, in case that
    the compiler takes the process along.
    """
    from triton import knobs

    hits: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_rest: hits.append(cache_hit)
    if note:
        write_note(note, launch.label())
    printed = Printed()
    started = cpu_seconds()
    found: dict[str, Any] = {"id": launch.id, "compiled": False}
    try:
        kernel = launch.kernel.run(*launch.arguments, grid=(1,), warmup=True, **launch.options)
    except Exception as error:
        found.update(exception=type(error).__name__, error=reason(error), detail=printed.since())
    else:
        found.update(resources(kernel), compiled=True, cached=hits == [True])
    found["seconds"] = round(cpu_seconds() - started, 3)
    return found


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def resources(kernel: Any) -> dict[str, Any]:
    """Return what a compiled kernel takes of the GPU."""
    metadata = kernel.metadata
    registers, local = cubin.usage(kernel.asm["cubin"])
    return {
        "shared": int(metadata.shared),
        "warps": int(metadata.num_warps),
        "stages": int(metadata.num_stages),
        "registers": registers,
        "local_memory": local,
        "tensor_memory": int(getattr(metadata, "tmem_size", None) or 0),
        "scratch": int(getattr(metadata, "global_scratch_size", None) or 0),
        "bytes": len(kernel.asm["cubin"]),
    }


def reason(error: BaseException) -> str:
    """Return an exception's message with those of its causes, shortened in the middle."""
    parts: list[str] = []
    step: BaseException | None = error
    while step is not None and len(parts) < 6:  # a cycle of causes must end
        parts.append(str(step).strip() or type(step).__name__)
        step = step.__cause__
    text = "\n".join(dict.fromkeys(parts))
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]}\n[...]\n{text[-half:]}"


def write_note(file: str, text: str) -> None:
    """Write a file whole. A folder that cannot be written costs the name of what killed a process, and no more."""
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w", encoding="utf-8") as opened:
            opened.write(text)


class Printed:
    """What the compiler's C++ part prints to stderr: its diagnostics are told nowhere else.

    Works where stderr is a file that can be read, as it is under the supervisor; elsewhere there is nothing to tell.
    """

    def __init__(self) -> None:
        self._start = self._size()

    def _size(self) -> int | None:
        seen = os.fstat(2)
        return seen.st_size if stat.S_ISREG(seen.st_mode) else None

    def since(self) -> str:
        """Return the end of what was printed since this object was made."""
        end = self._size()
        if self._start is None or end is None:
            return ""
        size = min(end - self._start, MOST_CHARACTERS)
        with contextlib.suppress(OSError):
            return os.pread(2, size, end - size).decode(errors="replace").strip()
        return ""
