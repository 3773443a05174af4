"""KC231 to KC234: whether the loader would find what each compiled file needs, and in the right file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from kerncheck.checks.binaries import is_foreign
from kerncheck.checks.binaries_common import NEEDS, Subject, binaries, listed, rebuild, torch, torch_words, verdicts
from kerncheck.checks.binaries_symbols import Group, groups
from kerncheck.checks.imports_causes import cuda_major
from kerncheck.checks.registry import Case, check
from kerncheck.versions import parse

if TYPE_CHECKING:
    from kerncheck.model.binaries import Shadowing
    from kerncheck.model.loader import SharedLibrary
    from kerncheck.model.outcome import Outcome, Say

ALSO = ("imports",)
TORCH_CUDA = ("libc10_cuda.so", "libtorch_cuda", "libtorch_cuda_linalg.so")
"""Libraries that a CUDA build of torch has and a CPU build has not (wheels torch 2.13.0+cpu and 2.14.1)."""


@check("KC231", "every library that a compiled file needs is there", needs=NEEDS, also=ALSO)
def libraries(case: Case, say: Say) -> Iterator[Outcome]:
    """A needed library is missing.

    What it checks
    Each DT_NEEDED entry of each compiled file is looked for as the loader would: among what torch has loaded, RPATH,
    LD_LIBRARY_PATH, RUNPATH, the loader's cache, the system's folders. The finding names the cause: a CPU build of
    torch, a CUDA of another major, another torch.

    Why it matters
    The package is installed and cannot be loaded; model libraries then use their eager code.

    Example
    causal_conv1d_cuda needs libc10_cuda.so and libtorch_cuda.so; the installed torch is a CPU build.

    How to fix
    Install the build that belongs to this torch. Never rename or link a library of another version.
    """
    yield from verdicts(case, say, "every needed library is found", missing_libraries)


def missing_libraries(case: Case, say: Say, subject: Subject) -> Iterator[Outcome]:
    """Say which libraries of a file are nowhere, and why."""
    missing = [need.name for need in subject.file.needed if not need.path]
    driver = [name for name in missing if is_driver(case, name)]
    others = [name for name in missing if name not in driver]
    if is_foreign(case, subject.file):
        return
    if driver and not others:
        yield say.note(
            subject.name, f"{subject.name} needs {listed(driver)} of the NVIDIA driver, which only a node has"
        )
    if others:
        cause, remedy, source = cause_of(case, subject, others)
        yield say.failed(
            subject.name,
            f"{subject.name} cannot be loaded: {cause}",
            found=f"{PurePath(subject.file.path).name} needs {listed(others)}, found nowhere",
            wanted=f"{listed(others)} where the loader looks, or a build for {torch_words(case)}",
            remedy=remedy,
            severity=subject.severity,
            source=source,
        )


def is_driver(case: Case, name: str) -> bool:
    """Tell whether a library belongs to the driver, so that an image never holds it."""
    row = row_of(case, name)
    return row is not None and row.driver


def row_of(case: Case, name: str) -> SharedLibrary | None:
    """Return what is known of a library by the beginning of its name."""
    return next((row for row in case.catalog.loader.library if name.startswith(row.prefix)), None)


def cause_of(case: Case, subject: Subject, missing: list[str]) -> tuple[str, str, str]:
    """Return (cause, remedy, source) of missing libraries: the first cause explains the others."""
    facts, build = torch(case), rebuild(case, subject.package)
    cuda = [name for name in missing if name.startswith(TORCH_CUDA)]
    if cuda and facts is not None and facts.cpu:
        remedy = f"install the CUDA build of torch that the package was built for, or build it anew after that: {build}"
        return f"CPU build of torch: {listed(cuda)} (torch {facts.version})", remedy, ""
    major = next(((name, found) for name in missing if (found := cuda_major(case, name))), None)
    own = facts.cuda.partition(".")[0] if facts else ""
    if major and own and major[1] != own:
        text = f"another CUDA: it needs {major[0]} of CUDA {major[1]}, the installed torch is of CUDA {own}"
        return text, f"install the build for CUDA {own}, or build it here: {build}", "cases of state-spaces/mamba#826"
    row = row_of(case, missing[0])
    place = subject.file.elsewhere.get(missing[0], "")
    if place:
        text = f"{missing[0]} lies at {place}, where the loader does not look"
        return (
            text,
            f"import torch before the package; else build it for this torch: {build}",
            row.source if row else "",
        )
    if row is not None:
        return f"{missing[0]} is missing, which {row.ships_in} ships", row.remedy, row.source
    return f"{listed(missing)} not found", f"install what ships {missing[0]}, or build here: {build}", ""


@check("KC232", "every library is taken from where it belongs", needs=NEEDS, also=ALSO)
def right_files(case: Case, say: Say) -> Iterator[Outcome]:
    """A library is taken from the wrong place.

    What it checks
    Each CUDA library that torch and the packages need is looked for twice: with the environment's variables, and as
    the file itself would find it. Where the two differ, the symbols that are wanted of it are looked up in both. Two
    CUDA runtimes of different majors in one process are found too.

    Why it matters
    An older nvJitLink, NCCL or cuDNN that LD_LIBRARY_PATH brings answers to the same name. The error then names an
    innocent file, or comes at the first use.

    Example
    libcusparse.so.12 wants __nvJitLinkComplete_12_4; LD_LIBRARY_PATH leads to a libnvJitLink.so.12 that has 12_1.

    How to fix
    Take the folder out of LD_LIBRARY_PATH, so that the libraries which torch requires are found.
    """
    yield from verdicts(case, say, "each CUDA library is found where it belongs", wrong_files)
    yield from (stray_part(say, part) for part in binaries(case).strays if not same_version(part))


def same_version(part: Shadowing) -> bool:
    """Tell whether a part is known to be of the version that it would work with."""
    found, wanted = parse(part.version), parse(part.wanted)
    return found is not None and wanted is not None and found.release[:3] == wanted.release[:3]


def stray_part(say: Say, part: Shadowing) -> Outcome:
    """Warn about a part of cuDNN that another installation would bring at its first use."""
    versions = f" {part.version or 'of unknown version'} beside {part.wanted or 'another'}"
    return say.failed(
        part.name,
        f"{part.name} is not beside torch's own cuDNN and would be opened from {part.path}:{versions}",
        found=f"{part.path} ({part.via})",
        wanted=f"{part.name} in {part.expected}, or nowhere",
        remedy=f"take {PurePath(part.path).parent} out of the loader's search, or install a cuDNN wheel that has it",
        severity="warning",
        source="pytorch/pytorch#188892, #185512",
    )


def wrong_files(case: Case, say: Say, subject: Subject) -> Iterator[Outcome]:
    """Say which libraries come from the wrong place, and whether two CUDA runtimes meet."""
    if not is_foreign(case, subject.file):
        for shadow in subject.file.shadowed:
            yield from shadow_verdict(case, say, subject, shadow)
        yield from two_runtimes(case, say, subject)


def shadow_verdict(case: Case, say: Say, subject: Subject, shadow: Shadowing) -> Iterator[Outcome]:
    """Judge two copies of one library: an error if the wrong one is taken and lacks something."""
    strict = is_strict(case, shadow) and older(shadow)
    if not shadow.lacks and not (shadow.taken and older(shadow)):
        if shadow.taken:
            yield say.note(
                shadow.name, f"{shadow.name} is taken from {shadow.path} ({shadow.via}), not from {shadow.expected}"
            )
        return
    lacks = f"; it lacks {listed(shadow.lacks, 3)}" if shadow.lacks else ""
    version = f" (version {shadow.version})" if shadow.version else ""
    verb = "resolves to" if shadow.taken else "would resolve, for any file without an RPATH, to"
    yield say.failed(
        shadow.name,
        f"{shadow.name}, which {subject.name} needs, {verb} {shadow.path}{version} via {shadow.via}{lacks}",
        found=f"{shadow.path}{version}{lacks}",
        wanted=shadow.expected,
        remedy=f"take {PurePath(shadow.path).parent} out of {shadow.via}, so that {shadow.expected} is found",
        severity="error" if shadow.taken and (shadow.lacks or strict) else "warning",
        source="pytorch/pytorch#134929, #119932",
    )


def is_strict(case: Case, shadow: Shadowing) -> bool:
    """Tell whether torch refuses an older copy of this library at its first use, even with every symbol there."""
    row = row_of(case, shadow.name)
    return row is not None and row.strict


def older(shadow: Shadowing) -> bool:
    """Tell whether the copy in the way is known to be older than the right one."""
    found, wanted = parse(shadow.version), parse(shadow.wanted)
    return found is not None and wanted is not None and found < wanted


def two_runtimes(case: Case, say: Say, subject: Subject) -> Iterator[Outcome]:
    """Warn about a CUDA runtime of another major than torch's that a working search brings into the process."""
    facts = torch(case)
    own = facts.cuda.partition(".")[0] if facts else ""
    for need in subject.file.needed:
        major = cuda_major(case, need.name)
        if need.path and own and major and major != own and need.name.startswith("libcudart"):
            yield say.failed(
                subject.name,
                f"two CUDA runtimes in one process: {subject.name} brings {need.name}, torch uses that of CUDA {own}",
                found=f"{need.name} resolves to {need.path} ({need.via})",
                wanted=f"one CUDA runtime, of CUDA {own}",
                remedy=f"install the build for CUDA {own}, or build it here: {rebuild(case, subject.package)}",
                severity="warning",
                source="cases of state-spaces/mamba#826: a workaround through LD_LIBRARY_PATH",
            )


