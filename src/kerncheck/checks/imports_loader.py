"""KC202 to KC205 and KC214: what the dynamic loader refused, named by its real culprit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from kerncheck.checks import imports_causes as causes
from kerncheck.checks import imports_symbols as symbols
from kerncheck.checks import imports_words as words
from kerncheck.checks.imports_verdicts import verdicts
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Missing, seen
from kerncheck.model.imports import ElfFacts, Library, TorchRuntime, Unresolved
from kerncheck.model.outcome import Outcome, Say

if TYPE_CHECKING:
    from kerncheck.checks.imports_causes import Cause
    from kerncheck.model.loader import SymbolOwner

NO_DEMANGLER = "the name as it stands in the file: no demangler was found"


@check("KC202", "No package wants a symbol that its libraries lack", needs=("imports",))
def symbols_resolve(case: Case, say: Say) -> Iterator[Outcome]:
    """Undefined symbol.

    What it checks
        The loader refused an extension because a symbol is undefined. The symbol is shown readable, with the library
        that should have it, and with exported symbols that differ only in their parameters.

    Why it matters
        The package is installed and cannot be loaded; model libraries then use their eager code and say that the
        package is not installed. The file that the error names is often innocent: an older NCCL, nvJitLink or
        libstdc++ that is found first breaks another library.

    Example
        causal_conv1d_cuda wants c10::cuda::SetDevice(int); torch 2.14 exports SetDevice(signed char, bool).

    How to fix
        Built for another torch: build the package for this torch, without build isolation. A shadowed library: let
        torch's own copy be found first.
    """
    yield from verdicts(case, say, "no undefined symbol", symbol_finding)


def symbol_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say whose symbol is missing, and what that means."""
    symbol = cause.parts["symbol"]
    owner = symbols.owner_of(symbol, case.catalog.loader)
    library = owner.library if owner else "a library that no row of loader.toml knows by this symbol"
    facts = unresolved(case, cause, symbol)
    message = (
        f"{cause.subject} cannot be loaded: {readable(cause, facts, symbol)} is undefined. It belongs to {library}"
    )
    return say.failed(
        cause.subject,
        f"{message}. {explanation(case, cause, owner)}{words.misleading(case, cause.package, cause.attempt)}",
        found=words.joined((words.exception(cause.broken), built_for(cause), provider(case, cause, owner))),
        wanted=wanted_symbol(case, owner, facts),
        remedy=symbol_remedy(case, cause, owner),
        source=owner.source if owner else "",
    )


def unresolved(case: Case, cause: Cause, symbol: str) -> Unresolved | None:
    """Return what the static look at the files knows about a symbol."""
    found = (item for facts in elf(case, cause) for item in facts.unresolved if item.symbol == symbol)
    return next(found, None)


def elf(case: Case, cause: Cause) -> tuple[ElfFacts, ...]:
    """Return the facts of the files of a cause's package."""
    facts = seen(case.snapshot.imports).elf
    return () if isinstance(facts, Missing) else tuple(item for item in facts if item.package == cause.subject)


def readable(cause: Cause, facts: Unresolved | None, symbol: str) -> str:
    """Return a symbol as C++ writes it, with the raw name."""
    name = cause.attempt.demangled.get(symbol) or (facts.demangled if facts else "")
    if name:
        return f"{name} ({symbol})"
    return f"{symbol} ({NO_DEMANGLER})" if symbol.startswith("_Z") else symbol


def explanation(case: Case, cause: Cause, owner: SymbolOwner | None) -> str:
    """Return what the missing symbol means."""
    symbol = cause.parts["symbol"]
    if owner is None:
        return "The file was linked against another version of what should export it."
    if owner.project == "torch":
        return torch_symbol(case, symbol)
    if owner.project == "python":
        host = seen(case.snapshot.imports).host
        own = "" if isinstance(host, Missing) else f" {host.python}"
        return f"The extension was built for another Python than this one{own}."
    if owner.shadowed:
        file = PurePath(cause.parts.get("file", "")).name
        first = f"Another, most often older {owner.project} was found first; {file}, named by the error, is innocent"
        return f"{first}{wanted_release(owner, symbol)}."
    return f"{owner.project} offers no such symbol here."


