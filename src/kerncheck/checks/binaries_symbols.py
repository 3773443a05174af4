"""What undefined symbols mean: each is given to a group by its owner and its C++ ABI. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerncheck.checks import imports_symbols as symbols
from kerncheck.checks.binaries_common import torch_words

if TYPE_CHECKING:
    from kerncheck.checks.registry import Case
    from kerncheck.model.binaries import BinaryFile
    from kerncheck.model.imports import Unresolved
    from kerncheck.model.loader import SymbolOwner


@dataclass(frozen=True)
class Group:
    """Symbols with one meaning. ``near`` says what is exported in their place, empty where nothing like it is."""

    means: str
    shown: tuple[str, ...]
    near: str = ""
    remedy: str = ""
    source: str = ""


def groups(case: Case, file: BinaryFile, abi: str) -> list[Group]:
    """Return the undefined symbols of a file by meaning.

    Those that a shadowed library lacks are told by KC232, those of a version that is not there by KC233.
    """
    told = {symbol for shadow in file.shadowed if shadow.taken for symbol in shadow.lacks}
    absent = {item.version for item in file.unmet}
    found: dict[str, list[Unresolved]] = {}
    for item in file.unresolved:
        if item.symbol not in told and item.version not in absent:
            found.setdefault(key_of(case, item, abi), []).append(item)
    return [group_of(case, key, items) for key, items in found.items()]


def key_of(case: Case, item: Unresolved, abi: str) -> str:
    """Return the kind of a symbol: ``abi``, the project of its owner, or ``unknown``."""
    owner = symbols.owner_of(item.symbol, case.catalog.loader)
    own = symbols.abi_of(item.symbol)
    if owner is None:
        return "CUDA runtime" if re.match(r"_*cuda[A-Z]", item.symbol) else "unknown"
    if owner.project == "torch" and own and (own != abi if abi else differs_only_in_abi(item)):
        return "abi"
    return owner.project


def differs_only_in_abi(item: Unresolved) -> bool:
    """Tell whether an exported symbol differs from a wanted one in its std::string only."""
    own = symbols.abi_of(item.symbol)
    return any(symbols.abi_of(other.symbol) not in ("", own) for other in item.similar)


def group_of(case: Case, key: str, items: list[Unresolved]) -> Group:
    """Describe one group."""
    owner = symbols.owner_of(items[0].symbol, case.catalog.loader)
    near = [f"{other.library} exports {other.demangled or other.symbol}" for item in items for other in item.similar]
    return Group(
        means=meaning(case, key, items, owner),
        shown=tuple(readable(item) for item in items),
        near="; ".join(dict.fromkeys(near[:3])),
        remedy=owner.remedy if owner and owner.project == key else "",
        source=owner.source if owner else "",
    )


def meaning(case: Case, key: str, items: list[Unresolved], owner: SymbolOwner | None) -> str:
    """Return in words what a group of symbols says about a file."""
    if key == "abi":
        return abi_words(items[0], case)
    if key == "torch":
        known = (symbols.meaning_of(item.symbol, case.catalog.loader) for item in items)
        told = next((text for text in known if text), "")
        return f"built for another torch than {torch_words(case)}{': ' + told if told else ''}"
    if key == "python":
        return "built for another Python than this one"
    if key == "CUDA runtime":
        return "built for another CUDA runtime than the one that is found"
    if owner is not None:
        return f"they belong to {owner.library} ({owner.project}), and the copy that is found has not got them"
    return "no row of loader.toml knows whose they are"


def abi_words(item: Unresolved, case: Case) -> str:
    """Return which C++ ABI a file has, and which one torch has."""
    if symbols.abi_of(item.symbol) == "C++11":
        return f"it uses the C++11 ABI (__cxx11), {torch_words(case)} was built with _GLIBCXX_USE_CXX11_ABI=0"
    return f"it uses the pre-C++11 ABI (std::string as Ss), {torch_words(case)} the C++11 ABI"


def readable(item: Unresolved) -> str:
    """Return a symbol as C++ writes it, with the name in the file."""
    return f"{item.demangled} ({item.symbol})" if item.demangled else item.symbol
