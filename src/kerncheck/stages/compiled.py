"""Plan and read the compile probe: for each target a few children, each with its share of the compilations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from kerncheck.model.base import Broken, Missing
from kerncheck.model.compiled import Call, Compiled, Facts, Lost, Phase, Rehearsal, Result, Toolchain
from kerncheck.model.job import Job, Target
from kerncheck.stages.common import Ask
from kerncheck.stages.compile_plan import (
    Errand,
    compile_runs,
    facts_of,
    planned_calls,
    private_folder,
    triton_ops,
)
from kerncheck.supervise import Answers, ProbeRun


def runs(ask: Ask) -> list[ProbeRun]:
    """Return the runs of every target; none without a target, a model, or sizes in its configuration."""
    planned = planned_calls(ask.job)
    errands = (errand(target, planned, ask) for target in ask.job.targets if planned)
    return [run for one in errands if one is not None for run in compile_runs(one)]


def errand(target: Target, planned: list[dict[str, Any]], ask: Ask) -> Errand | None:
    """Return what is compiled for a target, or None for one whose limits are not known."""
    facts = facts_of(target, ask.catalog)
    if facts is None:
        return None
    return Errand(
        target=target,
        facts=facts,
        calls=planned,
        cache={"private": str(private_folder())},
        quick=ask.job.quick,
        python=ask.python,
        timeout=ask.timeout,
    )


def collect(ask: Ask, answers: list[Answers]) -> Compiled | Missing:
    """Put the targets together."""
    job = ask.job
    if not job.targets:
        return Missing(reason="no target was named (--target)")
    if not planned_calls(job):
        return Missing(reason=nothing_planned(job))
    found = []
    for target in job.targets:
        facts = facts_of(target, ask.catalog)
        own = [told for told in answers if told.run.label.startswith(f"compile for {target.text} (")]
        if facts is not None:
            found.append(rehearsal(target, facts, own))
    unplanned = {
        target.text: f"gpus.toml holds no limits of capability {target.cc}"
        for target in job.targets
        if facts_of(target, ask.catalog) is None
    }
    shutil.rmtree(private_folder(), ignore_errors=True)
    return Compiled(quick=job.quick, rehearsals=tuple(found), unplanned=unplanned)


def nothing_planned(job: Job) -> str:
    """Return why there is nothing to compile."""
    if job.model is None:
        return "no model was named (--model)"
    if not triton_ops(job):
        return "the model requires no op whose kernels Triton compiles"
    return "the model's configuration names no heads of linear attention (linear_num_key_heads and its like)"


def rehearsal(target: Target, facts: Facts, answers: list[Answers]) -> Rehearsal:
    """Read the answers of one target's children."""
    survey = answers[0].cases[0]
    if not isinstance(survey, dict):
        return Rehearsal(target=target, facts=facts, survey=survey)
    planned = answers[0].run.options["calls"]
    told = [read_call(asked, item) for asked, item in zip(planned, survey["calls"], strict=True)]
    results: list[Result] = []
    lost: list[Lost] = []
    for one in answers:
        for case, answer in zip(one.run.cases, one.cases, strict=True):
            if case["what"] == "survey":
                continue
            if isinstance(answer, dict):
                results += msgspec.convert(answer["results"], list[Result])
            else:
                lost.append(read_lost(case, answer, told, quick=one.run.options["quick"]))
    return Rehearsal(
        target=target,
        facts=facts,
        toolchain=msgspec.convert(survey["toolchain"], Toolchain),
        calls=tuple(told),
        results=tuple(results),
        lost=tuple(lost),
    )


def read_call(asked: dict[str, Any], told: dict[str, Any]) -> Call:
    """Read what a call launches."""
    return Call(
        op=asked["op"],
        layout=asked["layout"],
        details={name: asked[name] for name in DETAILS},
        phases=tuple(read_phase(phase) for phase in told["phases"]),
        elsewhere=told["elsewhere"],
    )


DETAILS = ("batch", "tokens", "sizes", "dtype", "offsets", "initial_state", "final_state", "backward")


def read_phase(told: dict[str, Any]) -> Phase:
    """Read what a pass launches."""
    raised = told["problem"]
    problem = None
    if raised is not None:
        problem = Broken(how="raised", **{**raised, "chain": tuple(raised["chain"])})
    return msgspec.structs.replace(msgspec.convert({**told, "problem": None}, Phase), problem=problem)


def read_lost(case: dict[str, Any], answer: Missing | Broken, told: list[Call], *, quick: bool) -> Lost:
    """Say which compilations a share that was not answered would have made, and which it was in."""
    note = Path(case["note"])
    at = note.read_text(errors="replace") if isinstance(answer, Broken) and note.is_file() else ""
    return Lost(name=case["name"], why=answer, ids=share_ids(case, told, quick=quick), at=at)


def share_ids(case: dict[str, Any], told: list[Call], *, quick: bool) -> tuple[str, ...]:
    """Return the ids of a share, by the rule by which the child takes them."""
    phase = next((item for item in told[case["call"]].phases if item.phase == case["phase"]), None)
    if phase is None:
        return ()
    numbers = {item.id: item.number for kernel in phase.kernels for item in kernel.configurations}
    share = [one for family in phase.own[case["part"] :: case["parts"]] for one in family]
    return tuple(one for one in share if not quick or numbers[one] == 1)
