"""KC5: does one packed example reach another? Verdicts are exact: a gradient of 0, no changed bit."""

from __future__ import annotations

from collections.abc import Iterator

from kerncheck.checks import _packing as read
from kerncheck.checks.registry import Case, check
from kerncheck.model.base import Broken, seen
from kerncheck.model.job import CONVENTIONS, VARIANTS, Convention
from kerncheck.model.outcome import Outcome, Say
from kerncheck.model.packing import Cell, Packing, SeamCall, Unseen
from kerncheck.supervise import why

UNDECLARED = "no packing is declared (--packing); KC505 tells which convention would be safe here"


@check("KC501", "packed examples stay apart", needs=("packing",))
def packed_examples_stay_apart(case: Case, say: Say) -> Iterator[Outcome]:
    """One packed example must not reach another.

    What it checks
        A tiny model of the same code is run on a pack of three examples with what the declared collator sends
        (--packing). The gradient of one example's outputs with respect to another example's embeddings must be exactly
        zero, and changing one example must not change a single bit of another's outputs. There is no tolerance.
    Why it matters
        A leak raises no error and the loss still falls. Every example but the first is learnt in a wrong context, and
        log-probabilities for reinforcement learning are wrong.
    Example
        position_ids alone: full attention keeps examples apart, the convolution and the delta rule of a linear
        attention layer do not (huggingface/transformers#46859).
    How to fix
        Send cu_seq_lens_q, cu_seq_lens_k and seq_idx: DataCollatorWithFlattening(return_flash_attn_kwargs=True,
        return_seq_idx=True) or the trainer's equivalent. Or train without packing.
    """
    packing, declared = seen(case.snapshot.packing), case.job.packing
    if declared is None:
        yield say.not_judged("packing", UNDECLARED, required=False)
        return
    cell = packing.cell(declared, use_cache=False)
    if not isinstance(cell, Cell) or cell.refused:
        yield not_seen(say, declared, cell)
    elif read.blind(packing) or not read.alive(cell):
        yield say.not_judged(declared, "the test cannot see a leak here (KC504)")
    elif read.leaks(packing, cell):
        yield leak_found(say, packing, declared, cell)
    else:
        yield say.passed(
            declared, f"no gradient and no change crosses examples: {read.shown(packing)}", packing.evidence
        )
        yield from standins(say, packing)


def not_seen(say: Say, declared: Convention, cell: Cell | Unseen | None) -> Outcome:
    """Say why the declared convention was not judged for leaks."""
    if isinstance(cell, Cell) or (isinstance(cell, Unseen) and isinstance(cell.why, Broken)):
        return say.not_applicable(declared, "the packed run does not get through at all (KC502)")
    return say.not_judged(declared, why(cell.why) if isinstance(cell, Unseen) else "it was not tried")


def leak_found(say: Say, packing: Packing, declared: Convention, cell: Cell) -> Outcome:
    """Say which seams leak, how far, and what to do about it."""
    return say.failed(
        declared,
        f"examples of a pack reach each other with {read.sent_words(declared)}: {read.where(cell)}",
        found=f"{read.crossing(packing, cell)} ({read.shown(packing)})",
        wanted="exactly zero gradient and no changed bit across examples",
        remedy=read.leak_remedy(declared, cell),
        evidence=packing.evidence,
        source="huggingface/transformers#46859, docs/source/en/padding_free.md of transformers 5.24",
    )


def standins(say: Say, packing: Packing) -> Iterator[Outcome]:
    """Name what ran as a stand-in: the result assumes that the real op keeps examples apart as its package does."""
    for op in packing.standins:
        reason = "ran as a labelled eager stand-in that respects seq_idx; the compiled op itself needs a GPU"
        yield say.not_judged(op, reason, required=False)


@check("KC502", "the declared packing is accepted", needs=("packing",))
def packing_is_accepted(case: Case, say: Say) -> Iterator[Outcome]:
    """The model must take the batch that the declared collator sends.

    What it checks
        A packed batch in the declared convention runs forward and backward on a tiny model of the same code.
    Why it matters
        transformers refuses boundaries where only its eager reference is bound, since that would mix the examples.
        The refusal is right; it also means that the job cannot start here.
    Example
        ValueError: `causal_conv1d_fn` can't keep packed sequences apart without `causal_conv1d`.
    How to fix
        Install the package that the message names, built for this torch, or train without packing. Leaving the
        boundaries out also ends the error, and lets the examples leak.
    """
    packing, declared = seen(case.snapshot.packing), case.job.packing
    if declared is None:
        yield say.not_judged("packing", UNDECLARED, required=False)
        return
    cell = packing.cell(declared, use_cache=False)
    if isinstance(cell, Unseen) and isinstance(cell.why, Broken):
        yield refused(say, packing, declared, why(cell.why))
    elif isinstance(cell, Cell) and cell.refused:
        yield refused(say, packing, declared, cell.refused)
    elif isinstance(cell, Cell):
        message = f"a batch with {read.sent_words(declared)} runs forward and backward"
        yield say.passed(declared, message, packing.evidence)
    else:
        yield not_seen(say, declared, cell)


