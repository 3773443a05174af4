"""What speaks against installing some versions together for some GPUs: each objection names the row that it is from.

The rules look at a combination that may be unfinished: what is not chosen yet is not judged. They use the same data
and the same functions as the checks of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from kerncheck.architectures import coverage, number_of
from kerncheck.invariants import EVERY_OP
from kerncheck.matching import Setting, applies, older
from kerncheck.versions import holds, parse
from kerncheck.wheels import Place, architectures, gencode_of, lacking, toolkit_row, wheel_toolkit, wheels_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.specifiers import SpecifierSet

    from kerncheck.catalog import Catalog
    from kerncheck.model.job import ModelRequest, Target
    from kerncheck.model.matrix import KernelFile, KernelRelease, KnownBad, TritonRelease
    from kerncheck.model.releases import DriverFloor, TorchRelease, TransformersRelease

RUNS = ("native", "compatible", "ptx")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a combination must serve. ``torch`` is a version or its beginning; an empty driver is not declared.

    ``prebuilt`` asks for a published wheel of each compiled package.
    """

    model: ModelRequest
    gpus: tuple[Target, ...]
    python: str
    machine: str
    torch: str = ""
    driver: str = ""
    prebuilt: bool = False


@dataclass(frozen=True, kw_only=True)
class Combination:
    """Versions that go together, as far as they are chosen. ``kernels`` maps names of kernel files to versions."""

    torch: TorchRelease
    cuda: str
    triton: TritonRelease | None = None
    kernels: Mapping[str, Version] = field(default_factory=dict)
    transformers: TransformersRelease | None = None

    def packages(self, catalog: Catalog) -> dict[str, str]:
        """Return the version of each distribution."""
        found = {"torch": str(self.torch.version)}
        if self.triton:
            found["triton"] = str(self.triton.version)
        for name, version in self.kernels.items():
            found |= dict.fromkeys(distributions(catalog.kernels[name], version), str(version))
        if self.transformers:
            found["transformers"] = str(self.transformers.version)
        return found

    def with_kernel(self, name: str, version: Version) -> Combination:
        """Return the combination with one more kernel package."""
        return replace(self, kernels={**self.kernels, name: version})

    def place(self, wanted: Wanted) -> Place:
        """Return what a prebuilt wheel must fit."""
        return Place(torch=self.torch, cuda=self.cuda, python=wanted.python, machine=wanted.machine)


@dataclass(frozen=True)
class Objection:
    """Why something does not go: the file and row that say so, and what they say. A caution alone forbids nothing."""

    row: str
    reason: str
    caution: bool = False


Rule = Callable[[Combination, Wanted, "Catalog"], Iterator[Objection]]


def distributions(item: KernelFile, version: Version) -> tuple[str, ...]:
    """Return what must be installed of a kernel package: before the core was split off, the last one alone."""
    release = release_of(item, version)
    split = release is None or release.split_core
    return item.package.distributions if split else item.package.distributions[-1:]


def release_of(item: KernelFile, version: Version) -> KernelRelease | None:
    """Return the row of a release of a kernel package."""
    return next((row for row in item.release if row.version == version), None)


def label(gpu: Target) -> str:
    """Return a GPU's name with its capability."""
    return f"{gpu.name} ({gpu.cc})" if gpu.name else f"sm_{number_of(gpu.cc)}"


def torch_name(combination: Combination) -> str:
    """Return the row of the chosen torch."""
    return f"torch.toml: release (version '{combination.torch.version}')"


def kernel_row(name: str, version: Version) -> str:
    """Return the row of a release of a kernel package."""
    return f"kernels/{name}.toml: release (version '{version}')"


