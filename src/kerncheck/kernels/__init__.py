"""One file per kernel package: a declarative spec that the parent reads, and code that only children run.

A module ``kernels/<package>.py`` declares ``SPECS``, a tuple of ``OpSpec``. Modules whose name starts with an
underscore (references, cases) import torch and are read by children only.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass


@dataclass(frozen=True)
class OpSpec:
    """One public function or module of a kernel package.

    ``id`` is ``module:name``, importable in every supported version of the package; ``module_candidates`` are the
    modules that define it in one version or another, newest first. ``library`` is what launches its kernels:
    ``triton``, or ``cuda`` for the compiled extension module named in ``extension``. ``needs`` names importable
    packages that it cannot work without. ``code`` is the child-side module under ``kerncheck.kernels`` that calls
    the op, and ``form`` the kind of computation in it, which decides the reference and the cases.
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
    code: str = ""
    extension: str = ""

    @property
    def module(self) -> str:
        """The module part of the id."""
        return self.id.partition(":")[0]

    @property
    def name(self) -> str:
        """The name part of the id."""
        return self.id.partition(":")[2]

    @property
    def runs_emulated(self) -> bool:
        """Whether Triton's interpreter can run it: compiled CUDA code cannot run without a GPU."""
        return self.library == "triton"


def all_specs() -> tuple[OpSpec, ...]:
    """Return the specs of every kernel package, by file name, then in the order of declaration."""
    specs: list[OpSpec] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if not info.name.startswith("_"):
            specs += importlib.import_module(__name__ + "." + info.name).SPECS
    return tuple(specs)


def find_spec(op: str) -> OpSpec | None:
    """Return the spec with this id, or None: an op that no kernel file describes."""
    return next((spec for spec in all_specs() if spec.id == op), None)
