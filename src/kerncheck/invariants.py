"""What must hold across the rows of the matrices, checked each time they are loaded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from kerncheck.errors import MatrixError
from kerncheck.matching import Setting, applies
from kerncheck.model.matrix import Condition, KernelFile, Known, KnownBad, Tested
from kerncheck.model.releases import Toolkit, TorchRelease
from kerncheck.versions import holds, parse

if TYPE_CHECKING:
    from kerncheck.catalog import Catalog

EVERY_OP = "*"
TOOLS = frozenset({"nvcc", "ptxas", "cc"})
WHEEL_FIELDS = ("python", "torch", "tags", "machines", "cxx11_abi")
CAPABILITY = re.compile(r"\d{1,2}\.\d")
CANONICAL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

Fault = tuple[str, str]
"""Where (file and row) and what is wrong there."""


def enforce(catalog: Catalog) -> None:
    """Check every rule.

    Raises:
        MatrixError: the first fault, as ``file: row: what is wrong``.

    """
    for rule in (
        sources,
        patterns,
        duplicates,
        references,
        drivers,
        toolkits,
        torch_releases,
        wheel_sets,
        conditions,
        contradictions,
    ):
        for where, what in rule(catalog):
            raise MatrixError(f"{where}: {what}")


def kernel_files(catalog: Catalog) -> Iterator[tuple[str, KernelFile]]:
    """Yield each kernel package's file with the name that messages give it."""
    for name, item in catalog.kernels.items():
        yield f"kernels/{name}.toml", item


def bad_rows(catalog: Catalog) -> Iterator[tuple[str, KnownBad]]:
    """Yield each known-bad row with where it stands."""
    for row in catalog.triton.known_bad:
        yield f"triton.toml: known_bad (id {row.id!r})", row
    for name, item in kernel_files(catalog):
        for row in item.known_bad:
            yield f"{name}: known_bad (id {row.id!r})", row


def tables(catalog: Catalog) -> Iterator[tuple[str, str, tuple[Known, ...]]]:
    """Yield (file, table, rows) of everything that has rows."""
    yield "torch.toml", "release", catalog.torch.release
    yield "torch.toml", "companion", catalog.torch.companion
    yield "driver.toml", "message", catalog.driver.message
    yield "cuda.toml", "floor", catalog.cuda.floor
    yield "cuda.toml", "toolkit", catalog.cuda.toolkit
    yield "cuda.toml", "doubt", catalog.cuda.doubt
    yield "gpus.toml", "gpu", catalog.gpus.gpu
    yield "gpus.toml", "limits", catalog.gpus.limits
    yield "triton.toml", "release", catalog.triton.release
    yield "triton.toml", "hardware", catalog.triton.hardware
    yield "triton.toml", "known_bad", catalog.triton.known_bad
    yield "transformers.toml", "release", catalog.transformers.release
    yield "transformers.toml", "model", catalog.transformers.model
    yield "tested.toml", "tested", catalog.tested.tested
    yield "models", "model", catalog.models
    for table in ("owner", "meaning", "cuda_library", "library", "message", "said", "misleading"):
        yield "loader.toml", table, getattr(catalog.loader, table)
    for table in ("build", "capability", "hidden"):
        yield "image.toml", table, getattr(catalog.image, table)
    for name, item in kernel_files(catalog):
        for table in (
            "op",
            "release",
            "wheels",
            "known_bad",
            "variable",
            "no_backward",
            "backend",
            "gencode",
            "conflict",
        ):
            yield name, table, getattr(item, table)


def sources(catalog: Catalog) -> Iterator[Fault]:
    """Every row says where it comes from."""
    for file, table, rows in tables(catalog):
        for number, row in enumerate(rows, 1):
            if not row.source.strip():
                yield f"{file}: {table} {number}", "the source is empty"


def patterns(catalog: Catalog) -> Iterator[Fault]:
    """Every pattern of a message compiles and has the groups that its class needs."""
    needed = {"symbol": {"symbol"}, "library": {"library"}, "version": {"library", "version"}, "module": {"module"}}
    rows = [("loader.toml: message", row.pattern, needed.get(row.cause, set())) for row in catalog.loader.message]
    rows += [("loader.toml: owner", row.stale, {"wanted"}) for row in catalog.loader.owner if row.stale]
    rows += [("image.toml: build", row.text, set()) for row in catalog.image.build]
    for table, pattern, groups in rows:
        try:
            lacking = groups - set(re.compile(pattern).groupindex)
        except re.error as error:
            yield f"{table} ({pattern!r})", f"not a regular expression: {error}"
        else:
            if lacking:
                yield f"{table} ({pattern!r})", f"the group {min(lacking)!r} is absent"


