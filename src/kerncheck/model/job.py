"""What is asked: for which profile, device and model the environment is judged."""

from __future__ import annotations

from typing import Any, Literal

from kerncheck.model.base import Frozen

ProfileName = Literal["node", "image", "ci"]
DeviceName = Literal["cuda", "emulate", "none"]
Convention = Literal["position_ids", "cu_seq_lens", "seq_idx", "both", "both_mrope3", "both_mrope4", "both_mask"]
"""What the job's collator sends beside input_ids; all but the first send position_ids too."""

Role = Literal["seam", "kernel"]

CONVENTIONS: tuple[Convention, ...] = ("position_ids", "cu_seq_lens", "seq_idx", "both")
"""What text collators send: position_ids, and beside them cu_seq_lens_*, seq_idx or both."""
VARIANTS: tuple[Convention, ...] = ("both_mrope3", "both_mrope4", "both_mask")
"""Both, with position_ids of 3 rows (M-RoPE) or 4 (text first), or with an attention_mask of ones as well."""


class RequiredOp(Frozen):
    """An op that the model needs. ``op`` is ``module:name``; ``layer_type`` is the kind of layer that calls it.

    A ``seam`` op is bound by the model's own code; a ``kernel`` op is judged by numerics beside it.
    """

    op: str
    layer_type: str = ""
    role: Role = "seam"
    training: bool = True
    inference: bool = True
    why: str = ""


class ModelRequest(Frozen):
    """The model to judge: its configuration as plain JSON data, never weights, never remote code.

    ``folder`` is the transformers model folder (``qwen3_5``); ``architecture`` the class to build. ``layer_types``
    are those of the real configuration (``24 of 32``), before anything is shrunk. ``shrink`` overrides fields of
    the configuration for the emulated device; an empty one lets the child derive it.
    """

    name: str
    folder: str
    architecture: str
    config: dict[str, Any]
    layer_types: tuple[str, ...] = ()
    required: tuple[RequiredOp, ...] = ()
    shrink: dict[str, Any] = {}
    origin: str = ""

    def count(self, layer_type: str) -> int:
        """Return how many layers of the real configuration have this type."""
        return sum(kind == layer_type for kind in self.layer_types)


class Target(Frozen):
    """A GPU that an image is meant for. ``text`` is what the user wrote; ``cc`` its compute capability, ``9.0``.

    ``name`` is the product's name where one was given (``H200``), else empty: then only what every GPU of that
    capability has in common is known.
    """

    text: str
    cc: str
    name: str = ""


class TraceRequest(Frozen):
    """The trace that is judged instead of a machine, and the one to compare it with. Gates that are None are not asked.

    ``versions`` maps a distribution to the version that the traced run had, as the user declares it: traces name none.
    """

    file: str
    before: str = ""
    versions: dict[str, str] = {}
    min_op_reduction: float | None = None
    max_cpu_gpu_ratio: float | None = None
    max_step_time_ratio: float | None = None


class Job(Frozen):
    """One run of kerncheck, as declared by the user."""

    profile: ProfileName = "node"
    device: DeviceName = "none"
    model: ModelRequest | None = None
    training: bool = True
    packing: Convention | None = None
    quick: bool = False
    targets: tuple[Target, ...] = ()
    driver: str = ""
    trace: TraceRequest | None = None

    @property
    def needed(self) -> tuple[RequiredOp, ...]:
        """The ops that this job requires: those of the model that training (or inference) enters."""
        ops = self.model.required if self.model else ()
        return tuple(op for op in ops if (op.training if self.training else op.inference))
