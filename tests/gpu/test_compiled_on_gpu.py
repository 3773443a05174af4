"""On a GPU: what compile-ahead rehearses for it is what it launches, constant for constant. Run with ``nox -s gpu``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from needs_gpu import MARKS

sys.path.insert(0, str(Path(__file__).parents[1]))

from rehearse import CATALOG, SURVEY, calls, child, options

pytestmark = MARKS

CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
NORM = "fla.modules:FusedRMSNormGated"

TOLD = """
print(json.dumps({name: [[x.id, x.choice, x.constants, x.types] for x in found] for name, found in launches.items()}))
"""
REAL = """
import torch
torch.set_default_device("cuda")
from kerncheck.compat import triton_target
from kerncheck.probes import compile as probe
triton_target.note_launches()
launches = {}
for call in asked["options"]["calls"]:
    for phase in probe.survey(call)["phases"]:
        assert phase["problem"] is None, phase["problem"]
        for launch in phase["launches"]:
            launches.setdefault(launch.name, []).append(launch)
"""


def test_the_rehearsed_launches_are_those_of_the_gpu(tmp_path):
    import torch

    name = torch.cuda.get_device_name(0)
    if CATALOG.gpu(name) is None:
        pytest.skip(f"gpus.toml does not know {name}")
    asked = options(name, calls(CHUNK, NORM, tokens=2048), {"private": str(tmp_path)})
    rehearsed = child(SURVEY + TOLD, {"options": asked})
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    real = child(REAL + TOLD, {"options": asked}, CUDA_VISIBLE_DEVICES=visible)
    assert set(real) == set(rehearsed)
    for kernel, launches in real.items():
        assert launches == rehearsed[kernel], kernel
