"""Plan and read the step probe: on each device one child as configured and one with the eager references."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

import msgspec

from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import Job
from kerncheck.model.step import Comparison, OnDevice, Run, Step
from kerncheck.stages.common import Ask, child_environment
from kerncheck.stages.numerics import COLD, production_lane
from kerncheck.supervise import Answer, Answers, ProbeRun

OF_RUN = frozenset(Run.__struct_fields__)


def runs(ask: Ask) -> list[ProbeRun]:
    """Return two runs for each device; nothing for a job without model or device, or one that does not train."""
    if ask.job.model is None or not_run(ask.job) or (ask.job.device == "cuda" and not ask.gpus):
        return []
    devices = ask.gpus if ask.job.device == "cuda" else ("",)
    return [run for gpu in devices for run in pair(ask, gpu)]


def pair(ask: Ask, gpu: str) -> list[ProbeRun]:
    """Return the fused and the eager run of one device, which meet in a folder with a name that nobody can guess."""
    folder = str(Path(tempfile.gettempdir()) / f"kerncheck-{uuid.uuid4().hex}")
    return [one(ask, gpu, folder, eager=eager) for eager in (False, True)]


def one(ask: Ask, gpu: str, folder: str, *, eager: bool) -> ProbeRun:
    """Return one run."""
    name = "step, eager references" if eager else "step, as configured"
    label = f"{name} (GPU {gpu})" if gpu else name
    return ProbeRun(
        label=label,
        probe="step",
        cases=({"name": name},),
        options={
            "request": msgspec.to_builtins(ask.job.model),
            "device": ask.job.device,
            "dtype": "float16" if production_lane(ask.job) == "fp16" else "bfloat16",
            "eager": eager,
            "exchange": folder,
            "ops": [op.op for op in ask.job.needed if op.role == "seam"],
        },
        environment=child_environment(ask.job, gpu),
        limit=max(ask.timeout, COLD) if gpu else ask.timeout,
        setup_limit=2 * ask.timeout,
        python=ask.python,
    )


def not_run(job: Job) -> str:
    """Return why no step is run for a job, or nothing."""
    if job.model is None:
        return "no model was named (--model)"
    if not job.training:
        return "the job does not train (--inference)"
    return "a step needs a device that runs the model: a GPU, or --device emulate" if job.device == "none" else ""


def collect(ask: Ask, answers: list[Answers]) -> Step | Missing:
    """Put the devices together; remove the folders in which their runs met."""
    if not answers:
        return Missing(reason=not_run(ask.job) or "no GPU is visible")
    for told in answers:
        shutil.rmtree(told.run.options["exchange"], ignore_errors=True)
    pairs = list(zip(answers[::2], answers[1::2], strict=True))
    return Step(
        evidence="emulated" if ask.job.device == "emulate" else "measured",
        devices=tuple(on_device(ask.job, fused, eager) for fused, eager in pairs),
        visible=len(ask.gpus),
    )


def on_device(job: Job, fused: Answers, eager: Answers) -> OnDevice:
    """Return what both runs of one device told."""
    told = [answer for answer in (fused.cases[0], eager.cases[0]) if isinstance(answer, dict)]
    compared = [answer["comparison"] for answer in told if answer.get("comparison")]
    return OnDevice(
        device=device_name(job, fused, told),
        fused=run_of(fused.cases[0]),
        eager=run_of(eager.cases[0]),
        comparison=msgspec.convert(compared[0], Comparison) if compared else None,
    )


def device_name(job: Job, fused: Answers, told: list[dict[str, Any]]) -> str:
    """Return the device's name for a reader."""
    if job.device == "emulate":
        return "Triton interpreter"
    names = [str(answer["device"]["name"]) for answer in told if "device" in answer]
    gpu = f"GPU {fused.run.environment.get('CUDA_VISIBLE_DEVICES', '')}"
    return f"{gpu} ({names[0]})" if names else gpu


def run_of(answer: Answer) -> Run | Missing | Broken:
    """Turn one answer into a run."""
    if not isinstance(answer, dict):
        return answer
    if "missing" in answer:
        return Missing(reason=str(answer["missing"]))
    return msgspec.convert({"kind": "run", **{name: answer[name] for name in answer if name in OF_RUN}}, Run)
