"""Section ``environment`` of a snapshot."""

from __future__ import annotations

from kerncheck.model.base import Frozen


class Environment(Frozen, tag="environment", tag_field="kind"):
    """Placeholder until the owner of this section fills it in."""


class Gpus(Frozen, tag="gpus", tag_field="kind"):
    """Placeholder until the owner of this section fills it in."""