def torch_rules(combination: Combination, wanted: Wanted, catalog: Catalog) -> Iterator[Objection]:
    """A wheel for this Python; code for each GPU; a driver that runs this CUDA."""
    torch, cuda, row = combination.torch, combination.cuda, torch_name(combination)
    if wanted.python not in torch.python:
        yield Objection(row, f"has wheels for Python {', '.join(torch.python)}, not for {wanted.python}")
    built = getattr(torch.arch[cuda], wanted.machine)
    names = [*(f"sm_{number}" for number in built), *(f"compute_{number}" for number in torch.arch[cuda].ptx)]
    for gpu in wanted.gpus:
        if coverage(names, gpu.cc, catalog.torch.device_rule, cuda) not in RUNS:
            has = ", ".join(names) or "no CUDA code"
            yield Objection(row, f"built for CUDA {cuda} on {wanted.machine} it holds {has}: nothing for {label(gpu)}")
    floor = floor_of(cuda, catalog)
    if floor and not driver_reaches(wanted.driver, floor):
        where = f"cuda.toml: floor (cuda_major {floor.cuda_major})"
        yield Objection(where, f"CUDA {cuda} needs driver >= {spelled(floor.exact)}, declared is {wanted.driver}")


def floor_of(cuda: str, catalog: Catalog) -> DriverFloor | None:
    """Return the oldest driver of a CUDA version's major."""
    major = cuda.partition(".")[0]
    return next((row for row in catalog.cuda.floor if str(row.cuda_major) == major), None)


def spelled(driver: Version) -> str:
    """Return a driver's version as NVIDIA writes it: the third part has two digits (``580.65.06``)."""
    return ".".join(str(part).zfill(2) if index > 1 else str(part) for index, part in enumerate(driver.release))


def driver_reaches(driver: str, floor: DriverFloor) -> bool:
    """Tell whether a declared driver, or only its branch (``580``), is at or above a floor; none is not judged."""
    version = parse(driver)
    if version is None:
        return True
    return version >= (floor.exact if len(version.release) > 1 else floor.branch)


def triton_rules(combination: Combination, wanted: Wanted, catalog: Catalog) -> Iterator[Objection]:
    """A wheel for this Python; GPUs that Triton says it supports and its ptxas knows; a driver for ptxas' output."""
    triton = combination.triton
    if triton is None:
        return
    row = f"triton.toml: release (version '{triton.version}')"
    if holds(triton.python, wanted.python) is False:
        yield Objection(row, f"wants Python {triton.python}, not {wanted.python}")
    for gpu in wanted.gpus:
        yield from unsupported(triton, gpu, catalog)
        ptxas = ptxas_for(triton, gpu)
        if not reaches(triton, ptxas, gpu, catalog):
            yield Objection(row, f"its ptxas {ptxas} cannot compile for {label(gpu)}")
        floor = floor_of(ptxas, catalog)
        if floor and not driver_reaches(wanted.driver, floor):
            yield Objection(
                row,
                f"its ptxas {ptxas} for {label(gpu)} makes code for drivers >= {spelled(floor.exact)}, declared is "
                f"{wanted.driver} (derived, not run)",
            )


def unsupported(triton: TritonRelease, gpu: Target, catalog: Catalog) -> Iterator[Objection]:
    """Compare a GPU with the hardware that this Triton says it supports."""
    for row in catalog.triton.hardware:
        if row.versions.contains(triton.version) and older(gpu.cc, row.cc_min):
            where = f"triton.toml: hardware (versions '{row.versions}')"
            yield Objection(where, f"supported are compute capabilities from {row.cc_min} on, not {label(gpu)}")


def ptxas_for(triton: TritonRelease, gpu: Target) -> str:
    """Return the version of the ptxas that this Triton takes for a GPU."""
    other = triton.blackwell_from is not None and number_of(gpu.cc) >= triton.blackwell_from
    return triton.ptxas_blackwell if other else triton.ptxas


def reaches(triton: TritonRelease, ptxas: str, gpu: Target, catalog: Catalog) -> bool:
    """Tell whether a ptxas compiles for a GPU: from 100 on as was read from it, below as its toolkit does."""
    number = number_of(gpu.cc)
    if number >= 100:
        return number in triton.blackwell
    toolkit = toolkit_row(catalog, ptxas)
    return toolkit is not None and number in toolkit.arch