def duplicates(catalog: Catalog) -> Iterator[Fault]:
    """No two rows of one table have one identity; ids of known-bad rows and names of models are unique everywhere."""
    for file, table, rows in tables(catalog):
        names = [identity(row) for row in rows]
        yield from ((f"{file}: {table}", f"{name!r} stands there twice") for name in twice(names) if name)
    ids = twice(row.id for _, row in bad_rows(catalog))
    yield from ((f"known_bad (id {name!r})", "two rows have this id") for name in ids)
    ops = [op.id for item in catalog.kernels.values() for op in item.op]
    yield from ((f"kernels: op (id {name!r})", "two packages list this op") for name in twice(ops))
    owned = [name for item in catalog.kernels.values() for name in item.package.distributions]
    yield from ((f"kernels: {name!r}", "two packages have this distribution") for name in twice(owned))
    aliases = [name.casefold() for model in catalog.models for name in (model.name, *model.aliases)]
    yield from ((f"models: {name!r}", "two models have this name or alias") for name in twice(aliases))


def twice(names: Iterable[str]) -> list[str]:
    """Return what stands there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def identity(row: Known) -> str:
    """Return what a row of its table is known by; empty where several may speak of one thing."""
    for field in ("id", "version", "folder", "name", "cuda_major"):
        if hasattr(row, field):
            return str(getattr(row, field))
    return ""


def references(catalog: Catalog) -> Iterator[Fault]:
    """Every op, model folder and package that a row names is known."""
    for where, row in bad_rows(catalog):
        yield from unknown_ops(where, (op for op in row.ops if op != EVERY_OP), catalog)
    for name, item in kernel_files(catalog):
        for op in (entry.op for entry in item.no_backward):
            yield from unknown_ops(f"{name}: no_backward (op {op!r})", (op,), catalog)
    for model in catalog.transformers.model:
        where = f"transformers.toml: model (folder {model.folder!r})"
        yield from unknown_ops(where, (seam.op for seam in model.seams), catalog)
    for profile in catalog.models:
        where = f"models/{profile.name}.toml"
        yield from unknown_ops(f"{where}: required", (op.op for op in profile.required), catalog)
        if catalog.seam_rows(profile.folder) is None:
            yield where, f"transformers.toml knows no model folder {profile.folder!r}"


def unknown_ops(where: str, ops: Iterable[str], catalog: Catalog) -> Iterator[Fault]:
    """Yield a fault for each op that no kernel package lists."""
    yield from ((where, f"no file under kernels/ lists the op {op!r}") for op in ops if op not in catalog.ops)


def drivers(catalog: Catalog) -> Iterator[Fault]:
    """A newer CUDA major never needs an older driver, and the exact floor lies in its branch."""
    floors = sorted(catalog.cuda.floor, key=lambda row: row.cuda_major)
    for older, newer in pairwise(floors):
        if newer.exact <= older.exact:
            where = f"cuda.toml: floor (cuda_major {newer.cuda_major})"
            yield where, f"its driver {newer.exact} is not above {older.exact}, the floor of CUDA {older.cuda_major}"
    for row in floors:
        if row.exact.major != row.branch.major:
            yield f"cuda.toml: floor (cuda_major {row.cuda_major})", f"driver {row.exact} is not of branch {row.branch}"


def toolkits(catalog: Catalog) -> Iterator[Fault]:
    """Each toolkit's architectures are those of the one before, with what was added and without what was removed."""
    rows = sorted(catalog.cuda.toolkit, key=lambda row: parse(row.version) or 0)
    for row in rows:
        both = set(row.added) & set(row.removed)
        if both:
            yield toolkit_name(row), f"it both adds and removes {sorted(both)}"
    for before, row in pairwise(rows):
        expected = (set(before.arch) | set(row.added)) - set(row.removed)
        if expected != set(row.arch):
            odd = sorted(expected ^ set(row.arch))
            yield toolkit_name(row), f"arch is not that of {before.version} with added and without removed: {odd}"
        if row.gcc_max < before.gcc_max:
            yield toolkit_name(row), f"gcc_max {row.gcc_max} is below {before.gcc_max} of {before.version}"


