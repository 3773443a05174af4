"""Why a seam is bound to its eager reference: the real exception, which transformers catches and calls "not installed".

Before 5.15 nothing was caught: a flag decided, and what it asks is asked again.

Runs in the process whose seams are judged, since the answer can differ from process to process. It repeats the imports
that the decorator made, and none that it did not make.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from kerncheck.compat import flag_seams
from kerncheck.compat.transformers_seams import Seam, binding
from kerncheck.probes.worker import describe


def explained(seams: list[Seam], *, root_only: bool) -> list[dict[str, Any]]:
    """Return the bindings, each eager one with its reason."""
    answers = []
    for seam in seams:
        answer = binding(seam)
        answer["reason"] = why_eager(seam, root_only=root_only) if answer["bound"] == "eager" else None
        answers.append(answer)
    return answers


def why_eager(seam: Seam, *, root_only: bool) -> dict[str, Any]:
    """Return the reason as plain data: ``kind``, ``message`` and the ``chain`` of an exception.

    Kinds: ``replaced`` (somebody put the reference there after the import), ``hidden`` (None in sys.modules),
    ``absent``, ``broken`` (the import raises), ``no_op`` (the package has no such op), ``root_only`` (it has, but this
    transformers looks in the package's root only), ``late`` (it can be imported now, so it could not be then), and for
    flags ``no_gpu`` (torch sees none) and ``refused`` (the flag is off although the package can be imported).
    """
    if seam.declared.flag:
        return why_flag_is_off(seam)
    if seam.cell is None:
        return reason("replaced", f"{seam.module.__name__}.{seam.declared.name} was replaced after the import")
    package, path, function = seam.declared.package, seam.declared.path, seam.declared.function
    root, failure = load(package, package)
    if failure:
        return failure
    if callable(getattr(root, function, None)):
        return late(package, function)
    place = f"{package}.{path}" if path else package
    module, failure = load(place, package)
    if failure:
        return failure
    if not callable(getattr(module, function, None)):
        return reason("no_op", f"{place} has no {function}")
    return reason("root_only", f"{function} lies in {place}") if root_only else late(package, function)


def why_flag_is_off(seam: Seam) -> dict[str, Any]:
    """Return why a module before 5.15 holds no op: by what its flag asks, in the order of what a user can mend."""
    import torch

    declared = seam.declared
    place = f"{declared.package}.{declared.path}" if declared.path else declared.package
    package, failure = load(declared.package, declared.package)
    if failure:
        return failure
    if not torch.cuda.is_available() and not flag_seams.believed():
        return reason("no_gpu", f"{declared.flag}() asks torch.cuda.is_available(), which is False in this process")
    says, fresh = flag_seams.flag_says(declared.flag)
    if says:
        return reason(
            "replaced", f"{declared.flag}() is True, so {seam.module.__name__}.{declared.name} was taken away"
        )
    if fresh:
        return late(place, declared.function)
    version = getattr(package, "__version__", "of unknown version")
    return reason("refused", f"{declared.flag}() is False, though {declared.package} {version} can be imported")


def load(name: str, package: str) -> tuple[Any, dict[str, Any] | None]:
    """Import a module as the decorator did; return it, or the reason why that fails."""
    if name in sys.modules and sys.modules[name] is None:
        return None, reason("hidden", f"sys.modules[{name!r}] is None: something hides {name} in this process")
    if name not in sys.modules and not findable(name):
        kind = "absent" if name == package else "no_op"
        return None, reason(kind, f"there is no module {name} for this interpreter")
    try:
        return importlib.import_module(name), None
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and is_part(error.name, name) and name != package:
            return None, reason("no_op", f"there is no module {error.name} for this interpreter")
        return None, broken(name, error)


def is_part(missing: str | None, wanted: str) -> bool:
    """Tell whether the module that was not found is the wanted one or a package on the way to it."""
    return missing is not None and (wanted == missing or wanted.startswith(missing + "."))


def findable(name: str) -> bool:
    """Tell whether a module can be found. A parent that breaks counts as found: importing it will tell how."""
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return True


def broken(name: str, error: Exception) -> dict[str, Any]:
    """Return the exception of an import as a reason."""
    found = describe(error)
    return {
        **reason("broken", f"import {name} raises {found['exception']}: {found['message']}"),
        "chain": found["chain"],
    }


def late(package: str, function: str) -> dict[str, Any]:
    """Return the reason for a seam that would be bound today."""
    return reason("late", f"{package} offers {function} now, but did not when the modelling code was imported")


def reason(kind: str, message: str) -> dict[str, Any]:
    """Return a reason as plain data."""
    return {"kind": kind, "message": message, "chain": []}
