"""One file per kernel package: a declarative spec that the parent reads, and code that only children run.

A module ``kernels/<package>.py`` declares ``SPECS``, a tuple of ``OpSpec``, and ``cells``, which plans what to run of
one. Modules whose name starts with an underscore (calls, references) import torch and are read by children only.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class OpSpec:
    """One public function or module of a kernel package.

    ``id`` is ``module:name``, importable in every supported version of the package; ``module_candidates`` are the
    modules that define it in one version or another, newest first. ``library`` is what launches its kernels:
    ``triton``, or ``cuda`` for the compiled extension module named in ``extension``. ``needs`` names importable
    packages that it cannot work without. ``file`` is the module under ``kerncheck.kernels`` that declares it,
    ``code`` the child-side one that calls it, and ``form`` the kind of computation, which decides reference and cells.
    ``unordered`` names gradients whose sums the kernel adds up in any order, so that they differ from run to run.
    ``backward_launches`` is False where the forward computes the gradient already, and a backward may launch nothing.
    Of an op that a plug-in describes, ``plugin`` is its name, ``code`` the full name of the module, and ``own_cells``
    its cells by device.
    """

    id: str
    package: str
    import_name: str
    distributions: tuple[str, ...]
    module_candidates: tuple[str, ...]
    library: str
    has_backward: bool
    needs: tuple[str, ...]
    form: str
    file: str
    code: str
    extension: str = ""
    unordered: tuple[str, ...] = ()
    backward_launches: bool = True
    plugin: str = ""
    own_cells: Mapping[str, tuple[CellPlan, ...]] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The module part of the id."""
        return self.id.partition(":")[0]

    @property
    def name(self) -> str:
        """The name part of the id."""
        return self.id.partition(":")[2]

    @property
    def in_torch(self) -> bool:
        """Whether torch itself brings it: nothing of its own to import, to hide or to look into."""
        return self.import_name == "torch"

    @property
    def runs_emulated(self) -> bool:
        """Whether Triton's interpreter can run it: compiled CUDA code cannot run without a GPU."""
        return self.library == "triton"


@dataclass(frozen=True)
class CellPlan:
    """One set of inputs on which an op is compared with the truth.

    ``lengths``: one length makes a batch of all seeds; several are packed sequences (``cu_seqlens``, ``seq_idx``).
    ``seeds`` are pooled. ``sizes`` are head and channel numbers. ``upstream`` is how the gradient reaches the outputs
    (``random``, ``sum``, ``cat``). ``cuts``: instead of errors, look for outputs that change when every token from
    there on is changed. ``contexts``: instead of errors, compare with runs as jobs have them (``_contexts.py``).
    ``repeats``: runs that must give the same bits. ``wide``: more seeds for the eager yardstick.
    ``quick``: part of a quick run, with the lengths ``short`` if there are any. ``lanes`` are those that run it (empty:
    all), ``configuration`` the index of the autotune configuration; on a GPU 0 leaves the choice to the autotuner.
    """

    name: str
    regime: str
    lengths: tuple[int, ...]
    sizes: Mapping[str, int]
    seeds: int = 4
    configuration: int = 0
    upstream: str = "random"
    initial_state: bool = False
    cuts: tuple[int, ...] = ()
    contexts: tuple[str, ...] = ()
    repeats: int = 0
    wide: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    short: tuple[int, ...] = ()
    lanes: tuple[str, ...] = ()


def module_of(spec: OpSpec) -> ModuleType:
    """Return the module that declares a spec."""
    return importlib.import_module(f"{__name__}.{spec.file}")


def cells_of(spec: OpSpec, device: str, config: Mapping[str, Any]) -> tuple[CellPlan, ...]:
    """Return the cells of an op for a device (``emulate`` or ``cuda``), sized for the model's configuration."""
    if spec.plugin:
        return spec.own_cells.get(device, ())
    cells: tuple[CellPlan, ...] = module_of(spec).cells(spec.form, device, config)
    return cells


_added: list[OpSpec] = []


@contextlib.contextmanager
def added(specs: Iterable[OpSpec]) -> Iterator[None]:
    """Let ops that plug-ins describe be known while the block runs, and no others of that kind."""
    before = list(_added)
    _added[:] = specs
    try:
        yield
    finally:
        _added[:] = before


def all_specs() -> tuple[OpSpec, ...]:
    """Return the specs of every kernel package that is known here, those of plug-ins last."""
    return (*own_specs(), *_added)


@functools.cache
def own_specs() -> tuple[OpSpec, ...]:
    """Return the specs that kerncheck brings, by file name, then in the order of declaration."""
    specs: list[OpSpec] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if not info.name.startswith("_"):
            specs += importlib.import_module(__name__ + "." + info.name).SPECS
    return tuple(specs)


def find_spec(op: str) -> OpSpec | None:
    """Return the spec with this id, or None: an op that no kernel file describes."""
    return next((spec for spec in all_specs() if spec.id == op), None)
