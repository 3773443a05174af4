"""What `kerncheck selftest` breaks, and which finding must come of it. The harm itself is in ``probes/sabotage.py``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sabotage:
    """One thing broken on purpose: its kind (as the child knows it), what is broken, and the code that must be found.

    ``section`` is the part of a snapshot in which it must show. In ``words``, {op} and {package} stand for what is
    broken.
    """

    kind: str
    title: str
    words: str
    code: str
    section: str


SABOTAGES = (
    Sabotage("scale", "wrong scale", "{op} returns 1.02 times what it computes", "KC401", "numerics"),
    Sabotage("gradient", "lost gradient", "one input of {op} is cut from the graph", "KC402", "numerics"),
    Sabotage("no_graph", "no backward", "what {op} returns cannot be differentiated", "KC403", "numerics"),
    Sabotage("zero", "zeros", "{op} returns zeros", "KC405", "numerics"),
    Sabotage("writes", "spoilt input", "{op} writes to its first input", "KC406", "numerics"),
    Sabotage("future", "missing mask", "{op} adds a tenth of the next token's output", "KC407", "numerics"),
    Sabotage("hole", "unwritten memory", "{op} leaves the last token's output unwritten", "KC408", "numerics"),
    Sabotage("abort", "crash in a kernel", "{op} aborts the process", "KC411", "numerics"),
    Sabotage("boundaries", "leaking pack", "{op} ignores the boundaries of packed examples", "KC501", "packing"),
    Sabotage("unimportable", "forced fallback", "{package} cannot be imported by the model's code", "KC301", "seams"),
    Sabotage("reference", "silent fallback", "the model runs its eager form of {op} instead", "KC302", "seams"),
    Sabotage("hollow", "hollow kernel", "{op} runs eager code and launches no kernel", "KC303", "seams"),
    Sabotage("step_hollow", "hollow step", "a training step runs eager code inside of {op}", "KC601", "step"),
    Sabotage("step_scale", "wrong step", "in a training step, {op} returns 1.02 times its output", "KC605", "step"),
    Sabotage("step_weights", "lost weights", "in a training step, inputs of {op} are cut off", "KC607", "step"),
    Sabotage("step_abort", "crash of a step", "{op} aborts the process in a training step", "KC606", "step"),
    Sabotage("hidden_library", "hidden library", "a library that {package} wants is not there", "KC203", "imports"),
    Sabotage("crash", "crash of an import", "importing {package} aborts the process", "KC209", "imports"),
    Sabotage("standstill", "standstill", "importing {package} waits for ever", "KC210", "imports"),
)

CONTROL = ""
"""The side on which nothing is broken."""


def of_section(section: str) -> tuple[Sabotage, ...]:
    """Return the sabotages that must show in a section."""
    return tuple(item for item in SABOTAGES if item.section == section)
