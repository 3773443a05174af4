"""What the node will need of an image when the first kernel is launched, looked at in the image: nothing is loaded.

Triton then compiles its own C file (``backends/nvidia/driver.c``) against Python's headers and the driver's library.
The same file is compiled here, against an empty stand-in for libcuda that is removed again.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sysconfig
import tempfile
from typing import Any

from kerncheck.probes import toolchain

SECONDS = 20.0  # for the compiler; about 0.3 s on an idle core
TAIL = 2000  # characters of the compiler's message that are kept
PLAIN = """#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <Python.h>
void *kerncheck_trial(void) { return dlopen("libcuda.so.1", RTLD_LAZY); }
"""
"""Stands in for a Triton without that file: the headers that it has always included."""


def last_mile() -> dict[str, Any]:
    """Describe the user, the root file system, the loader's program and a trial build."""
    return {
        "kind": "last_mile",
        "uid": os.geteuid(),
        "user": user(),
        "home": os.environ.get("HOME", ""),
        "cache_for_others": for_others(os.path.realpath(toolchain.cache_place()[0])),
        "root_filesystem": toolchain.mount_of("/", toolchain.read("/proc/self/mountinfo"))[1],
        "ldconfig": os.access(toolchain.LDCONFIG, os.X_OK),
        "trial": trial(),
    }


def user() -> str:
    """Return the name of the user that we run as; empty where the user database has none, as with ``USER 1000``."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def for_others(path: str) -> bool:
    """Tell whether any user may write into a folder (or, while it is not there, into the nearest one above it)."""
    folder = toolchain.nearest(path)
    needed = stat.S_IWOTH | stat.S_IXOTH
    if os.stat(folder).st_mode & needed != needed:
        return False
    above = os.path.dirname(folder)
    while above != os.path.dirname(above):
        if not os.stat(above).st_mode & stat.S_IXOTH:
            return False
        above = os.path.dirname(above)
    return True


def trial() -> dict[str, Any]:
    """Compile what Triton compiles at the first launch; say what the compiler had against it."""
    compiler = toolchain.compiler()["path"]
    if not compiler or not toolchain.headers():
        return {"kind": "missing", "reason": "there is no C compiler or no Python.h to try with"}
    with tempfile.TemporaryDirectory(prefix="kerncheck-") as folder:
        source, includes = triton_source(folder)
        problem = built(compiler, source, (*includes, python_include()), folder)
    return {"kind": "trial", "compiler": compiler, "source": os.path.basename(source), "problem": problem}


def built(compiler: str, source: str, includes: tuple[str, ...], folder: str) -> str:
    """Compile a C file, make the stand-in for libcuda, link both; return what the first step that failed said."""
    empty, library = os.path.join(folder, "empty.c"), os.path.join(folder, "libcuda.so.1")
    with open(empty, "w", encoding="utf-8") as file:
        file.write("void kerncheck_empty(void) {}\n")
    part, whole = os.path.join(folder, "trial.o"), os.path.join(folder, "trial.so")
    folders = [f"-I{include}" for include in includes]
    commands = (
        [compiler, source, "-c", "-O0", "-fPIC", "-Wno-psabi", "-o", part, *folders],
        [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, empty],
        [compiler, part, "-shared", "-o", whole, "-l:libcuda.so.1", f"-L{folder}"],
    )
    return next((problem for command in commands if (problem := compiled(command))), "")


def triton_source(folder: str) -> tuple[str, list[str]]:
    """Return Triton's own file with its include folder, else a plain one with the same headers."""
    home = os.path.join(toolchain.package_folder("triton"), "backends", "nvidia")
    own = os.path.join(home, "driver.c")
    if os.path.isfile(own):
        return own, [os.path.join(home, "include")]
    plain = os.path.join(folder, "plain.c")
    with open(plain, "w", encoding="utf-8") as file:
        file.write(PLAIN)
    return plain, []


def python_include() -> str:
    """Return the folder of Python.h."""
    return os.path.dirname(toolchain.headers()) or sysconfig.get_paths()["include"]


def compiled(command: list[str]) -> str:
    """Run the compiler; return the end of what it said when it failed, empty when it did not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"the compiler took more than {SECONDS:g} s"
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"
    said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
    return "" if done.returncode == 0 else said[-TAIL:]
