"""The types that a trace is decoded into: only the fields that the analysis reads, all others are skipped unread."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

NONE = -1
"""Stands for an id that an event does not have. Real ids are natural numbers."""
ABSENT = -4e18
"""Stands for a time that an event does not give: outside of every time that a trace can hold."""
LATEST = 1e17
"""Microseconds: the year 5138. A later time, or an earlier one than its negative, is no time."""
LONGEST = 1e13
"""Microseconds: 115 days. Nothing lasts longer."""
Time = Annotated[float, msgspec.Meta(gt=-LATEST, lt=LATEST)]
Duration = Annotated[float, msgspec.Meta(ge=0, lt=LONGEST)]

Phase = Literal[
    "", "X", "s", "f", "t", "M", "i", "I", "B", "E", "b", "e", "n", "C", "P", "N", "O", "D", "R", "c", "v", "V", "a",
    "S", "T", "p", "F",
]  # fmt: skip
"""``ph`` of the Chrome trace format."""
Category = Literal[
    "", "cpu_op", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset", "user_annotation",
    "gpu_user_annotation", "python_function", "ac2g", "fwdbwd", "async_cpu_to_gpu", "cuda_sync", "cpu_instant_event",
    "overhead", "Trace", "Operator", "Runtime", "Kernel", "Memcpy", "Memset", "hip_runtime", "hip_driver",
]  # fmt: skip
"""``cat`` as Kineto writes it. Others are read too, only slower."""


class Arguments(msgspec.Struct, gc=False):
    """``args`` of an event. Old schemas (torch 1.8 to 1.10) write ``external id``, later ones ``External id``."""

    correlation: int = NONE
    external: int = msgspec.field(default=NONE, name="External id")
    lower_external: int = msgspec.field(default=NONE, name="external id")
    sequence: int = msgspec.field(default=NONE, name="Sequence number")
    stream: int | str | None = None
    device: int | str | None = None
    size: int = msgspec.field(default=0, name="bytes")


class Event(msgspec.Struct, gc=False, kw_only=True):
    """One event. ``ts`` and ``dur`` are microseconds: whole in old schemas, with three decimals in new ones.

    Words that are known beforehand are decoded without making a string, which saves a fifth of the time. Times are
    checked while they are decoded: NaN, infinity and what no clock shows are refused.
    """

    ph: Phase = ""
    cat: Category = ""
    name: str = ""
    ts: Time
    dur: Duration = ABSENT
    pid: int | str = 0
    tid: int | str = 0
    args: Arguments | None = None


class LooseEvent(msgspec.Struct, gc=False):
    """An event of any category, phase and time, for pieces that hold others than the known or possible ones."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = ABSENT
    dur: float = ABSENT
    pid: int | str = 0
    tid: int | str = 0
    args: Arguments | None = None


class Device(msgspec.Struct):
    """One entry of ``deviceProperties``."""

    name: str = ""


class Distributed(msgspec.Struct):
    """``distributedInfo``: which rank of how many wrote the trace."""

    rank: int | None = None
    world_size: int | None = None
    backend: str = ""


class Head(msgspec.Struct):
    """Everything of a trace but its events. A field of an unexpected type counts as absent."""

    schema: int | None = msgspec.field(default=None, name="schemaVersion")
    devices: list[Device] = msgspec.field(default_factory=list, name="deviceProperties")
    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    name: str = msgspec.field(default="", name="traceName")


def head_of(raw: dict[str, Any]) -> Head:
    """Return what is sensible of a head; a field that is not is left out, since no measure depends on it."""
    found = Head()
    for field in msgspec.structs.fields(Head):
        if field.encode_name in raw:
            try:
                setattr(found, field.name, msgspec.convert(raw[field.encode_name], field.type, strict=False))
            except msgspec.ValidationError:
                continue
    return found
