"""Record a trace of training steps: random weights, forward, backward, AdamW. The parent reads and judges the file."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from kerncheck.probes import scene, step
from kerncheck.probes.recording import Recording, Schedule

WAIT = {"cuda": 1, "emulate": 0}
"""Steps before the profiler begins to warm up: on a GPU the first one compiles and times kernels."""


def setup(options: dict[str, Any]) -> step.State:
    """Build the model on the device: one period of layers with the real head dimensions on a GPU, tiny elsewhere."""
    state = step.State(scene.prepare(options), options)
    if not state.scene.missing:
        state.scene.built.model.train()
    return state


def run(_case: dict[str, Any], state: step.State) -> dict[str, Any]:
    """Run the steps. Says where the trace lies in ``options["path"]``: whether it does, and why not."""
    if state.scene.missing:
        return {"missing": state.scene.missing}
    options, built = state.options, state.scene.built
    name = state.scene.device.NAME
    schedule = Schedule(WAIT[name], options["warmup"], options["steps"])
    recording = Recording(built.model, schedule, options["path"])
    tokens = options["tokens"] or step.TOKENS[name]
    try:
        train(built.model, step.inputs_of(built.model, tokens), recording)
    finally:
        recording.close()
    return {
        "missing": "" if recording.done else recording.why(),
        "versions": versions(options["distributions"]),
        "layers": len(built.layer_types),
        "tokens": tokens,
        "device": str(state.scene.device.describe()["name"]),
    }


def train(model: Any, inputs: dict[str, Any], recording: Recording) -> None:
    """Run as many steps as the recording wants."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=step.RATE)
    recording.start()
    for _ in range(recording.schedule.last):
        step.loss_of(model, inputs).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recording.step()


def versions(names: list[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed here."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
