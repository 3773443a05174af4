"""What Triton needs at run time (compiler, headers, cache folder), and variables that switch kernels off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.checks.registry import Case, check
from kerncheck.facts import triton_version
from kerncheck.model.base import Missing, seen
from kerncheck.model.outcome import Outcome, Say

if TYPE_CHECKING:
    from kerncheck.model.environment import CacheFolder, Environment
    from kerncheck.model.matrix import Variable

NETWORK = frozenset((
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "smbfs", "ceph", "fuse.ceph-fuse", "glusterfs",
    "fuse.glusterfs", "panfs", "wekafs", "afs", "orangefs", "pvfs2", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse",
    "fuse.goofys", "fuse.juicefs",
))  # fmt: skip
"""File systems whose locks and renames are seen late by other machines (names as in /proc/filesystems)."""

NOT_COMPILED = "Triton's interpreter compiles nothing"


@check("KC131", "Triton finds a C compiler and Python's headers", needs=("environment",))
def compiler(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge whether Triton can build its launcher.

    What it checks
    The program that CC names, else gcc, else clang on PATH, as Triton looks for it; and Python.h in the folder that
    Triton passes to it.

    Why it matters
    Triton compiles a small C file at the first launch. Slim images have no compiler: "Failed to find C compiler", or
    fla says "Triton is not supported on current platform, roll back to CPU" on a machine with a GPU.

    Example
    No CC, gcc or clang on PATH in a runtime image.

    How to fix
    Install gcc and the headers of the judged Python (apt-get install gcc python3-dev), or point CC at a compiler.
    """
    environment = seen(case.snapshot.environment)
    if case.job.profile == "ci":
        yield say.not_applicable("C compiler", NOT_COMPILED)
    elif not triton_version(environment):
        yield say.not_applicable("C compiler", "Triton is not installed")
    else:
        yield judge_compiler(environment, say)
        yield judge_headers(environment, say)


def judge_compiler(environment: Environment, say: Say) -> Outcome:
    """Judge the compiler."""
    tool = seen(environment.compiler)
    if tool.path:
        return say.passed("C compiler", f"Triton would take {tool.path} ({tool.via})")
    return say.failed(
        "C compiler",
        f"no C compiler: {tool.problem or 'no CC, gcc or clang on PATH'}",
        found=tool.problem or "none of CC, gcc, clang",
        wanted="a C compiler, which Triton calls at the first launch",
        remedy="install gcc (Debian and Ubuntu: `apt-get install gcc`), or point CC at a compiler that exists",
        source="pytorch/pytorch#116696; apple/ml-cross-entropy#5; sgl-project/sglang#18644",
    )


def judge_headers(environment: Environment, say: Say) -> Outcome:
    """Judge Python's headers."""
    headers = environment.python.headers
    if isinstance(headers, Missing):
        return say.not_judged("Python.h", headers.reason, required=False)
    if headers:
        return say.passed("Python.h", f"Python's headers are there ({headers})")
    return say.failed(
        "Python.h",
        f"Python.h of Python {environment.python.version} is not there: Triton's launcher cannot be compiled",
        found="no Python.h in the interpreter's include folder",
        wanted="the headers of the judged Python",
        remedy="install them (Debian and Ubuntu: `apt-get install python3-dev` of this Python's version)",
        source="WHEEL triton 3.9.0 runtime/build.py (_build passes the include folder)",
    )