def toolkit_name(row: Toolkit) -> str:
    """Return where a toolkit's row stands."""
    return f"cuda.toml: toolkit (version {row.version!r})"


def torch_releases(catalog: Catalog) -> Iterator[Fault]:
    """Each release has an architecture list for every CUDA it was built with, and only Pythons that it takes."""
    majors = {row.cuda_major for row in catalog.cuda.floor}
    for row in catalog.torch.release:
        where = f"torch.toml: release (version '{row.version}')"
        yield from ((where, f"no architectures for CUDA {cuda}") for cuda in named_cudas(row) if cuda not in row.arch)
        yield from (
            (where, f"requires_python {row.requires_python} excludes Python {python}")
            for python in row.python
            if holds(row.requires_python, f"{python}.0") is False
        )
        yield from (
            (where, f"cuda.toml has no driver floor for CUDA {cuda}")
            for cuda in row.arch
            if int(cuda.partition(".")[0]) not in majors
        )


def named_cudas(row: TorchRelease) -> tuple[str, ...]:
    """Return every CUDA version that a release says it was built with."""
    return (row.pypi_cuda, *row.cuda_stable, *row.cuda_experimental)


def wheel_sets(catalog: Catalog) -> Iterator[Fault]:
    """What a row of wheels excludes are some of its own wheels, not none and not all."""
    for name, item in kernel_files(catalog):
        for row in item.wheels:
            where = f"{name}: wheels (version {str(row.version)!r}), exclude"
            for some in row.exclude:
                lists = [(field, getattr(some, field)) for field in WHEEL_FIELDS if getattr(some, field)]
                strange = [value for field, values in lists for value in values if value not in getattr(row, field)]
                if not lists:
                    yield where, "a set without any list would exclude every wheel"
                elif strange:
                    yield where, f"{strange[0]!r} is none of the values of this row"


def conditions(catalog: Catalog) -> Iterator[Fault]:
    """Conditions use capabilities, tools and distribution names as this program writes them."""
    for where, row in bad_rows(catalog):
        for condition in (row.when, *row.unless):
            yield from ((where, what) for what in faulty(condition))
    for gpu in catalog.gpus.gpu:
        if not CAPABILITY.fullmatch(gpu.cc):
            yield f"gpus.toml: gpu (name {gpu.name!r})", f"{gpu.cc!r} is no compute capability such as '9.0'"


def faulty(condition: Condition) -> Iterator[str]:
    """Yield what is wrong in the words of a condition."""
    for cc in (*condition.cc, *condition.not_cc, *filter(None, (condition.cc_below,))):
        if not CAPABILITY.fullmatch(cc):
            yield f"{cc!r} is no compute capability such as '9.0'"
    for tool in (*condition.tools, *condition.without):
        if tool not in TOOLS:
            yield f"{tool!r} is no tool that kerncheck looks for ({', '.join(sorted(TOOLS))})"
    for name in (*condition.packages, *condition.absent):
        if not CANONICAL.fullmatch(name):
            yield f"{name!r} is no canonical distribution name (small letters, digits, single hyphens)"


def contradictions(catalog: Catalog) -> Iterator[Fault]:
    """No combination that is declared as tested is one that is known to be bad."""
    for tested in (row for row in catalog.tested.tested if row.right):
        setting = as_setting(tested)
        for where, row in bad_rows(catalog):
            version = version_of(row, tested, catalog)
            if row.severity == "error" and version and applies(row, setting, version):
                yield f"tested.toml: tested (id {tested.id!r})", f"declared as tested, and known to be bad by {where}"


def as_setting(tested: Tested) -> Setting:
    """Return a tested combination as what conditions are asked about."""
    return Setting(
        packages=tested.packages,
        cc=tested.cc,
        tools={tool: tool in tested.tools for tool in TOOLS},
        variables=tested.variables,
        python=tested.python,
    )


def version_of(row: KnownBad, tested: Tested, catalog: Catalog) -> str:
    """Return the version that a tested combination has of a known-bad row's package."""
    item = catalog.kernels.get(row.package)
    names = item.package.distributions if item else (row.package,)
    return next((tested.packages[name] for name in names if name in tested.packages), "")
