"""The node's last mile, judged in the image: what the first launch will need there and an image build never tries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.checks.registry import Case, check
from kerncheck.facts import triton_version
from kerncheck.model.base import seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.versions import parse

if TYPE_CHECKING:
    from kerncheck.model.environment import CacheFolder, DriverLibrary, Environment, LastMile, Trial
    from kerncheck.model.image import BuildMessage

NODE_ITSELF = "the first launch itself shows it here"
PASSING = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - folders that a container's engine mounts over
DRIVER_C = "WHEEL triton 3.9.0 runtime/build.py, backends/nvidia/driver.py (libcuda_dirs, CudaUtils)"
CAPABILITIES, DEVICES = "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES"


def elsewhere(case: Case, subject: str, say: Say) -> Outcome | None:
    """Return why the checks of this module have nothing to ask: only an image is judged so, and one with Triton."""
    if case.job.profile != "image":
        return say.not_applicable(subject, NODE_ITSELF)
    if not triton_version(seen(case.snapshot.environment)):
        return say.not_applicable(subject, "Triton is not installed")
    return None


@check("KC150", "Triton's launcher can be compiled in this image", needs=("environment",))
def launcher(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge whether the C file that Triton compiles at the first launch compiles here.

    What it checks
    In profile image: that the compiler builds Triton's own driver.c against Python's headers and an empty stand-in
    for libcuda. Whether there is a compiler and a Python.h at all is KC131's question.

    Why it matters
    A slim final stage passes everything else and dies on the node, at the first launch. A gcc that was installed
    without recommended packages has no headers of the C library; a copied one has no linker.

    Example
    `apt-get install --no-install-recommends gcc`: fatal error: dlfcn.h: No such file or directory.

    How to fix
    Install what the finding names in the final stage (gcc, libc6-dev, Python's headers).
    """
    out = elsewhere(case, "launcher", say)
    if out:
        yield out
        return
    environment = seen(case.snapshot.environment)
    if not seen(environment.compiler).path or environment.python.headers == "":
        yield say.not_applicable("launcher", "there is no C compiler or no Python.h (KC131)")
        return
    yield judge_trial(case, seen(seen(environment.last_mile).trial), say)


def judge_trial(case: Case, trial: Trial, say: Say) -> Outcome:
    """Judge the trial build."""
    if not trial.problem:
        return say.passed("launcher", f"{trial.compiler} compiles Triton's {trial.source} here", "rehearsed")
    row = next((row for row in case.catalog.image.build if re.search(row.text, trial.problem)), None)
    why = row.means if row else telling(trial)
    return say.failed(
        "launcher",
        f"{trial.compiler} cannot compile Triton's {trial.source} in this image: {why}",
        found=telling(trial),
        wanted="a compiler that can, for the first launch on the node",
        remedy=remedy_for(row),
        evidence="rehearsed",
        source=DRIVER_C,
    )


def remedy_for(row: BuildMessage | None) -> str:
    """Return what to install."""
    generic = "install a whole C compiler in the final stage (Debian and Ubuntu: `apt-get install gcc libc6-dev`)"
    return row.remedy if row else generic


def telling(trial: Trial) -> str:
    """Return the line of the compiler's message that says most."""
    lines = [line.strip() for line in trial.problem.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line or "cannot" in line), lines[-1] if lines else "no message")