@check("KC132", "Triton's cache folder is local, writable and may hold code", needs=("environment",))
def cache_folder(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge the folder that Triton keeps compiled kernels in.

    What it checks
    The effective folder (TRITON_CACHE_DIR, TRITON_HOME, HOME; links resolved): that a file can be created there, that
    its mount allows code to be loaded, and that it is not on a network file system.

    Why it matters
    On a network file system many ranks meet: "Stale file handle", "Device or resource busy", then the watchdog of
    NCCL. A folder of another user ends with "Permission denied", a noexec mount with "failed to map segment".

    Example
    HOME is on nfs4, and TRITON_CACHE_DIR is not set.

    How to fix
    Set TRITON_CACHE_DIR to a folder on a local disk of the node, one for each user and job.
    """
    environment = seen(case.snapshot.environment)
    if case.job.profile == "ci":
        yield say.not_applicable("Triton cache", NOT_COMPILED)
    elif case.job.profile == "image":
        yield say.not_applicable("Triton cache", "judged on the node, where the folder will be")
    elif not triton_version(environment):
        yield say.not_applicable("Triton cache", "Triton is not installed")
    else:
        yield judge_cache(environment, seen(environment.triton_cache), say)


def judge_cache(environment: Environment, folder: CacheFolder, say: Say) -> Outcome:
    """Judge the folder: what makes it unusable first, then what makes it unsafe."""
    place = f"{folder.path} (by {folder.via})"
    if not folder.writable:
        owner = f", owned by uid {folder.owner}" if folder.owner is not None else ""
        return bad_cache(say, f"not writable: {folder.problem}{owner}", place, "triton-lang/triton#518")
    if folder.noexec:
        found = f"mounted noexec ({folder.mount}): compiled code cannot be loaded from it"
        return bad_cache(say, found, place, "pytorch/pytorch#91005; pytorch/pytorch#123054")
    if folder.filesystem in NETWORK:
        return network_cache(environment, folder, place, say)
    return say.passed("Triton cache", f"{place} is writable, on {folder.filesystem or 'a local file system'}")


def bad_cache(say: Say, found: str, place: str, source: str) -> Outcome:
    """Say that the folder cannot be used."""
    return say.failed(
        "Triton cache",
        f"Triton's cache folder {place} is {found}",
        found=found,
        wanted="a folder of this user's own, on a mount that allows code",
        remedy="set TRITON_CACHE_DIR to such a folder on a local disk of the node",
        source=source,
    )


def network_cache(environment: Environment, folder: CacheFolder, place: str, say: Say) -> Outcome:
    """Say that the folder is on a network file system: an error where several ranks share it."""
    ranks = environment.variables.get("WORLD_SIZE", "1")
    several = ranks.isdigit() and int(ranks) > 1
    return say.failed(
        "Triton cache",
        f"Triton's cache folder {place} is on {folder.filesystem}{f', shared by {ranks} ranks' if several else ''}",
        found=f"{folder.filesystem} at {folder.mount}",
        wanted="a folder on a local disk of the node",
        remedy="set TRITON_CACHE_DIR to a folder on a local disk, one for each user and job",
        severity="error" if several else "warning",
        source="triton-lang/triton#2688; triton-lang/triton#11512; PrimeIntellect-ai/prime-rl#2305",
    )


@check("KC133", "no variable switches fused kernels off", needs=("environment",))
def variables(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge environment variables that switch fused kernels off.

    What it checks
    The variables of the matrix that Triton, transformers, fla and kernels read, with the values that switch kernels
    or their alternatives off.

    Why it matters
    A variable left over from a debugging session, or in a base image, turns fused kernels off without any message;
    nothing in the code or the metadata shows it.

    Example
    USE_HUB_KERNELS=NO, DISABLE_KERNEL_MAPPING=1, or TRITON_INTERPRET=1 on a node.

    How to fix
    Unset the variable that the finding names.
    """
    environment = seen(case.snapshot.environment)
    findings = 0
    for row in case.catalog.variables:
        value = environment.variables.get(row.name)
        if value is not None and row.switches_off(value):
            outcome = judge_variable(case, row, value, say)
            findings += outcome.status == "failed"
            yield outcome
    if not findings:
        yield say.passed("variables", "no variable that is known to switch fused kernels off is set so")


def judge_variable(case: Case, row: Variable, value: str, say: Say) -> Outcome:
    """Judge one variable that switches something off."""
    if case.job.profile == "ci" and row.name == "TRITON_INTERPRET":
        return say.not_applicable(row.name, "the emulated device sets it itself")
    if row.severity == "note":
        return say.note(row.name, f"{row.name}={value} is set: {row.effect}", "declared", source=row.source)
    return say.failed(
        row.name,
        f"{row.name}={value} is set: {row.effect}",
        found=f"{row.name}={value}",
        wanted=f"{row.name} unset (default: {row.default})",
        remedy=f"unset {row.name}",
        severity=row.severity,
        source=row.source,
    )
