"""Parent side of the seams probe: one child reads the bindings, another one runs a tiny model and counts."""

from __future__ import annotations

from typing import Any

import msgspec

from kerncheck.model.base import Broken, Missing
from kerncheck.model.job import Job
from kerncheck.model.seams import Bindings, Entered, Seams
from kerncheck.stages.common import OFFLINE, Ask, child_environment
from kerncheck.supervise import Answers, ProbeRun

NO_DEVICE = Missing(reason="nothing was executed: no device was given to run on")


def runs(ask: Ask) -> list[ProbeRun]:
    """Return the two children's work; nothing without a model, and only the first without a device."""
    if ask.job.model is None:
        return []
    request = msgspec.to_builtins(ask.job.model)
    bound = ProbeRun(
        label="seams: bindings",
        probe="seams",
        cases=({"name": "bindings"},),
        options={"mode": "bound", "request": request, "elsewhere": gpu_is_elsewhere(ask.job)},
        environment=dict(OFFLINE),
        limit=ask.timeout,
        python=ask.python,
    )
    return [bound] if ask.job.device == "none" else [bound, entered(ask, request)]


def gpu_is_elsewhere(job: Job) -> bool:
    """Tell whether the environment is judged for a GPU that is not in this machine: in an image build, and in CI."""
    return job.device != "cuda" and job.profile != "node"


def entered(ask: Ask, request: dict[str, Any]) -> ProbeRun:
    """Return the child that runs the model: on the first GPU (bindings do not differ between GPUs), or emulated."""
    phase = "training" if ask.job.training else "decoding"
    return ProbeRun(
        label=f"seams: {phase}",
        probe="seams",
        cases=({"name": phase},),
        options={
            "mode": "entered",
            "request": request,
            "device": ask.job.device,
        },
        environment=child_environment(ask.job, ask.gpus[0] if ask.gpus else ""),
        limit=ask.timeout,
        setup_limit=2 * ask.timeout,
        python=ask.python,
    )


def collect(ask: Ask, answers: list[Answers]) -> Seams | Missing:
    """Make the section of the children's answers."""
    if ask.job.model is None:
        return Missing(reason="no model was named (--model)")
    bound: Bindings | Missing | Broken = read(answers[0], Bindings)
    run: Entered | Missing | Broken = read(answers[1], Entered) if len(answers) > 1 else NO_DEVICE
    return Seams(bound=bound, entered=run)


def read(answers: Answers, kind: type[Bindings | Entered]) -> Any:  # noqa: ANN401 - a section's part, see collect
    """Return a child's answer as the type that it names itself; how the child broke, where it could not start."""
    answer = answers.setup or answers.cases[0]
    return answer if isinstance(answer, Missing | Broken) else msgspec.convert(answer, kind | Missing)
