"""The words for kinds of layer, as transformers' configurations write them, and what follows from a kind."""

from __future__ import annotations

PLAIN = frozenset({"layer", "mlp", "moe", "dense", "sparse", "attention"})
"""Kinds without a recurrent part, beside everything that ends in ``_attention`` and is not linear attention."""

OLD_NAMES = {"attention": "full_attention", "mamba": "linear_attention", "mamba2": "linear_attention"}
"""Words of older configurations (transformers 5.24.0, configuration_utils.py, remap_legacy_layer_types)."""


def needs_seam(layer_type: str) -> bool:
    """Tell whether a layer of this kind calls fused ops through seams: linear attention, convolutions, hybrids.

    A kind that nobody has heard of counts as one that does: it must be looked at, never passed over.
    """
    if layer_type == "linear_attention":
        return True
    return layer_type not in PLAIN and not layer_type.endswith("_attention")


def today(layer_type: str) -> str:
    """Return today's word for a kind of layer."""
    return OLD_NAMES.get(layer_type, layer_type)


def share(count: int, total: int) -> str:
    """Return ``24 of 32 layers``."""
    return f"{count} of {total} layer{'' if total == 1 else 's'}"
