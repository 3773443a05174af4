"""Mutants of fla's sources: where a line that runs could be wrong in one place, and the sample of them.

A site is a place in a file of fla that some numeric cell executes; an operator changes one expression or statement
there. ``sample`` draws from all sites with a fixed seed, the same number from each operator as far as there are any.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FILES = {
    "ops/gated_delta_rule/chunk.py": "chunk_gated_delta_rule",
    "ops/gated_delta_rule/chunk_fwd.py": "chunk_gated_delta_rule",
    "ops/gated_delta_rule/wy_fast.py": "chunk_gated_delta_rule",
    "ops/common/chunk_o.py": "chunk_gated_delta_rule",
    "ops/common/chunk_delta_h.py": "chunk_gated_delta_rule",
    "ops/utils/cumsum.py": "chunk_gated_delta_rule",
    "ops/gated_delta_rule/fused_recurrent.py": "fused_recurrent_gated_delta_rule",
    "modules/norm/l2norm.py": "l2norm",
    "modules/norm/fused_norm_gate.py": "FusedRMSNormGated",
    "modules/causal_conv1d/ops.py": "causal_conv1d",
}
"""The files of fla 0.6.0 that hold the kernels and wrappers which qwen launches, and the op whose cells run them."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
}
NARROW = {"float32": "bfloat16"}


@dataclass(frozen=True)
class Mutant:
    """One change: ``old`` stands in ``file`` at a line and column (from 1 and 0), and ``new`` takes its place."""

    file: str
    line: int
    column: int
    operator: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """A short name for a table."""
        return f"{self.file.rpartition('/')[2]}:{self.line} {self.operator}"


Found = Iterator[tuple[ast.AST, str]]


def arithmetic(node: ast.AST) -> Found:
    """A sum becomes a difference or the other way round; a product loses its second factor."""
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield node, unparsed(node, op=SWAPPED[type(node.op)]())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield node, ast.unparse(node.left)


def comparison(node: ast.AST) -> Found:
    """A bound that belonged to the range no longer does, or the other way round."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        yield node, unparsed(node, ops=[SWAPPED[type(node.ops[0])]()])


def accumulation(node: ast.AST) -> Found:
    """A term is not added: ``x += y`` goes, ``tl.dot(a, b, x)`` forgets x."""
    if isinstance(node, ast.AugAssign):
        yield node, "pass"
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.dot" and len(node.args) == 3:
        yield node, unparsed(node, args=node.args[:2])


def mask(node: ast.AST) -> Found:
    """A mask loses one of its conditions, or a choice takes the same side always."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        yield node, ast.unparse(node.left)
        yield node, ast.unparse(node.right)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.where":
        yield node, ast.unparse(node.args[1])


def returned(node: ast.AST) -> Found:
    """One of several results is None, or two neighbours change places."""
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        parts = [ast.unparse(item) for item in node.value.elts]
        for at, part in enumerate(parts):
            if part != "None":
                yield node, "return " + ", ".join([*parts[:at], "None", *parts[at + 1 :]])
            if at and part != parts[at - 1]:
                yield node, "return " + ", ".join([*parts[: at - 1], part, parts[at - 1], *parts[at + 1 :]])


def index(node: ast.AST) -> Found:
    """An offset, a block's index or a boundary is off by one."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name = node.targets[0].id
        if name.startswith(("o_", "last_", "bos", "eos", "boh", "i_t", "NT")):
            yield node, f"{name} = ({ast.unparse(node.value)}) + 1"


def narrowing(node: ast.AST) -> Found:
    """A value is kept in bf16 where it was fp32."""
    if isinstance(node, ast.Attribute) and node.attr in NARROW and ast.unparse(node.value) in ("tl", "torch"):
        yield node, f"{ast.unparse(node.value)}.{NARROW[node.attr]}"


def constant(node: ast.AST) -> Found:
    """A number beside an operator is off by one, or by one in a hundred."""
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and type(node.right.value) in (int, float):
        value = node.right.value
        other = value + 1 if isinstance(value, int) else value * 1.01
        yield node, unparsed(node, right=ast.Constant(other))


OPERATORS: tuple[Callable[[ast.AST], Found], ...] = (
    arithmetic,
    comparison,
    accumulation,
    mask,
    returned,
    index,
    narrowing,
    constant,
)


def unparsed(node: ast.AST, **changes: object) -> str:
    """Return the source of a node in which some fields differ, in brackets where it is an expression."""
    fields = {name: getattr(node, name) for name in node._fields}
    text = ast.unparse(ast.fix_missing_locations(ast.copy_location(type(node)(**{**fields, **changes}), node)))
    return f"({text})" if isinstance(node, ast.BinOp | ast.Compare) else text


def mutants_of(root: Path, file: str, executed: set[int]) -> Iterator[Mutant]:
    """Yield every mutant of one file whose place is executed and lies on one line."""
    text = (root / file).read_text()
    for node in ast.walk(ast.parse(text)):
        if getattr(node, "lineno", -1) not in executed or node.lineno != node.end_lineno:  # type: ignore[attr-defined]
            continue
        for operator in OPERATORS:
            for place, new in operator(node):
                old = ast.get_source_segment(text, place) or ""
                if old and old != new:
                    yield Mutant(file, place.lineno, place.col_offset, operator.__name__, old, new)  # type: ignore[attr-defined]


def sample(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw ``count`` mutants, in turn from each operator, so that a common one does not crowd out the others."""
    piles: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in found:
        piles[mutant.operator].append(mutant)
    chance = random.Random(seed)  # noqa: S311 - a sample that anybody can draw again
    for pile in piles.values():
        chance.shuffle(pile)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(piles.values()):
        drawn += [pile.pop() for _, pile in sorted(piles.items()) if pile]
    return drawn[:count]


def applied(mutant: Mutant, text: str) -> str:
    """Return a file's text with the mutant in it. Raises ValueError where the place holds something else."""
    lines = text.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    raw = line.encode()  # columns of ast count bytes
    end = mutant.column + len(mutant.old.encode())
    if raw[mutant.column : end].decode() != mutant.old:
        raise ValueError(f"{mutant.name}: the file holds something else there")
    lines[mutant.line - 1] = raw[: mutant.column].decode() + mutant.new + raw[end:].decode()
    return "".join(lines)
