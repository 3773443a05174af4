"""The static probe: what is installed and set, without importing any of it. Standard library only.

Each case gathers one group of facts, so that a group that hangs (a dead network mount, say) or breaks takes no other
with it. A fact that could not be looked at is ``{"kind": "missing", "reason": ...}``.
"""

from __future__ import annotations

import os
import platform
import re
import site
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

from kerncheck.probes import distributions, last_mile, plugins, toolchain

SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY", re.IGNORECASE)
CREDENTIALS = re.compile(r"://[^/@\s]+@")
DRIVER = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
CONTAINER_FILES = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
CONTAINER_VARIABLES = (
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "singularity"),
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
)
CONTAINER_GROUPS = re.compile(r"docker|kubepods|containerd|libpod|lxc")


def setup(options: dict[str, Any]) -> dict[str, Any]:
    """Keep the options: what to look for, as the parent's stage lists it."""
    return options


def run(case: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Gather one group of facts, with the home directory written as ``~``."""
    groups: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "interpreter": interpreter,
        "distributions": installed,
        "toolchain": tools,
        "cache": cache,
        "machine": machine,
        "last_mile": image,
        "plugins": extensions,
    }
    found: dict[str, Any] = tidy(groups[case["name"]](options))
    return found


def fact(look: Callable[[], Any]) -> Any:
    """Return what a look gives, or why it could not be had."""
    try:
        return look()
    except Exception as error:
        return {"kind": "missing", "reason": f"{type(error).__name__}: {error}"}


def tidy(value: Any) -> Any:
    """Return plain data with the home directory written as ``~`` in every string of it."""
    home = os.path.expanduser("~").rstrip("/")
    if isinstance(value, dict):
        return {key: tidy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [tidy(item) for item in value]
    if isinstance(value, str) and len(home) > 1 and home != "~":
        return re.sub(re.escape(home) + r"(?=[/:\"'\s]|$)", "~", value)
    return value


def interpreter(_options: dict[str, Any]) -> dict[str, Any]:
    """Describe the interpreter and the C library."""
    user_site = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    return {
        "python": {
            "version": platform.python_version(),
            "implementation": sys.implementation.name,
            "machine": platform.machine(),
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
            "headers": fact(toolchain.headers),
            "prefix": sys.prefix,
            "user_site": user_site if user_site in sys.path else "",
        },
        "glibc": fact(glibc),
        "kernel": platform.release(),
    }


def extensions(_options: dict[str, Any]) -> dict[str, Any]:
    """Describe the plug-ins of kerncheck that this interpreter has."""
    return {"plugins": plugins.found()}


def glibc() -> str:
    """Return the version of glibc; empty on another C library."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2]
    except ValueError:
        return ""


def installed(options: dict[str, Any]) -> dict[str, Any]:
    """Describe the distributions of interest, torch's build, and files with two owners."""
    found = distributions.scan(distributions.entries(), options["names"], options["prefixes"])
    described = [distributions.describe(name, places, options) for name, places in sorted(found.items())]
    torch = next((item["module"] for item in described if item and item["name"] == "torch"), "")
    torch = torch or distributions.module_file("torch")
    return {
        "distributions": [item for item in described if item],
        "torch": fact(lambda: distributions.torch_build(torch))
        if torch
        else {"kind": "missing", "reason": "torch is not installed"},
        "shared_files": fact(lambda: distributions.shared_files(found, options["unhashed"])),
    }


def tools(_options: dict[str, Any]) -> dict[str, Any]:
    """Describe compilers and libcuda."""
    found = fact(toolchain.tools)
    parts = found if "ptxas" in found else {"ptxas": found, "ptxas_blackwell": found, "nvcc": found}
    return {**parts, "compiler": fact(toolchain.compiler), "libcuda": fact(toolchain.libcuda)}


def cache(_options: dict[str, Any]) -> dict[str, Any]:
    """Describe Triton's cache folder."""
    return {"triton_cache": fact(toolchain.triton_cache)}


def image(options: dict[str, Any]) -> dict[str, Any]:
    """Describe what an image lacks at the first launch; elsewhere the launch itself shows it."""
    if options["profile"] != "image":
        return {"last_mile": {"kind": "missing", "reason": "looked at for the profile image alone"}}
    return {"last_mile": fact(last_mile.last_mile)}


def machine(options: dict[str, Any]) -> dict[str, Any]:
    """Describe container, device files, the driver's kernel module and the variables that matter."""
    nodes = device_nodes("/dev")
    return {
        "container": container(),
        "nodes": nodes,
        "denied": [node for node in nodes if not may_open(node)],
        "driver_module": fact(driver_module),
        "variables": variables(dict(os.environ), options["variables"], options["variable_prefixes"]),
    }


def container() -> str:
    """Return the kind of container that we are in; empty outside of one."""
    for path, kind in CONTAINER_FILES:
        if os.path.exists(path):
            return kind
    for name, kind in CONTAINER_VARIABLES:
        if os.environ.get(name):
            return kind
    match = CONTAINER_GROUPS.search(toolchain.read("/proc/1/cgroup"))
    return match[0] if match else ""


def device_nodes(folder: str) -> list[str]:
    """Return the device files of GPUs in a folder: NVIDIA's, AMD's and WSL's."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    wanted = re.compile(r"nvidia(\d+|ctl|-uvm)|kfd|dxg")
    return [os.path.join(folder, name) for name in names if wanted.fullmatch(name)]


def may_open(node: str) -> bool:
    """Tell whether we may open a device file. Only nvidiactl is really opened: others may wake a GPU up."""
    if not node.endswith("nvidiactl"):
        return os.access(node, os.R_OK | os.W_OK)
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:
        return True  # it broke in another way, which is not a matter of access
    return True


def driver_module() -> str:
    """Return the version of the NVIDIA kernel module; empty when it is not loaded."""
    match = DRIVER.search(toolchain.read("/proc/driver/nvidia/version"))
    return match[1] if match else ""


def variables(environment: dict[str, str], names: list[str], prefixes: list[str]) -> dict[str, str]:
    """Keep the variables that matter; never a secret, and no address with credentials in it."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in names or name.startswith(tuple(prefixes)))
        and not SECRET.search(name)
        and not CREDENTIALS.search(value)
    }
