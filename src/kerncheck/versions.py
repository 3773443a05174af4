"""Versions as the rules need them: comparisons that say "unknown" where a vendor's or a development build is between.

A vendor or development build such as ``2.3.0a0+40ec155e58.nv24.03`` or ``2.10.0.dev20250924+cu128`` was cut from a
branch near that release: it may hold a repair of the release or not. A range that treats the build and its release
alike is decided; one that parts them is not.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version


def parse(text: str) -> Version | None:
    """Return the version, or None for what is not one (PEP 440)."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def holds(wanted: SpecifierSet, text: str) -> bool | None:
    """Tell whether a version lies in a range; None when it is no version, or a build between two releases."""
    version = parse(text)
    if version is None:
        return None
    answer = wanted.contains(version, prereleases=True)
    if version.is_prerelease and wanted.contains(Version(version.base_version)) != answer:
        return None
    return answer


def shown(wanted: SpecifierSet) -> str:
    """Return a range as people write it, the lower bound first (a specifier set has no order of its own)."""
    parts = sorted(wanted, key=lambda part: (parse(part.version.removesuffix(".*")) or Version("0"), part.operator))
    return ",".join(f"{part.operator}{part.version}" for part in parts)


def same_release(left: str, right: str) -> bool | None:
    """Tell whether two versions name one release, local tags (``+cu128``) aside; None when one is no version."""
    first, second = parse(left), parse(right)
    if first is None or second is None:
        return None
    return first.public == second.public


def minor(text: str) -> tuple[int, int] | None:
    """Return (major, minor) of a version, or None for what is not one."""
    version = parse(text)
    return (version.major, version.minor) if version else None


def flavour(text: str) -> str:
    """Return the first part of a local tag: ``cu128``, ``cpu``, ``rocm6.3``; empty without one, or for a vendor's."""
    version = parse(text)
    local = (version.local or "") if version else ""
    return local if local.startswith(("cu", "cpu", "rocm", "xpu")) else ""


def flavour_cuda(tag: str) -> str:
    """Return the CUDA version of a tag: ``cu128`` is 12.8, ``cu92`` is 9.2; empty for any other tag."""
    digits = tag.removeprefix("cu").partition(".")[0]
    if not tag.startswith("cu") or not digits.isdigit() or len(digits) < 2:
        return ""
    return f"{digits[:-1]}.{digits[-1]}"
