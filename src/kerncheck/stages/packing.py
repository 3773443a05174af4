"""Plan and read the packing probe: one child, one case for each convention with use_cache off and on."""

from __future__ import annotations

from typing import Any

import msgspec

from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import CONVENTIONS, VARIANTS, Job
from kerncheck.model.packing import Cell, Packing, Unseen
from kerncheck.stages.common import Ask, child_environment
from kerncheck.stages.numerics import COLD, production_lane
from kerncheck.supervise import Answer, Answers, ProbeRun, why


def runs(ask: Ask) -> list[ProbeRun]:
    """Return the run, or nothing for a job without a model or device, or a quick one that declares no packing."""
    job = ask.job
    conventions = tried(job)
    if job.model is None or job.device == "none" or not conventions or (job.device == "cuda" and not ask.gpus):
        return []
    gpu = ask.gpus[0] if job.device == "cuda" else ""  # the code decides here, not the device: one GPU says it all
    dtype = "float16" if production_lane(job) == "fp16" else "bfloat16"
    options = {"request": msgspec.to_builtins(job.model), "device": job.device, "dtype": dtype}
    run = ProbeRun(
        label="packing",
        probe="packing",
        cases=tuple(cases(conventions, job.packing)),
        options=options,
        environment=child_environment(job, gpu),
        limit=max(ask.timeout, COLD) if gpu else ask.timeout,
        setup_limit=2 * ask.timeout,
        python=ask.python,
    )
    return [run]


def tried(job: Job) -> tuple[str, ...]:
    """Return the conventions to try: all of them, or only the declared one in a quick run."""
    if job.quick:
        return (job.packing,) if job.packing else ()
    return (*CONVENTIONS, *VARIANTS)


def cases(conventions: tuple[str, ...], declared: str | None) -> list[dict[str, Any]]:
    """Return the positive control and the conventions, with use_cache off and on.

    With a cache only attention can behave differently, and one changed example shows it. Variants differ from ``both``
    in attention alone, so one that is not declared is run without a cache only.
    """
    off = [case(name, use_cache=False, table=name != declared) for name in ("nothing", *conventions)]
    cached = [convention for convention in conventions if convention in CONVENTIONS or convention == declared]
    return off + [case(convention, use_cache=True) for convention in cached]


def case(convention: str, *, use_cache: bool, table: bool = False) -> dict[str, Any]:
    """Return one case of the probe; for the table alone a variant is looked at by one change, without gradients."""
    brief = use_cache or (table and convention in VARIANTS)
    return {
        "name": f"{convention}, use_cache {'on' if use_cache else 'off'}",
        "convention": convention,
        "use_cache": use_cache,
        "gradients": not brief,
        "examples": [0] if brief else [0, 2],
    }


def collect(ask: Ask, answers: list[Answers]) -> Packing | Missing:
    """Put the cells together; Missing if not one of them was seen."""
    if not answers:
        return Missing(reason=not_run(ask.job))
    told = answers[0]
    pairs = list(zip(told.run.cases, told.cases, strict=True))
    about = next((answer["about"] for _, answer in pairs if isinstance(answer, dict) and "about" in answer), None)
    if about is None:
        return Missing(reason=first_reason(told))
    device = "Triton interpreter" if about["device"] == "emulate" else f"{about['name']}"
    return msgspec.convert(
        {
            **{name: about[name] for name in ("lengths", "layer_types", "attention", "experts", "standins")},
            "kind": "packing",
            "evidence": "emulated" if about["device"] == "emulate" else "measured",
            "device": device,
            "cells": [msgspec.to_builtins(cell(asked, answer)) for asked, answer in pairs],
        },
        Packing,
    )


def not_run(job: Job) -> str:
    """Return why no packing probe was planned."""
    if job.model is None:
        return "no model was named (--model)"
    if job.quick and job.packing is None:
        return "a quick run tests packing only when it is declared (--packing)"
    return "packing needs a device that runs the model: a GPU, or --device emulate"


def first_reason(told: Answers) -> str:
    """Return why nothing was seen: what the set-up or the first case said."""
    if told.setup is not None:
        return f"the packing probe could not start: {why(told.setup)}"
    first = told.cases[0]
    return str(first["missing"]) if isinstance(first, dict) else why(first)


def cell(asked: dict[str, Any], answer: Answer) -> Cell | Unseen:
    """Turn one answer into a cell."""
    if isinstance(answer, dict) and "cell" in answer:
        return msgspec.convert(answer["cell"], Cell)
    reason: Missing | Broken = answer if not isinstance(answer, dict) else Missing(reason=str(answer["missing"]))
    applies = not isinstance(answer, dict) or answer.get("applies", True)
    return Unseen(convention=asked["convention"], use_cache=asked["use_cache"], why=reason, applies=applies)
