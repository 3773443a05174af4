"""``kerncheck warm``: fill Triton's cache with what nodes will look up, so that they need not compile it.

It removes compilation, not autotuning: no timings are written, and each configuration is still timed on the node.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from kerncheck import catalog as catalogs
from kerncheck.catalog import Catalog
from kerncheck.commands import observed
from kerncheck.errors import UsageError
from kerncheck.kernels import OpSpec
from kerncheck.model.base import Missing
from kerncheck.model.compiled import Rehearsal, Result
from kerncheck.model.job import Job, Target
from kerncheck.models import resolve
from kerncheck.stages import compile_plan as plan
from kerncheck.stages.compiled import rehearsal
from kerncheck.stages.numerics import text_config
from kerncheck.supervise import Supervisor, why
from kerncheck.targets import parse_targets

UNSET = frozenset({"", "0", "false", "off", "no"})
EVERYTHING = {"TRITON_STORE_BINARY_ONLY": "0"}
TIMINGS = "*.autotune.json"
NUMBERS = ("tokens", "batch", "tensor_parallel")
SAVES = "saves: the compilation of these kernels in every process whose Triton, fla, ptxas and variables are those here"
SAVES_NOT = (
    "does not save: autotuning (every configuration is still timed on the node; no timings were written), the modules "
    "that Triton builds with a C compiler at the first launch, kernels of other shapes, and those of torch.compile"
)


@dataclass(frozen=True)
class Warmed:
    """What was done for one target: what the filling children saw, and then what fresh ones found."""

    filled: Rehearsal
    found: Rehearsal


def command(given: Mapping[str, Any]) -> int:
    """Fill the cache for every target; return 0, 1 if something does not compile or is not found, 3 if unknown.

    Raises:
        UsageError: the cache would not be read on the nodes, or cannot be written; or nothing is known of a target.

    """
    catalog = catalogs.load()
    job = make_job(given, catalog)
    folder = cache_folder(given["cache_dir"], os.environ)
    refuse_variables(os.environ, catalog, given["node_sets"])
    refuse_folder(folder)
    errands = [errand(target, given, job, catalog, folder) for target in job.targets]
    done = observed(lambda supervisor: [warm(one, given, supervisor) for one in errands], given)
    before = "".join(f"{line}\n" for line in heading(given, job, folder))
    click.echo(before + "".join(f"{line}\n" for item in done for line in told(item)), nl=False)
    click.echo("".join(f"{line}\n" for line in closing(folder)), nl=False)
    return max(code_of(item) for item in done)


def make_job(given: Mapping[str, Any], catalog: Catalog) -> Job:
    """Return the model and the targets. Raises UsageError where one is absent or unknown."""
    if not given["model"] or not given["target"]:
        raise UsageError("warm needs --model and --target", "kerncheck warm --model qwen --target h200")
    targets = parse_targets(given["target"], catalog)
    return Job(profile="image", model=resolve(given["model"], catalog), targets=targets)


def cache_folder(asked: str | None, variables: Mapping[str, str]) -> Path:
    """Return the folder to fill: the one asked for, else the one that Triton reads in this environment."""
    if asked:
        return Path(asked).absolute()
    if variables.get("TRITON_CACHE_DIR"):
        return Path(variables["TRITON_CACHE_DIR"]).absolute()
    home = variables.get("TRITON_HOME") or str(Path("~/").expanduser())
    return Path(home).absolute() / ".triton" / "cache"


def refuse_variables(variables: Mapping[str, str], catalog: Catalog, node_sets: Iterable[str]) -> None:
    """Refuse where a variable keeps the nodes from finding what is compiled here.

    Raises:
        UsageError: the variable and what it does.

    """
    for row in (*catalog.triton.variable, *(row for item in catalog.kernels.values() for row in item.variable)):
        value = variables.get(row.name, "")
        if row.cache == "unread" and value.lower() not in UNSET:
            raise UsageError(f"{row.name}={value}: Triton reads no cache of its own then ({row.effect})", "unset it")
        if row.cache == "key" and value and row.name not in node_sets:
            raise differing(row.name, value)


def differing(name: str, value: str) -> UsageError:
    """Return the refusal for a variable that is part of the key."""
    return UsageError(
        f"{name}={value} is set here and decides under which key compiled kernels are kept: a node that does not set "
        "it so would look up another key and compile again",
        f"unset it, or say --node-sets {name} if the nodes set it so",
    )


def refuse_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".kerncheck-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}", "name a folder with --cache-dir") from None


def errand(target: Target, given: Mapping[str, Any], job: Job, catalog: Catalog, folder: Path) -> plan.Errand:
    """Return what is compiled for a target. Raises UsageError where its limits or the model's sizes are not known."""
    facts = plan.facts_of(target, catalog)
    if facts is None:
        raise UsageError(f"--target {target.text}: gpus.toml holds no limits of capability {target.cc}")
    calls = signatures(plan.triton_ops(job), plan.sizes(text_config(job)), given)
    if not calls:
        raise UsageError("the model has no Triton op whose sizes are known, or its heads cannot be divided so")
    return plan.Errand(
        target=target,
        facts=facts,
        calls=calls,
        cache={"fill": str(folder)},
        timeout=given["timeout"] or 0.0,
        extra=dict(EVERYTHING) if given["keep_ir"] else {},
    )


