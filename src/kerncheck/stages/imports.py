"""Parent side of the imports: which packages and ops are imported for a job, and the section that the answers make."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from kerncheck.kernels import OpSpec, all_specs, find_spec
from kerncheck.model.base import Broken, Missing
from kerncheck.model.imports import (
    Attempt,
    Distribution,
    ElfFacts,
    Host,
    Imports,
    OpImport,
    PackageImport,
    TorchRuntime,
)
from kerncheck.stages.common import Ask, child_environment
from kerncheck.supervise import Answer, Answers, ProbeRun

Kind = TypeVar("Kind")
TORCH, BINARIES = "import torch", "binaries"
CHANNEL_CLOSED = re.compile(r'probes/worker\.py", line \d+, in send')


@dataclass
class Target:
    """A package to import: its names on disk, and the ops of it with the modules that may define each."""

    package: str
    distributions: tuple[str, ...]
    extensions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    ops: dict[str, tuple[str, ...]] = field(default_factory=dict)


def targets(ask: Ask) -> list[Target]:
    """Return the packages of the job's model with the ops that it needs; without a model, all that are known."""
    needed = [op.op for op in ask.job.needed]
    found: dict[str, Target] = {}
    known = [spec.id for spec in all_specs() if not spec.in_torch]
    for op in needed if ask.job.model else known:
        spec = find_spec(op)
        target = of_spec(spec) if spec else of_id(op)
        found.setdefault(target.package, target).ops[op] = modules_of(op, spec)
    return list(found.values())


def of_spec(spec: OpSpec) -> Target:
    """Return the package of a described op."""
    extensions = (spec.extension,) if spec.extension else ()
    return Target(package=spec.import_name, distributions=spec.distributions, extensions=extensions, needs=spec.needs)


def of_id(op: str) -> Target:
    """Return the package of an op that no kernel file describes: the first part of its module."""
    package = op.partition(":")[0].partition(".")[0]
    return Target(package=package, distributions=(package.replace("_", "-"),))


def modules_of(op: str, spec: OpSpec | None) -> tuple[str, ...]:
    """Return the modules that may define an op: the one in its id first."""
    candidates = spec.module_candidates if spec else ()
    return tuple(dict.fromkeys((op.partition(":")[0], *candidates)))


def runs(ask: Ask) -> list[ProbeRun]:
    """Plan one child for torch, one for each package, and one that reads the extension files."""
    found = targets(ask)
    environment = child_environment(ask.job)
    return [torch_run(ask, environment), *(package_run(ask, item, environment) for item in found), binaries(ask, found)]


def torch_run(ask: Ask, environment: dict[str, str]) -> ProbeRun:
    """Plan the look at the interpreter and at torch."""
    metadata = {"package": "torch", "distributions": ["torch"], "extensions": []}
    cases = (
        {"name": "the interpreter", "kind": "host"},
        {"name": "metadata of torch", "kind": "installed", **metadata},
        {"name": TORCH, "kind": "torch"},
    )
    limit = ask.timeout
    return ProbeRun(label=TORCH, probe="imports", cases=cases, environment=environment, limit=limit, setup_limit=limit)


def package_run(ask: Ask, target: Target, environment: dict[str, str]) -> ProbeRun:
    """Plan the imports of one package in one child, torch first: its root, its extensions, its ops."""
    root = f"import {target.package}"
    metadata = {
        "package": target.package,
        "distributions": list(target.distributions),
        "extensions": list(target.extensions),
    }
    cases: list[dict[str, Any]] = [
        {"name": f"metadata of {target.package}", "kind": "installed", **metadata},
        {"name": root, "kind": "module", "modules": [target.package]},
    ]
    cases += [
        {"name": f"import {module}", "kind": "module", "modules": [module], "needs": root}
        for module in target.extensions
    ]
    cases += [
        {"name": op, "kind": "op", "modules": list(modules), "attribute": op.partition(":")[2], "needs": root}
        for op, modules in target.ops.items()
    ]
    return ProbeRun(
        label=root,
        probe="imports",
        cases=tuple(cases),
        options={"after_torch": target.package},
        environment=environment,
        limit=ask.timeout,
        setup_limit=ask.timeout,
    )


def binaries(ask: Ask, found: Iterable[Target]) -> ProbeRun:
    """Plan the look into the files of torch and of each compiled package, under kerncheck's own interpreter."""
    compiled = [item for item in found if item.extensions]
    modules = ["torch", *(name for item in compiled for name in (item.package, *item.extensions) if "." not in name)]
    watch = [row.prefix for row in ask.catalog.loader.owner if row.prefix and row.shadowed]
    cases = [{"name": "libraries of torch", "package": "torch", "extensions": []}]
    cases += [
        {"name": f"binaries of {item.package}", "package": item.package, "extensions": list(item.extensions)}
        for item in compiled
    ]
    return ProbeRun(
        label=BINARIES,
        probe="binaries",
        cases=tuple(cases),
        options={"python": ask.python or sys.executable, "modules": modules, "watch": watch},
        limit=ask.timeout,
        setup_limit=ask.timeout,
        python=sys.executable,
    )


