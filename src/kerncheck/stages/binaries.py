"""Parent side of the look into compiled files: which packages' files are read for a job, and the section they make."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from kerncheck.catalog import Catalog
from kerncheck.kernels import all_specs, find_spec
from kerncheck.model.base import Missing
from kerncheck.model.binaries import Binaries, BinaryFile, Package, Shadowing
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answer, Answers, ProbeRun, why

LABEL, TORCH = "compiled files", "libraries of torch"


def subjects(ask: Ask) -> dict[str, dict[str, Any]]:
    """Return the packages whose compiled files are read, by import name: the probe's cases.

    With a model those that ship its ops; without one every kernel package that is known.
    """
    names = known(ask.catalog)
    if ask.job.model is None:
        return names
    needed = {op.op.partition(":")[0].partition(".")[0] for op in ask.job.needed}
    specs = (find_spec(op.op) for op in ask.job.needed)
    needed |= {spec.import_name for spec in specs if spec}
    return {name: names.get(name, case(name, (name.replace("_", "-"),), ())) for name in sorted(needed)}


def known(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Return every kernel package of the matrices and of the kernel files, by import name (two may share one)."""
    parts = [
        (item.package.modules[0].partition(".")[0], item.package.distributions, item.package.extension)
        for item in catalog.kernels.values()
        if item.package.modules
    ]
    described = [spec for spec in all_specs() if not spec.in_torch]
    parts += [(spec.import_name, spec.distributions, spec.extension) for spec in described]
    found: dict[str, dict[str, Any]] = {}
    for name, distributions, extension in parts:
        one = found.setdefault(name, case(name, (), ()))
        one["distributions"] = list(dict.fromkeys((*one["distributions"], *distributions)))
        one["extensions"] = list(dict.fromkeys((*one["extensions"], *([extension] if extension else []))))
    return found


def case(package: str, distributions: Iterable[str], extensions: Iterable[str]) -> dict[str, Any]:
    """Return the case of one package."""
    names = {"distributions": list(distributions), "extensions": list(extensions)}
    return {"name": f"files of {package}", "kind": "package", "package": package, **names}


def runs(ask: Ask) -> list[ProbeRun]:
    """Plan one child of kerncheck's own interpreter that reads everything."""
    packages = list(subjects(ask).values())
    rows = ask.catalog.loader
    options = {
        "python": ask.python or sys.executable,
        "modules": ["torch", *top_level(packages)],
        "watch": [row.prefix for row in rows.owner if row.prefix and row.shadowed],
        "libraries": sorted(
            {row.prefix for row in rows.library if not row.driver} | {row.name for row in rows.cuda_library}
        ),
    }
    run = ProbeRun(
        label=LABEL,
        probe="static_binaries",
        cases=({"name": TORCH, "kind": "torch"}, *packages),
        options=options,
        limit=ask.timeout,
        setup_limit=ask.timeout,
        python=sys.executable,
    )
    return [run]


def top_level(packages: Iterable[dict[str, Any]]) -> list[str]:
    """Return the modules without a dot that a package may consist of."""
    names = (name for item in packages for name in (item["package"], *item["extensions"]))
    return [name for name in names if "." not in name]


def collect(_ask: Ask, answers: list[Answers]) -> Binaries | Missing:
    """Make the section of the answers; Missing if the child could not even look for torch."""
    told = answers[0]
    torch, *others = told.cases
    if not isinstance(torch, dict):
        return Missing(reason=f"the compiled files could not be read: {why(torch)}")
    return Binaries(
        header=torch["header"],
        glibc=torch["glibc"],
        torch_folder=torch["torch_folder"],
        torch_abi=torch["torch_abi"],
        torch=msgspec.convert(torch["files"], tuple[BinaryFile, ...]),
        strays=msgspec.convert(torch["strays"], tuple[Shadowing, ...]),
        packages=tuple(package(item, answer) for item, answer in zip(told.run.cases[1:], others, strict=True)),
    )


def package(asked: dict[str, Any], answer: Answer) -> Package:
    """Return what was seen of one package, or why nothing was."""
    if isinstance(answer, dict):
        return msgspec.convert(answer, Package)
    return Package(package=asked["package"], extensions=tuple(asked["extensions"]), problem=why(answer))
