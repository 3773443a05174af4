"""What really lies on disk: mixed CUDA families, files with two owners, copies that hide each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerncheck.checks.registry import Case, check
from kerncheck.model.base import seen
from kerncheck.model.outcome import Outcome, Say
from kerncheck.requirements import applying
from kerncheck.versions import holds, parse

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from kerncheck.model.environment import Distribution, Environment, Owner, SharedFile

FAMILY = re.compile(r"(?P<base>nvidia-.+)-(?P<family>cu\d\d)$")


@check("KC114", "NVIDIA's libraries are of one CUDA family, the one that torch pins", needs=("environment",))
def families(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge the distributions with NVIDIA's libraries.

    What it checks
    That the nvidia-*-cu11, -cu12 and -cu13 distributions are of one family; that each is the version that torch's
    metadata pins; and that nvJitLink is not older than cuSPARSE, which calls it.

    Why it matters
    Libraries of two families shadow each other: "undefined symbol: ncclMemFree" or "__nvJitLinkComplete_12_4" name
    torch's files, and the cause is the other family.

    Example
    nvidia-nccl-cu11 2.14.3 beside nvidia-nccl-cu12 2.27.3.

    How to fix
    Remove the libraries of the family that torch does not pin, then reinstall torch's own.
    """
    environment = seen(case.snapshot.environment)
    libraries = {item.name: item.version for item in environment.distributions if FAMILY.fullmatch(item.name)}
    if not libraries:
        yield say.not_applicable("NVIDIA libraries", "no nvidia-*-cuNN distribution is installed")
        return
    found = sorted({FAMILY.sub(r"\g<family>", name) for name in libraries})
    if len(found) > 1:
        yield mixed(environment, libraries, found, say)
    findings = [*pins(environment, say), *linker(libraries, say)]
    yield from findings
    if len(found) == 1 and not findings:
        yield say.passed(
            "NVIDIA libraries", f"{len(libraries)} distributions of the family {found[0]}, as torch pins them"
        )


def mixed(environment: Environment, libraries: dict[str, str], found: list[str], say: Say) -> Outcome:
    """Say that several families are installed side by side, and which of them torch does not pin."""
    torch = environment.find("torch")
    pinned = {item.name for item in applying(torch.requires if torch else (), environment)} & set(libraries)
    own = {FAMILY.sub(r"\g<family>", name) for name in pinned}
    foreign = [name for name in sorted(libraries) if FAMILY.sub(r"\g<family>", name) not in own] if own else []
    named = ", ".join(f"{name} {version}" for name, version in sorted(libraries.items()))
    return say.failed(
        "NVIDIA libraries",
        f"libraries of {' and '.join(found)} lie side by side",
        found=named,
        wanted="one family, the one that torch pins",
        remedy=f"`pip uninstall {' '.join(foreign)}`, then reinstall those that torch pins, whose files go with them: "
        f"`pip install --force-reinstall --no-deps {' '.join(sorted(pinned))}`"
        if foreign
        else "keep the family of torch's CUDA version only: reinstall torch in a fresh environment",
        severity="warning",
        source="cases of mixed families in public reports; marin-community/marin#7344",
    )


def pins(environment: Environment, say: Say) -> Iterator[Outcome]:
    """Judge each NVIDIA library against torch's own pin: older ones lack symbols, newer ones are merely untested."""
    torch = environment.find("torch")
    for item in applying(torch.requires if torch else (), environment):
        version = environment.version(item.name)
        if item.name.startswith("nvidia-") and version and holds(item.specifier, version) is False:
            yield off_the_pin(item, version, say)


def off_the_pin(item: Requirement, version: str, say: Say) -> Outcome:
    """Say that a library is not the one that torch pins."""
    pinned = max((found for one in item.specifier if (found := parse(one.version))), default=None)
    have = parse(version)
    older = pinned is not None and have is not None and have < pinned
    return say.failed(
        item.name,
        f"torch pins {item.name}{item.specifier}, found {version}",
        found=f"{item.name} {version}",
        wanted=f"{item.name}{item.specifier}",
        remedy=f"pip install '{item.name}{item.specifier}'",
        severity="error" if older else "warning",
        source="pytorch issues on undefined ncclMemFree and similar symbols; marin-community/marin#7344",
    )


