"""Torch itself: is it there, for which accelerator was it built, and does it fit Triton, Python and the C library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from kerncheck.checks.registry import Case, check
from kerncheck.facts import TRITON_NAMES, TorchFacts, torch_facts, triton_version
from kerncheck.model.base import Missing, seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.requirements import applying
from kerncheck.versions import holds, parse

if TYPE_CHECKING:
    from kerncheck.model.environment import Environment
    from kerncheck.model.releases import TorchRelease

INSTALL_TORCH = "install torch for this machine, such as `pip install torch==2.14.1` (CUDA 13.0, driver >= 580)"


@check("KC101", "torch is installed, in a build that was released", needs=("environment",))
def torch_build(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge which torch is installed.

    What it checks
    That torch is installed, and that its version and its CUDA version were released together. The build is read from
    torch's own files, not from its name.

    Why it matters
    Every compiled kernel is built for one pair of torch and CUDA. What the matrix says about GPUs, drivers and kernel
    packages holds for released pairs only; about others nothing is known.

    Example
    torch 2.9.1 for CUDA 12.8 is known; 2.3.0a0+40ec155e58.nv24.03, a vendor's build, is not.

    How to fix
    Install torch. For an unknown build nothing is wrong by itself: the imports and the numeric checks decide.
    """
    environment = seen(case.snapshot.environment)
    torch = torch_facts(environment, case.catalog)
    if torch is None:
        yield say.failed(
            "torch",
            "torch is not installed in the judged interpreter",
            found="no distribution torch on the import path",
            wanted="torch, built for the GPU of this machine",
            remedy=INSTALL_TORCH,
        )
        return
    release = case.catalog.torch_release(torch.version)
    known = release is not None and torch.known
    yield released(torch, release, say) if known and release else unknown_build(torch, say)


def released(torch: TorchFacts, release: TorchRelease, say: Say) -> Outcome:
    """Judge a released version: was it built for this CUDA."""
    if not torch.cuda:
        return say.passed("torch", f"torch {torch.version} is a release, built for {torch.kind}", "declared")
    if torch.cuda not in release.arch:
        known = ", ".join(release.arch)
        reason = f"torch {release.version} for CUDA {torch.cuda} is no pair that the matrix knows (it knows {known})"
        return say.not_judged("torch", reason, required=False)
    return say.passed("torch", f"torch {release.version} for CUDA {torch.cuda} is a released pair", "declared")


def unknown_build(torch: TorchFacts, say: Say) -> Outcome:
    """Say that nothing is known of this build."""
    reason = f"unknown: torch {torch.version} ({torch.kind}) is no release in the matrix; imports and numerics decide"
    return say.not_judged("torch", reason, required=False)


