"""Section ``numerics`` of a snapshot."""

from __future__ import annotations

from kerncheck.model.base import Frozen


class Numerics(Frozen, tag="numerics", tag_field="kind"):
    """Placeholder until the owner of this section fills it in."""