def requirement_rules(combination: Combination, wanted: Wanted, catalog: Catalog) -> Iterator[Objection]:
    """What each chosen release wants of Python and of the others that are chosen."""
    packages = combination.packages(catalog)
    for name, version in combination.kernels.items():
        item = catalog.kernels[name]
        if holds(item.package.python, wanted.python) is False:
            where = f"kernels/{name}.toml: package"
            yield Objection(where, f"{name} wants Python {item.package.python}, not {wanted.python}")
        release = release_of(item, version)
        if release:
            yield from release_rules(name, release, packages, wanted)
    transformers = combination.transformers
    if transformers:
        row = f"transformers.toml: release (version '{transformers.version}')"
        yield from unmet(row, {"torch": transformers.torch}, packages)
        if holds(transformers.python, wanted.python) is False:
            yield Objection(row, f"wants Python {transformers.python}, not {wanted.python}")


def release_rules(name: str, release: KernelRelease, packages: dict[str, str], wanted: Wanted) -> Iterator[Objection]:
    """What one release of a kernel package wants, extras for packages that are chosen included."""
    row = kernel_row(name, release.version)
    for ranges in release.requires.values():
        yield from unmet(row, ranges, packages)
    extras = [Requirement(text) for text in release.extras.values()]
    yield from unmet(row, {canonicalize_name(item.name): item.specifier for item in extras}, packages)
    for other, specifier in release.recommends.items():
        if other in packages and holds(specifier, packages[other]) is False:
            yield Objection(row, f"recommends {other} {specifier}, not {packages[other]}", caution=True)
    if holds(release.python, wanted.python) is False:
        yield Objection(row, f"wants Python {release.python}, not {wanted.python}")
    if holds(release.recommends_python, wanted.python) is False:
        yield Objection(row, f"recommends Python {release.recommends_python}, not {wanted.python}", caution=True)


def unmet(row: str, ranges: Mapping[str, SpecifierSet], packages: dict[str, str]) -> Iterator[Objection]:
    """Yield an objection for each chosen package outside of its range."""
    for name, specifier in ranges.items():
        if name in packages and holds(specifier, packages[name]) is False:
            yield Objection(row, f"wants {name} {specifier}, not {packages[name]}")


def transformers_rules(combination: Combination, wanted: Wanted, catalog: Catalog) -> Iterator[Objection]:
    """The model's folder, and seams: releases before them decide by flags, which see a GPU or do not."""
    transformers = combination.transformers
    if transformers is None:
        return
    row = f"transformers.toml: release (version '{transformers.version}')"
    seams = catalog.seam_rows(wanted.model.folder)
    if transformers.mechanism == "flags":
        yield Objection(row, "binds kernels behind flags that ask for a GPU, not through seams: pinned from 5.15 on")
    elif seams and transformers.version < max(seams.first_seen, seams.seam_since):
        where = f"transformers.toml: model (folder '{seams.folder}')"
        since = max(seams.first_seen, seams.seam_since)
        yield Objection(where, f"has its seams since {since}, not in {transformers.version}")


def known_bad_rules(combination: Combination, wanted: Wanted, catalog: Catalog) -> Iterator[Objection]:
    """Known-bad rows about ops of the model. Whether a warning applies or cannot be told, it is a caution."""
    setting = Setting(
        packages=combination.packages(catalog),
        cc=tuple(gpu.cc for gpu in wanted.gpus),
        tools={"nvcc": False, "ptxas": True, "cc": True},
        python=wanted.python,
        torch_cuda=combination.cuda,
    )
    needed = {op.op for op in wanted.model.required}
    for where, row, version in bad_rows(combination, catalog):
        answer = applies(row, setting, version) if needed & set(row.ops) or EVERY_OP in row.ops else False
        if answer is not False:
            doubt = "" if answer else " (whether it applies is not known)"
            yield Objection(where, f"{row.effect}{doubt}; {row.remedy}", caution=row.severity == "warning")


def bad_rows(combination: Combination, catalog: Catalog) -> Iterator[tuple[str, KnownBad, str]]:
    """Yield (where, row, version of its package) for each known-bad row of a chosen package."""
    if combination.triton:
        for row in catalog.triton.known_bad:
            yield f"triton.toml: known_bad (id '{row.id}')", row, str(combination.triton.version)
    for name, version in combination.kernels.items():
        for row in catalog.kernels[name].known_bad:
            yield f"kernels/{name}.toml: known_bad (id '{row.id}')", row, str(version)