@check("KC233", "the system's libraries are new enough for every compiled file", needs=NEEDS, also=ALSO)
def system_versions(case: Case, say: Say) -> Iterator[Outcome]:
    """The C or C++ library is too old.

    What it checks
    The symbol versions that each compiled file demands (GLIBC_2.32, GLIBCXX_3.4.30) against those that the libraries
    define which the loader would take.

    Why it matters
    A wheel that was built on a newer system is installed and cannot be loaded.

    Example
    flash_attn_2_cuda needs GLIBC_2.32, libc.so.6 defines up to GLIBC_2.31.

    How to fix
    glibc: build the package here, or use a newer base image. libstdc++: let the environment's own copy be found first.
    """
    yield from verdicts(case, say, "every symbol version is defined", old_libraries)


def old_libraries(case: Case, say: Say, subject: Subject) -> Iterator[Outcome]:
    """Say which symbol versions nobody defines, one finding for each library."""
    shadowed = {shadow.name for shadow in subject.file.shadowed if shadow.taken}
    libraries = dict.fromkeys(item.library for item in subject.file.unmet if item.library not in shadowed)
    for library in libraries if not is_foreign(case, subject.file) else ():
        items = [item for item in subject.file.unmet if item.library == library]
        newest = next((item.newest for item in items if item.newest), "")
        has = f" has up to {newest}" if newest else " has none of that kind"
        yield say.failed(
            subject.name,
            f"{subject.name} needs {listed(item.version for item in items)} of {library}, which{has}",
            found=f"{items[0].path}:{has}",
            wanted=f"{library} with {listed(item.version for item in items)}, or a build for what is here",
            remedy=older_system(case, subject, library),
            severity=subject.severity,
            source="state-spaces/mamba#765, Dao-AILab/flash-attention#1708",
        )


