"""Make a model configuration small: rules about fields and their values, never about the names of models.

Pure data in, pure data out. A rule names the role of a field (a width, a count of heads, ...) by its name in
transformers' configurations; a field that no rule knows keeps its value. What was changed is returned, so that a
report can say what was judged instead of the real model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

VOCABULARY = 128
HEAD = 16  # the smallest side of a Triton dot
WIDTH = 64

TINY = {
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "attention_hidden_size": 2 * WIDTH,
    "attention_head_dim": WIDTH,
    "head_dim": HEAD,
    "swa_head_dim": HEAD,
    "linear_key_head_dim": 2 * HEAD,
    "linear_value_head_dim": 2 * HEAD,
    "linear_head_dim": 2 * HEAD,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": HEAD,
    "qk_rope_head_dim": HEAD,
    "v_head_dim": HEAD,
    "index_head_dim": HEAD,
    "index_n_heads": 2,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": HEAD,
    "linear_num_heads": 2,
    "mamba_d_state": HEAD,
    "ssm_state_size": HEAD,
    "state_size": HEAD,
    "mamba_chunk_size": 32,
    "time_step_rank": 4,
    "dt_rank": 4,
    "mamba_dt_rank": 4,
    "adapter_rank": 8,
    "sliding_window": 32,
    "sliding_window_size": 32,
    "max_position_embeddings": 4096,
    "ple_embed_dim": 32,
    "ngram_vocab_size_base": 97,
    "split_ngram_parts": 4,
}
"""Largest value that a field keeps in a tiny model. A value that is smaller already stays."""

HEADS = (
    ("num_attention_heads", "num_key_value_heads"),
    ("swa_num_attention_heads", "swa_num_key_value_heads"),
    ("linear_num_value_heads", "linear_num_key_heads"),
)
"""(Many, few): pairs of head counts. A grouped pair stays grouped, 2 to 1, since kernels branch on it."""

STATE_SPACE_HEADS = (
    ("mamba_n_heads", "mamba_d_head"),
    ("mamba_num_heads", "mamba_head_dim"),
    ("n_mamba_heads", "mamba_headdim"),
    ("num_heads", "head_dim"),
)
"""(Heads, size of one): their product is the inner width of a Mamba layer."""

INNER_WIDTHS = ("mamba_d_ssm",)
STATE_SPACE_GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups")

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token")
GROUPS = ("n_group", "num_expert_group", "topk_group")
VOCABULARIES = ("vocab_size", "unpadded_vocab_size")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")

INDEX_LISTS = ("full_attn_idxs", "attn_layer_indices", "hybrid_layer_ids", "mlp_only_layers", "ple_layer_ids")
"""Fields that list the positions of some layers."""

UNTYPED = "layer"
"""The type of every layer of a configuration that tells no types."""

Fields = dict[str, Any]


def choices(kinds: Sequence[Any], *, period: bool) -> list[list[int]]:
    """Return sets of positions to keep, the preferred one first; each holds every kind of layer.

    The first of each kind; the shortest beginning that holds all kinds (preferred with ``period``, and needed where
    the kinds follow from a period); the first two of each kind (needed where layers share weights).
    """
    first = sorted(kinds.index(kind) for kind in dict.fromkeys(kinds))
    beginning = list(range(max(first) + 1))
    twice = sorted(
        position for kind in dict.fromkeys(kinds) for position in [i for i, own in enumerate(kinds) if own == kind][:2]
    )
    return [beginning, first, twice] if period else [first, beginning, twice]


def layer_kinds(fields: Fields, layer_types: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return for each layer what tells it from others: its type and its entry in every list with one per layer."""
    lists = [value for name, value in sorted(fields.items()) if per_layer(name, value, len(layer_types))]
    return list(zip(layer_types, *(map(str, values) for values in lists), strict=False))


