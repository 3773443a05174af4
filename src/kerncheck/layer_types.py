"""Read the kind of each layer out of a configuration as data, in whatever way the configuration writes it.

Selection is by structure, never by a model's name: a configuration with linear-attention layers is seen as such even
under a model type that nobody knows. transformers' own configuration classes (5.24.0) are the source of each rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerncheck.model.layers import today

Fields = dict[str, Any]
MOST_LAYERS = 10_000

NEMOTRON_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""``hybrid_override_pattern``: transformers 5.24.0, nemotron_h/configuration_nemotron_h.py, _pattern_to_list."""


def layer_types(config: Fields) -> tuple[str, ...]:
    """Return the kind of each layer, in order; nothing if the configuration does not tell."""
    for rule in RULES:
        found = rule(config)
        if found:
            return tuple(today(kind) for kind in found)
    return ()


def count(config: Fields) -> int:
    """Return the number of layers; 0 if it is not told, or is no sensible number."""
    value = next((config[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if name in config), 0)
    return value if isinstance(value, int) and 0 < value <= MOST_LAYERS else 0


def listed(config: Fields) -> list[str]:
    """Read ``layer_types`` or ``layers_block_type``."""
    for name in ("layer_types", "layers_block_type"):
        value = config.get(name)
        if isinstance(value, list) and 0 < len(value) <= MOST_LAYERS and all(isinstance(kind, str) for kind in value):
            return value
    return []


def lettered(config: Fields) -> list[str]:
    """Read ``hybrid_override_pattern``, one letter a layer."""
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not set(pattern) <= set(NEMOTRON_LETTERS):
        return []
    return [NEMOTRON_LETTERS[letter] for letter in pattern]


def by_interval(config: Fields) -> list[str]:
    """Read ``full_attention_interval``; a model with a delta rule that does not tell it has 4 (qwen3_5, qwen3_next)."""
    default = 4 if "linear_num_value_heads" in config else None
    return every(config, config.get("full_attention_interval", default), "linear_attention")


def by_group(config: Fields) -> list[str]:
    """Read ``layer_group_size``: the last layer of each group is full attention (bailing_hybrid)."""
    return every(config, config.get("layer_group_size"), "linear_attention")


def every(config: Fields, period: Any, other: str) -> list[str]:  # noqa: ANN401 - whatever the file holds
    """Return full attention in every period-th layer and the other kind elsewhere."""
    if not isinstance(period, int) or period < 1:
        return []
    return ["full_attention" if (index + 1) % period == 0 else other for index in range(count(config))]


def by_offset(config: Fields) -> list[str]:
    """Read ``attn_layer_period`` and ``attn_layer_offset`` (jamba)."""
    period, offset = config.get("attn_layer_period"), config.get("attn_layer_offset")
    if not isinstance(period, int) or not isinstance(offset, int) or period < 1:
        return []
    return ["full_attention" if i % period == offset else "linear_attention" for i in range(count(config))]


def by_positions(config: Fields) -> list[str]:
    """Read the list of full-attention layers: ``attn_layer_indices`` (bamba) or ``full_attn_idxs`` (lfm2)."""
    for name, other in (("attn_layer_indices", "linear_attention"), ("full_attn_idxs", "conv")):
        value = config.get(name)
        if isinstance(value, list):
            return ["full_attention" if index in value else other for index in range(count(config))]
    return []


def by_kda_lists(config: Fields) -> list[str]:
    """Read ``linear_attn_config`` with its 1-based ``full_attn_layers`` (kimi_linear)."""
    nested = config.get("linear_attn_config")
    full = nested.get("full_attn_layers") if isinstance(nested, dict) else None
    if not isinstance(full, list):
        return []
    return ["full_attention" if index + 1 in full else "linear_attention" for index in range(count(config))]


def by_state_space(config: Fields) -> list[str]:
    """See a state space in the fields: beside attention heads every layer is a hybrid, else it is linear attention."""
    if not any(name in config for name in ("state_size", "ssm_state_size", "mamba_d_state")):
        return []
    return ["hybrid" if "num_attention_heads" in config else "linear_attention"] * count(config)


RULES: tuple[Callable[[Fields], list[str]], ...] = (
    listed,
    lettered,
    by_kda_lists,
    by_positions,
    by_offset,
    by_interval,
    by_group,
    by_state_space,
)