def signatures(specs: list[OpSpec], size: Mapping[str, int], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every call whose compilations are kept, for each dtype and each size of a tensor-parallel group."""
    found: list[dict[str, Any]] = []
    for dtype in given["dtype"]:
        for parts in given["tensor_parallel"]:
            base = plan.Signature(dtype=dtype, tensor_parallel=parts)
            for tokens in given["tokens"]:
                for batch in given["batch"]:
                    found += variants(specs, size, replace(base, tokens=tokens, batch=batch))
    return unique(found)


def variants(specs: list[OpSpec], size: Mapping[str, int], base: plan.Signature) -> list[dict[str, Any]]:
    """Return the calls of training (both dtypes of offsets), of a prompt, of a prompt that goes on, and decoding."""
    chunked = [spec for spec in specs if spec.form == "chunk_delta_rule"]
    prompt = replace(base, training=False)
    return [
        *plan.calls(specs, size, base),
        *(item for item in plan.calls(specs, size, replace(base, offsets="int64")) if item["layout"] == "varlen"),
        *(item for item in plan.calls(chunked, size, prompt) if item["layout"] == "plain"),
        *(item for item in plan.calls(chunked, size, replace(prompt, initial_state=True)) if item["layout"] == "plain"),
    ]


def unique(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return calls without repetition, in order."""
    found: list[dict[str, Any]] = []
    for item in calls:
        if item not in found:
            found.append(item)
    return found


def warm(one: plan.Errand, given: Mapping[str, Any], supervisor: Supervisor) -> Warmed:
    """Survey, refuse if the key would differ on a node, fill, and look everything up again in fresh processes."""
    survey = supervisor.run(plan.compile_run(one, f"{one.label} (survey)", (plan.SURVEY,)))
    seen = rehearsal(one.target, one.facts, [survey])
    for name, value in seen.toolchain.variables.items():
        if name not in given["node_sets"]:
            raise differing(name, value)
    if seen.survey is not None or not seen.toolchain.knows:
        return Warmed(seen, seen)
    return Warmed(walk(one, supervisor), walk(one, supervisor))


def walk(one: plan.Errand, supervisor: Supervisor) -> Rehearsal:
    """Run the children of an errand side by side; return what they saw."""
    runs = plan.compile_runs(one)
    with ThreadPoolExecutor(max_workers=len(runs)) as pool:
        return rehearsal(one.target, one.facts, list(pool.map(supervisor.run, runs)))


def code_of(item: Warmed) -> int:
    """Return the exit code of one target."""
    if isinstance(item.filled.survey, Missing):
        return 3
    if item.filled.survey is not None or not item.filled.toolchain.knows or item.filled.lost:
        return 1
    return 0 if all(one.compiled for one in item.filled.results) and not absent(item) else 1


def absent(item: Warmed) -> list[Result]:
    """Return what was compiled and not found again by a fresh process."""
    compiled = {one.id for one in item.filled.results if one.compiled}
    return [one for one in item.found.results if one.id in compiled and not one.cached]


def heading(given: Mapping[str, Any], job: Job, folder: Path) -> list[str]:
    """Return what is filled, and with what."""
    assert job.model is not None  # noqa: S101 - make_job saw to it
    numbers = "; ".join(f"{name.replace('_', ' ')} {spelled(given[name])}" for name in NUMBERS)
    packed = "plain, packed with int32 and int64 cu_seqlens, prompt with and without a state to go on from, decoding"
    return [
        f"cache: {folder} (nodes must see it under this path: TRITON_CACHE_DIR={folder})",
        f"signatures of {job.model.name}: {', '.join(given['dtype'])}; {numbers}; {packed}",
    ]


def spelled(numbers: Iterable[int]) -> str:
    """Return numbers in one text."""
    return " ".join(str(number) for number in numbers)


def told(item: Warmed) -> list[str]:
    """Return the lines about one target."""
    filled, tool = item.filled, item.filled.toolchain
    name = f"{filled.name} (sm_{filled.facts.arch})"
    if filled.survey is not None:
        return [f"{name}: nothing was compiled: {why(filled.survey)}"]
    if not tool.knows:
        return [f"{name}: nothing was compiled: the ptxas {tool.version} of Triton {tool.triton}: {tool.message}"]
    good = [one for one in filled.results if one.compiled]
    kernels = {kernel.name for _, _, kernel in filled.walk()}
    there = sum(one.cached for one in good)
    code = megabytes(sum(one.bytes for one in good))
    bad = [one for one in filled.results if not one.compiled]
    lines = [
        f"{name}: {len(good)} configurations of {len(kernels)} kernels, {there} of which were there already",
        f"{name}: compiled by triton {tool.triton} and ptxas {tool.version}, {code} of machine code",
        f"{name}: a second process found {len(good) - len(absent(item))} of {len(good)} in the cache",
    ]
    lines += [f"{name}: did not compile: {one.exception}: {one.error[:200]}" for one in bad]
    lines += [f"{name}: not finished: {lost.name}: {why(lost.why)}" for lost in filled.lost]
    elsewhere = {function: backend for call in filled.calls for function, backend in call.elsewhere.items()}
    lines += [f"{name}: fla hands {key} to {value} there; its code is not kept" for key, value in elsewhere.items()]
    return lines


def closing(folder: Path) -> list[str]:
    """Return the size of the cache, and what it does and does not save."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    timings = [path for path in files if path.match(TIMINGS)]
    lines = [f"{folder}: {megabytes(sum(path.stat().st_size for path in files))} in {len(files)} files"]
    if timings:
        lines.append(f"{len(timings)} files of timings ({TIMINGS}) lie there from before: they choose configurations")
    return [*lines, SAVES, SAVES_NOT]


def megabytes(size: int) -> str:
    """Return a size for people."""
    return f"{size / 1e6:.1f} MB"
