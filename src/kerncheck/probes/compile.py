"""Compile a model's Triton kernels for a GPU that is not there. Observes and never judges.

``setup`` puts the target in place and surveys every call: which kernels it launches, with which constants, in which
configurations. The case ``survey`` answers with that, a case ``compile`` compiles its share of a call's launches.
Every child surveys the same calls in the same order, so that all agree on the shares.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from kerncheck.devices import target
from kerncheck.probes import compile_calls

Phase = dict[str, Any]
PHASES = ("forward", "backward")


def setup(options: dict[str, Any]) -> dict[str, Any]:
    """Survey all calls.

    ``options``: ``target`` (facts), ``calls``, ``cache``, and ``quick`` for first configurations alone.
    """
    from kerncheck.compat import fla_target, triton_target, triton_toolchain

    os.environ["FLA_CACHE_RESULTS"] = "0"  # before fla is imported: no timings of zero in anybody's cache
    os.environ["TRITON_CACHE_AUTOTUNING"] = "0"
    variables = triton_toolchain.in_the_key()  # before fla, which sets one of them itself for old GPUs
    target.prepare(options["target"])
    fla_target.import_without_models()
    fla_target.note_backends(triton_target.SURVEY.send_elsewhere)
    choose_cache(options["cache"])
    tools = {**triton_toolchain.toolchain(options["target"]["arch"]), "variables": variables}
    started = time.monotonic()
    surveyed = [survey(call) for call in options["calls"]]
    owners(surveyed)
    return {"toolchain": tools, "calls": surveyed, "quick": options["quick"], "seconds": time.monotonic() - started}


def choose_cache(asked: dict[str, str]) -> None:
    """Compile into a private folder that is thrown away later, or into the cache that is to be filled."""
    from kerncheck.compat import triton_cache

    if "fill" in asked:
        triton_cache.fill(asked["fill"])
    else:
        triton_cache.keep_in(asked["private"])


def survey(call: dict[str, Any]) -> dict[str, Any]:
    """Run a call forward and backward without compiling anything; return its launches, phase by phase."""
    from kerncheck.compat import triton_target

    found: dict[str, Any] = {"phases": [], "elsewhere": {}}
    kept: list[Any] = []

    def forward() -> None:
        kept.append(compile_calls.prepare(call)())

    steps: list[tuple[str, Callable[[], None]]] = [("forward", forward)]
    if call["backward"]:
        steps.append(("backward", lambda: compile_calls.backward(kept[0])))
    with triton_target.surveying():
        for name, step in steps:
            phase = survey_phase(name, step)
            found["phases"].append(phase)
            if phase["problem"]:
                break
    found["elsewhere"] = triton_target.SURVEY.take_elsewhere()
    return found


def survey_phase(name: str, step: Callable[[], None]) -> Phase:
    """Run one pass; return what it launched, and what it raised."""
    from kerncheck.compat import triton_target
    from kerncheck.probes.worker import describe

    triton_target.SURVEY.take()
    problem = None
    try:
        step()
    except Exception as error:
        problem = describe(error)
    return {"phase": name, "launches": triton_target.SURVEY.take(), "problem": problem}


def owners(surveyed: list[dict[str, Any]]) -> None:
    """Give each distinct compilation to the first pass that asks for it; those that may come out alike together."""
    seen: set[str] = set()
    for call in surveyed:
        for phase in call["phases"]:
            families: dict[str, list[Any]] = {}
            for launch in phase["launches"]:
                if launch.id not in seen:
                    families.setdefault(launch.family(), []).append(launch)
            phase["own"] = list(families.values())
            seen |= {launch.id for launch in phase["launches"]}


def run(case: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Answer one case."""
    if case["what"] == "survey":
        return {
            "toolchain": state["toolchain"],
            "calls": [told(call) for call in state["calls"]],
            "seconds": state["seconds"],
        }
    return {"results": compile_share(case, state)}


def told(call: dict[str, Any]) -> dict[str, Any]:
    """Return what a call launches, as plain data."""
    phases = [
        {
            "phase": phase["phase"],
            "kernels": kernels(phase["launches"]),
            "own": [[launch.id for launch in family] for family in phase["own"]],
            "problem": phase["problem"],
        }
        for phase in call["phases"]
    ]
    return {"phases": phases, "elsewhere": call["elsewhere"]}


def kernels(launches: list[Any]) -> list[dict[str, Any]]:
    """Group launches that differ in nothing but the configuration, in the order of the first."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for launch in launches:
        fixed = {name: value for name, value in launch.constants.items() if name not in launch.choice}
        key = (launch.module, launch.name, tuple(fixed.items()), tuple(launch.types.items()))
        groups.setdefault(key, []).append(launch)
    return [
        {
            "name": members[0].name,
            "module": members[0].module,
            "of": members[0].of,
            "grid": members[0].grid,
            "constants": dict(key[2]),
            "types": dict(key[3]),
            "configurations": [{"id": one.id, "number": one.number, "choice": one.choice} for one in members],
        }
        for key, members in groups.items()
    ]


def compile_share(case: dict[str, Any], state: dict[str, Any]) -> list[dict[str, Any]]:
    """Compile a share of the launches that a pass of a call owns: every ``parts``-th family, from ``part`` on."""
    from kerncheck.compat import triton_target

    if not state["toolchain"]["knows"]:
        return []
    phases = {phase["phase"]: phase for phase in state["calls"][case["call"]]["phases"]}
    own = phases[case["phase"]]["own"] if case["phase"] in phases else []
    share = [launch for family in own[case["part"] :: case["parts"]] for launch in family]
    wanted = [launch for launch in share if launch.number == 1 or not state["quick"]]
    return [triton_target.compile_launch(launch, case.get("note", "")) for launch in wanted]
