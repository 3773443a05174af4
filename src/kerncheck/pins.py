"""Find the newest versions that the matrix knows to go together for a model and its GPUs.

The newest torch decides first, with the CUDA version that its wheel on the public index is built for before others;
then the newest Triton that this torch takes, the newest compiled packages, the newest Triton ones, the newest
transformers. Where nothing goes, every rejected version is kept with the rows that speak against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from kerncheck.errors import UsageError
from kerncheck.sound import Combination, Objection, Wanted, forbidding
from kerncheck.targets import parse_driver, parse_target
from kerncheck.versions import flavour, flavour_cuda, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerncheck.catalog import Catalog
    from kerncheck.model.job import ModelRequest, Target
    from kerncheck.model.matrix import KernelFile
    from kerncheck.model.releases import TorchRelease

MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Rejected:
    """A version that does not go, and why."""

    subject: str
    objections: tuple[Objection, ...]


@dataclass(frozen=True)
class Found:
    """The newest combination that goes, and what was tried before it."""

    wanted: Wanted
    combination: Combination
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class Conflict:
    """No combination goes. ``rejected`` is each version that was tried; ``ways`` are wishes that could be dropped."""

    wanted: Wanted
    rejected: tuple[Rejected, ...]
    ways: tuple[str, ...] = ()


Step = Callable[[Combination], Iterator[tuple[str, Combination]]]
"""Yields (what is added, the combination with it), the newest first."""


def wish(given: Mapping[str, object], model: ModelRequest, catalog: Catalog) -> Wanted:
    """Read the options of the command.

    Raises:
        UsageError: a GPU, Python, torch or driver that nobody knows, a machine that a GPU does not come with, or a
            model that needs no kernel package.

    """
    gpus = tuple(gpu_named(str(text), catalog) for text in as_tuple(given["gpu"]))
    if not kernel_files(model, catalog):
        raise UsageError(f"--model {model.name}: it needs no kernel package", "there is nothing to pin")
    return Wanted(
        model=model,
        gpus=tuple(dict.fromkeys(gpus)),
        python=python_named(str(given["python"])),
        machine=machine_for(gpus, str(given["machine"] or ""), catalog),
        torch=torch_named(str(given["torch"] or ""), catalog),
        driver=parse_driver(str(given["driver"]) if given["driver"] else None),
        prebuilt=bool(given["prebuilt"]),
    )


def as_tuple(value: object) -> tuple[object, ...]:
    """Return the values of an option that may be given several times."""
    return value if isinstance(value, tuple) else (value,)


def gpu_named(text: str, catalog: Catalog) -> Target:
    """Return a GPU, with the option's own name in the error."""
    try:
        return parse_target(text, catalog)
    except UsageError as error:
        raise UsageError(error.message.replace("--target", "--gpu", 1), error.hint) from None


def python_named(text: str) -> str:
    """Return ``3.12`` for ``3.12`` or ``3.12.4``."""
    version = parse(text)
    if version is None or version.major != 3 or len(version.release) < 2:
        raise UsageError(f"--python {text}: no version of Python", "write 3.12")
    return f"{version.major}.{version.minor}"


def torch_named(text: str, catalog: Catalog) -> str:
    """Return the wanted torch as given, if the matrix knows a release that it begins.

    Raises:
        UsageError: no release begins so, or its build for the CUDA version of a local tag is not known.

    """
    if text and not any(builds(row, text) for row in catalog.torch.release):
        known = ", ".join(str(row.version) for row in newest(catalog.torch.release)[:5])
        raise UsageError(f"--torch {text}: the matrix knows no such release", f"newest: {known}; write 2.14 or 2.14.1")
    return text


def machine_for(gpus: tuple[Target, ...], given: str, catalog: Catalog) -> str:
    """Return the machine's architecture: as given, else the one that the GPUs come with, else x86_64.

    Raises:
        UsageError: GPUs that come with different machines, or with another one than was given.

    """
    rows = {gpu.name: gpu.machine for gpu in catalog.gpus.gpu}
    bound = {rows[gpu.name] for gpu in gpus if gpu.name and rows[gpu.name]}
    wanted = bound | ({given} if given else set())
    if len(wanted) > 1:
        raise UsageError(f"these GPUs need {' and '.join(sorted(wanted))} machines", "one set of pins serves one kind")
    return next(iter(wanted), MACHINES[0])


def kernel_files(model: ModelRequest, catalog: Catalog) -> dict[str, KernelFile]:
    """Return the kernel packages of a model's ops, compiled ones first."""
    needed = {op.op for op in model.required}
    found = {name: item for name, item in catalog.kernels.items() if needed & {op.id for op in item.op}}
    return dict(sorted(found.items(), key=lambda pair: (not pair[1].package.extension, pair[0])))


def newest(rows: tuple[TorchRelease, ...]) -> list[TorchRelease]:
    """Return releases, the newest first."""
    return sorted(rows, key=lambda row: row.version, reverse=True)


