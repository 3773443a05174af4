"""Section ``imports`` of a snapshot: what really happened when torch, each kernel package and each op were imported."""

from __future__ import annotations

from kerncheck.model.base import Broken, Frozen, Missing

NOT_TRIED = Missing(reason="this snapshot does not hold it")


class Host(Frozen, tag="host", tag_field="kind"):
    """The judged interpreter and its C library. ``suffixes`` are the file endings of extensions that it accepts."""

    python: str
    executable: str
    suffixes: tuple[str, ...] = ()
    glibc: str = ""
    library_path: str = ""
    prefix: str = ""


class TorchRuntime(Frozen, tag="torch_runtime", tag_field="kind"):
    """What torch says about itself once imported. ``cuda`` and ``hip`` are empty without such a build.

    ``arch_list`` holds names such as ``sm_90``; ``capabilities`` one ``"9.0"`` for each visible device.
    """

    version: str
    file: str
    cuda: str = ""
    hip: str = ""
    debug: bool = False
    git_version: str = ""
    cxx11_abi: bool | None = None
    arch_list: tuple[str, ...] = ()
    available: bool = False
    device_count: int = 0
    capabilities: tuple[str, ...] = ()
    device_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


class Offer(Frozen):
    """A public name of a compiled extension. ``least`` and ``most`` arguments: None where its docstring tells none."""

    name: str
    least: int | None = None
    most: int | None = None


class Use(Frozen):
    """A name of an extension that a wrapper's source uses. ``arguments`` passed by position; None if untold."""

    extension: str
    name: str
    arguments: int | None = None
    file: str = ""
    line: int = 0


class Imported(Frozen, tag="imported", tag_field="kind"):
    """An import that went through. For an op, ``present`` and ``is_none`` speak of the attribute.

    ``objects`` are the shared objects that this import mapped into the process, from /proc/self/maps. ``names`` are
    the public names of a compiled module: its wrapper calls them.
    """

    module: str
    file: str = ""
    version: str = ""
    present: bool = True
    is_none: bool = False
    type: str = ""
    signature: str = ""
    objects: tuple[str, ...] = ()
    names: tuple[Offer, ...] = ()


class Distribution(Frozen):
    """An installed distribution, from its metadata. ``installed`` is the time stamp of its metadata (Unix seconds)."""

    name: str
    version: str
    location: str = ""
    installed: float | None = None


class Attempt(Frozen):
    """One import in a child: of which module, what came of it, and what it said on the way.

    ``tried`` are the module names in the order tried (a package may be known by several). ``demangled`` explains the
    C++ names in the message of a failure. ``ordinary`` tells whether ``except Exception`` would catch it; ``missing``
    is the module that a ModuleNotFoundError names.
    """

    module: str
    result: Imported | Missing | Broken = NOT_TRIED
    tried: tuple[str, ...] = ()
    demangled: dict[str, str] = {}
    ordinary: bool = True
    missing: str = ""
    warnings: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


class PackageImport(Frozen):
    """A kernel package: what is installed of it, and how its root and its compiled extensions import, after torch.

    ``known_distributions``, ``known_extensions`` and ``needs`` (packages that it cannot work without) are declared.
    ``location`` is where the import system finds the package without running it ("" for nowhere). ``files`` are the
    files that look like its extensions, whatever Python they were built for. ``calls`` are the names of the
    extensions that the wrapper's source uses.
    """

    package: str
    root: Attempt
    known_distributions: tuple[str, ...] = ()
    known_extensions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    distributions: tuple[Distribution, ...] | Missing = NOT_TRIED
    location: str = ""
    files: tuple[str, ...] = ()
    calls: tuple[Use, ...] = ()
    extensions: tuple[Attempt, ...] = ()


class OpImport(Frozen):
    """One op: its id (``module:name``), the package that ships it, and how its own import went."""

    op: str
    package: str
    attempt: Attempt
    distribution: str = ""
    version: str = ""
    required: bool = False

    @property
    def result(self) -> Imported | Missing | Broken:
        """What came of the import."""
        return self.attempt.result


class Similar(Frozen):
    """A symbol that an installed library exports and that differs from a wanted one only in its parameters."""

    symbol: str
    demangled: str
    library: str


class Unresolved(Frozen):
    """A symbol that a file needs and that none of the libraries exports which the loader would search."""

    symbol: str
    demangled: str = ""
    version: str = ""
    similar: tuple[Similar, ...] = ()


class Library(Frozen):
    """A library that a file names as needed. ``path`` is what the loader would take ("" for nothing); ``via`` how."""

    name: str
    path: str = ""
    via: str = ""


class UnmetVersion(Frozen):
    """A symbol version that a file demands of a library, which does not define it. ``newest`` is the newest it has."""

    library: str
    version: str
    path: str = ""
    newest: str = ""


class ElfFacts(Frozen):
    """What a shared object asks of the loader, read from the file without loading it.

    ``role`` says what the file is: an ``extension`` of the package, a ``dependency`` that it pulls in, or one of
    torch's libraries. ``problem`` is why the file could not be read (then the rest is empty).
    """

    path: str
    package: str
    role: str = "extension"
    problem: str = ""
    size: int = 0
    modified: float | None = None
    machine: str = ""
    soname: str = ""
    needed: tuple[Library, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    unmet: tuple[UnmetVersion, ...] = ()


class Imports(Frozen, tag="imports", tag_field="kind"):
    """How torch, the kernel packages and their ops import, each in a child of its own environment."""

    host: Host | Missing = NOT_TRIED
    torch: TorchRuntime | Missing | Broken = NOT_TRIED
    torch_distribution: Distribution | None = None
    torch_demangled: dict[str, str] = {}
    packages: tuple[PackageImport, ...] = ()
    ops: tuple[OpImport, ...] = ()
    elf: tuple[ElfFacts, ...] | Missing = NOT_TRIED

    def package(self, name: str) -> PackageImport | None:
        """Return what was seen of a package, by its import name."""
        return next((package for package in self.packages if package.package == name), None)

    def op(self, name: str) -> OpImport | None:
        """Return what was seen of an op, by its id."""
        return next((op for op in self.ops if op.op == name), None)
