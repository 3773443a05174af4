"""What `kerncheck pins` says of a combination: the pins, the reason for each, and what a compiled package needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from kerncheck._version import __version__
from kerncheck.pins import Conflict, Found, Rejected, search, summary
from kerncheck.sound import (
    Combination,
    Objection,
    Wanted,
    distributions,
    floor_of,
    kernel_row,
    label,
    nvcc_minor,
    objections,
    prebuilt,
    ptxas_for,
    release_of,
    spelled,
    toolkit_of,
    torch_name,
)
from kerncheck.wheels import architectures, compilers, gencode_of, lacking, toolkit_row, wheel_name, wheels_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kerncheck.catalog import Catalog
    from kerncheck.model.matrix import KernelFile, Tested

SHOWN = 6  # rejections of one row that are named one by one


@dataclass(frozen=True)
class Pin:
    """One line of a constraints file, with the reasons for it."""

    requirement: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Sheet:
    """Everything that is printed: ``head`` says what was asked, ``notes`` what pip cannot be told by a constraint."""

    head: tuple[str, ...]
    pins: tuple[Pin, ...]
    notes: tuple[tuple[str, ...], ...]


def sheet(found: Found, catalog: Catalog) -> Sheet:
    """Return what is to be said of a combination."""
    wanted, combination = found.wanted, found.combination
    notes = [
        needs(combination, catalog),
        *(extension(name, combination, wanted, catalog) for name in compiled(combination, catalog)),
        install(combination, catalog),
        not_newer(found),
        cautions(combination, wanted, catalog),
        with_wheels(found, catalog),
    ]
    return Sheet(
        head=(asked(wanted), *evidence(combination, wanted, catalog)),
        pins=tuple(pins(combination, wanted, catalog)),
        notes=tuple(note for note in notes if note),
    )


def asked(wanted: Wanted) -> str:
    """Return what was asked for, in one line."""
    driver = f", driver {wanted.driver}" if wanted.driver else ""
    gpus = ", ".join(label(gpu) for gpu in wanted.gpus)
    torch = f", torch {wanted.torch}" if wanted.torch else ""
    wheels = ", published wheels only" if wanted.prebuilt else ""
    return (
        f"kerncheck {__version__}: {wanted.model.name} on {gpus}, Python {wanted.python}, {wanted.machine}"
        f"{driver}{torch}{wheels}"
    )


def evidence(combination: Combination, wanted: Wanted, catalog: Catalog) -> tuple[str, ...]:
    """Say how the combination is known: run on such a GPU, or only declared by rows."""
    row = nearest_tested(combination, catalog)
    measured = row is not None and row.device == "cuda" and not differing(row, combination, catalog)
    if row is not None and measured and {gpu.cc for gpu in wanted.gpus} <= set(row.cc):
        return (f"measured: tested.toml: tested (id '{row.id}') ran these versions on such a GPU",)
    lines = ["declared: the ranges, builds and drivers of the rows named below fit, and no known-bad row speaks of it"]
    if row is not None:
        where = "in Triton's interpreter" if row.device == "emulate" else f"on capability {', '.join(row.cc)}"
        other = ", ".join(differing(row, combination, catalog)) or "the same versions"
        lines.append(f"nearest that was run: tested.toml: tested (id '{row.id}'), {where} ({other})")
    return (*lines, "judge it on the node before you trust it: kerncheck verify --model " + wanted.model.name)


def nearest_tested(combination: Combination, catalog: Catalog) -> Tested | None:
    """Return the row of combinations that were run which shares most versions, those run on a GPU before others."""
    ours = combination.packages(catalog)

    def shared(row: Tested) -> int:
        return sum(row.packages.get(name) == version for name, version in ours.items())

    right = [row for row in catalog.tested.tested if row.right]
    return max(right, key=lambda row: (shared(row), row.device == "cuda"), default=None)


def differing(row: Tested, combination: Combination, catalog: Catalog) -> list[str]:
    """Return the packages that a run had in another version, or had not."""
    ours = combination.packages(catalog)
    other = [(name, row.packages.get(name)) for name, version in ours.items() if row.packages.get(name) != version]
    return [f"{name} {version}" if version else f"without {name}" for name, version in other]


def pins(combination: Combination, wanted: Wanted, catalog: Catalog) -> Iterator[Pin]:
    """Yield the pins in the order in which they are to be installed."""
    yield torch_pin(combination, wanted)
    yield from companions(combination, catalog)
    if combination.triton:
        yield triton_pin(combination, wanted)
    for name in combination.kernels:
        yield from kernel_pins(name, combination, wanted, catalog)
    if combination.transformers:
        row = combination.transformers
        where = f"transformers.toml: release (version '{row.version}')"
        yield Pin(f"transformers=={row.version}", (f"{where} wants torch {row.torch}, Python {row.python}",))
        yield Pin(f"kernels{row.kernels}", (f"only where something installs it: the window of {where}",))


def torch_pin(combination: Combination, wanted: Wanted) -> Pin:
    """Return the pin of torch: with the local tag of the build where that is not the public index's."""
    torch, cuda = combination.torch, combination.cuda
    code = ", ".join(f"sm_{number}" for number in getattr(torch.arch[cuda], wanted.machine))
    own = cuda == torch.pypi_cuda
    index = "the build of the public index" if own else "from PyTorch's own index, not from the public one"
    tag = "" if own else f"+cu{cuda.replace('.', '')}"
    return Pin(
        f"torch=={torch.version}{tag}",
        (f"{torch_name(combination)}: built for CUDA {cuda} ({index}), holds {code}",),
    )


