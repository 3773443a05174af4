"""Run the compile probe's own functions in a fresh process, to look at single launches. Used by tests of KC7."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from kerncheck.catalog import load
from kerncheck.kernels import find_spec
from kerncheck.stages import compile_plan as plan
from kerncheck.targets import parse_target

CATALOG = load()
CHILD = Path(plan.__file__).parents[1] / "probes" / "child.py"
SIZES = {"H": 16, "HV": 32, "K": 128, "V": 128, "W": 4, "D": 8192}  # those of Qwen3.5 9B

START = """
import json, sys, runpy
asked = json.load(sys.stdin)
space = runpy.run_path(asked["child"])
sys.path.insert(0, "")
space["bootstrap"]()
"""
SURVEY = """
from kerncheck.probes import compile as probe
state = probe.setup(asked["options"])
launches = {}
for call in state["calls"]:
    for phase in call["phases"]:
        for launch in phase["launches"]:
            launches.setdefault(launch.name, []).append(launch)
"""


def calls(
    *ops: str, layout: str = "plain", sizes: dict[str, int] | None = None, **signature: Any
) -> list[dict[str, Any]]:
    """Return calls of ops by their ids."""
    asked = plan.Signature(**signature)
    specs = [find_spec(op) for op in ops]
    return [plan.call(spec, layout, {**SIZES, **(sizes or {})}, asked) for spec in specs if spec is not None]


def options(target: str, planned: list[dict[str, Any]], cache: dict[str, str]) -> dict[str, Any]:
    """Return the options of the probe for a target."""
    facts = plan.facts_of(parse_target(target, CATALOG), CATALOG)
    return {"target": msgspec.to_builtins(facts), "calls": planned, "cache": cache, "quick": False}


def child(script: str, asked: dict[str, Any], **variables: str) -> Any:
    """Run a script in a process whose package ``kerncheck`` is the child side alone; return what it prints last."""
    environment = {**os.environ, **plan.environment(), **variables}
    done = subprocess.run(
        [sys.executable, "-B", "-c", START + script],
        input=json.dumps({"child": str(CHILD), **asked}),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
