"""Compilers, ptxas, nvcc, libcuda and Triton's cache folder, found as Triton and fla find them. Nothing is loaded."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from typing import Any

RELEASE = re.compile(r"release (\d+\.\d+)(?:, V(\d+\.\d+\.\d+))?")
SECONDS = 5.0  # for a program to print its version
LDCONFIG = "/sbin/ldconfig"  # where Triton looks (triton 3.9.0 backends/nvidia/driver.py)
USUAL_CUDA = "/usr/local/cuda"
LIBRARY_FOLDERS = (
    "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/lib64", "/usr/lib64", "/lib", "/usr/lib",
)  # fmt: skip


def tools() -> dict[str, Any]:
    """Find ptxas, its Blackwell variant and nvcc, and ask all of them for their version at the same time."""
    found = {"ptxas": find_ptxas("ptxas"), "ptxas_blackwell": find_ptxas("ptxas-blackwell"), "nvcc": find_nvcc()}
    running = {name: (place, start(place[0])) for name, place in found.items()}
    return {name: answered(place, process) for name, (place, process) in running.items()}


def find_ptxas(program: str) -> tuple[str, str]:
    """Return (path, how it was found): the variable that Triton reads if it names a file, else Triton's own."""
    variable = "TRITON_" + program.upper().replace("-", "_") + "_PATH"
    named = os.environ.get(variable, "")
    if named and os.access(named, os.X_OK):
        return named, variable
    own = os.path.join(package_folder("triton"), "backends", "nvidia", "bin", program)
    return (own, "triton") if os.access(own, os.X_OK) else ("", "")


def package_folder(name: str) -> str:
    """Return the folder that a package would be imported from, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return "/nonexistent"
    places = list(spec.submodule_search_locations or ()) if spec else []
    return places[0] if places else "/nonexistent"


def find_nvcc() -> tuple[str, str]:
    """Return (path, how it was found), in fla's and TileLang's order: variables, PATH, the wheel, the usual folder."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        path = os.path.join(os.environ.get(variable, ""), "bin", "nvcc")
        if os.environ.get(variable) and os.access(path, os.X_OK):
            return path, variable
    path = shutil.which("nvcc") or ""
    if path:
        return path, "PATH"
    wheel = package_folder("nvidia")
    for path in sorted(glob.glob(os.path.join(wheel, "*", "bin", "nvcc"))):
        if os.access(path, os.X_OK):
            return path, "wheel nvidia-cuda-nvcc"
    path = os.path.join(USUAL_CUDA, "bin", "nvcc")
    return (path, USUAL_CUDA) if os.access(path, os.X_OK) else ("", "")


