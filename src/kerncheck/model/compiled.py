"""Section ``compiled`` of a snapshot: the model's Triton kernels, compiled for GPUs that are not there.

Sizes are bytes. ``id`` names one distinct compilation: a kernel with its constants, types and options. A call lists
what it launches; what compiling gave is told once for each id, whichever calls ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from kerncheck.model.base import Broken, Frozen, Missing
from kerncheck.model.job import Target

Layout = Literal["plain", "varlen"]
PhaseName = Literal["forward", "backward"]


class Facts(Frozen):
    """What fla and Triton were told of the target. ``assumed`` says which of it is only typical of the capability."""

    name: str
    arch: int
    shared_memory: int
    multiprocessors: int
    memory: int
    assumed: str = ""


class Toolchain(Frozen):
    """Triton and the ptxas that it takes for the target. ``knows`` is None where ptxas could not be asked.

    ``variables`` are those set here that Triton puts into the key of its cache.
    """

    triton: str = ""
    ptxas: str = ""
    version: str = ""
    release: str = ""
    target: str = ""
    knows: bool | None = None
    message: str = ""
    variables: dict[str, str] = {}


class Configuration(Frozen):
    """One configuration of a kernel: what the autotuner chooses in it, and the id of its compilation."""

    id: str
    number: int
    choice: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """The choice, as messages give it."""
        return ", ".join(f"{name}={value}" for name, value in self.choice.items())


class Kernel(Frozen):
    """A kernel as one pass launches it: ``constants`` and ``types`` by parameter, the same in each configuration.

    ``of`` is the number of configurations in the autotuner; fewer are listed where the kernel prunes some, or where
    an earlier launch had already chosen. A type ends in ``:16`` where the code relies on a value divisible by 16.
    """

    name: str
    module: str = ""
    of: int = 1
    grid: tuple[int, ...] = ()
    constants: dict[str, Any] = {}
    types: dict[str, str] = {}
    configurations: tuple[Configuration, ...] = ()


class Phase(Frozen):
    """A forward or backward pass; ``problem`` is what it raised.

    ``own`` are the ids that no earlier pass asked for, those together that differ in the number of stages alone.
    """

    phase: PhaseName
    kernels: tuple[Kernel, ...] = ()
    own: tuple[tuple[str, ...], ...] = ()
    problem: Broken | None = None


class Call(Frozen):
    """One call of an op. ``elsewhere`` maps functions to the backend that fla would hand them to instead of Triton."""

    op: str
    layout: Layout = "plain"
    details: dict[str, Any] = {}
    phases: tuple[Phase, ...] = ()
    elsewhere: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The op's bare name with the layout."""
        return f"{self.op.partition(':')[2]} ({self.layout})"


class Result(Frozen):
    """What one compilation gave.

    ``registers`` and ``local_memory`` are those of one thread, ``seconds`` is CPU time; ``cached`` says that Triton's
    cache held it. Where it did not compile: the exception's class, its message, and what was printed.
    """

    id: str
    compiled: bool
    seconds: float = 0.0
    cached: bool = False
    shared: int = 0
    warps: int = 0
    stages: int = 0
    registers: int | None = None
    local_memory: int | None = None
    tensor_memory: int = 0
    scratch: int = 0
    bytes: int = 0
    exception: str = ""
    error: str = ""
    detail: str = ""


class Lost(Frozen):
    """A share of compilations that was not answered: ``ids`` in order, and why. ``at`` is the kernel it was in."""

    name: str
    why: Missing | Broken
    ids: tuple[str, ...] = ()
    at: str = ""


class Rehearsal(Frozen):
    """Everything that was compiled for one target. ``survey`` says why nothing was, where that could not be told."""

    target: Target
    facts: Facts
    toolchain: Toolchain = Toolchain()
    survey: Missing | Broken | None = None
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    lost: tuple[Lost, ...] = ()

    @property
    def name(self) -> str:
        """The target as the user wrote it."""
        return self.target.text

    def walk(self) -> Iterator[tuple[Call, Phase, Kernel]]:
        """Yield every kernel of every pass."""
        for call in self.calls:
            for phase in call.phases:
                for kernel in phase.kernels:
                    yield call, phase, kernel


class Compiled(Frozen, tag="compiled", tag_field="kind"):
    """Compile-ahead, target by target. ``quick`` says that first configurations alone were compiled."""

    quick: bool = False
    rehearsals: tuple[Rehearsal, ...] = ()
    unplanned: dict[str, str] = {}
