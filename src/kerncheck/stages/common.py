"""What every stage is given, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerncheck.model.base import Missing

if TYPE_CHECKING:
    from kerncheck.catalog import Catalog
    from kerncheck.model.environment import Environment, Gpus
    from kerncheck.model.job import Job


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a stage plans for: the job, what is known, and what the static probes saw.

    ``gpus`` holds the values for CUDA_VISIBLE_DEVICES, one for each visible GPU (empty without one). ``timeout`` is
    the limit of one case in seconds; ``python`` the judged interpreter ("" for the one that runs kerncheck).
    """

    job: Job
    catalog: Catalog
    environment: Environment | Missing
    devices: Gpus | Missing
    gpus: tuple[str, ...] = ()
    timeout: float = 120.0
    python: str = ""


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Nothing is downloaded: models are built from configurations, with random weights."""

EMULATED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Real Triton kernels on the CPU. One thread each: the lanes themselves run side by side."""


def child_environment(job: Job, gpu: str = "") -> dict[str, str]:
    """Return the variables that a child of this job's device needs before it imports anything."""
    if job.device == "emulate":
        return {**OFFLINE, **EMULATED}
    return {**OFFLINE, "CUDA_VISIBLE_DEVICES": gpu} if gpu else dict(OFFLINE)
