"""What a third party's ``kerncheck.toml`` says (docs/plug-ins.md), and what was seen of an installed plug-in."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kerncheck.model.base import Frozen

Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Word = Annotated[str, msgspec.Meta(min_length=1)]
OpName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")]


class PluginSeen(Frozen):
    """An installed plug-in: its entry point, its distribution, and the text of its description.

    ``modules`` are those that lie beside the description. ``problem`` says why there is no text.
    """

    name: str
    value: str
    distribution: str = ""
    version: str = ""
    file: str = ""
    text: str = ""
    modules: tuple[str, ...] = ()
    problem: str = ""


class CellText(Frozen):
    """One set of inputs, as ``kernels.CellPlan`` has it. ``device``: where it is run."""

    name: Word
    lengths: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    sizes: dict[str, Count]
    device: Literal["emulate", "cuda", "both"] = "both"
    regime: str = "plain"
    seeds: Count = 4
    configuration: Natural = 0
    upstream: Literal["random", "sum", "cat"] = "random"
    initial_state: bool = False
    cuts: tuple[Count, ...] = ()
    repeats: Natural = 0
    wide: Natural = 0
    options: dict[str, bool | int | float | str] = {}
    quick: bool = False
    short: tuple[Count, ...] = ()
    lanes: tuple[Literal["fp32", "bf16", "fp16"], ...] = ()


class OpText(Frozen):
    """One op, as ``kernels.OpSpec`` has it, with its cells."""

    id: OpName
    form: Word
    library: Literal["triton", "cuda"]
    backward: bool
    cell: Annotated[tuple[CellText, ...], msgspec.Meta(min_length=1)]
    module_candidates: tuple[str, ...] = ()
    extension: str = ""
    unordered: tuple[str, ...] = ()


class PluginText(Frozen):
    """The whole description. ``code`` is the module beside it that offers ``FORMS``; only children import it."""

    schema: Literal[1]
    package: Word
    import_name: Word
    distributions: Annotated[tuple[Word, ...], msgspec.Meta(min_length=1)]
    code: Word
    op: Annotated[tuple[OpText, ...], msgspec.Meta(min_length=1)]
    needs: tuple[str, ...] = ("torch",)
