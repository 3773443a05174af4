"""Section ``seams`` of a snapshot: what the model's fused ops are bound to, and what a tiny run really executed."""

from __future__ import annotations

from typing import Literal

from kerncheck.model.base import Broken, Frozen, Missing

Bound = Literal["hub", "package", "standin", "eager", "replaced"]
"""hub: a kernel of the hub; package: the kernel package; standin: our labelled eager version of a compiled op, put in
place for the emulated device; eager: the model library's own reference; replaced: something that somebody put there."""

ReasonKind = Literal["replaced", "hidden", "absent", "broken", "no_op", "root_only", "late", "no_gpu", "refused"]
Phase = Literal["training", "decoding"]
Mechanism = Literal["seam", "flags", "lazy", "unknown"]
"""How the modelling code comes to its fused ops. seam: a decorator (transformers 5.15 and later); flags: imports behind
availability flags (before); lazy: packages are looked for only when a layer is built (5.0 to 5.14, some models)."""


class Reason(Frozen):
    """Why a seam is bound to its eager reference. ``chain`` holds the real exception and its causes, outermost first.

    hidden: None in sys.modules. absent: there is no such module. broken: importing it raises. no_op: the package has no
    such op. root_only: the op is there, but this transformers looks in the package's root only. late: it can be
    imported now, so it could not be when the modelling code was imported. replaced: put there after the import. no_gpu:
    the flag before the import asks torch for a GPU, and torch sees none. refused: the flag is off for another reason.
    """

    kind: ReasonKind
    message: str
    chain: tuple[str, ...] = ()


class Binding(Frozen):
    """One seam: its ``name`` in the modelling ``module``, the ``op`` it stands for, and what is bound there.

    ``target`` is ``module.name`` of the bound function, ``file`` where it is defined. ``parameters`` are the arguments
    that reach it: transformers drops every other keyword without a word.
    """

    name: str
    module: str
    function: str
    package: str
    op: str
    bound: Bound
    target: str
    file: str = ""
    parameters: tuple[str, ...] = ()
    reason: Reason | None = None


class KernelsPackage(Frozen):
    """The package ``kernels``: its version (empty without it), the window that transformers accepts, its use."""

    version: str = ""
    window: str = ""
    available: bool = False


class AttentionPackages(Frozen):
    """Which attention the configuration asks for (empty: it does not say), and what of it lies on this machine.

    ``packages`` tells of each package whether it is found; ``cached`` whether a hub kernel that is asked for is here.
    """

    asked: str = ""
    packages: dict[str, bool] = {}
    cached: bool = False


class ModulePatch(Frozen):
    """What a kernel package did to the modules of one class: ``target`` is what replaces it, ``modules`` how many.

    class: they are of the package's class. forward: their forward was replaced. missed: their class was replaced after
    they were built, and they run their own code.
    """

    package: str
    name: str
    target: str
    how: Literal["class", "forward", "missed"]
    modules: int


class Bindings(Frozen, tag="bound", tag_field="kind"):
    """The modelling code, imported in a clean child as the environment is. ``torch_gpu`` is torch's CUDA or HIP.

    ``believed`` says that the flags of an older transformers were told of a GPU that this machine does not have.
    ``patches`` are those of the live model in the user's own process (kerncheck.guard).
    """

    transformers: str
    mechanism: Mechanism
    module: str
    layer_types: tuple[str, ...]
    bindings: tuple[Binding, ...]
    root_only: bool = False
    believed: bool = False
    kernels: KernelsPackage = KernelsPackage()
    variables: dict[str, str] = {}
    torch: str = ""
    torch_gpu: str = ""
    attention: AttentionPackages = AttentionPackages()
    patches: tuple[ModulePatch, ...] = ()


class Error(Frozen):
    """An exception that was raised while the model ran."""

    exception: str
    message: str
    chain: tuple[str, ...] = ()
    detail: str = ""


class Entry(Frozen):
    """The calls of one seam by one layer (-1: outside of the layers).

    ``ran`` says what was executed inside (values of Bound), ``kernels`` what that launched through Triton. ``passed``
    are the keyword arguments that the model gave, ``received`` those that reached the implementation.
    """

    layer: int
    seam: str
    calls: int
    ran: tuple[Bound, ...] = ()
    kernels: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    received: tuple[str, ...] = ()
    error: Error | None = None


class LayerAttention(Frozen):
    """The functions that computed attention in one layer: sdpa, eager, flash_attention, flex_attention."""

    layer: int
    functions: tuple[str, ...]


class LayerKernels(Frozen):
    """The Triton kernels that one layer launched, each named once."""

    layer: int
    kernels: tuple[str, ...]


class Entered(Frozen, tag="entered", tag_field="kind"):
    """One tiny run of the built model.

    ``layer_types`` are those of the built model; ``shrunk`` maps a field to [real, built]; ``asked`` is the attention
    that transformers settled on; ``standins`` are the compiled ops that the device cannot run and that an eager
    stand-in of ours replaced; ``patches`` what kernel packages did to its modules; ``problem`` ended the run.
    """

    phase: Phase
    device: Literal["cuda", "emulate"]
    layer_types: tuple[str, ...]
    bindings: tuple[Binding, ...]
    entries: tuple[Entry, ...] = ()
    attention: tuple[LayerAttention, ...] = ()
    forward: tuple[LayerKernels, ...] = ()
    backward: tuple[LayerKernels, ...] = ()
    asked: str = ""
    standins: tuple[str, ...] = ()
    shrunk: dict[str, tuple[str, str]] = {}
    notes: tuple[str, ...] = ()
    patches: tuple[ModulePatch, ...] = ()
    problem: Error | None = None
    seconds: float = 0.0

    def binding(self, seam: str) -> Binding | None:
        """Return the binding of a seam in the process that ran."""
        return next((binding for binding in self.bindings if binding.name == seam), None)

    def of(self, op: str) -> tuple[Entry, ...]:
        """Return the entries of the seams that stand for an op."""
        names = {binding.name for binding in self.bindings if binding.op == op}
        return tuple(entry for entry in self.entries if entry.seam in names)


class Seams(Frozen, tag="seams", tag_field="kind"):
    """What is bound, and what was executed: nothing was executed where ``entered`` is Missing."""

    bound: Bindings | Missing | Broken
    entered: Entered | Missing | Broken
