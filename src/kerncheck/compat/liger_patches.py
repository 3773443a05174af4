"""Which modules of a live model run Liger's code. Children only, and the guard.

``apply_liger_kernel_to_...()`` replaces classes in the modelling module: a model built afterwards has Liger's modules,
one built before has not. With ``model=`` it binds new forward methods to the modules of that model (liger-kernel 0.8.5,
transformers/monkey_patch.py). Nothing is imported here, and ``print(model)`` is not believed: patches rename modules.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

PACKAGE = "liger_kernel"


def patches_of(model: Any) -> list[dict[str, Any]]:
    """Count the modules by what Liger did to them; nothing for a model that it never touched.

    ``how``: ``class`` (built from Liger's class), ``forward`` (its forward was replaced, on the instance or on its
    class), ``missed`` (its class was replaced after it was built, and it runs its own code).
    """
    counts = Counter(found for module in model.modules() if (found := patch_of(module)) is not None)
    return [
        {"package": PACKAGE, "name": name, "target": target, "how": how, "modules": number}
        for (name, target, how), number in sorted(counts.items())
    ]


def patch_of(module: Any) -> tuple[str, str, str] | None:
    """Return (class, what replaced it, how) of one module, or None where Liger has nothing to do with it."""
    kind = type(module)
    if ours(kind):
        return kind.__name__, kind.__name__, "class"
    forward = vars(module).get("forward") or getattr(kind, "forward", None)
    code = getattr(forward, "__func__", forward)
    if ours(code):
        return kind.__name__, str(getattr(code, "__qualname__", code)), "forward"
    now = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    if now is not kind and isinstance(now, type) and ours(now):
        return kind.__name__, now.__name__, "missed"
    return None


def ours(item: Any) -> bool:
    """Tell whether a class or function comes from Liger."""
    return str(getattr(item, "__module__", "") or "").partition(".")[0] == PACKAGE
