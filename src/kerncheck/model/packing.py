"""Section ``packing`` of a snapshot: what one packed example did to another, for each way to tell examples apart."""

from __future__ import annotations

from typing import Literal

from kerncheck.model.base import Broken, Evidence, Frozen, Missing

Sent = Literal["nothing", "position_ids", "cu_seq_lens", "seq_idx", "both", "both_mrope3", "both_mrope4", "both_mask"]
"""What told the examples of a pack apart. ``nothing`` is the positive control: a leak must be seen there."""


class SeamCall(Frozen):
    """What one seam received in one layer, and how far an example reached within this call alone.

    ``received`` holds the boundaries that an argument drew, ``[0, ..., tokens]``, or None where it was empty;
    ``takes`` the boundary arguments that the bound function knows. ``reach`` counts the tokens of each example whose
    output changed when only the first example's input to this call changed; None: the call could not be tested alone.
    """

    layer: int
    seam: str
    implementation: str
    bound: Literal["hub", "package", "standin", "eager", "replaced"]
    takes: tuple[str, ...] = ()
    received: dict[str, tuple[int, ...] | None] = {}
    reach: tuple[int, ...] | None = None
    largest: float | None = None


class Change(Frozen):
    """What happened when only one example's embeddings changed: changed tokens and largest change, by example."""

    example: int
    scale: float
    tokens: tuple[int, ...]
    largest: tuple[float | None, ...]


class Cell(Frozen, tag="cell", tag_field="kind"):
    """One convention with use_cache on or off. ``gradients[i][j]``: norm of d(outputs of i) / d(embeddings of j).

    ``refused`` is the exact error with which the model library refused the batch; nothing else was seen then.
    """

    convention: Sent
    use_cache: bool
    gradients: tuple[tuple[float | None, ...], ...] = ()
    changes: tuple[Change, ...] = ()
    seams: tuple[SeamCall, ...] = ()
    finite: bool = True
    refused: str = ""


class Unseen(Frozen, tag="unseen", tag_field="kind"):
    """A cell without an answer, and why. ``applies`` is False where this model cannot take such a batch at all."""

    convention: Sent
    use_cache: bool
    why: Missing | Broken
    applies: bool = True


class Packing(Frozen, tag="packing", tag_field="kind"):
    """The pack (``lengths`` in tokens), the tiny model, and one cell for each convention that was tried.

    ``standins`` are compiled ops that ran as labelled eager versions; ``experts``: the model routes tokens to experts,
    whose shared matrix products may differ in the last bit when a neighbour changes.
    """

    evidence: Evidence
    device: str
    lengths: tuple[int, ...]
    layer_types: tuple[str, ...]
    attention: str
    experts: bool
    standins: tuple[str, ...]
    cells: tuple[Cell | Unseen, ...]

    def cell(self, convention: Sent, *, use_cache: bool) -> Cell | Unseen | None:
        """Return the cell of a convention, or None if it was not tried."""
        wanted = (convention, use_cache)
        return next((cell for cell in self.cells if (cell.convention, cell.use_cache) == wanted), None)