@check("KC102", "torch is built for the GPU of this machine", needs=("environment", "gpus"))
def torch_for_accelerator(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge whether torch can use the kind of GPU that is there.

    What it checks
    That torch is a CUDA build where there is an NVIDIA GPU (or where an image is meant for one), and a ROCm build
    where there is an AMD GPU.

    Why it matters
    On aarch64 the wheel on PyPI was a CPU build up to torch 2.10, and pip's cache or an index can bring one on any
    machine: everything runs, on the CPU, without an error.

    Example
    torch 2.8.0 on a GH200: torch.version.cuda is None, 1 NVIDIA GPU present (aarch64).

    How to fix
    Install the build of PyTorch's own index for your CUDA version, with --force-reinstall --no-cache-dir, and judge
    again after each later install: a package that pins torch can bring the CPU build back.
    """
    environment = seen(case.snapshot.environment)
    torch = torch_facts(environment, case.catalog)
    if case.job.profile == "ci":
        yield say.not_applicable("torch", "the emulated device runs kernels on the CPU, with any build of torch")
    elif torch is None:
        yield say.not_applicable("torch", "torch is not installed (KC101)")
    elif not torch.known:
        yield say.not_judged("torch", f"the build of torch {torch.version} is unknown", required=False)
    else:
        yield accelerator(case, environment, torch, say)


def accelerator(case: Case, environment: Environment, torch: TorchFacts, say: Say) -> Outcome:
    """Compare torch's build with the hardware."""
    there = nvidia_in_sight(case, environment)
    if there and not torch.cuda:
        return wrong_build(torch, there, ("torch.version.cuda", "CUDA"), environment.python.machine, say)
    if environment.amd and not there and not torch.hip:
        return wrong_build(
            torch, "an AMD GPU (/dev/kfd)", ("torch.version.hip", "ROCm"), environment.python.machine, say
        )
    if torch.cpu:
        return say.not_applicable("torch", f"torch {torch.version} is a CPU build, and no GPU is in sight")
    return say.passed("torch", f"torch {torch.version} is built for {torch.kind} (by {torch.how})")


def nvidia_in_sight(case: Case, environment: Environment) -> str:
    """Return which NVIDIA GPU torch should be built for, in words; empty without one."""
    if case.job.targets:
        return f"the target {case.job.targets[0].text}"
    gpus = case.snapshot.gpus
    count = 0 if isinstance(gpus, Missing) else len(gpus.gpus)
    count = count or len(environment.nvidia_nodes)
    return f"{count} NVIDIA GPU{'' if count == 1 else 's'}" if count else ""


def wrong_build(torch: TorchFacts, there: str, wanted: tuple[str, str], machine: str, say: Say) -> Outcome:
    """Say that torch was built for something else than what is there; ``wanted`` is (torch's field, kind of build)."""
    field, kind = wanted
    return say.failed(
        "torch",
        f"torch {torch.version} is built for {torch.kind}, and there is {there} ({machine})",
        found=f"{field} is None (by {torch.how})",
        wanted=f"a {kind} build of torch",
        remedy=f"install torch from PyTorch's own index for your {kind} version, with `pip install --force-reinstall "
        "--no-cache-dir --index-url ...`, and judge again after each later install",
    )


@check("KC107", "Triton is the one that this torch was built for", needs=("environment",))
def triton_pin(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge Triton against torch's own requirement.

    What it checks
    The installed Triton against the requirement in torch's metadata, or, where the metadata has none, against what
    the matrix knows of this release.

    Why it matters
    torch.compile calls private parts of Triton. Another version fails with "cannot import name 'triton_key'" or
    "AttrsDescriptor", or compiles something else.

    Example
    torch 2.14.1 requires triton ~=3.8.0; triton 3.9.0 was installed over it.

    How to fix
    Install the version that torch requires, or the torch that requires the version you want. Never install triton
    alone to get a repair: take the torch that ships it.
    """
    environment = seen(case.snapshot.environment)
    torch = torch_facts(environment, case.catalog)
    if torch is None:
        yield say.not_applicable("triton", "torch is not installed (KC101)")
        return
    wanted = triton_requirement(environment, torch, case)
    if wanted is None:
        yield say.not_applicable("triton", f"torch {torch.version} ({torch.kind}) requires no Triton that is known")
        return
    yield judge_pin(environment, torch, wanted, say)


def triton_requirement(environment: Environment, torch: TorchFacts, case: Case) -> Requirement | None:
    """Return what torch wants of Triton: by its metadata, else by the matrix; a CPU build wants nothing."""
    distribution = environment.find("torch")
    listed = applying(distribution.requires if distribution else (), environment)
    own = next((item for item in listed if item.name in TRITON_NAMES), None)
    release = case.catalog.torch_release(torch.version)
    if own is not None or torch.cpu or release is None or not torch.cuda:
        return own
    return Requirement(f"triton{release.triton}")


def judge_pin(environment: Environment, torch: TorchFacts, wanted: Requirement, say: Say) -> Outcome:
    """Compare the installed Triton with torch's requirement."""
    version = triton_version(environment)
    if not version:
        return say.failed(
            "triton",
            f"torch {torch.version} requires {wanted.name}{wanted.specifier}, and Triton is not installed",
            found="no Triton",
            wanted=f"{wanted.name}{wanted.specifier}",
            remedy=f"pip install '{wanted.name}{wanted.specifier}'",
        )
    fits = holds(wanted.specifier, version)
    pin = f"{wanted.name}{wanted.specifier}"
    if fits is None:
        return say.not_judged(
            "triton", f"triton {version} is a build between releases; torch wants {pin}", required=False
        )
    if fits:
        return say.passed("triton", f"triton {version} is what torch {torch.version} requires ({pin})")
    return say.failed(
        "triton",
        f"torch {torch.version} requires {pin}, found triton {version}",
        found=f"triton {version}",
        wanted=pin,
        remedy=f"pip install '{pin}', or install the torch that requires triton {version}",
    )


@check("KC109", "Python and the C library are new enough for torch and Triton", needs=("environment",))
def floors(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge Python and glibc against what torch's and Triton's wheels were built for.

    What it checks
    Python against the versions that a torch release has wheels for, and glibc against the tag of torch's and
    Triton's wheels.

    Why it matters
    pip refuses a wheel that does not fit, but a copied environment, a mounted site-packages or a rebuilt base image
    goes past pip. On musl (Alpine) none of these wheels works.

    Example
    torch 2.14.1 needs glibc 2.28 (manylinux_2_28); CentOS 7 has 2.17.

    How to fix
    Use a base image with a newer glibc, or the Python that torch has wheels for.
    """
    environment = seen(case.snapshot.environment)
    yield from python_floor(case, environment, say)
    yield from glibc_floor(case, environment, say)


def python_floor(case: Case, environment: Environment, say: Say) -> Iterator[Outcome]:
    """Compare Python with the wheels of the installed torch."""
    version = environment.python.version
    release = case.catalog.torch_release(environment.version("torch"))
    python = parse(version)
    if release is None or python is None:
        yield say.not_judged("Python", f"no wheels are known for torch {environment.version('torch')}", required=False)
        return
    name = f"{python.major}.{python.minor}{'t' if environment.python.free_threaded else ''}"
    if name in (*release.python, *release.free_threaded):
        yield say.passed("Python", f"torch {release.version} has wheels for Python {name}", "declared")
        return
    yield say.failed(
        "Python",
        f"torch {release.version} has no wheel for Python {name}",
        found=f"Python {version}{' (free-threaded)' if environment.python.free_threaded else ''}",
        wanted=f"Python {', '.join((*release.python, *release.free_threaded))}",
        remedy="use one of these Pythons, or a torch that has wheels for yours",
        evidence="declared",
        source=release.source,
    )


def glibc_floor(case: Case, environment: Environment, say: Say) -> Iterator[Outcome]:
    """Compare glibc with the floors of the installed torch and Triton."""
    glibc = seen(environment.glibc)
    rows = (
        ("torch", case.catalog.torch_release(environment.version("torch"))),
        ("triton", case.catalog.triton_release(triton_version(environment))),
    )
    for name, row in rows:
        if row is not None:
            yield glibc_of(name, f"{name} {row.version}", row.glibc, glibc, say)


def glibc_of(name: str, what: str, floor: str, glibc: str, say: Say) -> Outcome:
    """Compare glibc with one floor; empty means that the C library is another one."""
    have, need = parse(glibc), parse(floor)
    if have is not None and need is not None and have >= need:
        return say.passed(f"glibc for {name}", f"glibc {glibc} is not below {floor}, which {what} needs", "declared")
    return say.failed(
        f"glibc for {name}",
        f"{what} needs glibc {floor}, found {'glibc ' + glibc if glibc else 'another C library (musl?)'}",
        found=f"glibc {glibc}" if glibc else "no glibc",
        wanted=f"glibc >= {floor}",
        remedy="use a base image with a newer glibc (Debian 12, Ubuntu 22.04 or RHEL 9 have 2.34 or later)",
        evidence="declared",
    )