def linker(libraries: dict[str, str], say: Say) -> Iterator[Outcome]:
    """Judge nvJitLink against cuSPARSE of the same family: their versions are those of the CUDA toolkit."""
    for name, version in libraries.items():
        match = FAMILY.fullmatch(name)
        other = f"nvidia-cusparse-{match['family']}" if match and match["base"] == "nvidia-nvjitlink" else ""
        link, sparse = parse(version), parse(libraries.get(other, ""))
        if link and sparse and link.release[:2] < sparse.release[:2]:
            yield say.failed(
                name,
                f"{name} {version} is older than {other} {libraries[other]}, which calls it",
                found=f"{name} {version}",
                wanted=f"{name} >= {sparse.release[0]}.{sparse.release[1]}",
                remedy=f"pip install '{name}>={sparse.release[0]}.{sparse.release[1]}'",
                source="`undefined symbol: __nvJitLinkComplete_12_4` from libcusparse.so.12",
            )


@check("KC115", "no file belongs to two distributions", needs=("environment",))
def shared_files(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge files that several distributions claim with different content.

    What it checks
    The lists of files (RECORD) of the distributions of interest, and the hash of each file that two of them claim:
    it says whose content lies on disk.

    Why it matters
    The last installed writer wins and the metadata keeps quiet: NCCL said 2.30.7, the file was 2.28.9, and 512 GPUs
    hung without an error.

    Example
    nvidia/nccl/lib/libnccl.so.2 is claimed by nvidia-nccl-cu12 2.28.9 and nvidia-nccl-cu13 2.30.7; content: cu12.

    How to fix
    Remove both owners, then install the one that torch pins.
    """
    environment = seen(case.snapshot.environment)
    shared = seen(environment.shared_files)
    by_owners: dict[tuple[str, ...], list[SharedFile]] = {}
    for item in shared:
        by_owners.setdefault(tuple(sorted(owner.name for owner in item.owners)), []).append(item)
    for files in by_owners.values():
        yield judge_owners(environment, files, say)
    if not shared:
        yield say.passed("files", "no file of the distributions of interest has two owners")


def judge_owners(environment: Environment, files: list[SharedFile], say: Say) -> Outcome:
    """Judge the files that the same distributions claim: wrong unless the content is the one that torch requires."""
    item = next((file for file in files if ".so" in file.path), files[0])
    content = next((owner for owner in item.owners if item.sha256 and owner.sha256 == item.sha256), None)
    wanted = torchs_own(environment, item.owners)
    harmless = ".so" not in item.path or (content is not None and content == wanted)
    told = f"content matches {content.name} {content.version}" if content else "content matches neither"
    told = told if item.sha256 else "its content was not compared"
    more = f" (and {len(files) - 1} more files)" if len(files) > 1 else ""
    return say.failed(
        item.path,
        f"{item.path}{more} is claimed by {' and '.join(f'{one.name} {one.version}' for one in item.owners)}; {told}",
        found=told,
        wanted=f"the file of {wanted.name} {wanted.version}, which torch requires" if wanted else "one owner",
        remedy=one_owner(item, wanted),
        severity="warning" if harmless else "error",
        source="marin-community/marin#7344",
    )


def one_owner(item: SharedFile, wanted: Owner | None) -> str:
    """Return how to leave one owner: removing one also removes the shared file, so the other is installed again."""
    if wanted is None:
        return "remove all of them, then install the one that is needed"
    names = " ".join(owner.name for owner in item.owners)
    return f"`pip uninstall {names}`, then `pip install {wanted.name}=={wanted.version}`"


def torchs_own(environment: Environment, owners: tuple[Owner, ...]) -> Owner | None:
    """Return the owner that torch's metadata requires, if one is."""
    torch = environment.find("torch")
    required = {item.name for item in applying(torch.requires if torch else (), environment)}
    return next((owner for owner in owners if owner.name in required), None)


@check("KC118", "what is installed is what the metadata says", needs=("environment",))
def written_versions(case: Case, say: Say) -> Iterator[Outcome]:
    """Compare the version in the metadata with the one written in the module.

    What it checks
    For each distribution of interest that carries its version in its source, whether that is the one in the metadata.

    Why it matters
    Where the two differ, files were copied over an installation, a folder on the path hides it, or an upgrade stopped
    half-way. Rules about versions then speak of something else than what runs.

    Example
    The metadata of triton say 3.7.1, its module says 3.4.0.

    How to fix
    Remove the distribution, look for a left-over folder, and install it again.
    """
    environment = seen(case.snapshot.environment)
    compared = [item for item in environment.distributions if item.imported and parse(item.imported)]
    for item in compared:
        yield from differing(item, say)
    if compared and not any(True for item in compared for _ in differing(item, say)):
        yield say.passed("versions", f"{len(compared)} distributions carry the version that their metadata say")
    if not compared:
        yield say.not_applicable("versions", "no distribution of interest carries its version in its source")


def differing(item: Distribution, say: Say) -> Iterator[Outcome]:
    """Compare one distribution; a post release or a local tag alone is only worth a note."""
    metadata, written = parse(item.version), parse(item.imported)
    if metadata is None or written is None or metadata.public == written.public:
        return
    if metadata.base_version == written.base_version:
        yield say.note(item.name, f"the metadata say {item.version}, the module says {item.imported}")
        return
    yield say.failed(
        item.name,
        f"the metadata of {item.name} say {item.version}, the module says {item.imported}",
        found=f"{item.imported} in {item.module}",
        wanted=item.version,
        remedy=f"`pip uninstall {item.name}` until it is gone, remove what is left of its folder, install it again",
        severity="warning",
    )


@check("KC119", "no folder outside of the environment hides it", needs=("environment",))
def shadowing(case: Case, say: Say) -> Iterator[Outcome]:
    """Judge where the distributions of interest come from.

    What it checks
    Whether torch and a compiled package come from different places of which one is the user's site folder or stands in
    PYTHONPATH, and whether a copy there hides another version in the environment.

    Why it matters
    The user's site folder is shared by every environment of one Python version, and containers mount it: torch of the
    image then meets an extension that was built for another one. Tracebacks mix two prefixes.

    Example
    torch in /usr/local/lib/python3.12/dist-packages, flash-attn in ~/.local/lib/python3.12/site-packages.

    How to fix
    Set PYTHONNOUSERSITE=1 (or unset PYTHONPATH), and install what is missing into the environment itself.
    """
    environment = seen(case.snapshot.environment)
    located = [item for item in environment.distributions if item.location]
    if not located:
        yield say.not_judged("import path", "it was not observed where the distributions lie", required=False)
        return
    outcomes = [*foreign(case, environment, located, say), *hiding(environment, located, say)]
    yield from outcomes
    if not outcomes:
        yield say.passed("import path", f"{len(located)} distributions of interest come from the environment itself")


def outside(environment: Environment, location: str) -> str:
    """Return which variable or folder brings a location onto the import path; empty for the environment's own."""
    if environment.python.user_site and location == environment.python.user_site:
        return "the user's site folder"
    entries = environment.variables.get("PYTHONPATH", "").split(":")
    return "PYTHONPATH" if location in [entry.rstrip("/") for entry in entries if entry] else ""


def foreign(case: Case, environment: Environment, located: list[Distribution], say: Say) -> Iterator[Outcome]:
    """Say of each compiled package that it and torch come from different places, one of them outside."""
    torch = environment.find("torch")
    compiled = {item.package.distributions[0] for item in case.catalog.kernels.values() if item.package.extension}
    for item in located if torch and torch.location else ():
        assert torch is not None  # noqa: S101 - the loop is empty without it
        cause = outside(environment, item.location) or outside(environment, torch.location)
        if item.name in compiled and item.location != torch.location and cause:
            yield say.failed(
                item.name,
                f"torch and {item.name} come from different places: {torch.location} and {item.location}",
                found=f"one of them by {cause}",
                wanted="both from the environment",
                remedy=remedy_for(cause),
                source="conda/conda#394; NVIDIA/TransformerEngine#1506; Dao-AILab/flash-attention#813",
            )


def hiding(environment: Environment, located: list[Distribution], say: Say) -> Iterator[Outcome]:
    """Say of each distribution that a copy from outside hides another version, or that one place holds two."""
    for item in located:
        other = next((copy for copy in item.copies if copy.version != item.version), None)
        cause = outside(environment, item.location)
        if other is None:
            continue
        if not cause and other.location != item.location:
            yield say.note(item.name, f"{item.name} {item.version} in {item.location} hides {other.version} below it")
            continue
        yield say.failed(
            item.name,
            f"{item.name} {item.version} ({item.location}) hides {other.version} ({other.location})",
            found=f"by {cause}" if cause else "two metadata folders in one place: an upgrade stopped half-way",
            wanted="one version on the import path",
            remedy=remedy_for(cause)
            if cause
            else f"`pip uninstall {item.name}` until it is gone, then install it again",
            severity="warning",
            source="conda/conda#394; NVIDIA/TransformerEngine#1506",
        )


def remedy_for(cause: str) -> str:
    """Return how to take a place off the import path."""
    how = "unset PYTHONPATH" if cause == "PYTHONPATH" else "set PYTHONNOUSERSITE=1"
    return f"{how}, and install what is missing into the environment itself"
