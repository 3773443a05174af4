"""Probe: run the kernels of an op on inputs whose truth is known, and report the sizes of the errors.

Options: ``device`` (``emulate`` or ``cuda``). A case is a plan of ``kerncheck.kernels.CellPlan`` as plain data, with
``op``, ``code``, ``form`` and ``lane`` (``fp32``, ``bf16``, ``fp16``).
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from kerncheck.compat import fla_target


def setup(options: dict[str, Any]) -> dict[str, Any]:
    """Prepare the device. Raises DeviceUnusableError where nothing that runs on it would be evidence."""
    device = importlib.import_module("kerncheck.devices." + options["device"])
    facts = device.prepare(options)
    return {"device": device, "facts": facts, "ops": {}}


def run(case: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Run one cell."""
    device = state["device"]
    try:
        if device.NAME == "emulate" and case["op"].startswith("fla.") and "fla" not in sys.modules:
            fla_target.import_without_models()
        function = find(case["op"], state["ops"])
    except Exception as error:  # whatever a package raises while it is imported: fla 0.5.2 a ValueError on triton 3.9
        return {"unimportable": f"{type(error).__name__}: {error}", "module": getattr(error, "name", None) or ""}
    from kerncheck.kernels import _observe

    form = form_of(case)
    device.take_configuration(case["configuration"])
    seen = _observe.cell(form, function, case, device)
    return {**seen, "facts": state["facts"], "configurations": chosen(seen, device)}


class PluginError(Exception):
    """The code of a plug-in does not offer what its description says."""


def form_of(case: dict[str, Any]) -> Any:
    """Return how the op is drawn, called and compared: one of our forms, or what a plug-in's code says of its own."""
    if not case.get("plugin"):
        return importlib.import_module("kerncheck.kernels." + case["code"]).FORMS[case["form"]]
    from kerncheck.kernels._forms import Form

    try:
        form = importlib.import_module(case["code"]).FORMS[case["form"]]
        return Form(**form)
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {error}"
        raise PluginError(f"plug-in {case['plugin']}: form {case['form']!r} of {case['code']}: {told}") from error


def find(op: str, found: dict[str, Any]) -> Any:
    """Import ``module:name``, once."""
    if op not in found:
        module, _, name = op.partition(":")
        found[op] = getattr(importlib.import_module(module), name)
    return found[op]


def chosen(seen: dict[str, Any], device: Any) -> dict[str, str]:
    """Return the autotune configuration of each kernel that was launched."""
    launched = {*seen.get("launched_forward", ()), *seen.get("launched_backward", ())}
    return {kernel: value for kernel, value in device.configurations().items() if kernel in launched}
