"""What the packing section says about one cell. Pure readings, no verdicts."""

from __future__ import annotations

from kerncheck.model.job import VARIANTS, Convention
from kerncheck.model.packing import Cell, Packing, SeamCall, Sent, Unseen
from kerncheck.supervise import why

WORDS = {
    "causal_conv1d_fn": "convolution",
    "chunk_gated_delta_rule": "delta rule",
    "chunk_kda": "delta rule of KDA",
    "mamba_chunk_scan_combined": "state-space scan",
    "attention": "full attention",
}
COLLATOR = (
    "send cu_seq_lens_q, cu_seq_lens_k and seq_idx with every packed batch: "
    "DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True) or the trainer's equivalent; "
    "or train without packing"
)
OF_ATTENTION: dict[Convention, str] = {
    "both_mrope3": "put the text's own positions, which begin at 0 in each example, before the three rows "
    "(position_ids of shape [4, 1, tokens]): full attention tells examples apart by that row only",
    "both_mask": "leave the attention_mask out: full attention reads the examples from position_ids only without one",
}
"""What to do where full attention alone leaks (transformers 5.24.0, modeling_qwen3_5.py and masking_utils.py)."""
SENDS: dict[Sent, frozenset[str]] = {
    "nothing": frozenset(),
    "position_ids": frozenset(),
    "cu_seq_lens": frozenset({"cu_seqlens", "cu_seq_lens_q"}),
    "seq_idx": frozenset({"seq_idx"}),
    **dict.fromkeys(("both", *VARIANTS), frozenset({"cu_seqlens", "cu_seq_lens_q", "seq_idx"})),
}
"""Boundary arguments that each convention lets a seam receive (position_ids alone never reach one)."""


def blind(packing: Packing) -> str:
    """Return why the test cannot see a leak, or nothing if the positive control shows one."""
    control = packing.cell("nothing", use_cache=False)
    if control is None or isinstance(control, Unseen):
        return "the positive control did not run" + (f": {why(control.why)}" if control else "")
    if control.refused:
        return f"the positive control did not run: {control.refused}"
    if not control.finite:
        return "the outputs of the positive control are not finite"
    forward = [row[earlier] for index, row in enumerate(control.gradients) for earlier in range(index)]
    if not any(forward):
        return "without any boundary no gradient crosses examples: the test cannot see a leak"
    if not any(tokens for change in control.changes for tokens in change.tokens[change.example + 1 :]):
        return "without any boundary no change crosses examples: the test cannot see a leak"
    return ""


def alive(cell: Cell) -> bool:
    """Tell whether the cell's outputs are finite and depend on their own example."""
    return cell.finite and all(row[index] for index, row in enumerate(cell.gradients))


def leaks(packing: Packing, cell: Cell) -> bool:
    """Tell whether anything crosses examples. A gradient that is not finite crosses too."""
    return bool(crossed_gradients(cell)) or (not packing.experts and bool(crossed_changes(cell)))


def crossed_gradients(cell: Cell) -> list[tuple[int, int]]:
    """Return the pairs (i, j) of examples for which outputs of i have a gradient at j."""
    return [(i, j) for i, row in enumerate(cell.gradients) for j, value in enumerate(row) if i != j and value != 0]


def crossed_changes(cell: Cell) -> list[tuple[int, int, int]]:
    """Return (changed example, other example, changed tokens of the other) for each change that crossed."""
    return [
        (change.example, other, tokens)
        for change in cell.changes
        for other, tokens in enumerate(change.tokens)
        if other != change.example and tokens
    ]


def crossing(packing: Packing, cell: Cell) -> str:
    """Return the numbers of a leak: the largest off-diagonal gradient against the diagonal, and the changed tokens."""
    pairs = crossed_gradients(cell)
    words = []
    if pairs:
        i, j = max(pairs, key=lambda pair: cell.gradients[pair[0]][pair[1]] or 0.0)
        across, own = cell.gradients[i][j], cell.gradients[i][i]
        ratio = f"{across / own:.2g}" if across and own else "not finite"
        words.append(f"gradient of example {i + 1} at example {j + 1} over its own: {ratio}")
    for changed, other, tokens in crossed_changes(cell):
        size = packing.lengths[other]
        words.append(f"{tokens} of {size} tokens of example {other + 1} change with example {changed + 1}")
    return "; ".join(words)