def wanted_release(owner: SymbolOwner, symbol: str) -> str:
    """Return the release that a symbol's own name asks for, "" where names do not tell."""
    match = re.search(owner.stale, symbol) if owner.stale else None
    return f"; the symbol's name asks for {symbols.readable_number(match['wanted'])}" if match else ""


def torch_symbol(case: Case, symbol: str) -> str:
    """Return which ABI or which torch an extension was built for, by its missing symbol alone."""
    torch = seen(case.snapshot.imports).torch
    own = torch.cxx11_abi if isinstance(torch, TorchRuntime) else None
    abi = symbols.abi_of(symbol)
    if abi == "C++11" and own is False:
        return "The extension uses the C++11 ABI (__cxx11), torch was built with _GLIBCXX_USE_CXX11_ABI=0."
    if abi == "pre-C++11" and own is True:
        return "The extension uses the pre-C++11 ABI (std::string as Ss), torch uses the C++11 ABI."
    known = symbols.meaning_of(symbol, case.catalog.loader)
    return f"The extension was built for another torch{': ' + known if known else ''}."


def built_for(cause: Cause) -> str:
    """Return what the wheel's own tag says about its build, "" without such a tag."""
    owned = cause.package.distributions
    for item in () if isinstance(owned, Missing) else owned:
        tag = symbols.wheel_tag(item.version)
        if tag:
            return f"{item.name} {item.version} was built for torch {tag['torch']}, CUDA {tag['cuda']}"
    return ""


def provider(case: Case, cause: Cause, owner: SymbolOwner | None) -> str:
    """Return which file the loader takes for a shadowed library, and how it was found."""
    if owner is None or not owner.shadowed:
        return ""
    stem = owner.library.partition(".so")[0]
    rows = (item for facts in elf(case, cause) for item in facts.needed if item.name.startswith(stem) and item.path)
    found = next(rows, None)
    return f"{found.name} resolves to {found.path}{how_found(case, found)}" if found else ""


def how_found(case: Case, library: Library) -> str:
    """Return how the loader found a library."""
    host = seen(case.snapshot.imports).host
    value = "" if isinstance(host, Missing) else host.library_path
    if library.via == "LD_LIBRARY_PATH":
        return f" (LD_LIBRARY_PATH={value})"
    return f" ({library.via})" if library.via else ""


def wanted_symbol(case: Case, owner: SymbolOwner | None, facts: Unresolved | None) -> str:
    """Return what the installed libraries export instead, or what would export the symbol."""
    near = [f"{item.library} exports {item.demangled or item.symbol}" for item in facts.similar[:3]] if facts else []
    if near:
        return "an extension built for the symbols that are there: " + "; ".join(near)
    torch = seen(case.snapshot.imports).torch
    if owner and owner.project == "torch" and isinstance(torch, TorchRuntime):
        return f"an extension built for torch {torch.version}"
    return f"{owner.library} that exports the symbol" if owner else "a build for the libraries that are there"


def symbol_remedy(case: Case, cause: Cause, owner: SymbolOwner | None) -> str:
    """Return how to get a matching pair."""
    if owner is not None and owner.remedy:
        return owner.remedy
    build = words.rebuild(case, cause.package)
    return f"install the wheel made for this torch, CUDA, Python and C++ ABI, or build it here: {build}"


@check("KC203", "No package lacks a shared object", needs=("imports",))
def libraries_exist(case: Case, say: Say) -> Iterator[Outcome]:
    """Missing shared object.

    What it checks
        The loader did not find a library that a package needs. Which file needs it, and what ships it, is said.

    Why it matters
        The package is installed and cannot be loaded. A library of the NVIDIA driver is absent from an image build by
        nature; then the import is left to the node and not judged here.

    Example
        libcudnn_adv.so.9: cannot open shared object file, though the nvidia-cudnn package is installed elsewhere.

    How to fix
        Install what ships the library, for this interpreter. Never rename or link a library of another version.
    """
    yield from verdicts(case, say, "no missing shared object", library_finding)


