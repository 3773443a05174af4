"""The GPU code inside one binary, by its sections. Standard library only."""

from __future__ import annotations

from typing import Any

from kerncheck.probes import fatbin
from kerncheck.probes.elf_format import BadFileError, Image

EXECUTABLE, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"
"""What the driver loads; and, from separate compilation, what was linked into that (no GPU runs it as it is)."""
HIP = ".hip_fatbin"


def device_code(image: Image) -> dict[str, Any]:
    """Return the device code of an open file; ``{"kind": "missing", "reason"}`` where it could not be looked for.

    Damaged code is ``{"kind": "device_code", "problem"}``. Relocatable code counts only in a file without any other,
    as cuobjdump does.
    """
    try:
        sections = list(image.sections())
        if not sections:
            return missing("the file has no section table, so its device code cannot be found")
        found = {name: (at, size) for name, at, size in sections if name in (EXECUTABLE, RELOCATABLE, HIP)}
        name = EXECUTABLE if EXECUTABLE in found else RELOCATABLE
        if name not in found:
            return {"kind": "device_code", "hip": HIP in found}
        at, size = found[name]
        return {"kind": "device_code", "sections": [name], **fatbin.summary(fatbin.containers(image.data, at, size))}
    except (BadFileError, fatbin.BadFatbinError) as error:
        return {"kind": "device_code", "problem": f"its device code is damaged: {error}"}


def missing(reason: str) -> dict[str, Any]:
    """Return why there is nothing to tell."""
    return {"kind": "missing", "reason": reason}
