"""fla where its kernels alone are wanted: imported without its models, and kept from handing calls to other backends.

Written against fla 0.5.2 and 0.6.0. Children only.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

MODELS = ("fla.layers", "fla.models")


def import_without_models() -> None:
    """Import fla, and leave out what imports transformers: two thirds of the time, and no kernel in it.

    fla 0.6 takes these two packages for optional. Where a release does not, it is imported whole; an fla that cannot
    be imported at all is told by each call of its ops.
    """
    for name in MODELS:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        importlib.import_module("fla")
    except ImportError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
            del sys.modules[name]
        with contextlib.suppress(ImportError):
            importlib.import_module("fla")


def note_backends(send_elsewhere: Callable[[str, str], None]) -> None:
    """Make fla refuse every other backend that it would take on this target, and note which function it was.

    A backend (TileLang, FlashQLA, Gluon) brings its own compiler and would run; the Triton kernels behind it are
    surveyed instead. fla keeps the base class in ``fla.backends`` (0.6) or ``fla.ops.backends`` (0.4.2 to 0.5.2);
    older releases have no other backends, and an absent fla has none either.
    """
    base = None
    for name in ("fla.backends", "fla.ops.backends"):
        with contextlib.suppress(ImportError):
            base = base or getattr(importlib.import_module(name), "BaseBackend", None)
    if base is None:
        return
    really_verify = base.verify

    def verify(backend: Any, function: str, *arguments: Any, **options: Any) -> tuple[bool, str | None]:
        accepted, why = really_verify(backend, function, *arguments, **options)
        has_own = getattr(backend, "implementation", None) is not None or hasattr(backend, function)
        if accepted and has_own:
            send_elsewhere(function, str(backend.backend_type))
            return False, "kerncheck surveys the Triton kernels instead"
        return accepted, why

    base.verify = verify
