"""Section ``step`` of a snapshot: one training step as configured ("fused") and one with the eager references."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from kerncheck.model.base import Broken, Evidence, Frozen, Missing
from kerncheck.model.trace import Measures

Phase = Literal["forward", "backward", "optimizer"]


class Work(Frozen):
    """What ran at one place: ATen operators that would launch a kernel, and Triton kernels launched, by name.

    ``layer`` is -1 outside of the decoder's layers, ``block`` the class of the layer's child that ran, ``module`` that
    of the innermost module, ``seam`` the op whose bound function ran ("" outside of all).
    """

    phase: Phase
    layer: int
    block: str = ""
    module: str = ""
    seam: str = ""
    operations: dict[str, int] = {}
    launches: dict[str, int] = {}


class Use(Frozen):
    """The calls of one seam in one layer, and what was bound there. ``differentiable``: None where nobody asked."""

    layer: int
    seam: str
    op: str
    bound: Literal["hub", "package", "standin", "eager", "replaced"]
    implementation: str
    calls: int
    differentiable: bool | None = None


class Counts(Frozen):
    """Operators and launches of one phase, by name."""

    operations: dict[str, int] = {}
    launches: dict[str, int] = {}

    @property
    def cost(self) -> int:
        """How many kernels this would launch on a GPU."""
        return sum(self.operations.values()) + sum(self.launches.values())


class Alone(Frozen):
    """What one op does when it runs alone, on the model's own arguments. ``raised``: it could not."""

    op: str
    seam: str
    forward: Counts = Counts()
    backward: Counts = Counts()
    standin: bool = False
    raised: str = ""

    @property
    def cost(self) -> int:
        """How many kernels one call launches, forward and backward."""
        return self.forward.cost + self.backward.cost


class Raised(Frozen):
    """What ended a step, and where: the layer and the seam whose forward or backward ran."""

    exception: str
    message: str
    chain: tuple[str, ...] = ()
    detail: str = ""
    layer: int = -1
    seam: str = ""


class Gradients(Frozen):
    """Names of parameters without a gradient, with one that is exactly zero, and with one that is not finite."""

    without: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()


class Labelled(Frozen):
    """Kernels that a profiler saw under one label, by name: a seam in a layer, or (layer -1) an op alone."""

    layer: int
    seam: str
    phase: Literal["forward", "backward"]
    kernels: dict[str, int]
    microseconds: float


class Profile(Frozen):
    """What the profiler saw of a step on a GPU. ``joined`` kernels have their launch; ``seconds`` is one plain step.

    Counts, times and labels are of the step and of each op alone; ``measures`` of the step without these.
    ``reason`` says why there is nothing to read (no CUPTI, no kernel events); absence proves nothing then.
    """

    kernels: int = 0
    launches: int = 0
    joined: int = 0
    busy_microseconds: float = 0.0
    span_microseconds: float = 0.0
    labelled: tuple[Labelled, ...] = ()
    measures: Measures | None = None
    seconds: float | None = None
    reason: str = ""


class Run(Frozen, tag="run", tag_field="kind"):
    """One watched step. ``phase`` is the last one that began, or done; ``raised`` what ended it."""

    layer_types: tuple[str, ...]
    dtype: str
    tokens: int
    phase: Literal["forward", "backward", "optimizer", "done"]
    loss: float | None
    raised: Raised | None
    work: tuple[Work, ...]
    uses: tuple[Use, ...]
    gradients: Gradients
    alone: tuple[Alone, ...]
    standins: tuple[str, ...] = ()
    experts: bool = False
    shrunk: dict[str, str] = {}
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    profile: Profile | None = None

    @property
    def cost(self) -> int:
        """How many kernels forward and backward would launch on a GPU."""
        wanted = [work for work in self.work if work.phase != "optimizer"]
        return sum(sum(work.operations.values()) + sum(work.launches.values()) for work in wanted)

    @property
    def operations(self) -> int:
        """How many operators forward and backward ran."""
        return sum(sum(work.operations.values()) for work in self.work if work.phase != "optimizer")

    def launched(self, layer: int, seam: str, phase: Phase) -> Counter[str]:
        """Return the kernels that one seam launched in one layer and phase."""
        found: Counter[str] = Counter()
        for work in self.work:
            if (work.layer, work.seam, work.phase) == (layer, seam, phase):
                found.update(work.launches)
        return found

    def lonely(self, op: str) -> Alone | None:
        """Return what an op did alone, or None if the step never called it."""
        return next((alone for alone in self.alone if alone.op == op), None)


class Tensor(Frozen):
    """One tensor of both steps: root mean square of the difference and of each; None where not finite."""

    name: str
    error: float | None
    fused: float | None
    eager: float | None
    largest: float | None


class Comparison(Frozen):
    """The seams' outputs and the parameters' gradients of both steps."""

    tensors: tuple[Tensor, ...]
    only_fused: tuple[str, ...] = ()
    only_eager: tuple[str, ...] = ()


class OnDevice(Frozen):
    """Both steps on one device."""

    device: str
    fused: Run | Missing | Broken
    eager: Run | Missing | Broken
    comparison: Comparison | None = None


class Step(Frozen, tag="step", tag_field="kind"):
    """The steps of every device that was tried; ``visible`` counts the GPUs of this machine that jobs can see."""

    evidence: Evidence
    devices: tuple[OnDevice, ...]
    visible: int = 0