def start(path: str) -> subprocess.Popen[str] | OSError | None:
    """Start a program that prints its version."""
    if not path:
        return None
    try:
        return subprocess.Popen(
            [path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
    except OSError as error:
        return error


def answered(place: tuple[str, str], process: Any) -> dict[str, Any]:
    """Read what a program said; the program is ended when it takes too long."""
    tool: dict[str, Any] = {"kind": "tool", "path": place[0], "via": place[1], "version": "", "problem": ""}
    if isinstance(process, OSError):
        tool["problem"] = f"cannot be started: {process.strerror or process}"
    elif process is not None:
        try:
            text = process.communicate(timeout=SECONDS)[0]
            match = RELEASE.search(text)
            tool["version"] = (match[2] or match[1]) if match else ""
            tool["problem"] = "" if match else f"exited with {process.returncode}: {text.strip()[-200:]}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.stdout.close()  # what it started may hold the pipe open: do not wait for that
            process.wait()
            tool["problem"] = f"no answer to --version within {SECONDS:g} s"
    return tool


def compiler() -> dict[str, Any]:
    """Find the C compiler as Triton does: CC, else gcc, else clang. A CC that cannot be run is told."""
    named = os.environ.get("CC")
    if named is not None:
        path = shutil.which(named) or ""
        problem = "" if path else f"CC={named} names no program"
        return {"kind": "tool", "path": path, "via": "CC", "problem": problem}
    path = shutil.which("gcc") or shutil.which("clang") or ""
    return {"kind": "tool", "path": path, "via": "PATH" if path else ""}


def headers() -> str:
    """Return the path of Python.h where Triton's compiler call looks for it; empty when it is not there."""
    schemes = sysconfig.get_scheme_names()
    default = getattr(sysconfig, "get_default_scheme", lambda: "posix_prefix")()
    scheme = "posix_prefix" if default == "posix_local" and "posix_prefix" in schemes else default
    path = os.path.join(sysconfig.get_paths(scheme=scheme)["include"], "Python.h")
    return path if os.path.isfile(path) else ""


def libcuda() -> dict[str, Any]:
    """Find libcuda.so.1 as the loader would: LD_LIBRARY_PATH, the loader's cache, the usual folders."""
    path, via = loader_finds("libcuda.so.1")
    target = os.path.realpath(path) if path else ""
    match = re.search(r"\.so\.(\d+\.[\d.]+)$", target)
    compat = sorted(glob.glob(USUAL_CUDA + "*/compat/**/libcuda.so.*.*", recursive=True))
    return {
        "kind": "driver_library",
        "path": path,
        "target": target,
        "version": match[1] if match else "",
        "via": via,
        "compat": compat,
    }


def loader_finds(name: str) -> tuple[str, str]:
    """Return (path, how) of the first file that the loader would take for a library's name."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name), "LD_LIBRARY_PATH"
    for line in loader_cache():
        if line.strip().startswith(name + " ") and os.path.isfile(line.split()[-1]):
            return line.split()[-1], "loader cache"
    for folder in LIBRARY_FOLDERS:
        if os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name), folder
    return "", ""


def loader_cache() -> list[str]:
    """Return the lines of the loader's cache; none where there is no ldconfig."""
    try:
        done = subprocess.run([LDCONFIG, "-p"], capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()


def triton_cache() -> dict[str, Any]:
    """Describe Triton's cache folder: where, whether a file can be created, on what kind of mount."""
    path, via = cache_place()
    real = os.path.realpath(path)
    there = nearest(real)
    mount, filesystem, options = mount_of(there, read("/proc/self/mountinfo"))
    owner = os.stat(there).st_uid
    problem = try_to_write(there)
    return {
        "kind": "cache_folder",
        "path": real,
        "via": via,
        "exists": os.path.isdir(real),
        "writable": not problem,
        "problem": problem,
        "noexec": "noexec" in options,
        "filesystem": filesystem,
        "mount": mount,
        "owner": None if owner == os.geteuid() else owner,
    }


def cache_place() -> tuple[str, str]:
    """Return (folder, variable that decides), as triton's knobs do: TRITON_CACHE_DIR, TRITON_HOME, HOME."""
    named = os.environ.get("TRITON_CACHE_DIR")
    if named:
        return named, "TRITON_CACHE_DIR"
    home, via = os.environ.get("TRITON_HOME"), "TRITON_HOME"
    if not home:
        home, via = os.path.expanduser("~"), "HOME" if "HOME" in os.environ else "the user database (HOME is unset)"
    return os.path.join(home, ".triton", "cache"), via


def nearest(path: str) -> str:
    """Return the folder itself, or the nearest one above it that exists."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def try_to_write(folder: str) -> str:
    """Create a file in a folder and remove it; return why that failed, or nothing."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def mount_of(path: str, mountinfo: str) -> tuple[str, str, list[str]]:
    """Return (mount point, file system, options) of the mount that holds a path (man 5 proc: mountinfo)."""
    best: tuple[str, str, list[str]] = ("", "", [])
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 6 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, right.split()[0], fields[5].split(","))
    return best


def read(path: str) -> str:
    """Return a file's text; empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
