"""The rows of ``loader.toml``: the dynamic loader's words, and what symbols and libraries say about a binary."""

from __future__ import annotations

from typing import Literal

from kerncheck.model.base import Frozen
from kerncheck.model.matrix import Known
from kerncheck.model.outcome import Severity


class SymbolOwner(Known):
    """Who should export a missing symbol: a C++ ``namespace`` (mangled, as in ``3c104cuda``) or a name's ``prefix``.

    ``shadowed`` marks libraries of which another install is often found first; then the file that the error names is
    innocent. ``stale`` may hold a pattern whose group ``wanted`` is the version that the symbol's own name asks for.
    """

    namespace: str = ""
    prefix: str = ""
    library: str
    project: str
    shadowed: bool = False
    stale: str = ""
    remedy: str = ""


class SymbolMeaning(Known):
    """What a certain missing symbol says about the torch that an extension was built for."""

    symbol: str
    means: str


class CudaLibrary(Known):
    """A library of the CUDA toolkit: its name without the number, and which number belongs to which CUDA major."""

    name: str
    majors: dict[str, str]


class SharedLibrary(Known):
    """A library, by the beginning of its name: what ships it, and what to do when it is not found.

    ``strict`` marks a library of which torch refuses an older copy than the one it was built with.
    """

    prefix: str
    ships_in: str
    remedy: str
    driver: bool = False
    strict: bool = False


class LoaderMessage(Known):
    """A pattern in an exception's message and the class that it shows."""

    pattern: str
    cause: Literal["symbol", "library", "version", "file", "python", "module", "name"]
    means: str = ""


class Said(Known):
    """A line or warning that a package writes at import. ``judge``: a finding always, on a GPU only, or a note."""

    text: str
    means: str
    judge: Literal["always", "with_gpu", "note"]
    severity: Severity = "warning"
    remedy: str = ""


class Misleading(Known):
    """What a library that catches the exception says about a package that is installed and broken."""

    library: str
    text: str
    packages: tuple[str, ...]


class LoaderFile(Frozen):
    """``loader.toml``."""

    owner: tuple[SymbolOwner, ...]
    meaning: tuple[SymbolMeaning, ...] = ()
    cuda_library: tuple[CudaLibrary, ...] = ()
    library: tuple[SharedLibrary, ...] = ()
    message: tuple[LoaderMessage, ...]
    said: tuple[Said, ...] = ()
    misleading: tuple[Misleading, ...] = ()
