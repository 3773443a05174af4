"""Is there a prebuilt wheel of a compiled package for this torch, CUDA, Python and machine; else what builds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from kerncheck.versions import parse

if TYPE_CHECKING:
    from kerncheck.catalog import Catalog
    from kerncheck.model.matrix import Gencode, KernelFile, Wheels, WheelSet
    from kerncheck.model.releases import Toolkit, TorchRelease

OLDEST_WITH_12_8 = Version("12.8")  # the bounds are the names of the fields of `gencode`
OLDEST_WITH_11_8 = Version("11.8")
OLDEST_WITH_13_0 = Version("13.0")
NEWEST_WITH_12_9 = Version("12.9")


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a wheel must fit: torch and the CUDA version of its build, Python (``3.12``) and the machine."""

    torch: TorchRelease
    cuda: str
    python: str
    machine: str

    @property
    def torch_minor(self) -> str:
        """Torch's major and minor version, as wheels are named by."""
        return f"{self.torch.version.major}.{self.torch.version.minor}"

    @property
    def cuda_major(self) -> str:
        """The major version of CUDA."""
        return self.cuda.partition(".")[0]


def tag_for(row: Wheels, place: Place) -> str:
    """Return the CUDA part of the name that a release gives such a wheel: ``cu12``, or ``cu118`` for old ones."""
    tags = [tag for tag in row.tags if tag.removeprefix("cu").startswith(place.cuda_major)]
    return tags[0] if tags else f"cu{place.cuda_major}"


def wheel_name(item: KernelFile, row: Wheels, place: Place) -> str:
    """Return the exact file name of the wheel that fits, whether or not it was published."""
    abi = "TRUE" if place.torch.cxx11_abi else "FALSE"
    python = place.python.replace(".", "")
    template = item.package.wheel_name.partition("-cp")[0].replace("cu{cuda_major}", tag_for(row, place))
    stem = template.format(**{"version": row.version, "torch_major_minor": place.torch_minor, "TRUE|FALSE": abi})
    return f"{stem}-cp{python}-cp{python}-linux_{place.machine}.whl"


def lacking(row: Wheels, place: Place) -> str:
    """Return why a release has no wheel that fits, in words; empty when it has one."""
    tag, torch, abi = tag_for(row, place), place.torch_minor, place.torch.cxx11_abi
    given = (
        (f"torch {torch}", torch, row.torch),
        (f"Python {place.python}", place.python, row.python),
        (f"{tag} (CUDA {place.cuda_major})", tag, row.tags),
        (place.machine, place.machine, row.machines),
    )
    for what, value, known in given:
        if value not in known:
            return f"its wheels are for {', '.join(known) or 'nothing known'}, none is for {what}"
    if any(excluded(item, place, tag) for item in row.exclude):
        return f"of its wheels none is for torch {torch} with {tag} on {place.machine}"
    return "" if not row.cxx11_abi or abi in row.cxx11_abi else f"none has cxx11abi{str(abi).upper()}"


def excluded(some: WheelSet, place: Place, tag: str) -> bool:
    """Tell whether a wheel lies in a set of those that were not published."""
    parts: tuple[tuple[object, tuple[object, ...]], ...] = (
        (place.torch_minor, some.torch),
        (place.python, some.python),
        (tag, some.tags),
        (place.machine, some.machines),
        (place.torch.cxx11_abi, some.cxx11_abi),
    )
    return all(value in values for value, values in parts if values)


def wheels_of(item: KernelFile, version: Version) -> Wheels | None:
    """Return the row of a release's prebuilt wheels."""
    return next((row for row in item.wheels if row.version == version), None)


def wheel_toolkit(row: Wheels, place: Place) -> str:
    """Return the CUDA version that a release's wheels of this CUDA major were built with, such as ``12.9.1``."""
    return next((cuda for cuda in row.cuda if cuda.partition(".")[0] == place.cuda_major), "")


def gencode_of(item: KernelFile, version: Version) -> Gencode | None:
    """Return which architectures the setup of a release builds."""
    return next((row for row in item.gencode if row.versions.contains(version)), None)


def architectures(row: Gencode, nvcc: str) -> tuple[int, ...]:
    """Return the architectures that a release's setup asks of an nvcc of this version, lowest first."""
    version = parse(".".join(nvcc.split(".")[:2])) or Version("0")
    bounds = (
        (row.nvcc_up_to_12_9, version <= NEWEST_WITH_12_9),
        (row.nvcc_from_11_8, version >= OLDEST_WITH_11_8),
        (row.nvcc_from_12_8, version >= OLDEST_WITH_12_8),
        (row.nvcc_from_13_0, version >= OLDEST_WITH_13_0),
    )
    return tuple(sorted({*row.always, *(number for numbers, holds in bounds if holds for number in numbers)}))


def toolkit_row(catalog: Catalog, version: str) -> Toolkit | None:
    """Return the CUDA toolkit that a version (``12.9.1`` or ``12.9``) belongs to."""
    minor = ".".join(version.split(".")[:2])
    return next((row for row in catalog.cuda.toolkit if row.version == minor), None)


def compilers(catalog: Catalog, row: Toolkit) -> str:
    """Return the bounds of host compilers of a toolkit: NVIDIA's header and torch's own test, whichever is lower."""
    ceiling = catalog.cuda.torch_gcc.max_exclusive.get(row.version)
    gcc = min(row.gcc_max, int(ceiling.partition(".")[0]) - 1) if ceiling else row.gcc_max
    clang = f" or clang <= {row.clang_max}" if row.clang_max else ""
    return f"gcc <= {gcc}{clang}"