def companions(combination: Combination, catalog: Catalog) -> Iterator[Pin]:
    """Yield the ranges of distributions whose minor version follows torch's."""
    torch = combination.torch.version
    for row in catalog.torch.companion:
        if torch >= row.from_torch:
            reason = f"only where something installs it: torch.toml: companion (name '{row.name}')"
            yield Pin(f"{row.name}==0.{torch.minor + row.offset}.*", (reason,))


def triton_pin(combination: Combination, wanted: Wanted) -> Pin:
    """Return the pin of Triton: what torch wants, and the compiler that it uses for each GPU."""
    triton, torch = combination.triton, combination.torch
    if triton is None:  # no torch for CUDA is without Triton
        raise ValueError("a finished combination has a Triton")
    used = ", ".join(dict.fromkeys(f"{ptxas_for(triton, gpu)} for {label(gpu)}" for gpu in wanted.gpus))
    return Pin(
        f"triton=={triton.version}",
        (
            f"{torch_name(combination)} wants triton {torch.triton}",
            f"triton.toml: release (version '{triton.version}'): its ptxas is {used}",
        ),
    )


def kernel_pins(name: str, combination: Combination, wanted: Wanted, catalog: Catalog) -> Iterator[Pin]:
    """Yield the pins of a kernel package's distributions."""
    item, version = catalog.kernels[name], combination.kernels[name]
    release, code = release_of(item, version), gencode_of(item, version)
    reasons = []
    if release is not None:
        ranges = {other: specifier for wants in release.requires.values() for other, specifier in wants.items()}
        listed = ", ".join(f"{other} {specifier}" for other, specifier in ranges.items())
        reasons.append(f"{kernel_row(name, version)} wants {listed or 'nothing of the others'}")
    if code is not None:
        gpus = ", ".join(label(gpu) for gpu in wanted.gpus)
        reasons.append(f"kernels/{name}.toml: gencode (versions '{code.versions}') covers {gpus}")
    for distribution in distributions(item, version):
        yield Pin(f"{distribution}=={version}", tuple(reasons))
        reasons = [f"released together with {distribution}"]


def needs(combination: Combination, catalog: Catalog) -> tuple[str, ...]:
    """Return what the machine must bring: a driver and a C library."""
    floor = floor_of(combination.cuda, catalog)
    floors = [combination.torch.glibc, *([combination.triton.glibc] if combination.triton else [])]
    driver = f"driver >= {spelled(floor.exact)} (cuda.toml: floor of CUDA {floor.cuda_major})" if floor else "a driver"
    return (
        f"needs: {driver}, glibc >= {max(floors, key=Version)},",
        "  and where kernels first run: a C compiler with the C library's headers, Python.h, /sbin/ldconfig",
    )


def compiled(combination: Combination, catalog: Catalog) -> list[str]:
    """Return the chosen packages that hold compiled code."""
    return [name for name in combination.kernels if catalog.kernels[name].package.extension]