def library_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say which library is not found, who wants it and what ships it."""
    name = cause.parts["library"]
    row = next((row for row in case.catalog.loader.library if name.startswith(row.prefix)), None)
    torch = seen(case.snapshot.imports).torch
    if row and row.driver and not (isinstance(torch, TorchRuntime) and torch.available):
        reason = f"{cause.subject} needs {name} of {row.ships_in}, which is not here; {row.remedy}"
        return say.not_judged(cause.subject, reason, source=row.source)
    return say.failed(
        cause.subject,
        f"{cause.subject} cannot be loaded: {name} is not found{wanted_by(case, cause, name)}{cpu_build(torch, name)}."
        f"{words.misleading(case, cause.package, cause.attempt)}",
        found=words.joined((words.exception(cause.broken), search_path(case))),
        wanted=f"{name}, which {row.ships_in} ships" if row else name,
        remedy=row.remedy if row else f"install what ships {name}, or build here: {words.rebuild(case, cause.package)}",
        source=row.source if row else "",
    )


def wanted_by(case: Case, cause: Cause, library: str) -> str:
    """Return which file needs a library."""
    files = (facts.path for facts in elf(case, cause) for item in facts.needed if item.name == library)
    file = next(files, "")
    return f"; {PurePath(file).name} needs it" if file else ""


def cpu_build(torch: object, library: str) -> str:
    """Return that a library is one of a CUDA build of torch, where the installed one is none; "" otherwise."""
    cpu = isinstance(torch, TorchRuntime) and not torch.cuda and not torch.hip
    return f" (CPU build of torch: {library})" if cpu and library.startswith(("libc10_cuda", "libtorch_cuda")) else ""


def search_path(case: Case) -> str:
    """Return the user's LD_LIBRARY_PATH."""
    host = seen(case.snapshot.imports).host
    return "" if isinstance(host, Missing) else f"LD_LIBRARY_PATH is {host.library_path or 'not set'}"


@check("KC204", "No package is built for another CUDA", needs=("imports",))
def cuda_majors_agree(case: Case, say: Say) -> Iterator[Outcome]:
    """Another CUDA major.

    What it checks
        A package needs a CUDA library whose number belongs to another CUDA major than torch's. If the library is
        found all the same (LD_LIBRARY_PATH, another package), two CUDA runtimes share the process: a warning.

    Why it matters
        The import fails, or works by accident until the path changes. What nvcc says plays no part at import.

    Example
        selective_scan_cuda needs libcudart.so.12, torch is built for CUDA 13.0.

    How to fix
        Install the wheel for torch's CUDA, or build it here. Never rename libcudart.
    """
    yield from verdicts(case, say, "no library of another CUDA", cuda_finding)
    yield from cuda_mixtures(case, say)