@check("KC151", "the node's driver library will be found, and no other one", needs=("environment",))
def driver_library(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge how this image will find libcuda, which the container toolkit mounts on the node.

    What it checks
    In profile image: that /sbin/ldconfig is there, which Triton asks for the place of libcuda.so.1 (unless
    TRITON_LIBCUDA_PATH names it), and that the image brings no libcuda of its own: neither CUDA's link-time stub
    nor the library of some driver.

    Why it matters
    Images without ldconfig die at the first launch. A stub that is found first answers every call with an error
    ("CUDA driver is a stub library"); a library of another driver than the node's kernel module does not start.

    Example
    LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs, left over from the build stage.

    How to fix
    Take the stubs off LD_LIBRARY_PATH in the final stage and remove driver packages from it: the driver belongs to
    the node.
    """
    out = elsewhere(case, "libcuda", say)
    if out:
        yield out
        return
    environment = seen(case.snapshot.environment)
    yield judge_ldconfig(environment, seen(environment.last_mile), say)
    if environment.nvidia_nodes:
        yield say.not_applicable("libcuda", "this build sees a GPU: its driver library is the host's")
    else:
        yield judge_libcuda(seen(environment.libcuda), say)


def judge_ldconfig(environment: Environment, mile: LastMile, say: Say) -> Outcome:
    """Judge the program that Triton asks for libcuda's place."""
    named = environment.variables.get("TRITON_LIBCUDA_PATH", "")
    if named:
        told = f"TRITON_LIBCUDA_PATH={named} is where Triton will look for libcuda.so.1: it must be there on the node"
        return say.note("ldconfig", told, source=DRIVER_C)
    if mile.ldconfig:
        return say.passed("ldconfig", "Triton can ask /sbin/ldconfig where the node's libcuda is")
    return say.failed(
        "ldconfig",
        "/sbin/ldconfig is not in this image: Triton runs it at the first launch to find libcuda",
        found="no /sbin/ldconfig",
        wanted="/sbin/ldconfig (it belongs to glibc), or TRITON_LIBCUDA_PATH",
        remedy="install it (Debian and Ubuntu: `apt-get install libc-bin`), or set TRITON_LIBCUDA_PATH to the folder "
        "that the container toolkit mounts libcuda.so.1 in",
        source=DRIVER_C,
    )


def judge_libcuda(library: DriverLibrary, say: Say) -> Outcome:
    """Judge a libcuda that is in the image."""
    place = f"{library.path} (by {library.via})"
    if not library.path:
        return say.passed("libcuda", "the image brings no libcuda of its own: the node's will be the only one")
    if "/compat" in library.path or "/compat" in library.target:
        told = f"{place} is CUDA's forward-compatibility library: it works on data-centre GPUs, on others it does not"
        return say.note("libcuda", told, source="NVIDIA/nvidia-docker#1515; gpustack/gpustack#1254")
    stub = "/stubs" in library.path or "/stubs" in library.target
    what = "CUDA's link-time stub" if stub else f"the library of driver {library.version or 'unknown'}"
    return say.failed(
        "libcuda",
        f"this image finds {what} as libcuda.so.1: {place}",
        found=library.target or library.path,
        wanted="no libcuda in the image: the container toolkit mounts the node's",
        remedy="take the folder of stubs off LD_LIBRARY_PATH and the loader's configuration in the final stage"
        if stub
        else "remove the driver's packages (libnvidia-compute-*, nvidia-driver-*) from the image",
        severity="error" if stub else "warning",
        source="CUDA's error 34 (cudaErrorStubLibrary); NVIDIA/JAX-Toolbox#1022",
    )


@check("KC152", "the image asks the container toolkit for the driver", needs=("environment",))
def toolkit_variables(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge the variables by which an image asks for GPUs and driver libraries.

    What it checks
    In profile image: that NVIDIA_DRIVER_CAPABILITIES, where it is set, asks for compute and utility, and that
    NVIDIA_VISIBLE_DEVICES does not hide every GPU.

    Why it matters
    The container toolkit mounts the libraries that the image asks for. Without compute there is no libcuda on a node
    that works for every other image.

    Example
    NVIDIA_DRIVER_CAPABILITIES=graphics,display, from a base image for rendering.

    How to fix
    ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility in the final stage, or leave both variables unset.
    """
    if case.job.profile != "image":
        yield say.not_applicable("container toolkit", "the GPU is there or is not there (KC104)")
        return
    variables = seen(case.snapshot.environment).variables
    found = [*capabilities(case, variables, say), *hidden(case, variables, say)]
    yield from found
    if not found:
        yield say.passed("container toolkit", "no variable keeps the driver or its GPUs from this image")


def capabilities(case: Case, variables: dict[str, str], say: Say) -> Iterator[Outcome]:
    """Judge the capabilities that are asked for; unset or empty means the toolkit's default, which will do."""
    value = variables.get(CAPABILITIES, "").strip()
    asked = {item.strip() for item in value.split(",")}
    for row in case.catalog.image.capability:
        if value and not asked & {"all", row.name}:
            yield say.failed(
                CAPABILITIES,
                f"{CAPABILITIES}={value} does not ask for {row.name}: {row.brings}",
                found=value,
                wanted="compute,utility (or all)",
                remedy=f"ENV {CAPABILITIES}=compute,utility in the final stage",
                severity=row.severity,
                source=row.source,
            )


def hidden(case: Case, variables: dict[str, str], say: Say) -> Iterator[Outcome]:
    """Judge a variable that hides all GPUs; `docker run --gpus` overrides it, a cluster's runtime may not."""
    value = variables.get(DEVICES, "").strip()
    row = next((row for row in case.catalog.image.hidden if row.value == value), None)
    if row:
        yield say.failed(
            DEVICES,
            f"{DEVICES}={value} is set in this image: unless the run overrides it, no GPU reaches the container",
            found=value,
            wanted="unset, or all",
            remedy=f"unset {DEVICES} in the final stage",
            severity="warning",
            source=row.source,
        )


@check("KC153", "Triton's cache folder will serve the user who runs the image", needs=("environment",))
def cache(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge the folder of compiled kernels as it will be when the image runs.

    What it checks
    In profile image, for the user that this step runs as: that HOME leads to a folder of that user's, that the cache
    folder can be written, that it belongs to the image and not to a mount of the build, and that it does not lie
    where container engines usually mount something else.

    Why it matters
    A cache that was warmed in a mount of the build is not in the image. A folder that the run-time user cannot write
    ends the first launch with "Permission denied"; under a mounted /tmp every start compiles again.

    Example
    HOME=/ for uid 1000 without an entry in the user database: the cache would be /.triton.

    How to fix
    Set TRITON_CACHE_DIR to a folder of the image that belongs to the run-time user, declare USER before the gate,
    and mount a writable folder there where the root file system is read-only (that hides a warmed cache).
    """
    out = elsewhere(case, "Triton cache", say)
    if out:
        yield out
        return
    environment = seen(case.snapshot.environment)
    folder, mile = seen(environment.triton_cache), seen(environment.last_mile)
    failures = list(cache_failures(folder, mile, say))
    yield from failures or [say.passed("Triton cache", f"{place_of(folder)} can be written by {who(mile)}")]
    yield from cache_notes(folder, mile, say)


def who(mile: LastMile) -> str:
    """Return the user of this step in words."""
    return f"uid {mile.uid} ({mile.user or 'not in the user database'})"


def place_of(folder: CacheFolder) -> str:
    """Return the folder and what decides on it."""
    return f"{folder.path} (by {folder.via})"


def cache_failures(folder: CacheFolder, mile: LastMile, say: Say) -> Iterator[Outcome]:
    """Yield what will break or lose the cache. Each is inferred: the node may be set up otherwise."""
    by_home = folder.via not in ("TRITON_CACHE_DIR", "TRITON_HOME")
    if by_home and homeless(mile):
        found = f"HOME is {mile.home or 'unset'} for {who(mile)}"
        yield bad_cache(say, f"has no home: {found}, so Triton would use {folder.path}", found)
    elif not folder.writable:
        owner = f", owned by uid {folder.owner}" if folder.owner is not None else ""
        found = f"not writable for {who(mile)}: {folder.problem}{owner}"
        yield bad_cache(say, f"{place_of(folder)} is {found}", found)
    if folder.mount not in ("", "/") and mile.root_filesystem == "overlay":
        found = f"on a mount of its own ({folder.filesystem} at {folder.mount})"
        told = f"{place_of(folder)} is {found}: what this build writes there is no part of the image"
        yield bad_cache(say, told, found)


def homeless(mile: LastMile) -> bool:
    """Tell whether this user's home leads nowhere: no HOME and no entry, or the root folder for another user."""
    return (not mile.home and not mile.user) or (mile.home == "/" and mile.uid != 0)


def bad_cache(say: Say, told: str, found: str) -> Outcome:
    """Say that the cache will not serve."""
    return say.failed(
        "Triton cache",
        f"Triton's cache {told}",
        found=found,
        wanted="a folder of the image that belongs to the user who runs it",
        remedy="set TRITON_CACHE_DIR to such a folder (`ENV TRITON_CACHE_DIR=...`, made and owned before USER), and "
        "run this step as that user",
        severity="warning",
        source="triton-lang/triton#518; WHEEL triton 3.9.0 knobs.py (cache_knobs)",
    )


def cache_notes(folder: CacheFolder, mile: LastMile, say: Say) -> Iterator[Outcome]:
    """Yield what cannot be told from here and decides on the node."""
    if mile.uid == 0 and not mile.cache_for_others:
        told = f"this step runs as root, and no other user could write {place_of(folder)}"
        advice = "if the image runs as another user, declare USER before this step"
        yield say.note("run-time user", f"{told}: {advice}")
    under = next((path for path in PASSING if folder.path == path or folder.path.startswith(path + "/")), "")
    if under:
        told = f"{folder.path} is under {under}, which is often mounted over when an image runs"
        yield say.note("Triton cache", told)


@check("KC154", "the model's kernels are bound without asking for a GPU", needs=("environment",))
def bindings(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge whether what this image shows of bindings is what the node will bind.

    What it checks
    In profile image, the release of transformers: since 5.15 kernels are bound through seams that ask for no device.
    Before, flags ask torch.cuda.is_available(), which is false in every image build: kerncheck lets them see a GPU.

    Why it matters
    With flags an image build always shows the eager reference, whether or not the node will. What is judged here is
    what the flags choose once torch sees a GPU; whether it does is judged on the node.

    Example
    transformers 5.12.1: is_flash_linear_attention_available() is False here, and may be True on the node.

    How to fix
    Judge this model on the node too, or use transformers 5.15 or newer.
    """
    environment = seen(case.snapshot.environment)
    version = environment.version("transformers")
    if case.job.profile != "image" or not version:
        reason = "transformers is not installed" if not version else "the flags were asked on this machine itself"
        yield say.not_applicable("bindings", reason)
        return
    row, release = case.catalog.transformers_release(version), parse(version)
    if row is None or release is None:
        yield say.not_judged("bindings", f"unknown: transformers {version} is not in the matrix", required=False)
    elif row.mechanism == "flags":
        told = f"transformers {version} decides by torch.cuda.is_available(), which is false in an image build"
        if case.job.model is None:
            yield say.not_judged("bindings", f"{told}; no model is named, so no flag was asked", required=False)
        else:
            yield say.passed("bindings", f"{told}: its flags are asked as if a GPU were there (KC305)", "declared")
    else:
        told = f"transformers {version} binds kernels through seams, which ask for no GPU"
        yield say.passed("bindings", told, "declared")
