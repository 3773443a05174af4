"""Find repeat offenders: chains of small kernels in a row under one class of module, which one kernel could replace."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from kerncheck.model.trace import Offender, Phase
from kerncheck.probes.ranges import LABEL
from kerncheck.tracing.intervals import Finder
from kerncheck.tracing.join import Linked, phase
from kerncheck.tracing.table import NONE, Table

SMALL = frozenset({"elementwise", "copy and cast"})
LEAST = 3
"""Kernels in a row that make a chain (methods.md, 4.5)."""
MOST = 20
NUMBERED = re.compile(r"_\d+$")


@dataclass
class Chained:
    """What is summed for one class of module in one phase."""

    instances: set[str] = field(default_factory=set)
    chains: int = 0
    longest: int = 0
    calls: set[int] = field(default_factory=set)
    rows: list[int] = field(default_factory=list)
    operators: Counter[str] = field(default_factory=Counter)


class Modules:
    """Finds the module that a call belongs to: its own in forward, that of the forward operator in backward.

    What runs inside of a backward node in a module of its own is that module's: a recomputation (checkpointing).
    """

    def __init__(self, linked: Linked) -> None:
        self._linked = linked
        self._names: list[str] = []
        self._starts: list[float] = []
        self._finder = Finder()
        trace = linked.trace
        self._add(trace.modules, {*range(len(trace.names))})
        if not self._finder:
            self._add(trace.ranges, {n for n, name in enumerate(trace.names) if name.startswith(LABEL)})
        self._finder.sort()

    def _add(self, table: Table, names: set[int]) -> None:
        for row, name in enumerate(table.name):
            if name in names:
                start = table.start[row]
                self._finder.add(table.place[row], start, start + table.duration[row], len(self._names))
                self._names.append(self._linked.trace.names[name])
                self._starts.append(start)

    def __bool__(self) -> bool:
        """Tell whether the trace names any module."""
        return bool(self._names)

    def of(self, call: int) -> str:
        """Return the module's name as the trace has it; nothing outside of all."""
        linked = self._linked
        if call == NONE:
            return ""
        calls, operators = linked.trace.calls, linked.trace.operators
        found = self._finder.around(calls.place[call], calls.start[call])
        node = linked.node.get(call, NONE)
        if node != NONE and (found == NONE or self._starts[found] < operators.start[node]):
            row = linked.forward.get(node, NONE)
            found = self._finder.around(operators.place[row], operators.start[row]) if row != NONE else NONE
        return self._names[found] if found != NONE else ""


def class_of(module: str) -> str:
    """Return the class of ``nn.Module: Qwen3_5RMSNorm_12``, or of a label ``kc::layers.3.norm::Qwen3_5RMSNorm``."""
    if module.startswith(LABEL):
        return module.rpartition("::")[2]
    return NUMBERED.sub("", module.removeprefix("nn.Module: "))


def offenders(linked: Linked, rows: list[int], families: list[str]) -> tuple[Offender, ...]:
    """Return the chains by class of module and phase, the most launch time first; nothing without module names."""
    modules = Modules(linked)
    if not modules:
        return ()
    found: dict[tuple[str, Phase], Chained] = {}
    everyone: dict[tuple[str, Phase], set[str]] = {}
    for chain in chains(linked, rows, families, modules, everyone):
        add(found, linked, chain, modules)
    told = [told_of(linked, key, chained, len(everyone[key])) for key, chained in found.items()]
    return tuple(sorted(told, key=lambda item: -item.launch_microseconds)[:MOST])


def chains(
    linked: Linked, rows: list[int], families: list[str], modules: Modules, everyone: dict[tuple[str, Phase], set[str]]
) -> list[list[int]]:
    """Return rows of small work in a row on one stream under one module; note every module that launched anything."""
    place = linked.trace.device.place
    open_chains: dict[int, tuple[str, list[int]]] = {}
    done: list[list[int]] = []
    for row in rows:
        call = linked.call[row]
        module = modules.of(call)
        if module:
            everyone.setdefault((class_of(module), phase(linked, call)), set()).add(module)
        now, chain = open_chains.get(place[row], ("", []))
        if families[row] in SMALL and module and (module == now or not chain):
            chain.append(row)
            open_chains[place[row]] = (module, chain)
            continue
        done.append(chain)
        open_chains[place[row]] = (module, [row] if families[row] in SMALL and module else [])
    done += [chain for _, chain in open_chains.values()]
    return [chain for chain in done if len(chain) >= LEAST]


def add(found: dict[tuple[str, Phase], Chained], linked: Linked, chain: list[int], modules: Modules) -> None:
    """Add one chain to its class."""
    calls = [linked.call[row] for row in chain]
    module = modules.of(calls[0])
    item = found.setdefault((class_of(module), phase(linked, calls[0])), Chained())
    item.instances.add(module)
    item.chains += 1
    item.longest = max(item.longest, len(chain))
    item.calls.update(calls)
    item.rows += chain
    trace = linked.trace
    for call in calls:
        operator = linked.operator.get(call, NONE)
        if operator != NONE:
            item.operators[trace.names[trace.operators.name[operator]]] += 1


def told_of(linked: Linked, key: tuple[str, Phase], item: Chained, of: int) -> Offender:
    """Return the sums of one class."""
    trace = linked.trace
    return Offender(
        module=key[0],
        phase=key[1],
        instances=len(item.instances),
        of=of,
        chains=item.chains,
        longest=item.longest,
        launches=len(item.calls),
        gpu_microseconds=sum(trace.device.duration[row] for row in item.rows),
        launch_microseconds=sum(trace.calls.duration[call] for call in item.calls),
        operators=dict(item.operators.most_common(6)),
    )