def per_layer(name: str, value: Any, layers: int) -> bool:
    """Tell whether a field holds one entry for each layer."""
    return isinstance(value, list) and len(value) == layers and name not in INDEX_LISTS


def fewer_layers(fields: Fields, layer_types: Sequence[str], keep: Sequence[int]) -> Fields:
    """Return the changes that leave only the layers at these positions."""
    changes: Fields = {"num_hidden_layers": len(keep)}
    if set(layer_types) != {UNTYPED}:
        changes["layer_types"] = [layer_types[index] for index in keep]
    for name, value in fields.items():
        if name in INDEX_LISTS and isinstance(value, list):
            changes[name] = [new for new, old in enumerate(keep) if old in value]
        elif per_layer(name, value, len(layer_types)):
            changes[name] = [value[index] for index in keep]
    return changes


def small_vocabulary(fields: Fields) -> Fields:
    """Return the changes for a small vocabulary; special tokens outside of it become token 0."""
    changes: Fields = {name: VOCABULARY for name in VOCABULARIES if exceeds(fields.get(name), VOCABULARY)}
    for name in TOKENS:
        value = fields.get(name)
        if exceeds(value, VOCABULARY - 1) or isinstance(value, list):
            changes[name] = 0
    return changes


def few_experts(fields: Fields, experts: int = 4) -> Fields:
    """Return the changes for few experts, of which each token takes at most two."""
    changes: Fields = {name: experts for name in EXPERTS if exceeds(fields.get(name), experts)}
    changes.update({name: 2 for name in EXPERTS_PER_TOKEN if exceeds(fields.get(name), 2)})
    if changes:
        changes.update({name: 1 for name in GROUPS if exceeds(fields.get(name), 1)})
    return changes


def small_dimensions(fields: Fields) -> Fields:
    """Return the changes that make widths and head counts tiny and keep them consistent with each other."""
    changes: Fields = {name: limit for name, limit in TINY.items() if exceeds(fields.get(name), limit)}
    for many, few in HEADS:
        changes.update(few_heads(fields, many, few))
    changes.update(state_space_heads({**fields, **changes}))
    return changes


def few_heads(fields: Fields, many: str, few: str) -> Fields:
    """Return a pair of head counts as 2 and 1 where it was grouped, else as 2 and 2."""
    if not exceeds(fields.get(many), 2):
        return {}
    grouped = isinstance(fields.get(few), int) and fields[few] < fields[many]
    return {many: 2, **({few: 1 if grouped else 2} if few in fields else {})}


def state_space_heads(fields: Fields) -> Fields:
    """Return head counts for which Mamba's inner width equals heads times head size, in each family's words."""
    hidden = fields.get("hidden_size", WIDTH)
    inner = int(hidden * (fields.get("mamba_expand") or fields.get("expand") or 1))
    changes: Fields = {name: inner for name in INNER_WIDTHS if exceeds(fields.get(name), 0)}
    for heads, size in STATE_SPACE_HEADS:
        if exceeds(fields.get(heads), 1):
            changes.update({heads: inner // (2 * HEAD), **({size: 2 * HEAD} if size in fields else {})})
    changes.update({name: 1 for name in STATE_SPACE_GROUPS if exceeds(fields.get(name), 1)})
    return changes


def exceeds(value: Any, limit: int) -> bool:
    """Tell whether a field is a number above a limit."""
    return isinstance(value, int) and not isinstance(value, bool) and value > limit


def differences(before: Fields, after: Fields) -> dict[str, list[Any]]:
    """Return ``{field: [real, shrunk]}`` for the fields that differ, as plain data."""
    return {
        name: [plain(before.get(name)), plain(value)]
        for name, value in sorted(after.items())
        if before.get(name) != value
    }


def plain(value: Any) -> Any:
    """Return a value as JSON data: long lists become their length, infinities their name."""
    if isinstance(value, list) and len(value) > 16:
        return f"{len(value)} entries"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, list, type(None))) else str(value)