def extension_rules(combination: Combination, wanted: Wanted, catalog: Catalog) -> Iterator[Objection]:
    """Code for each GPU in a compiled extension, prebuilt or built with the toolkit of torch's CUDA version."""
    for name, version in combination.kernels.items():
        item = catalog.kernels[name]
        if item.package.extension:
            yield from no_code(item, name, version, combination.place(wanted), wanted, catalog)
            yield from no_wheel(item, name, version, combination.place(wanted), wanted)
        if item.package.cuda_min and holds_below(combination.cuda, item.package.cuda_min):
            where = f"kernels/{name}.toml: package"
            yield Objection(where, f"needs CUDA >= {item.package.cuda_min}, torch is built for {combination.cuda}")


def holds_below(version: str, floor: str) -> bool:
    """Tell whether a version is below a floor."""
    return Version(version) < Version(floor)


def no_code(
    item: KernelFile, name: str, version: Version, place: Place, wanted: Wanted, catalog: Catalog
) -> Iterator[Objection]:
    """Yield an objection for each GPU that no build of an extension would hold code for."""
    row = gencode_of(item, version)
    if row is None:
        yield Objection(f"kernels/{name}.toml: gencode", f"what {version} is built for is not known")
        return
    where = f"kernels/{name}.toml: gencode (versions '{row.versions}')"
    nvcc = toolkit_of(item, version, place)
    toolkit = toolkit_row(catalog, nvcc)
    numbers = architectures(row, nvcc)
    if toolkit is None:
        yield Objection("cuda.toml: toolkit", f"no row for CUDA {nvcc}, which would build {name}")
        return
    gone = [f"sm_{number}" for number in numbers if number not in toolkit.arch]
    if gone and not prebuilt(item, version, place):
        yield Objection(where, f"its setup asks nvcc {toolkit.version} for {', '.join(gone)}, which that does not know")
    for gpu in wanted.gpus:
        names = [f"sm_{number}" for number in numbers if number in toolkit.arch]
        if coverage(names, gpu.cc, catalog.torch.device_rule, nvcc_minor(nvcc)) not in RUNS:
            yield Objection(where, f"{version} with nvcc {toolkit.version} holds {', '.join(names)}: no {label(gpu)}")


def no_wheel(item: KernelFile, name: str, version: Version, place: Place, wanted: Wanted) -> Iterator[Objection]:
    """Yield an objection where a published wheel is asked for and there is none."""
    if wanted.prebuilt and not prebuilt(item, version, place):
        row = wheels_of(item, version)
        why = lacking(row, place) if row else "it has none"
        yield Objection(f"kernels/{name}.toml: wheels (version '{version}')", f"no published wheel fits: {why}")


def prebuilt(item: KernelFile, version: Version, place: Place) -> bool:
    """Tell whether a release has a published wheel that fits."""
    wheels = wheels_of(item, version)
    return wheels is not None and not lacking(wheels, place)


def toolkit_of(item: KernelFile, version: Version, place: Place) -> str:
    """Return the CUDA version that the extension is compiled with: the wheel's, else torch's own."""
    wheels = wheels_of(item, version)
    return (wheel_toolkit(wheels, place) if wheels and prebuilt(item, version, place) else "") or place.cuda


def nvcc_minor(version: str) -> str:
    """Return 12.9 for 12.9.1."""
    return ".".join(version.split(".")[:2])


RULES: tuple[Rule, ...] = (
    torch_rules,
    triton_rules,
    extension_rules,
    requirement_rules,
    transformers_rules,
    known_bad_rules,
)


def objections(combination: Combination, wanted: Wanted, catalog: Catalog) -> tuple[Objection, ...]:
    """Return everything that the rows have against a combination, cautions included, each once."""
    found = (item for rule in RULES for item in rule(combination, wanted, catalog))
    return tuple(dict.fromkeys(found))


def forbidding(combination: Combination, wanted: Wanted, catalog: Catalog) -> tuple[Objection, ...]:
    """Return what the first rule that forbids a combination has against it; nothing where none does."""
    for rule in RULES:
        found = tuple(dict.fromkeys(item for item in rule(combination, wanted, catalog) if not item.caution))
        if found:
            return found
    return ()