def refused(say: Say, packing: Packing, declared: Convention, error: str) -> Outcome:
    """Say that the packed batch does not get through."""
    return say.failed(
        declared,
        f"a packed batch with {read.sent_words(declared)} does not run",
        found=error,
        wanted="the batch runs forward and backward",
        remedy="install the package that the error names, built for this torch, or train without packing; "
        "leaving the boundaries out would end the error and let the examples leak",
        evidence=packing.evidence,
    )


@check("KC503", "full attention separates examples with use_cache on", needs=("packing",))
def cache_keeps_examples_apart(case: Case, say: Say) -> Iterator[Outcome]:
    """A cache must not switch the separation of examples off.

    What it checks
        The declared convention is run once more with use_cache=True. transformers 5.24 reads the examples of a pack
        from position_ids only when no cache is passed; with one, full attention sees the whole pack.
    Why it matters
        Configurations say use_cache: true. The Trainer sets it to False; a loop that calls model(**batch) by hand
        does not, in train mode either, and every full attention layer then mixes the examples.
    Example
        Four full-attention layers and position_ids: outputs move by 0.1 with the default, by exactly 0 with
        use_cache=False.
    How to fix
        Set model.config.use_cache = False, or pass use_cache=False, in every training loop that packs.
    """
    packing, declared = seen(case.snapshot.packing), case.job.packing
    if declared is None:
        yield say.not_judged("packing", UNDECLARED, required=False)
        return
    if case.job.model is not None and case.job.model.config.get("use_cache") is False:
        yield say.not_applicable(declared, "the configuration sets use_cache to false")
        return
    cell = packing.cell(declared, use_cache=True)
    reached = [call for call in cell.seams if call.seam == "attention" and call.reach] if isinstance(cell, Cell) else []
    if not reached:
        yield say.not_judged(declared, "no call of full attention was seen with use_cache on", required=False)
    elif any(read.foreign(call) for call in reached):
        yield cache_leak(say, packing, declared, reached)
    else:
        yield say.passed(declared, "full attention keeps examples apart with use_cache on too", packing.evidence)


def cache_leak(say: Say, packing: Packing, declared: Convention, calls: list[SeamCall]) -> Outcome:
    """Warn: whether the job's loop leaves use_cache on is not known."""
    return say.failed(
        declared,
        "full-attention layers leak when use_cache is on, as the configuration leaves it",
        found="; ".join(sorted({read.reach_words(call) for call in calls if read.foreign(call)})),
        wanted="no changed bit across examples",
        remedy="use_cache=False while training (the Trainer sets it; a hand-written loop must)",
        evidence=packing.evidence,
        severity="warning",
        source="transformers 5.24.0, masking_utils: position_ids separate examples only without a cache",
    )


@check("KC504", "the packing test can see a leak", needs=("packing",))
def control_shows_a_leak(case: Case, say: Say) -> Iterator[Outcome]:
    """Without any boundary, the examples must be seen to mix.

    What it checks
        The positive control: the same pack with nothing that tells the examples apart. Gradients and changes must
        cross from earlier to later examples, or the test is blind and judges nothing.
    Why it matters
        With default initialisation a leak through the recurrent state has decayed to 3e-6 after three tokens. A test
        that cannot see a leak passes everything.
    Example
        A model whose outputs do not depend on its inputs passes every comparison.
    How to fix
        Nothing is wrong with the environment: packing is simply not judged. Report the model's configuration.
    """
    packing = seen(case.snapshot.packing)
    reason = read.blind(packing)
    if reason:
        yield say.not_judged("positive control", reason)
        return
    control = packing.cell("nothing", use_cache=False)
    assert isinstance(control, Cell)  # noqa: S101 - read.blind() has said so
    message = f"without boundaries the examples mix, and the test sees it: {read.where(control)}"
    yield say.passed("positive control", message, packing.evidence)


