"""What a missing symbol says: whose it is, which C++ ABI the extension has, which torch it was built for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kerncheck.model.loader import LoaderFile, SymbolOwner

Abi = Literal["C++11", "pre-C++11", ""]
NESTED = re.compile(r"^_Z(?:T[ISVT]|GV|GR)?N?[rVK]*[RO]?")
SUBSTITUTION = re.compile(r"[ST][0-9A-Z]*_")
WHEEL_TAG = re.compile(r"cu(?P<cuda>\d+)torch(?P<torch>\d+\.\d+)cxx11abi(?P<abi>true|false)", re.IGNORECASE)


def owner_of(symbol: str, loader: LoaderFile) -> SymbolOwner | None:
    """Return the row of the library that should export a symbol: the longest namespace or prefix that fits."""
    inner = NESTED.sub("", symbol, count=1) if symbol.startswith("_Z") else None
    fitting = [
        row
        for row in loader.owner
        if (row.prefix and symbol.startswith(row.prefix))
        or (row.namespace and inner is not None and inner.startswith(row.namespace))
    ]
    return max(fitting, key=lambda row: len(row.prefix or row.namespace), default=None)


def abi_of(symbol: str) -> Abi:
    """Return which std::string a mangled name takes: that of the C++11 ABI, the older one, or none at all."""
    if "__cxx11" in symbol:
        return "C++11"
    return "pre-C++11" if "Ss" in without_identifiers(symbol) else ""


def without_identifiers(symbol: str) -> str:
    """Return the letters of a mangled name that are code, not part of a name (Itanium C++ ABI, 5.1).

    A length is followed by that many letters of an identifier; ``S0_`` and ``T_`` refer back; ``Ss`` is the
    pre-C++11 std::string.
    """
    kept, at = "", 2
    while at < len(symbol):
        back = SUBSTITUTION.match(symbol, at)
        length = re.compile(r"\d+").match(symbol, at)
        if back:
            at = back.end()
        elif length:
            at = length.end() + int(length[0])
        else:
            kept += symbol[at]
            at += 1
    return kept


def meaning_of(symbol: str, loader: LoaderFile) -> str:
    """Return what is known about one certain symbol, "" for any other."""
    return next((row.means for row in loader.meaning if row.symbol == symbol), "")


def wheel_tag(version: str) -> dict[str, str]:
    """Return ``cuda``, ``torch`` and ``abi`` of a wheel's local version (``1.5.0+cu12torch2.6cxx11abiTRUE``)."""
    match = WHEEL_TAG.search(version)
    return match.groupdict() if match else {}


def readable_number(text: str) -> str:
    """Return ``12_4`` as ``12.4``: symbols write a dot as an underscore."""
    return text.replace("_", ".")