def cuda_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say which CUDA a package was built for and which torch has."""
    name = cause.parts["library"]
    major = causes.cuda_major(case, name)
    return say.failed(
        cause.subject,
        f"{cause.subject} is built for CUDA {major} ({name}{wanted_by(case, cause, name)}); {torch_cuda(case)}."
        f"{words.misleading(case, cause.package, cause.attempt)}",
        found=words.joined((words.exception(cause.broken), built_for(cause))),
        wanted=f"a build for the CUDA of this torch ({torch_cuda(case)})",
        remedy="install the wheel for torch's CUDA, or build it here: "
        f"{words.rebuild(case, cause.package)}; never rename {name}",
        source="loader.toml, cuda_library",
    )


def torch_cuda(case: Case) -> str:
    """Return which CUDA torch was built for, in words."""
    torch = seen(case.snapshot.imports).torch
    if not isinstance(torch, TorchRuntime):
        return "torch does not import"
    if torch.hip:
        return f"torch {torch.version} is a ROCm build ({torch.hip})"
    return (
        f"torch {torch.version} is built for CUDA {torch.cuda}"
        if torch.cuda
        else f"torch {torch.version} is a CPU build"
    )


def cuda_mixtures(case: Case, say: Say) -> Iterator[Outcome]:
    """Warn about a CUDA runtime of another major that a working import brought into the process."""
    torch = seen(case.snapshot.imports).torch
    if not (isinstance(torch, TorchRuntime) and torch.cuda):
        return
    for package, major, path in causes.foreign_runtimes(case):
        yield say.failed(
            package.package,
            f"{package.package} imports, but brings the CUDA {major} library {path}; {torch_cuda(case)}",
            found=words.joined((path, search_path(case))),
            wanted="one CUDA major in the process",
            remedy=f"install the wheel for torch's CUDA, or build it here: {words.rebuild(case, package)}",
            severity="warning",
            source="loader.toml, cuda_library; state-spaces/mamba#826",
        )


@check("KC205", "No package needs a newer system library", needs=("imports",))
def system_is_new_enough(case: Case, say: Say) -> Iterator[Outcome]:
    """The C or C++ library of this machine is too old.

    What it checks
        The loader refused a file because glibc, libstdc++ or another library does not define a symbol version.

    Why it matters
        The wheel was built on a newer system. The package is installed and cannot be loaded.

    Example
        flash_attn_2_cuda needs GLIBC_2.32, this machine has glibc 2.31.

    How to fix
        glibc: build the package here, or use a newer base image. libstdc++: let the environment's own copy be found
        before the system's.
    """
    yield from verdicts(case, say, "no system library is too old", version_finding)


def version_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say which version of which library is wanted, and what is there."""
    version, library = cause.parts["version"], cause.parts["library"]
    wanted_in = PurePath(cause.parts.get("file", cause.subject)).name
    host = seen(case.snapshot.imports).host
    own = f"glibc {host.glibc}" if not isinstance(host, Missing) and host.glibc and version.startswith("GLIBC_") else ""
    newest = (item.newest for facts in elf(case, cause) for item in facts.unmet if item.version == version)
    has = own or next((text for text in newest if text), "")
    return say.failed(
        cause.subject,
        f"{cause.subject} cannot be loaded: {wanted_in} needs {version}, which {library} does not define"
        f"{' (it has ' + has + ')' if has else ''}.{words.misleading(case, cause.package, cause.attempt)}",
        found=words.joined((words.exception(cause.broken), f"this machine has {has}" if has else "")),
        wanted=f"{library} with {version}, or a build for what is here",
        remedy=version_remedy(case, cause, version),
        source="state-spaces/mamba#765, Dao-AILab/flash-attention#1708",
    )


def version_remedy(case: Case, cause: Cause, version: str) -> str:
    """Return what to do about a system library that is too old."""
    build = words.rebuild(case, cause.package)
    if version.startswith(("GLIBCXX_", "CXXABI_", "GCC_")):
        first = "put the environment's lib folder, with its newer libstdc++.so.6, first in LD_LIBRARY_PATH"
        return f"{first}; or build here: {build}"
    return f"build the package on this machine: {build}; or use a base image with a newer C library"


@check("KC214", "Every extension file is a whole module of this machine", needs=("imports",))
def files_are_whole(case: Case, say: Say) -> Iterator[Outcome]:
    """A file that the loader cannot use.

    What it checks
        The loader refused the file itself: cut off, no shared object, for another word size, on a noexec file system,
        not readable, or not the Python module that its name says.

    Why it matters
        The package is installed and cannot be loaded; the import error says little about the cause.

    Example
        causal_conv1d_cuda.so: file too short: the copy into the image was interrupted.

    How to fix
        Install the package again without the cache, or put it on a file system that allows running code.
    """
    yield from verdicts(case, say, "every extension file can be loaded", file_finding, compiled=True)


def file_finding(case: Case, say: Say, cause: Cause) -> Outcome:
    """Say what is wrong with the file."""
    file = cause.parts.get("file") or cause.parts.get("module", cause.subject)
    problems = (f"{facts.path}: {facts.problem}" for facts in elf(case, cause) if facts.problem)
    return say.failed(
        cause.subject,
        f"{cause.subject} cannot be loaded: {cause.means} ({file})."
        f"{words.misleading(case, cause.package, cause.attempt)}",
        found=words.joined((words.exception(cause.broken), *problems)),
        wanted="a whole extension file, for this machine and this Python",
        remedy=f"install the package again, not from the cache: {words.rebuild(case, cause.package)}",
    )