@check("KC505", "which packing is safe here", needs=("packing",))
def table_of_conventions(case: Case, say: Say) -> Iterator[Outcome]:
    """A table: what each way to tell packed examples apart does here. Notes, never findings.

    What it checks
        Every convention that collators use is run on the tiny model: position_ids; with cu_seq_lens; with seq_idx;
        with both; with both and position_ids of 3 or 4 rows (M-RoPE), or an attention_mask of ones.
    Why it matters
        Whether a job packs, and how, is not visible in an environment. The table answers before a job is written.
    Example
        position_ids + cu_seq_lens: leaks (convolution: 3 tokens of other examples in layers 0, 1).
    How to fix
        Declare what the job uses (--packing) to have it judged.
    """
    packing = seen(case.snapshot.packing)
    pairs = [(convention, packing.cell(convention, use_cache=False)) for convention in (*CONVENTIONS, *VARIANTS)]
    rows = [(name, cell) for name, cell in pairs if cell is not None and getattr(cell, "applies", True)]
    for convention, cell in rows:
        yield say.note(convention, f"{read.sent_words(convention)}: {row(packing, cell)}", packing.evidence)
    worse = [name for name, cell in rows if worse_with_cache(cell, packing.cell(name, use_cache=True))]
    if worse:
        message = f"with use_cache on, full attention leaks too ({', '.join(worse)}); training needs use_cache=False"
        yield say.note("use_cache", message, packing.evidence)
    if packing.standins:
        yield say.note("stand-in", f"the table assumes {', '.join(packing.standins)}: an eager stand-in ran")


def row(packing: Packing, cell: Cell | Unseen) -> str:
    """Return one convention's result in words."""
    if isinstance(cell, Unseen):
        return f"not judged: {why(cell.why)}"
    if cell.refused:
        return f"refused: {cell.refused}"
    if read.blind(packing) or not read.alive(cell):
        return "not judged: the test cannot see a leak"
    return f"leaks ({read.where(cell)})" if read.leaks(packing, cell) else "safe"


def worse_with_cache(off: Cell | Unseen, on: Cell | Unseen | None) -> bool:
    """Tell whether full attention leaks in a layer only when use_cache is on."""
    if not isinstance(on, Cell) or not isinstance(off, Cell) or on.refused or off.refused:
        return False
    before = {call.layer for call in off.seams if call.seam == "attention" and read.foreign(call)}
    after = {call.layer for call in on.seams if call.seam == "attention" and read.foreign(call)}
    return bool(after - before)


@check("KC506", "boundaries reach the seams", needs=("packing",))
def boundaries_arrive(case: Case, say: Say) -> Iterator[Outcome]:
    """Every boundary that the batch carries must arrive, unchanged, at each seam that takes it.

    What it checks
        In each layer, the boundary arguments (seq_idx, cu_seqlens) that a bound function knows are compared with those
        that the declared collator sends: present, the same positions, from 0 to the end.
    Why it matters
        Between the batch and the kernel lie layers that pass keywords on. One that drops or renames a keyword raises
        nothing: the kernel runs as if the pack were one example.
    Example
        seq_idx sent, but None at causal_conv1d_fn in layer 1.
    How to fix
        Use a transformers whose code for this model passes boundaries on (Qwen3.5 and Qwen3-Next do since
        huggingface/transformers#45034), or train without packing.
    """
    packing, declared = seen(case.snapshot.packing), case.job.packing
    if declared is None:
        yield say.not_judged("packing", UNDECLARED, required=False)
        return
    cell = packing.cell(declared, use_cache=False)
    calls = cell.seams if isinstance(cell, Cell) else ()
    wanted = read.boundaries(packing)
    pairs = [(call, name) for call in calls for name in call.takes if name in read.SENDS[declared]]
    if not calls:
        yield say.not_judged(declared, "no call of a seam was seen", required=False)
    elif not pairs:
        yield say.not_applicable(declared, f"{read.sent_words(declared)} carry nothing that these seams take")
    for seam, name in dict.fromkeys((call.seam, name) for call, name in pairs):
        own = [call for call, taken in pairs if (call.seam, taken) == (seam, name)]
        yield arrived(say, packing, own, name, wanted)


def arrived(say: Say, packing: Packing, calls: list[SeamCall], name: str, wanted: tuple[int, ...]) -> Outcome:
    """Judge one argument of one seam over its layers."""
    seam = calls[0].seam
    wrong = [call for call in calls if call.received.get(name) != wanted]
    if not wrong:
        message = f"{name} arrived in {read.layer_list(calls)}"
        return say.passed(seam, message, packing.evidence)
    got = wrong[0].received.get(name)
    return say.failed(
        seam,
        f"{name} was sent and did not arrive as sent in {read.layer_list(wrong)}",
        found=f"{name} = {list(got) if got is not None else None}",
        wanted=f"{name} with the boundaries {list(wanted)}",
        remedy="use a transformers whose code for this model passes boundaries on (Qwen3.5 and Qwen3-Next do since "
        "huggingface/transformers#45034); until then train without packing",
        evidence=packing.evidence,
    )
