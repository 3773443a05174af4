"""The catalog: ``matrices/`` read, typed and validated. An error names the file and the row, as one line."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from kerncheck import invariants
from kerncheck.errors import MatrixError
from kerncheck.model.image import ImageFile
from kerncheck.model.loader import LoaderFile
from kerncheck.model.matrix import (
    KernelFile,
    Known,
    KnownBad,
    ModelProfile,
    TestedFile,
    TritonFile,
    TritonRelease,
    Variable,
)
from kerncheck.model.releases import (
    CudaFile,
    DriverFile,
    DriverMessage,
    GpuFile,
    GpuModel,
    Limits,
    SeamModel,
    TorchFile,
    TorchRelease,
    TransformersFile,
    TransformersRelease,
)
from kerncheck.versions import parse

Loaded = TypeVar("Loaded")
IDENTITY = ("id", "version", "versions", "name", "folder", "cuda_major", "op", "other")
PLACE = re.compile(r"`\$(?P<path>[^`]*)`")
STEP = re.compile(r"\.?(?P<name>\w+)|\[(?P<index>\d+)\]|\[\.\.\.\]")


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Everything that is known. ``kernels`` is keyed by the names of the files, such as ``causal_conv1d``."""

    directory: Path
    torch: TorchFile
    cuda: CudaFile
    gpus: GpuFile
    triton: TritonFile
    transformers: TransformersFile
    kernels: Mapping[str, KernelFile]
    models: tuple[ModelProfile, ...]
    tested: TestedFile
    loader: LoaderFile
    image: ImageFile
    driver: DriverFile

    def model(self, name: str) -> ModelProfile | None:
        """Return the profile with this name or alias, without regard to case."""
        wanted = name.casefold()
        return next((item for item in self.models if wanted in names_of(item)), None)

    def model_for_type(self, model_type: str) -> ModelProfile | None:
        """Return the profile that speaks for a ``model_type`` of transformers."""
        return next((item for item in self.models if model_type in item.model_types), None)

    def torch_release(self, version: str) -> TorchRelease | None:
        """Return the release that a torch version is, or None for an unknown one.

        A local tag (``+cu128``) and nothing else may differ. Pre-releases, development builds and vendors' builds
        (``2.3.0a0+40ec155e58.nv24.03``) match no release: they were cut from a branch, not from the release.
        """
        return self._torch.get(public(version))

    def triton_release(self, version: str) -> TritonRelease | None:
        """Return the release of Triton with this version; a local tag (``+git1234``) may differ."""
        return self._triton.get(public(version))

    def transformers_release(self, version: str) -> TransformersRelease | None:
        """Return the row that speaks for a version of transformers: the inspected release of the same minor."""
        found = parse(version)
        if found is None or found.is_prerelease:
            return None
        rows = self.transformers.release
        return next((row for row in rows if row.version.release[:2] == found.release[:2]), None)

    def seam_rows(self, folder: str) -> SeamModel | None:
        """Return the seams of a model folder of transformers, or None for a folder without any."""
        return next((row for row in self.transformers.model if row.folder == folder), None)

    def gpu(self, name_or_cc: str) -> GpuModel | None:
        """Return the GPU of a device name (``NVIDIA H200``), a short name (``h200``), ``9.0`` or ``sm_90``.

        For a capability it is the first row that has it. A name matches as whole words at its beginning, the
        longest row first, so that ``NVIDIA L40S`` is not an L4.
        """
        cc = capability(name_or_cc)
        if cc:
            return next((row for row in self.gpus.gpu if row.cc == cc), None)
        text = re.sub(r"^(nvidia|tesla)\s+", "", name_or_cc.strip().casefold())
        text = re.sub(r"^(nvidia|tesla)\s+", "", text)
        rows = (row for row in self.gpus.gpu if re.match(re.escape(row.name.casefold()) + r"(?![a-z0-9])", text))
        return max(rows, key=lambda row: len(row.name), default=None)

    def driver_message(self, text: str) -> DriverMessage | None:
        """Return the first row whose words stand in what CUDA or NVML said."""
        said = text.casefold()
        return next((row for row in self.driver.message if row.text in said), None)

    def limits(self, cc: str) -> Limits | None:
        """Return what every GPU of a capability offers to a block."""
        return next((row for row in self.gpus.limits if row.cc == cc), None)

    def kernel_of(self, distribution: str) -> KernelFile | None:
        """Return the kernel package that ships a distribution."""
        return next((item for item in self.kernels.values() if distribution in item.package.distributions), None)

    def summary(self) -> list[tuple[str, ...]]:
        """Return (file, rows, newest date) of each file, for people."""
        found: dict[str, list[Known]] = {}
        for file, _, rows in invariants.tables(self):
            found.setdefault(file, []).extend(rows)
        return [(file, f"{len(rows)} rows", newest(rows)) for file, rows in found.items()]

    @functools.cached_property
    def known_bad(self) -> tuple[KnownBad, ...]:
        """Every known-bad row, of every package."""
        return (*self.triton.known_bad, *(row for item in self.kernels.values() for row in item.known_bad))

    @functools.cached_property
    def variables(self) -> tuple[Variable, ...]:
        """Every environment variable that a package is known to read."""
        shipped = (row for item in self.kernels.values() for row in item.variable)
        return (*self.triton.variable, *self.transformers.variable, *shipped)

    @functools.cached_property
    def ops(self) -> frozenset[str]:
        """Every op that the kernel packages' files list."""
        return frozenset(op.id for item in self.kernels.values() for op in item.op)

    @functools.cached_property
    def _torch(self) -> dict[str, TorchRelease]:
        return {row.version.public: row for row in self.torch.release}

    @functools.cached_property
    def _triton(self) -> dict[str, TritonRelease]:
        return {row.version.public: row for row in self.triton.release}


