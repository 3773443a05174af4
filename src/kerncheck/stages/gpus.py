"""The driver and its GPUs: one child of kerncheck's own interpreter, since NVML's binding is ours."""

from __future__ import annotations

import sys

import msgspec

from kerncheck.model.base import Missing
from kerncheck.model.environment import Gpus
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, ProbeRun, why


def runs(_ask: Ask) -> list[ProbeRun]:
    """Plan the look through NVML. A driver that must first load its firmware may take tens of seconds."""
    return [ProbeRun(label="gpus", probe="nvml", cases=({"name": "NVML"},), python=sys.executable, limit=60.0)]


def collect(_ask: Ask, answers: list[Answers]) -> Gpus | Missing:
    """Make the section of the answer."""
    answer = answers[0].cases[0]
    if not isinstance(answer, dict):
        return Missing(reason=f"NVML could not be asked: {why(answer)}")
    if "absent" in answer:
        return Missing(reason=answer["absent"])
    return msgspec.convert({"kind": "gpus", **answer}, Gpus)
