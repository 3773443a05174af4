"""Section ``binaries`` of a snapshot: what the compiled files of torch and of kernel packages say, none of them loaded.

Loader facts use the types of the section ``imports``: both look at the same files with the same reader.
"""

from __future__ import annotations

from typing import Literal

from kerncheck.model.base import Frozen, Missing
from kerncheck.model.imports import Library, UnmetVersion, Unresolved

Role = Literal["extension", "module", "dependency", "torch"]
NOT_LOOKED = Missing(reason="this snapshot does not hold it")


class Code(Frozen):
    """Device code of one kind: how many entries of it there are, and how many of them are compressed.

    ``kind`` is ``cubin`` (machine code), ``ptx``, ``lto`` or ``kind N``. ``arch`` is 90 for capability 9.0; ``suffix``
    is ``a``, ``f`` or empty. ``isa`` is the newest version of the PTX language among the entries (``9.0``).
    """

    kind: str
    arch: int
    suffix: str = ""
    count: int = 1
    compressed: int = 0
    isa: str = ""

    @property
    def name(self) -> str:
        """The name that nvcc and torch use: ``sm_90a`` for machine code, ``compute_90`` for PTX."""
        prefix = {"cubin": "sm", "ptx": "compute"}.get(self.kind, self.kind.replace(" ", ""))
        return f"{prefix}_{self.arch}{self.suffix}"


class ImageSet(Frozen):
    """How many fat binaries of a file hold exactly these codes."""

    codes: tuple[str, ...]
    count: int


class DeviceCode(Frozen, tag="device_code", tag_field="kind"):
    """GPU code inside one file. ``sections`` names where it was found; empty for a file that has none.

    ``images`` is the number of fat binaries, about one for each compiled source file; ``sets`` says which codes occur
    together (the most frequent sets). ``hip`` tells of code for AMD GPUs; ``problem`` why the code cannot be read.
    """

    sections: tuple[str, ...] = ()
    codes: tuple[Code, ...] = ()
    images: int = 0
    sets: tuple[ImageSet, ...] = ()
    hip: bool = False
    problem: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The architectures by name, without intermediate code that no GPU can run."""
        return tuple(code.name for code in self.codes if code.kind in ("cubin", "ptx"))


class Record(Frozen):
    """What a distribution's RECORD says of a file. ``sha256`` as RECORD writes it; ``size`` in bytes."""

    distribution: str
    version: str
    sha256: str = ""
    size: int | None = None


class Shadowing(Frozen):
    """A library of which another copy lies in the way: ``path``, where ``expected`` is the file's own.

    ``via`` says how the other copy is found; ``taken`` whether it is the one that gets loaded. ``version`` is the
    number in its file's name, ``wanted`` that of the expected copy (or of its package). ``lacks`` are symbols that are
    wanted of it and that only the expected copy has.
    """

    name: str
    path: str
    expected: str
    via: str = ""
    taken: bool = True
    version: str = ""
    wanted: str = ""
    lacks: tuple[str, ...] = ()


class BinaryFile(Frozen):
    """One compiled file. ``problem`` is why it could not be read (then most is empty).

    ``role``: a known ``extension`` of a package, another ``module`` of it, a ``dependency`` that these pull in, or one
    of ``torch``'s libraries. ``header`` is word size and processor in words, ``module`` the name it is imported by.
    ``unread`` are libraries it needs that were found and are damaged. ``elsewhere`` maps a needed name that the loader
    does not find to a file of that name in the environment. ``siblings`` are symbols that only another file of the
    same package exports, which the package may load first.
    """

    path: str
    package: str
    role: Role = "extension"
    module: str = ""
    problem: str = ""
    size: int = 0
    header: str = ""
    soname: str = ""
    needed: tuple[Library, ...] = ()
    unread: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    siblings: tuple[str, ...] = ()
    unmet: tuple[UnmetVersion, ...] = ()
    shadowed: tuple[Shadowing, ...] = ()
    device: DeviceCode | Missing = NOT_LOOKED
    records: tuple[Record, ...] = ()
    sha256: str = ""


class Package(Frozen):
    """A kernel package that was looked for. ``extensions`` are its known compiled modules.

    ``installed`` lists its distributions with versions (``causal-conv1d 1.7.0``); empty when none is installed.
    ``problem`` is why its files could not be looked at.
    """

    package: str
    extensions: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    files: tuple[BinaryFile, ...] = ()
    problem: str = ""


class Binaries(Frozen, tag="binaries", tag_field="kind"):
    """Compiled files of torch and of kernel packages, read without loading them.

    ``header`` is word size and processor of the judged interpreter. ``torch_folder`` is empty without torch.
    ``torch_abi`` is which std::string torch's own exports take: ``C++11``, ``pre-C++11``, or empty where none tells.
    ``strays`` are parts of a library that torch opens by their names at run time, which lie in another installation
    than the library itself (``expected`` is its folder).
    """

    header: str = ""
    glibc: str = ""
    torch_folder: str = ""
    torch_abi: str = ""
    torch: tuple[BinaryFile, ...] = ()
    strays: tuple[Shadowing, ...] = ()
    packages: tuple[Package, ...] = ()

    @property
    def files(self) -> tuple[BinaryFile, ...]:
        """Every file that was looked at, torch's first."""
        return (*self.torch, *(file for package in self.packages for file in package.files))