def older_system(case: Case, subject: Subject, library: str) -> str:
    """Return what to do about a library of the system that is too old."""
    build = rebuild(case, subject.package)
    if library.startswith(("libstdc++", "libgcc_s")):
        first = "put the environment's lib folder, with its newer libstdc++.so.6, first in LD_LIBRARY_PATH"
        return f"{first}; or build here: {build}"
    return f"build the package on this system: {build}; or use a base image with a newer {library}"


@check("KC234", "every symbol that a compiled file wants is exported", needs=NEEDS, also=ALSO)
def symbols(case: Case, say: Say) -> Iterator[Outcome]:
    """Undefined symbols.

    What it checks
    Each undefined symbol of each compiled file is looked up, by hash, in the libraries that the loader would search.
    What nobody exports is shown readable and grouped by what it means: another torch, the other C++ ABI, another CUDA
    runtime, another Python.

    Why it matters
    Symbols decide where versions only hint: one release of torch may take an extension in one CUDA flavour and not in
    another.

    Example
    causal_conv1d_cuda wants c10::cuda::SetDevice(int); libc10_cuda.so exports SetDevice(signed char, bool).

    How to fix
    Build the package for the installed torch, without build isolation, or install the wheel made for it.
    """
    yield from verdicts(case, say, "every symbol is exported by a library that is found", undefined)


def undefined(case: Case, say: Say, subject: Subject) -> Iterator[Outcome]:
    """Say what nobody exports, one finding for each meaning."""
    if is_foreign(case, subject.file):
        return
    for group in groups(case, subject.file, binaries(case).torch_abi):
        yield say.failed(
            subject.name,
            f"{subject.name} wants {counted_symbols(group)} that nobody exports: {group.means}",
            found=listed(group.shown, 3),
            wanted=group.near or f"a build for {torch_words(case)}",
            remedy=group.remedy or f"install the wheel made for it, or build it here: {rebuild(case, subject.package)}",
            severity=subject.severity,
            source=group.source,
        )


def counted_symbols(group: Group) -> str:
    """Return how many symbols a group has, or the only one."""
    return group.shown[0] if len(group.shown) == 1 else f"{len(group.shown)} symbols"
