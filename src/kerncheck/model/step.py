"""Section ``step`` of a snapshot."""

from __future__ import annotations

from kerncheck.model.base import Frozen


class Step(Frozen, tag="step", tag_field="kind"):
    """Placeholder until the owner of this section fills it in."""
