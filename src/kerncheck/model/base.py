"""The words that every section of a snapshot shares: plain, frozen, typed data that round-trips through JSON."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, dataclass_transform

import msgspec

Evidence = Literal["measured", "emulated", "rehearsed", "inferred", "declared"]
"""How a fact is known: on the GPU, in Triton's interpreter, compiled for an absent GPU, from files, from the matrix."""


class FrozenMeta(msgspec.StructMeta):
    """Gives every subclass the same settings: msgspec itself does not inherit keyword-only."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:  # noqa: ANN401
        """Make the class: immutable, keyword-only, unknown fields refused."""
        config = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True, **config}
        return super().__new__(cls, name, bases, namespace, **config)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, metaclass=FrozenMeta, frozen=True):
    """Base of all plain data: immutable, keyword-only; unknown fields are an error that names the place."""


class Missing(Frozen, tag="missing", tag_field="kind"):
    """We could not look. Never a pass and never a finding; inconclusive where the verdict needs it."""

    reason: str


class Broken(Frozen, tag="broken", tag_field="kind"):
    """We looked, and the thing that we looked at broke.

    ``how`` is the way: an exception was ``raised``, the child was ended by a ``signal``, it called ``exit``, or it
    ``stood_still`` (no CPU and no input or output until the limit). ``chain`` holds the exception and its causes,
    outermost first, each as ``Type: message``. ``detail`` is a traceback, a stack or the end of stderr.
    """

    how: Literal["raised", "signal", "exit", "stood_still"]
    message: str
    exception: str = ""
    chain: tuple[str, ...] = ()
    detail: str = ""
    signal: int | None = None
    exit_code: int | None = None
    seconds: float = 0.0


class NotObservedError(Exception):
    """A check asked for something that was not observed. The judge turns it into "not judged", never into a pass."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


Seen = TypeVar("Seen")


def seen(value: Seen | Missing) -> Seen:
    """Return what was observed; raise NotObservedError with the reason when it was not."""
    if isinstance(value, Missing):
        raise NotObservedError(value.reason)
    return value
