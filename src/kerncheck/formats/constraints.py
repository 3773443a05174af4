"""A constraints file for pip: pins, each below the comment that gives its reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerncheck.pin_sheet import Sheet


def render(sheet: Sheet) -> str:
    """Return the text of the file; everything but the pins is a comment."""
    blocks = ["".join(commented(sheet.head))]
    blocks += ["".join(commented(pin.reasons)) + f"{pin.requirement}\n" for pin in sheet.pins]
    blocks += ["".join(commented(note)) for note in sheet.notes]
    return "\n".join(blocks)


def commented(lines: Iterable[str]) -> list[str]:
    """Return lines as comments, whatever is in them."""
    return [f"# {' '.join(line.splitlines())}" + "\n" for line in lines]