def newest(rows: list[Known]) -> str:
    """Return the date of the newest row."""
    return max((row.date.isoformat() for row in rows), default="")


def names_of(profile: ModelProfile) -> set[str]:
    """Return every name that a user may call a model by, in lower case."""
    return {name.casefold() for name in (profile.name, *profile.aliases)}


def public(version: str) -> str:
    """Return a version without its local tag; the text itself when it is no version."""
    parsed = parse(version)
    return parsed.public if parsed else version


def capability(text: str) -> str:
    """Return the compute capability that ``9.0``, ``sm_90``, ``sm_90a`` or ``compute_100`` names, else nothing."""
    dotted = re.fullmatch(r"(\d{1,2})\.(\d)", text.strip())
    if dotted:
        return f"{dotted[1]}.{dotted[2]}"
    named = re.fullmatch(r"(?:sm|compute)_?(\d{1,2})(\d)[af]?", text.strip().casefold())
    return f"{named[1]}.{named[2]}" if named else ""


def default_directory() -> Path:
    """Return where the matrices lie: inside the package (a wheel), or at the top of the checkout."""
    package = Path(__file__).parent
    packed = package / "_matrices"
    return packed if packed.is_dir() else package.parent.parent / "matrices"


def load(directory: Path | None = None) -> Catalog:
    """Read and validate the matrices.

    Raises:
        MatrixError: a file is absent, is no TOML, or a row breaks a rule; the message names the file and the row.

    """
    where = directory or default_directory()
    catalog = Catalog(
        directory=where,
        torch=read(where / "torch.toml", TorchFile),
        cuda=read(where / "cuda.toml", CudaFile),
        gpus=read(where / "gpus.toml", GpuFile),
        triton=read(where / "triton.toml", TritonFile),
        transformers=read(where / "transformers.toml", TransformersFile),
        kernels={path.stem: kernel_file(path) for path in sorted((where / "kernels").glob("*.toml"))},
        models=tuple(read(path, ModelProfile) for path in sorted((where / "models").glob("*.toml"))),
        tested=read(where / "tested.toml", TestedFile),
        loader=read(where / "loader.toml", LoaderFile),
        image=read(where / "image.toml", ImageFile),
        driver=read(where / "driver.toml", DriverFile),
    )
    invariants.enforce(catalog)
    return catalog


def kernel_file(path: Path) -> KernelFile:
    """Read a kernel package's file, and write its name into each of its known-bad rows."""
    item = read(path, KernelFile)
    rows = tuple(msgspec.structs.replace(row, package=path.stem) for row in item.known_bad)
    return msgspec.structs.replace(item, known_bad=rows)


def read(path: Path, kind: type[Loaded]) -> Loaded:
    """Read one file as one type.

    Raises:
        MatrixError: it cannot be read, is no TOML, or does not fit the type.

    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(raw, kind, dec_hook=decode)
    except OSError as error:
        raise MatrixError(f"{shown(path)}: cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MatrixError(f"{shown(path)}: not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise MatrixError(f"{shown(path)}: {placed(str(error), raw)}") from error


def decode(kind: type, value: Any) -> Any:  # noqa: ANN401 - msgspec calls it for the types that it does not know
    """Make a version or a range of versions of a string."""
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    try:
        return kind(value)
    except (InvalidVersion, InvalidSpecifier) as error:
        what = "range of versions, such as '>=2.7,<3'" if kind is SpecifierSet else "version"
        raise ValueError(f"{value!r} is not a {what} (PEP 440)") from error


def shown(path: Path) -> str:
    """Return a file's name as messages give it: with its folder where that is ``kernels`` or ``models``."""
    return f"{path.parent.name}/{path.name}" if path.parent.name in ("kernels", "models") else path.name


def placed(message: str, raw: Any) -> str:  # noqa: ANN401 - the tables as read
    """Turn msgspec's ``... - at `$.release[3].triton``` into the row's own name, then what is wrong there."""
    match = PLACE.search(message)
    if match is None:
        return message
    text = message[: match.start()].rstrip(" -at").rstrip()
    return f"{row_name(match['path'], raw)}: {text}"


def row_name(path: str, raw: Any) -> str:  # noqa: ANN401 - the tables as read
    """Return a path such as ``.release[3].triton`` as ``release 4 (version '2.9.1'), triton``."""
    words: list[str] = []
    here = raw
    for step in STEP.finditer(path):
        if step["index"] is not None:
            here = here[int(step["index"])]
            words[-1] += f" {int(step['index']) + 1}{identity(here)}"
        elif step["name"] is not None:
            here = here.get(step["name"]) if isinstance(here, dict) else None
            words.append(step["name"])
    return ", ".join(words) or "the file"


def identity(row: Any) -> str:  # noqa: ANN401 - a table as read
    """Return what tells a row from its neighbours, such as `` (version '2.9.1')``."""
    if not isinstance(row, dict):
        return ""
    return next((f" ({name} {row[name]!r})" for name in IDENTITY if name in row), "")


__all__ = ["Catalog", "MatrixError", "Version", "load"]