def collect(ask: Ask, answers: list[Answers]) -> Imports | Missing:
    """Make the section of the answers."""
    by_label = {item.run.label: item for item in answers}
    found = [(target, by_label[f"import {target.package}"]) for target in targets(ask)]
    host, metadata, torch = by_label[TORCH].cases
    owned = read(metadata, dict[str, Any])
    owners = msgspec.convert(owned["distributions"], tuple[Distribution, ...]) if isinstance(owned, dict) else ()
    return Imports(
        host=reached(read(host, Host)),
        torch=torch_of(torch),
        torch_distribution=next(iter(owners), None),
        torch_demangled=torch["demangled"] if isinstance(torch, dict) else {},
        packages=tuple(package_of(target, item) for target, item in found),
        ops=tuple(op for target, item in found for op in ops_of(ask, target, item)),
        elf=elf_of(by_label[BINARIES]),
    )


def read(answer: Answer, kind: type[Kind]) -> Kind | Missing | Broken:
    """Return a child's answer as a type; one that did not come stays what it is."""
    return answer if isinstance(answer, Missing | Broken) else msgspec.convert(answer, kind)


def reached(answer: Kind | Missing | Broken) -> Kind | Missing:
    """Return an answer about our own look, whose break is no observation about the environment."""
    return Missing(reason=f"the look failed: {answer.message}") if isinstance(answer, Broken) else answer


def torch_of(answer: Answer) -> TorchRuntime | Missing | Broken:
    """Return what torch said, with the warnings and lines that its import wrote."""
    if isinstance(answer, Missing | Broken):
        return answer
    attempt: TorchRuntime | Missing | Broken = msgspec.convert(answer["result"], TorchRuntime | Missing | Broken)
    if not isinstance(attempt, TorchRuntime):
        return attempt
    return msgspec.structs.replace(attempt, warnings=tuple(answer["warnings"]), output=tuple(answer["output"]))


def attempt_of(module: str, answer: Answer) -> Attempt:
    """Return one import. A child that died or stood still says so as the import's result.

    What an import raises comes inside the answer; an answer that is itself an exception is a failure of our probe.
    """
    if isinstance(answer, Broken) and answer.how == "raised":
        answer = Missing(reason=f"the probe itself failed ({answer.exception}: {answer.message})")
    elif isinstance(answer, Broken) and CHANNEL_CLOSED.search(answer.detail):
        answer = Missing(reason="the import closed the channel on which the child answers, so what it did is not known")
    if isinstance(answer, Missing | Broken):
        return Attempt(module=module, result=answer, ordinary=False)
    return msgspec.convert(answer, Attempt)


def package_of(target: Target, item: Answers) -> PackageImport:
    """Return what was seen of one package."""
    metadata, root, *others = item.cases
    seen: dict[str, Any] = {"distributions": metadata} if isinstance(metadata, Missing) else {}
    seen = msgspec.to_builtins(metadata) if isinstance(metadata, dict) else seen
    found = {
        **seen,
        "package": target.package,
        "root": attempt_of(target.package, root),
        "extensions": tuple(attempt_of(name, answer) for name, answer in zip(target.extensions, others, strict=False)),
        "known_distributions": target.distributions,
        "known_extensions": target.extensions,
        "needs": target.needs,
    }
    return msgspec.convert(msgspec.to_builtins(found), PackageImport)


def ops_of(ask: Ask, target: Target, item: Answers) -> Iterable[OpImport]:
    """Yield what was seen of each op of a package."""
    package = package_of(target, item)
    installed = () if isinstance(package.distributions, Missing) else package.distributions
    first = next(iter(installed), None)
    answers = item.cases[2 + len(target.extensions) :]
    for (op, modules), answer in zip(target.ops.items(), answers, strict=True):
        yield OpImport(
            op=op,
            package=target.package,
            distribution=first.name if first else "",
            version=first.version if first else "",
            required=ask.job.model is not None,
            attempt=attempt_of(modules[0], answer),
        )


def elf_of(item: Answers) -> tuple[ElfFacts, ...] | Missing:
    """Return the facts of all files; a package whose files could not be read leaves none."""
    if item.setup is not None:
        return Missing(reason=f"the files could not be read: {item.cases[0]}" if item.cases else "nothing to read")
    answers = [answer for answer in item.cases if isinstance(answer, dict)]
    return msgspec.convert([file for answer in answers for file in answer["files"]], tuple[ElfFacts, ...])