def extension(name: str, combination: Combination, wanted: Wanted, catalog: Catalog) -> tuple[str, ...]:
    """Say of a compiled package whether a published wheel fits, and if not, what builds it."""
    item, version, place = catalog.kernels[name], combination.kernels[name], combination.place(wanted)
    row = wheels_of(item, version)
    title = f"{item.package.name} {version}"
    if row is None:
        return (f"{title}: build needed", *recipe(item, version, combination, wanted, catalog))
    where = f"kernels/{name}.toml: wheels (version '{version}')"
    if prebuilt(item, version, place):
        doubt = (f"  uncertain: {row.uncertain}",) if row.uncertain else ()
        return (f"{title}: prebuilt: {wheel_name(item, row, place)}", f"  {where}", *doubt)
    return (
        f"{title}: build needed, no prebuilt wheel fits",
        f"  wanted: {wheel_name(item, row, place)}",
        f"  {where}: {lacking(row, place)}",
        *recipe(item, version, combination, wanted, catalog),
    )


def recipe(
    item: KernelFile, version: Version, combination: Combination, wanted: Wanted, catalog: Catalog
) -> tuple[str, ...]:
    """Return what builds an extension: toolkit, compilers, the command, and the code that comes out."""
    nvcc = nvcc_minor(toolkit_of(item, version, combination.place(wanted)))
    toolkit, row = toolkit_row(catalog, nvcc), gencode_of(item, version)
    if toolkit is None or row is None:  # `sound.no_code` objects to such a combination
        raise ValueError(f"nothing is known of building {item.package.name} {version}")
    numbers = ", ".join(f"sm_{number}" for number in architectures(row, nvcc) if number in toolkit.arch)
    standard = combination.torch.cxx_standard
    return (
        f"  toolkit: nvcc {nvcc}, the CUDA version of this torch (another minor of the same major will do)",
        f"  compiler: {compilers(catalog, toolkit)} (cuda.toml: toolkit (version '{toolkit.version}')), {standard}",
        f"  command: pip install --no-build-isolation --no-deps {item.package.name}=={version}, after torch",
        f"  its setup builds {numbers}",
    )


def install(combination: Combination, catalog: Catalog) -> tuple[str, ...]:
    """Return the order of installation: torch first, so that nothing later pulls another one."""
    names = [item.package.install for name, item in kernels(combination, catalog) if not item.package.extension]
    later = [text.removeprefix("pip install ") for text in names]
    packages = " ".join([*later, *(["transformers"] if combination.transformers else [])])
    return ("install: pip install -c FILE torch, then the compiled packages, then", f"  pip install -c FILE {packages}")


def kernels(combination: Combination, catalog: Catalog) -> Iterator[tuple[str, KernelFile]]:
    """Yield the chosen kernel packages."""
    yield from ((name, catalog.kernels[name]) for name in combination.kernels)


def cautions(combination: Combination, wanted: Wanted, catalog: Catalog) -> tuple[str, ...]:
    """Return what the rows warn of without forbidding it, and what no row can tell."""
    warned = [f"  {item.row}: {item.reason}" for item in objections(combination, wanted, catalog) if item.caution]
    blind = "whether each kernel fits a GPU's shared memory is not judged here: kerncheck verify --profile image"
    return (f"caution: {blind}", *warned)


def not_newer(found: Found) -> tuple[str, ...]:
    """Say why nothing newer was taken."""
    lines = tuple(f"  {line}" for line in grouped(found.rejected))
    return ("newer versions that do not go:", *lines) if lines else ()


def grouped(rejected: Iterable[Rejected]) -> Iterator[str]:
    """Yield one line for each row that rejects something: the row, what it says, and of which versions."""
    subjects: dict[Objection, dict[str, None]] = {}
    for item in rejected:
        for objection in item.objections:
            subjects.setdefault(objection, {})[item.subject] = None
    for objection, names in subjects.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield f"{objection.row}: {objection.reason} [{', '.join(list(names)[:SHOWN])}{more}]"


def with_wheels(found: Found, catalog: Catalog) -> tuple[str, ...]:
    """Name the newest combination that needs no build, where the one found needs one."""
    combination, wanted = found.combination, found.wanted
    place = combination.place(wanted)
    items = [(catalog.kernels[name], combination.kernels[name]) for name in compiled(combination, catalog)]
    if all(prebuilt(item, version, place) for item, version in items):
        return ()
    other = search(replace(wanted, prebuilt=True), catalog)
    if isinstance(other, Conflict):
        return ("no sound combination for this has published wheels of every compiled package",)
    return ("newest sound combination without a build (--prebuilt):", f"  {summary(other.combination)}")


def conflict_lines(conflict: Conflict) -> tuple[str, ...]:
    """Return what to say where nothing goes: each row that stands against it, and which wishes are in the way."""
    return (
        f"no sound combination: {asked(conflict.wanted)}",
        *(f"  {line}" for line in grouped(conflict.rejected)),
        *(f"  {line}" for line in conflict.ways),
    )
