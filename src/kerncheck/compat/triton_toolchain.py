"""Which ptxas Triton takes for a target, and what the key of its cache depends on. Children only.

Written against triton 3.7.1 and 3.9.0 (``backends/nvidia/compiler.py``, ``runtime/cache.py``).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import Any


def toolchain(arch: int) -> dict[str, Any]:
    """Return which ptxas Triton takes for a target, its version, and whether it knows the target."""
    import triton
    from triton.backends.nvidia import compiler

    found: dict[str, Any] = {"triton": str(triton.__version__), "ptxas": "", "version": "", "release": ""}
    try:
        tool = ptxas_for(compiler, arch)
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    except Exception as error:
        return {**found, "knows": None, "message": f"{type(error).__name__}: {error}"}
    words = said.replace(",", " ").split()
    release = words[words.index("release") + 1] if "release" in words else ""
    version = next((word[1:] for word in words if word[0] == "V" and word[1:2].isdigit()), release)
    return {**found, "ptxas": tool, "version": version, "release": release, **knows(compiler, tool, arch)}


def in_the_key() -> dict[str, str]:
    """Return the variables set here that Triton itself puts into the key of its cache."""
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars
    except ImportError:
        return {}
    return {str(name): str(value) for name, value in get_cache_invalidating_env_vars().items()}


def ptxas_for(compiler: Any, arch: int) -> str:
    """Return the path of the ptxas that Triton takes for a target."""
    found = compiler.get_ptxas(arch)
    return str(found[0] if isinstance(found, tuple) else found.path)


NOTHING = """.version 7.0
.target sm_52
.address_size 64
.visible .entry nothing() { ret; }
"""


def knows(compiler: Any, tool: str, arch: int) -> dict[str, Any]:
    """Ask ptxas to assemble an empty kernel for the target; return whether it did and what it said.

    PTX of an old target may be assembled for any later one, so that only the target's own name is in question.
    """
    name = compiler.sm_arch_from_capability(arch)
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "nothing.ptx")
        with open(source, "w", encoding="ascii") as file:
            file.write(NOTHING)
        command = [tool, f"--gpu-name={name}", source, "-o", os.path.join(folder, "nothing.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    said = (done.stderr or done.stdout).strip()
    return {"target": name, "knows": done.returncode == 0, "message": said[:500]}