def builds(release: TorchRelease, wanted: str) -> list[str]:
    """Return the CUDA versions of a release that a wish allows: the public index's first, else the newest first.

    Experimental builds are left out.
    """
    public, _, _ = wanted.partition("+")
    if wanted and not str(release.version).startswith(public + ("" if public.count(".") > 1 else ".")):
        return []
    stable = sorted({release.pypi_cuda, *release.cuda_stable} & set(release.arch), key=Version, reverse=True)
    ordered = sorted(stable, key=lambda cuda: cuda != release.pypi_cuda)
    tag = flavour(wanted)
    return [cuda for cuda in ordered if not tag or cuda == flavour_cuda(tag)]


def torch_choices(wanted: Wanted, catalog: Catalog) -> Iterator[tuple[str, Combination]]:
    """Yield each build of torch."""
    for release in newest(catalog.torch.release):
        for cuda in builds(release, wanted.torch):
            if cuda == release.pypi_cuda or getattr(release.arch[cuda], wanted.machine):
                yield f"torch {release.version} (CUDA {cuda})", Combination(torch=release, cuda=cuda)


def steps(wanted: Wanted, catalog: Catalog) -> tuple[Step, ...]:
    """Return what is chosen after torch."""

    def triton(chosen: Combination) -> Iterator[tuple[str, Combination]]:
        rows = [row for row in catalog.triton.release if chosen.torch.triton.contains(row.version)]
        for row in sorted(rows, key=lambda row: row.version, reverse=True):
            yield f"triton {row.version}", replace(chosen, triton=row)

    def transformers(chosen: Combination) -> Iterator[tuple[str, Combination]]:
        for row in sorted(catalog.transformers.release, key=lambda row: row.version, reverse=True):
            yield f"transformers {row.version}", replace(chosen, transformers=row)

    kernels = kernel_files(wanted.model, catalog).items()
    return (triton, *(kernel_step(name, item) for name, item in kernels), transformers)


def kernel_step(name: str, item: KernelFile) -> Step:
    """Return the step that chooses the release of one kernel package."""
    versions = sorted({*(row.version for row in item.release), *(row.version for row in item.wheels)}, reverse=True)

    def choose(chosen: Combination) -> Iterator[tuple[str, Combination]]:
        for version in versions:
            yield f"{item.package.name} {version}", chosen.with_kernel(name, version)

    return choose


def search(wanted: Wanted, catalog: Catalog) -> Found | Conflict:
    """Return the newest sound combination, or what speaks against each version that was tried."""
    rejected: list[Rejected] = []
    later = steps(wanted, catalog)
    for subject, chosen in torch_choices(wanted, catalog):
        against = forbidding(chosen, wanted, catalog)
        if against:
            rejected.append(Rejected(subject, against))
            continue
        found = grown(chosen, later, (wanted, catalog), rejected)
        if found:
            return Found(wanted, found, tuple(dict.fromkeys(rejected)))
    return Conflict(wanted, tuple(dict.fromkeys(rejected)))


def grown(
    chosen: Combination, later: tuple[Step, ...], asked: tuple[Wanted, Catalog], rejected: list[Rejected]
) -> Combination | None:
    """Return the first combination that a sound beginning grows to; note what is rejected on the way.

    Once a version that goes by itself has led nowhere, older ones in its place are tried, but not noted: what fails
    below them failed below the newest as well.
    """
    if not later:
        return chosen
    choices = list(later[0](chosen))
    if not choices:
        rejected.append(Rejected(f"torch {chosen.torch.version} (CUDA {chosen.cuda})", (no_triton(chosen),)))
    for subject, more in choices:
        against = forbidding(more, *asked)
        if against:
            rejected.append(Rejected(subject, against))
            continue
        found = grown(more, later[1:], asked, rejected)
        if found:
            return found
        rejected = []
    return None


def no_triton(chosen: Combination) -> Objection:
    """Return the objection that no Triton of the matrix is what torch wants."""
    row = f"torch.toml: release (version '{chosen.torch.version}')"
    return Objection(row, f"wants triton {chosen.torch.triton}, and triton.toml has no row for such a release")


def with_ways_out(conflict: Conflict, catalog: Catalog) -> Conflict:
    """Add which single wish could be dropped, and what that would give."""
    ways = []
    for name, shown in (("torch", "--torch"), ("driver", "--driver"), ("prebuilt", "--prebuilt")):
        empty: str | bool = False if name == "prebuilt" else ""
        if getattr(conflict.wanted, name):
            found = search(replace(conflict.wanted, **{name: empty}), catalog)  # type: ignore[arg-type]
            ways += [f"without {shown}: {summary(found.combination)}"] if isinstance(found, Found) else []
    return replace(conflict, ways=tuple(ways))


def summary(found: Combination) -> str:
    """Return a combination in one line."""
    parts = [f"torch {found.torch.version} for CUDA {found.cuda}"]
    parts += [f"triton {found.triton.version}"] if found.triton else []
    parts += [f"{name.replace('_', '-')} {version}" for name, version in found.kernels.items()]
    parts += [f"transformers {found.transformers.version}"] if found.transformers else []
    return ", ".join(parts)
