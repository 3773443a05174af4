"""The columns that are kept of a trace: a few numbers for each event of interest, its name once for all."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from kerncheck.tracing.events import NONE, Head

__all__ = ["NONE", "Interned", "Table", "Trace"]


class Interned(dict[Hashable, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: Hashable) -> int:
        """Give a new thing the next number."""
        number = self[key] = len(self)
        return number


@dataclass
class Table:
    """Events of one kind. Row i is one event; all columns have one length.

    ``start`` and ``duration`` are microseconds. ``name`` indexes ``Trace.names``; ``place`` indexes ``Trace.threads``
    (process, thread), or for work on a device ``Trace.lanes`` (device, stream). ``external`` is the External id;
    ``number`` the sequence number of an operator, or the correlation of a call and of work on a device. ``size`` is
    bytes, kept for work on a device only. Ids are -1 where absent.
    """

    start: array[float] = field(default_factory=lambda: array("d"))
    duration: array[float] = field(default_factory=lambda: array("d"))
    name: array[int] = field(default_factory=lambda: array("i"))
    place: array[int] = field(default_factory=lambda: array("i"))
    external: array[int] = field(default_factory=lambda: array("q"))
    number: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.start)

    def keep(self, rows: Iterable[int]) -> None:
        """Keep only these rows, in this order."""
        chosen = list(rows)
        for column in ("start", "duration", "name", "place", "external", "number", "size"):
            values = getattr(self, column)
            if values:
                setattr(self, column, array(values.typecode, [values[row] for row in chosen]))


@dataclass
class Trace:
    """What is kept of one trace file.

    ``operators`` ran on the CPU, ``calls`` are those into the CUDA or HIP runtime and driver, ``ranges`` are
    annotations, ``modules`` the calls of ``nn.Module`` that a trace with stacks names, ``device`` is work on a GPU.
    ``oddities`` counts what was wrong with the events, in words. ``events`` counts all that the file holds.
    """

    path: str
    head: Head
    operators: Table = field(default_factory=Table)
    calls: Table = field(default_factory=Table)
    ranges: Table = field(default_factory=Table)
    modules: Table = field(default_factory=Table)
    device: Table = field(default_factory=Table)
    kinds: array[int] = field(default_factory=lambda: array("b"))
    names: list[str] = field(default_factory=list)
    threads: list[tuple[int | str, int | str]] = field(default_factory=list)
    lanes: list[tuple[int | str, int | str]] = field(default_factory=list)
    oddities: Counter[str] = field(default_factory=Counter)
    events: int = 0

    @property
    def processes(self) -> int:
        """How many processes ran operators or calls."""
        used = {*self.operators.place, *self.calls.place}
        return len({self.threads[place][0] for place in used})
