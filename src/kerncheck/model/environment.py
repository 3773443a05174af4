"""Sections ``environment`` and ``gpus`` of a snapshot: what is installed, and which hardware is there.

Nearly every field has a default, so that a snapshot can be written by hand. A field that is ``Missing`` was not
looked at, or could not be; an empty one was looked at and is not there.
"""

from __future__ import annotations

from kerncheck.model.base import Frozen, Missing
from kerncheck.model.plugin import PluginSeen

NOT_LOOKED = Missing(reason="this snapshot does not hold it")


class Python(Frozen):
    """The judged interpreter. ``headers`` is the path of Python.h, empty when there is none.

    ``user_site`` is the user's own site folder where the interpreter uses one, else empty.
    """

    version: str = ""
    implementation: str = "cpython"
    machine: str = "x86_64"
    free_threaded: bool = False
    headers: str | Missing = NOT_LOOKED
    prefix: str = ""
    user_site: str = ""


class Copy(Frozen):
    """A further copy of a distribution, later on the import path."""

    version: str
    location: str = ""


class Distribution(Frozen):
    """An installed distribution, by its canonical name. ``requires`` holds its requirements as the metadata has them.

    ``module`` is the file that its import would take, ``imported`` the version written there (empty: not found in the
    source). ``copies`` are further ones that this one hides.
    """

    name: str
    version: str
    location: str = ""
    module: str = ""
    imported: str = ""
    requires: tuple[str, ...] = ()
    copies: tuple[Copy, ...] = ()


class TorchBuild(Frozen, tag="torch_build", tag_field="kind"):
    """What torch's own files say of its build, read without importing it. Empty strings: not built with it."""

    version: str
    cuda: str = ""
    hip: str = ""
    git: str = ""
    file: str = ""


class Tool(Frozen, tag="tool", tag_field="kind"):
    """A program: where it is and which version it says it is. An empty path says that there is none.

    ``via`` says how it was found: a variable, PATH, a wheel or a usual folder. ``problem`` is why it did not answer.
    """

    path: str = ""
    version: str = ""
    via: str = ""
    problem: str = ""


class DriverLibrary(Frozen, tag="driver_library", tag_field="kind"):
    """libcuda.so.1 as the loader would find it, without loading it. An empty path says that it finds none.

    ``version`` is in the name of the file that it resolves to; ``compat`` lists libraries in compat folders.
    """

    path: str = ""
    target: str = ""
    version: str = ""
    via: str = ""
    compat: tuple[str, ...] = ()


class CacheFolder(Frozen, tag="cache_folder", tag_field="kind"):
    """Triton's cache folder: where it is by which variable, and whether it can hold what must be loaded from it.

    ``writable`` was tried by creating a file there, or in the nearest folder above that exists. ``owner`` is the
    number of the user that owns it where that is another one than ours.
    """

    path: str
    via: str = "HOME"
    exists: bool = True
    writable: bool = True
    problem: str = ""
    noexec: bool = False
    filesystem: str = ""
    mount: str = ""
    owner: int | None = None


class Trial(Frozen, tag="trial", tag_field="kind"):
    """A trial build of the C file ``source``, which Triton compiles at the first launch.

    ``problem`` is the end of what the compiler said when it failed, empty when it did not.
    """

    compiler: str
    source: str = "driver.c"
    problem: str = ""


class LastMile(Frozen, tag="last_mile", tag_field="kind"):
    """What the node needs of an image at the first launch. It is looked at for the profile image alone.

    ``user`` is empty where the user database has no entry for ``uid``; ``home`` is the value of HOME, empty when unset.
    ``cache_for_others`` says whether any user may write into Triton's cache folder. ``ldconfig`` says whether the
    program is there that Triton asks where libcuda is.
    """

    uid: int = 0
    user: str = ""
    home: str = ""
    cache_for_others: bool = False
    root_filesystem: str = ""
    ldconfig: bool = True
    trial: Trial | Missing = NOT_LOOKED


class Owner(Frozen):
    """A distribution that claims a file, with the sha256 that its RECORD gives it."""

    name: str
    version: str
    sha256: str


class SharedFile(Frozen):
    """One file that several distributions claim with different content. ``sha256`` is that of the file on disk."""

    path: str
    owners: tuple[Owner, ...]
    sha256: str = ""


class Environment(Frozen, tag="environment", tag_field="kind"):
    """What is installed and set, read without importing any of it.

    ``nodes`` are device files (``/dev/nvidia0``, ``/dev/kfd``), ``denied`` those that we may not open. ``container``
    names the kind of container that we are in, empty outside of one. ``driver_module`` is the version of the NVIDIA
    kernel module.
    """

    python: Python = Python()
    glibc: str | Missing = NOT_LOOKED
    kernel: str = ""
    distributions: tuple[Distribution, ...] = ()
    torch: TorchBuild | Missing = NOT_LOOKED
    shared_files: tuple[SharedFile, ...] | Missing = NOT_LOOKED
    nvcc: Tool | Missing = NOT_LOOKED
    ptxas: Tool | Missing = NOT_LOOKED
    ptxas_blackwell: Tool | Missing = NOT_LOOKED
    compiler: Tool | Missing = NOT_LOOKED
    libcuda: DriverLibrary | Missing = NOT_LOOKED
    driver_module: str | Missing = NOT_LOOKED
    triton_cache: CacheFolder | Missing = NOT_LOOKED
    last_mile: LastMile | Missing = NOT_LOOKED
    plugins: tuple[PluginSeen, ...] | Missing = ()
    container: str = ""
    nodes: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    variables: dict[str, str] = {}

    def find(self, name: str) -> Distribution | None:
        """Return an installed distribution by its canonical name."""
        return next((item for item in self.distributions if item.name == name), None)

    def version(self, name: str) -> str:
        """Return the version of an installed distribution; empty when it is not installed."""
        found = self.find(name)
        return found.version if found else ""

    @property
    def versions(self) -> dict[str, str]:
        """The versions of all distributions that were looked for and found."""
        return {item.name: item.version for item in self.distributions}

    @property
    def nvidia_nodes(self) -> tuple[str, ...]:
        """The device files of NVIDIA GPUs (or WSL's), without those of the driver itself."""
        return tuple(node for node in self.nodes if node.removeprefix("/dev/nvidia").isdigit() or node == "/dev/dxg")

    @property
    def amd(self) -> bool:
        """Whether an AMD GPU shows itself to compute (/dev/kfd)."""
        return "/dev/kfd" in self.nodes


class Gpu(Frozen):
    """One GPU as the driver's management library sees it. Memory is in bytes."""

    name: str
    cc: str
    index: int = 0
    uuid: str = ""
    memory_total: int = 0
    memory_free: int = 0
    mig: bool = False


class Gpus(Frozen, tag="gpus", tag_field="kind"):
    """All NVIDIA GPUs of the machine, the driver, and the CUDA version that the driver offers (``13.0``).

    ``problem`` is what NVML said when it could be loaded and not be started. The section is Missing when there is no
    NVML library at all.
    """

    driver: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The different compute capabilities, in the order of the GPUs."""
        return tuple(dict.fromkeys(gpu.cc for gpu in self.gpus))
