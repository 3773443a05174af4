"""Section ``packing`` of a snapshot."""

from __future__ import annotations

from kerncheck.model.base import Frozen


class Packing(Frozen, tag="packing", tag_field="kind"):
    """Placeholder until the owner of this section fills it in."""
