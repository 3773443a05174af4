"""Plan and read the numerics probe: one worker for each dtype and device, which walks the cells of every op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any
from zlib import crc32

import msgspec

from kerncheck.kernels import CellPlan, OpSpec, all_specs, cells_of
from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import Job
from kerncheck.model.numerics import Cell, CellLost, Lane, LaneName, Numerics, Unimportable
from kerncheck.stages.common import Ask, child_environment
from kerncheck.supervise import Answer, Answers, ProbeRun

EMULATED_LANES: tuple[LaneName, ...] = ("fp32", "bf16")
IEEE = {"TRITON_F32_DEFAULT": "ieee"}
"""triton.knobs.language.fp32_default: dots of fp32 operands are not rounded to TF32 unless a kernel asks for it."""
NOT_EMULATED = "compiled CUDA extension; cannot run in the interpreter"
COLD = 900.0
"""Limit of a cell on a GPU, in seconds: the first one compiles and times every autotune configuration of fla's kernels
(114 of chunk_gated_delta_rule compile in about 40 s for one target, design.md)."""


def runs(ask: Ask) -> list[ProbeRun]:
    """Return a run for each lane, or none for a job without a device."""
    job = ask.job
    if job.device == "none":
        return []
    if job.device == "emulate" and not ops(ask):
        return []
    if job.device == "emulate":
        # The interpreter knows no TF32, so a quick run, in which imports cost more than cells, shares one child.
        return [run_of(ask, lanes, "") for lanes in ([EMULATED_LANES] if job.quick else zip(EMULATED_LANES))]
    return [run_of(ask, (production_lane(job),), gpu) for gpu in ask.gpus]


def run_of(ask: Ask, lanes: tuple[LaneName, ...], gpu: str) -> ProbeRun:
    """Return the run of one lane, or of several that share a child."""
    device = ask.job.device
    label = f"numerics {' and '.join(lanes)}" + (f" on GPU {gpu}" if gpu else "")
    walked = tuple(case for lane in lanes for spec in ops(ask) for case in cases(spec, ask.job, lane))
    environment = {**child_environment(ask.job, gpu), **(IEEE if "fp32" in lanes else {})}
    return ProbeRun(
        label=label,
        probe="numerics",
        cases=walked,
        options={"device": device, "gpu": gpu},
        environment=environment,
        limit=ask.timeout if device == "emulate" else max(ask.timeout, COLD),
        setup_limit=2 * ask.timeout,
    )


def production_lane(job: Job) -> LaneName:
    """Return the dtype that the model trains in: the one in its configuration if it is 16 bit, else bf16."""
    config = text_config(job)
    named = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return "fp16" if named.endswith("float16") and not named.endswith("bfloat16") else "bf16"


def text_config(job: Job) -> Mapping[str, Any]:
    """Return the configuration of the text model, which some models keep inside another one."""
    config = job.model.config if job.model else {}
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def ops(ask: Ask) -> tuple[OpSpec, ...]:
    """Return what is judged and can run here: the model's ops, or without a model those of every installed package."""
    chosen = [spec for spec in all_specs() if asked(ask, spec)]
    return tuple(spec for spec in chosen if spec.runs_emulated or ask.job.device == "cuda")


def asked(ask: Ask, spec: OpSpec) -> bool:
    """Tell whether a job is about an op."""
    if ask.job.model is not None:
        return any(required.op == spec.id for required in ask.job.model.required)
    if spec.plugin:
        return True
    if isinstance(ask.environment, Missing):
        return True
    return any(ask.environment.find(name) for name in spec.distributions)


def cases(spec: OpSpec, job: Job, lane: LaneName) -> list[dict[str, Any]]:
    """Return the cells of an op as cases for the probe."""
    plans = [plan for plan in cells_of(spec, job.device, text_config(job)) if not plan.lanes or lane in plan.lanes]
    if job.quick:
        plans = [replace(plan, lengths=plan.short or plan.lengths) for plan in plans if plan.quick]
    return [as_case(spec, plan, lane) for plan in plans]


def as_case(spec: OpSpec, plan: CellPlan, lane: LaneName) -> dict[str, Any]:
    """Return one cell as plain data. Its seed depends on its name alone, so that every run draws the same inputs."""
    return {
        **asdict(plan),
        "cell": plan.name,
        "name": f"{spec.name}: {plan.name}",
        "op": spec.id,
        "code": spec.code,
        "plugin": spec.plugin,
        "form": spec.form,
        "extension": spec.extension,
        "lane": lane,
        "seed": crc32(f"{spec.form} {plan.name}".encode()) % 2**31,
    }


def collect(ask: Ask, answers: list[Answers]) -> Numerics | Missing:
    """Put the lanes together."""
    if not answers:
        return Missing(reason=nothing_ran(ask))
    return Numerics(
        evidence="emulated" if ask.job.device == "emulate" else "measured",
        lanes=tuple(lane(name, told) for told in answers for name in lanes_of(told)),
        left_out={} if ask.job.device == "cuda" else {spec.id: NOT_EMULATED for spec in compiled(ask)},
    )


def nothing_ran(ask: Ask) -> str:
    """Return why no run was planned."""
    if ask.job.device == "cuda":
        return "no GPU is visible"
    return "no kernel was run: this needs a GPU, or --device emulate, and an installed kernel package"


def compiled(ask: Ask) -> list[OpSpec]:
    """Return the ops that the job is about and that the emulated device cannot run."""
    return [spec for spec in all_specs() if asked(ask, spec) and not spec.runs_emulated]


def lanes_of(told: Answers) -> list[LaneName]:
    """Return the lanes whose cells a worker walked, in order."""
    return list(dict.fromkeys(case["lane"] for case in told.run.cases))


def lane(name: LaneName, told: Answers) -> Lane:
    """Read what a worker answered about one lane."""
    walked = zip(told.run.cases, told.cases, strict=True)
    pairs = [(asked, answer) for asked, answer in walked if asked["lane"] == name]
    said = [answer["facts"] for _, answer in pairs if isinstance(answer, dict) and "facts" in answer]
    facts = said[0] if said else {}
    gone = {asked["op"]: answer for asked, answer in pairs if isinstance(answer, dict) and "unimportable" in answer}
    return Lane(
        name=name,
        gpu=told.run.options["gpu"],
        facts={name: str(value) for name, value in facts.items() if value},
        unusable=told.setup,
        cells=() if told.setup else tuple(cell(case, answer) for case, answer in pairs if case["op"] not in gone),
        unimportable=tuple(
            Unimportable(op=op, reason=answer["unimportable"], module=answer["module"]) for op, answer in gone.items()
        ),
    )


def cell(case: dict[str, Any], answer: Answer) -> Cell | CellLost:
    """Turn one answer into a cell."""
    if isinstance(answer, Missing | Broken):
        return CellLost(op=case["op"], name=case["cell"], why=answer)
    seen = {name: value for name, value in answer.items() if name != "facts"}
    about = {name: case[name] for name in ("op", "regime", "lengths", "seeds", "cuts")}
    return msgspec.convert({"kind": "cell", "name": case["cell"], **about, **seen}, Cell)