def foreign(call: SeamCall) -> int:
    """Return how many tokens of other examples changed within one call when only the first example changed."""
    return sum(call.reach[1:]) if call.reach else 0


def where(cell: Cell) -> str:
    """Return the seams that leak by themselves, in the order in which they run."""
    leaking = [call for call in cell.seams if foreign(call)]
    told = []
    for seam in dict.fromkeys(call.seam for call in leaking):
        own = [call for call in leaking if call.seam == seam]
        told.append(f"{reach_words(own[0])} in {layer_list(own)}")
    return "; ".join(told) if told else "no single seam shows it"


def reach_words(call: SeamCall) -> str:
    """Return how far the first example reaches within one call."""
    return f"{WORDS.get(call.seam, call.seam)}: {foreign(call)} tokens of other examples"


def layer_list(calls: list[SeamCall]) -> str:
    """Return the layers of these calls."""
    layers = sorted({call.layer for call in calls})
    return ("layer " if len(layers) == 1 else "layers ") + ", ".join(str(layer) for layer in layers)


def leak_remedy(declared: Convention, cell: Cell) -> str:
    """Return what to do about a leak: send what is missing, or replace what ignores it or does not pass it on."""
    leaking = [call for call in cell.seams if foreign(call)]
    ignoring = sorted({call.implementation for call in leaking if got_boundaries(call)})
    advice = []
    if ignoring:
        advice.append(f"{', '.join(ignoring)} was given the boundaries and ignores them: update that package")
    if declared in OF_ATTENTION and {call.seam for call in leaking} == {"attention"}:
        return OF_ATTENTION[declared]
    if not declared.startswith("both"):
        advice.append(COLLATOR)
    elif any(not got_boundaries(call) for call in leaking):
        advice.append("this model's code in transformers does not pass the boundaries on: use a version that does")
    if declared.startswith("both"):
        advice.append("until then train without packing")
    return "; ".join(advice)


def got_boundaries(call: SeamCall) -> bool:
    """Tell whether a seam received a boundary that its function knows."""
    return any(call.received.get(name) is not None for name in call.takes)


def boundaries(packing: Packing) -> tuple[int, ...]:
    """Return the pack's boundaries: 0, the end of each example."""
    return tuple(sum(packing.lengths[:count]) for count in range(len(packing.lengths) + 1))


def sent_words(convention: Sent) -> str:
    """Return what a convention sends."""
    words: dict[Sent, str] = {
        "nothing": "no boundaries",
        "position_ids": "position_ids alone",
        "cu_seq_lens": "position_ids + cu_seq_lens",
        "seq_idx": "position_ids + seq_idx",
        "both": "position_ids + cu_seq_lens + seq_idx",
        "both_mrope3": "position_ids of 3 rows (M-RoPE) + cu_seq_lens + seq_idx",
        "both_mrope4": "position_ids of 4 rows (text, M-RoPE) + cu_seq_lens + seq_idx",
        "both_mask": "position_ids + cu_seq_lens + seq_idx + attention_mask of ones",
    }
    return words[convention]


def shown(packing: Packing) -> str:
    """Return what the statement is about: the pack, the layers, the attention and the stand-ins."""
    pack = " + ".join(str(length) for length in packing.lengths)
    kinds = ", ".join(f"{packing.layer_types.count(kind)} {kind}" for kind in dict.fromkeys(packing.layer_types))
    standins = f"; eager stand-in for {', '.join(packing.standins)}" if packing.standins else ""
    return f"examples of {pack} tokens; layers: {kinds}; {packing.attention or 'own'} attention{standins}"
