"""Which compiled code runs on which GPU, by the names that binaries and torch give it (``sm_90a``, ``compute_120``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from kerncheck.model.releases import DeviceRule

NAME = re.compile(r"(?P<kind>sm|compute)_(?P<number>\d{2,3})(?P<suffix>[af]?)")

Coverage = Literal["native", "compatible", "ptx", "none", "unknown"]
"""Code for exactly this GPU; of its major and an older minor; PTX that the driver compiles; none; not to be told."""

ORDER: tuple[Coverage, ...] = ("native", "compatible", "ptx", "unknown", "none")


@dataclass(frozen=True)
class Code:
    """One entry of a list. ``number`` is 90 for capability 9.0; ``suffix`` is ``a``, ``f`` or empty."""

    ptx: bool
    number: int
    suffix: str


def number_of(cc: str) -> int:
    """Return 90 for ``9.0`` and 121 for ``12.1``."""
    major, _, minor = cc.partition(".")
    return int(major) * 10 + int(minor or 0)


def parsed(names: Iterable[str]) -> tuple[Code, ...]:
    """Read the entries that can be read; others are passed over."""
    matches = (NAME.fullmatch(name.strip()) for name in names)
    return tuple(
        Code(ptx=match["kind"] == "compute", number=int(match["number"]), suffix=match["suffix"])
        for match in matches
        if match
    )


def coverage(names: Iterable[str], cc: str, rule: DeviceRule, cuda: str = "") -> Coverage:
    """Tell how well a list of architectures covers a GPU; an empty or unreadable list tells nothing.

    Code for X.Y runs on the same major with a minor not below Y (CUDA C++ Programming Guide, binary compatibility),
    apart from the exceptions in ``rule`` (torch's own table); PTX for X.Y compiles on everything from X.Y on. An ``a``
    variant runs on exactly its GPU, an ``f`` variant, PTX too, on its family: the same major, a minor not below (the
    guide's section on feature sets: compute_100f serves 10.0 and 10.3).
    """
    device = number_of(cc)
    answers = {one_coverage(code, device, rule, cuda) for code in parsed(names)}
    return next((answer for answer in ORDER if answer in answers), "unknown")


def one_coverage(code: Code, device: int, rule: DeviceRule, cuda: str) -> Coverage:
    """Tell how one entry covers a GPU."""
    if code.number == device:
        return "ptx" if code.ptx else "native"
    if code.suffix:
        family = code.suffix == "f" and code.number // 10 == device // 10 and code.number < device
        return ("ptx" if code.ptx else "compatible") if family else "none"
    if code.ptx:
        return "ptx" if code.number < device else "none"
    return "compatible" if same_family(code.number, device, rule, cuda) else "none"


def same_family(code: int, device: int, rule: DeviceRule, cuda: str) -> bool:
    """Apply torch's rule: listed devices only, else the same major and a minor not below, less the exclusions."""
    if str(code) in rule.set_only:
        return device in rule.set_only[str(code)]
    if device in rule.exclude.get(str(code), ()) and not lifted(code, rule, cuda):
        return False
    return code // 10 == device // 10 and code % 10 <= device % 10


def lifted(code: int, rule: DeviceRule, cuda: str) -> bool:
    """Tell whether the CUDA version of a build lifts the exclusions of Jetson devices from this code."""
    newer = bool(cuda) and SpecifierSet(f">={rule.exclude_lifted_from_cuda}").contains(cuda)
    return newer and code in rule.exclude_lifted
