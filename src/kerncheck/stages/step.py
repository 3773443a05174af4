"""Plan and read the step probe: on each device one child as configured and one with the eager references."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kerncheck import tracing
from kerncheck.errors import UsageError
from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import Job
from kerncheck.model.step import Comparison, OnDevice, Profile, Run, Step
from kerncheck.probes.step_trace import TRACE
from kerncheck.stages.common import Ask, child_environment
from kerncheck.stages.numerics import COLD, production_lane
from kerncheck.supervise import Answers, ProbeRun
from kerncheck.tracing import labels

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
    atexit.register(remove, folder)  # an interrupted run never comes to ``collect``
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
    pairs = list(zip(answers[::2], answers[1::2], strict=True))
    try:
        return Step(
            evidence="emulated" if ask.job.device == "emulate" else "measured",
            devices=tuple(on_device(ask.job, fused, eager) for fused, eager in pairs),
            visible=len(ask.gpus),
        )
    finally:
        for told in answers:
            remove(told.run.options["exchange"])


def remove(folder: str) -> None:
    """Remove the folder in which two runs met, with the trace in it; there is none where both failed early."""
    shutil.rmtree(folder, ignore_errors=True)


def on_device(job: Job, fused: Answers, eager: Answers) -> OnDevice:
    """Return what both runs of one device told."""
    told = [answer for answer in (fused.cases[0], eager.cases[0]) if isinstance(answer, dict)]
    compared = [answer["comparison"] for answer in told if answer.get("comparison")]
    return OnDevice(
        device=device_name(job, fused, told),
        fused=run_of(fused),
        eager=run_of(eager),
        comparison=msgspec.convert(compared[0], Comparison) if compared else None,
    )


def device_name(job: Job, fused: Answers, told: list[dict[str, Any]]) -> str:
    """Return the device's name for a reader."""
    if job.device == "emulate":
        return "Triton interpreter"
    names = [str(answer["device"]["name"]) for answer in told if "device" in answer]
    gpu = f"GPU {fused.run.environment.get('CUDA_VISIBLE_DEVICES', '')}"
    return f"{gpu} ({names[0]})" if names else gpu


def run_of(told: Answers) -> Run | Missing | Broken:
    """Turn one answer into a run."""
    answer = told.cases[0]
    if not isinstance(answer, dict):
        return answer
    if "missing" in answer:
        return Missing(reason=str(answer["missing"]))
    fields = {name: answer[name] for name in answer if name in OF_RUN}
    run = msgspec.convert({"kind": "run", **fields}, Run)
    return msgspec.structs.replace(run, profile=profile_of(run.profile, told.run.options))


def profile_of(told: Profile | None, options: Mapping[str, Any]) -> Profile | None:
    """Add what the trace shows to what the child told of its profile; the eager run is timed only, and has no trace."""
    if told is None or told.reason or options["eager"]:
        return told
    try:
        seen = labels.profile(tracing.read(Path(options["exchange"]) / TRACE))
    except UsageError as error:
        return msgspec.structs.replace(told, reason=f"the profiler's trace cannot be read ({error.message})")
    return msgspec.structs.replace(seen, seconds=told.seconds)
