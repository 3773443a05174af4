"""Count entries into a compiled extension, whose kernels Triton's hooks do not see. Children only."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def entries(extension: str) -> Iterator[list[str]]:
    """Collect the names of the extension's functions that are called in this block, in order; "" collects nothing.

    Python code that calls ``extension.function(...)`` looks the function up at each call, so it is replaced there.
    """
    seen: list[str] = []
    if not extension:
        yield seen
        return
    module = importlib.import_module(extension)
    originals = {name: item for name, item in vars(module).items() if callable(item) and not name.startswith("_")}
    for name, original in originals.items():
        setattr(module, name, counted(name, original, seen))
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def counted(name: str, original: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    """Return a function that notes its name and calls the original."""

    def entry(*args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return original(*args, **kwargs)

    return entry
