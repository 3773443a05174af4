"""Plan compilations for absent GPUs: which calls of which ops, in which shares, by which children."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kerncheck.catalog import Catalog
from kerncheck.kernels import OpSpec, find_spec
from kerncheck.model.compiled import Facts
from kerncheck.model.job import Job, Target
from kerncheck.stages.common import OFFLINE
from kerncheck.stages.numerics import production_lane, text_config
from kerncheck.supervise import ProbeRun

TOKENS = 4096
"""Tokens of one micro-batch. Few constants depend on it: fla buckets the rows of its norms by 65,536."""
SHARE_LIMIT = 900.0
"""Seconds that one share of compilations may take: on two cores shared by six people the longest took 210."""
SHARES = {("chunk_delta_rule", "forward"): 4, ("chunk_delta_rule", "backward"): 8, ("fla_conv", "backward"): 2}
MOST_CHILDREN = 4  # each takes about a gigabyte (``observe.workers``)
MEMORY = 80 * 2**30  # what torch tells of an absent GPU's memory; no tile depends on it
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
PACKED = frozenset({"chunk_delta_rule", "fla_conv"})  # forms of op that take cu_seqlens in a training step
DECODES = frozenset({"recurrent_delta_rule"})  # one token at a time, with a state, and no backward
SURVEY: dict[str, Any] = {"name": "survey of launches", "what": "survey"}


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a call's constants depend on beside the op and the model's sizes."""

    tokens: int = TOKENS
    batch: int = 1
    dtype: str = "bfloat16"
    offsets: str = "int32"
    tensor_parallel: int = 1
    training: bool = True
    initial_state: bool = False


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What a group of children compiles for one target, and where to. Limits are seconds.

    ``cache`` is ``{"private": folder}`` (written there, read from the environment's own cache too) or
    ``{"fill": folder}``. ``extra`` are variables beside those of every compiling child.
    """

    target: Target
    facts: Facts
    calls: list[dict[str, Any]]
    cache: dict[str, str]
    quick: bool = False
    python: str = ""
    timeout: float = 0.0
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How its runs are named."""
        return f"compile for {self.target.text}"


def planned_calls(job: Job) -> list[dict[str, Any]]:
    """Return the calls of a job's Triton ops, plain and packed, at the model's sizes."""
    signature = Signature(dtype=DTYPES[production_lane(job)], training=job.training)
    return calls(triton_ops(job), sizes(text_config(job)), signature)


def triton_ops(job: Job) -> list[OpSpec]:
    """Return the ops of the job's model whose kernels Triton compiles, those of training and inference alike."""
    required = job.model.required if job.model else ()
    specs = (find_spec(item.op) for item in required)
    return [spec for spec in specs if spec is not None and spec.library == "triton"]


def sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Return heads, head sizes, channels and taps as a gated delta net's configuration names them; empty otherwise."""
    names = {
        "H": "linear_num_key_heads",
        "HV": "linear_num_value_heads",
        "K": "linear_key_head_dim",
        "V": "linear_value_head_dim",
        "W": "linear_conv_kernel_dim",
    }
    if not all(isinstance(config.get(name), int) for name in names.values()):
        return {}
    found = {short: int(config[name]) for short, name in names.items()}
    return {**found, "D": 2 * found["H"] * found["K"] + found["HV"] * found["V"]}


def divided(size: Mapping[str, int], parts: int) -> dict[str, int]:
    """Return the sizes of one rank of a tensor-parallel group; empty where the heads cannot be divided so."""
    if not size or size["H"] % parts or size["HV"] % parts:
        return {}
    return {**size, "H": size["H"] // parts, "HV": size["HV"] // parts, "D": size["D"] // parts}


def calls(specs: Iterable[OpSpec], size: Mapping[str, int], signature: Signature) -> list[dict[str, Any]]:
    """Return the calls of ops for one signature; none where the sizes are unknown or cannot be divided."""
    own = divided(size, signature.tensor_parallel)
    if not own:
        return []
    return [
        call(spec, layout, own, signature)
        for spec in specs
        for layout in (("plain", "varlen") if spec.form in PACKED else ("plain",))
    ]


def call(spec: OpSpec, layout: str, size: Mapping[str, int], signature: Signature) -> dict[str, Any]:
    """Return one call as plain data for the probe (``probes/compile_calls.py`` says what the fields mean)."""
    decoding = spec.form in DECODES
    return {
        "op": spec.id,
        "modules": list(spec.module_candidates),
        "form": spec.form,
        "layout": layout,
        "batch": signature.batch if layout == "plain" else 1,
        "tokens": 1 if decoding else signature.tokens,
        "sizes": dict(size),
        "dtype": signature.dtype,
        "offsets": signature.offsets,
        "initial_state": decoding or signature.initial_state,
        "final_state": decoding or not signature.training,
        "backward": signature.training and not decoding,
    }


def facts_of(target: Target, catalog: Catalog) -> Facts | None:
    """Return what fla and Triton are told of a target; None for a capability whose limits are not known."""
    limits = catalog.limits(target.cc)
    if limits is None:
        return None
    arch = int(target.cc.replace(".", ""))
    return Facts(
        name=f"NVIDIA {target.name or f'sm_{arch}'}",
        arch=arch,
        shared_memory=limits.shared_memory,
        multiprocessors=limits.multiprocessors,
        memory=MEMORY,
        assumed="" if target.name and target.name in limits.like else f"{limits.multiprocessors} multiprocessors",
    )


def compile_runs(errand: Errand) -> list[ProbeRun]:
    """Return the children of an errand. The first one also tells the survey; each takes every n-th share.

    A child notes in a file which compilation each share is in: what a dying compiler prints may bury anything else.
    """
    children = max(1, min(MOST_CHILDREN, os.cpu_count() or 1))
    note = private_folder() / re.sub(r"\W+", "_", errand.target.text)
    shared = [{**case, "note": f"{note}-{number}"} for number, case in enumerate(shares(errand.calls))]
    return [
        compile_run(
            errand,
            f"{errand.label} ({number + 1} of {children})",
            (*((SURVEY,) if number == 0 else ()), *shared[number::children]),
        )
        for number in range(children)
    ]


def compile_run(errand: Errand, label: str, cases: tuple[dict[str, Any], ...]) -> ProbeRun:
    """Return one child."""
    limit = max(errand.timeout, SHARE_LIMIT)
    return ProbeRun(
        label=label,
        probe="compile",
        cases=cases,
        options={
            "target": msgspec.to_builtins(errand.facts),
            "calls": errand.calls,
            "quick": errand.quick,
            "cache": errand.cache,
        },
        environment={**environment(), **errand.extra},
        limit=limit,
        setup_limit=limit,
        python=errand.python,
    )


def shares(planned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the compile cases of all calls, pass by pass, in shares."""
    found = []
    for index, asked in enumerate(planned):
        for phase in ("forward", "backward") if asked["backward"] else ("forward",):
            parts = SHARES.get((asked["form"], phase), 1)
            name = f"{asked['op'].partition(':')[2]} {asked['layout']} {phase}"
            found += [
                {
                    "name": name if parts == 1 else f"{name}, configurations {part + 1}/{parts}",
                    "what": "compile",
                    "call": index,
                    "phase": phase,
                    "part": part,
                    "parts": parts,
                }
                for part in range(parts)
            ]
    return found


def environment() -> dict[str, str]:
    """Return the variables of a compiling child: no real GPU, no interpreter, no timings written, one thread."""
    return {
        **OFFLINE,
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "0",
        "FLA_CACHE_RESULTS": "0",
        "TRITON_STORE_BINARY_ONLY": "1",  # machine code and metadata: a fifth of what Triton keeps by default
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def private_folder() -> Path:
    """Return the folder of this process's compiling children. It is removed when the process ends at the latest."""
    folder = Path(tempfile.gettempdir()) / f"kerncheck-compile-{os.getpid()}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
