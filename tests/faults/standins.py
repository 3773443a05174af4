"""Fake packages and patched processes for the tests of the seams; and one way to judge a child that runs among them.

Everything else is real: the transformers under test, the fla kernels, the interpreter. A child gets a folder in front
of its path, with packages that shadow the real ones and a ``sitecustomize`` that runs before anything else.
"""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

from kerncheck import catalog as catalogs
from kerncheck.checks import seams as seams_checks
from kerncheck.checks import seams_attention, seams_calls
from kerncheck.checks.registry import Case, Check
from kerncheck.judge import judge
from kerncheck.model.base import Missing
from kerncheck.model.job import Job, ModelRequest
from kerncheck.model.snapshot import Snapshot
from kerncheck.report import Report
from kerncheck.stages import seams as stage
from kerncheck.stages.common import Ask
from kerncheck.supervise import Answers, Supervisor

CATALOG = catalogs.load()
NOT_SEEN = Missing(reason="not part of this test")
MODELLING = "transformers.models.qwen3_5.modeling_qwen3_5"
CHUNK = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"
RECURRENT = "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule"
CONV = "causal_conv1d:causal_conv1d_fn"
CHECKS = tuple(
    item
    for module in (seams_checks, seams_calls, seams_attention)
    for item in vars(module).values()
    if isinstance(item, Check)
)

AFTER_IMPORT = """
import importlib.abc, importlib.machinery, sys


class After(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    name = {name!r}

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        self.inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        sys.meta_path.remove(self)
        self.inner.exec_module(module)
        module.__spec__.loader = module.__loader__ = self.inner
{code}


sys.meta_path.insert(0, After())
"""

FAKE_CONV = """
import torch
from torch.nn.functional import pad, silu


def causal_conv1d_fn(x, weight, bias=None, {more}activation=None):
    width = weight.shape[-1]
    taps = sum(pad(x, (width - 1, 0))[..., k : k + x.shape[-1]] * weight[:, k, None] for k in range(width))
    return silu(taps)


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None):
    raise RuntimeError("not part of this test")
"""
"""A package that is present without being ours: bound as a package, since nothing says that it is a stand-in."""


def after_import(module: str, code: str) -> str:
    """Return a sitecustomize that runs code on a module (``module``) right after it was imported."""
    return AFTER_IMPORT.format(name=module, code=textwrap.indent(textwrap.dedent(code), " " * 8))


def place(folder: Path, **files: str) -> dict[str, str]:
    """Write files (``fla__ops__init`` is fla/ops/__init__.py) and return the environment that finds them first."""
    for name, text in files.items():
        parts = name.split("__")
        path = folder.joinpath(*parts[:-1], "__init__.py" if parts[-1] == "init" else f"{parts[-1]}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return {"PYTHONPATH": str(folder)}


def qwen(**changes: object) -> ModelRequest:
    """Return the known model, two layers small on the emulated device."""
    request = CATALOG.model("qwen").request()
    shrink = {**request.shrink, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    return replace_struct(request, **{"shrink": shrink, **changes})


def replace_struct(request: ModelRequest, **changes: object) -> ModelRequest:
    """Return a changed copy."""
    import msgspec

    return msgspec.structs.replace(request, **changes)


def job(**changes: object) -> Job:
    """Return a job of profile ci on the emulated device."""
    return Job(**{"profile": "ci", "device": "emulate", "model": qwen(), **changes})


def observed(asked: Job, *, bound: dict[str, str] | None = None, run: dict[str, str] | None = None):
    """Observe the seams of a job: ``bound`` and ``run`` are the extra environments of the two children.

    Only the children that are given one are started; without any, the bindings are read.
    """
    ask = Ask(job=asked, catalog=CATALOG, environment=NOT_SEEN, devices=NOT_SEEN, timeout=120.0)
    extra = ({} if bound is None and run is None else bound, run)
    answers = [
        Answers(run=one, setup=None, cases=(NOT_SEEN,))
        if more is None
        else Supervisor(sys.executable).run(replace(one, environment={**one.environment, **more}))
        for one, more in zip(stage.runs(ask), extra, strict=False)
    ]
    return stage.collect(ask, answers)


def judged(asked: Job, seams, *, only: str = "") -> Report:
    """Judge a seams section by the checks of the family; ``only`` is a prefix of codes."""
    snapshot = Snapshot(job=asked, seams=seams)
    checks = [check for check in CHECKS if check.code.startswith(only)]
    outcomes, crashes = judge(Case(asked, snapshot, CATALOG), checks)
    return Report(version="0", job=asked, snapshot=snapshot, outcomes=outcomes, crashes=crashes)


def codes(report: Report) -> list[str]:
    """Return the codes of the findings."""
    return sorted(outcome.code for outcome in report.findings)


def the(report: Report, code: str):
    """Return the one finding with this code."""
    (found,) = [outcome for outcome in report.findings if outcome.code == code]
    return found


def clean_environment() -> dict[str, str]:
    """Return this process's environment without what other tests may have set for children."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
