"""One tensor of one step, live against replayed: which rows are roundings apart, and which are different things.

A tensor parts by its median, where all of it is another one, and by its rows: garbage in a few of them leaves every
median as it is. On the traces of healthy servers no row of a state is further than 0.002 from its replay (relative L2),
none of the logits further than 0.003; the limits for rows lie at twice those for medians, 25 times above.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import DraftRows, Ints
from drafttrace.tracer.rows import Floats

Bools = npt.NDArray[np.bool_]

LOGITS, PROPOSAL = "logits", "proposal"
EMBED_IN, HIDDEN_IN = "embed_in", "hidden_in"
_PARTED_COSINE, _PARTED_AGREEMENT = 0.99, 0.9
_UNIT = 2.0**-8
"""bf16's rounding, the coarsest that a draft computes in. A trace in float32 may hold rounded or TF32 results, too, so
that no finer one can be expected of it."""
_LIMITS = {
    EMBED_IN: (8 * _UNIT, 4 * _UNIT),
    HIDDEN_IN: (8 * _UNIT, 4 * _UNIT),
    "fc_in": (8 * _UNIT, 4 * _UNIT),
    "fc_out": (8 * _UNIT, 4 * _UNIT),
    "hidden_out": (32 * _UNIT, 8 * _UNIT),
    LOGITS: (32 * _UNIT, 8 * _UNIT),
}
"""Relative L2 and distance of the norm ratio from 1 that roundings explain: of one norm or product, or of a layer."""


def _limits(tensor: str, step: int) -> tuple[float, float]:
    """Limits for medians. What enters the first step are the slots themselves; later it is what a layer handed on."""
    return _LIMITS["hidden_out" if tensor == HIDDEN_IN and step else tensor]


_SINGLE = 2.0
"""How much further a single row may lie than the median one."""


def row_local(tensor: str, step: int) -> bool:
    """Whether a tensor of a step is made of its own row alone. A later step takes in what attention made."""
    return tensor == EMBED_IN or (step == 0 and tensor in (HIDDEN_IN, "fc_in", "fc_out"))


@dataclass(frozen=True)
class PartedRows:
    """The rows of a stage that are no roundings apart. position, round: ``[n]``, where they stand in the request.

    broken: how many of them are NaN or infinite in the live draft or in the replay only. rel_l2, norm_ratio: medians of
    the others; None where there are none.
    """

    position: tuple[int, ...]
    round: tuple[int, ...]
    broken: int
    rel_l2: float | None
    norm_ratio: float | None

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True)
class Stage:
    """One tensor of one step, live against replayed: rows compared, cosine (None for proposals) or the share of equal
    first choices (None for tensors). ``logits`` are the best few that the trace holds, at their ids.

    rel_l2_p50, norm_ratio_p50: medians of ``|live - replayed| / |replayed|`` and ``|live| / |replayed|``, without which a
    tensor that is only scaled would pass; None for proposals and where no row is finite.
    equal_top1: the replay's first choice is the id that the server proposed. tied_top1: it is that, or one that had
    exactly the same logit on the server. apart: the rows that part, one by one; None for proposals and where none does.
    """

    step: int
    tensor: str
    rows: int
    cosine_min: float | None
    cosine_p50: float | None
    equal_top1: float | None
    tied_top1: float | None = None
    rel_l2_p50: float | None = None
    norm_ratio_p50: float | None = None
    apart: PartedRows | None = None

    @property
    def parted(self) -> bool:
        """Whether live and replay are different things here, in all rows or in some."""
        return self.whole or self.apart is not None

    @property
    def whole(self) -> bool:
        """Whether the tensor as such is another one, and not some of its rows."""
        if self.tied_top1 is not None:
            return self.tied_top1 < _PARTED_AGREEMENT
        if self.cosine_p50 is not None and self.cosine_p50 < _PARTED_COSINE:
            return True
        distance, scale = _limits(self.tensor, self.step)
        return (self.rel_l2_p50 is not None and self.rel_l2_p50 > distance) or (
            self.norm_ratio_p50 is not None and abs(self.norm_ratio_p50 - 1) > scale
        )


def held_rows(draft: DraftRows, name: str, live: Ints) -> Bools:
    """Which of the draft rows ``live`` hold the tensor."""
    present = draft.present.get(name)
    return np.ones(len(live), np.bool_) if present is None else present[live]


def tensor_stage(
    step: int, tensor: str, made: Floats, draft: DraftRows, live: Ints, known: Bools | None = None
) -> Stage | None:
    """A tensor against the replay's ``made`` ``[len(live), width]``; None where the trace does not hold it.

    known: rows of which the replay knows what belongs there (default: all). ``hidden_in`` is as wide as the slots
    together; the state that a later step takes fills the first columns.
    """
    if tensor not in draft.tensors:
        return None
    kept, width = held_rows(draft, tensor, live), draft.tensors[tensor].width
    if known is not None:
        kept = kept & known
    if not kept.any() or (width != made.shape[1] and (tensor != HIDDEN_IN or width < made.shape[1])):
        return None
    theirs = draft.tensors[tensor].take(live[kept])[:, : made.shape[1]]
    return _measured(step, tensor, theirs, made[kept], draft, live[kept])


def logits_stage(step: int, scores: Floats, targets: Ints, draft: DraftRows, live: Ints) -> Stage | None:
    """The best few logits that the trace holds against the replay's at the same ids; None where it holds none.

    scores ``[len(live), V]``: the replay's. targets ``[V]``: the target id of every draft id, by which a trace without
    draft ids is read.
    """
    if "topk_logits" not in draft.tensors or "topk_ids" not in draft.ids:
        return None
    kept = np.flatnonzero(held_rows(draft, "topk_ids", live) & held_rows(draft, "topk_logits", live))
    if not len(kept):
        return None
    ids, theirs = listed_ids(draft, live[kept], targets), draft.tensors["topk_logits"].take(live[kept])
    count = min(ids.shape[1], theirs.shape[1])
    ids, theirs = ids[:, :count], theirs[:, :count]
    known = (ids >= 0) & (ids < scores.shape[1])
    some = known.any(1)
    if not some.any():
        return None
    mine = np.take_along_axis(scores[kept], np.where(known, ids, 0), 1)
    mine, theirs = np.where(known, mine, np.float32(0)), np.where(known, theirs, np.float32(0))
    return _measured(step, LOGITS, theirs[some], mine[some], draft, live[kept][some])


def listed_ids(draft: DraftRows, live: Ints, targets: Ints) -> Ints:
    """Draft ids of the listed logits ``[len(live), k]``; -1 where none is known, or more than one may be meant."""
    if "topk_draft_ids" in draft.ids:
        return draft.ids["topk_draft_ids"][live]
    said = draft.ids["topk_ids"][live]
    size = max(int(targets.max(initial=0)), int(said.max(initial=0))) + 1
    table = np.full(size, -1, np.int64)
    once, first, count = np.unique(targets, return_index=True, return_counts=True)
    sure = (once >= 0) & (count == 1)
    table[once[sure]] = first[sure]
    return np.where(said >= 0, table[np.maximum(said, 0)], -1)


def _measured(step: int, tensor: str, theirs: Floats, mine: Floats, draft: DraftRows, live: Ints) -> Stage:
    with np.errstate(invalid="ignore", over="ignore"):  # rows that are not finite are counted below
        size, expected = np.linalg.norm(theirs, axis=1) + 1e-30, np.linalg.norm(mine, axis=1) + 1e-30
        cosine = (theirs * mine).sum(1) / (size * expected)
        cosine = np.where(np.isfinite(cosine), cosine, 0.0)
        far, ratio = np.linalg.norm(theirs - mine, axis=1) / expected, size / expected
    sound = np.isfinite(theirs).all(1), np.isfinite(mine).all(1)
    both, broken = sound[0] & sound[1], sound[0] ^ sound[1]
    distance, scale = _limits(tensor, step)
    apart = broken | (both & ((far > _SINGLE * distance) | (np.abs(ratio - 1) > _SINGLE * scale)))
    rows, table = live[apart], draft.table
    return Stage(
        step,
        tensor,
        len(theirs),
        float(cosine.min()),
        float(np.median(cosine)),
        None,
        rel_l2_p50=_median(far),
        norm_ratio_p50=_median(ratio),
        apart=PartedRows(
            tuple(int(k) for k in table.position[rows]),
            tuple(int(k) for k in table.round[rows]),
            int(broken.sum()),
            _median(far[apart & both]),
            _median(ratio[apart & both]),
        )
        if apart.any()
        else None,
    )


def _median(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def proposal_stage(
    step: int, rows: Ints, mine: Ints, draft: DraftRows, live: Ints, drafted: Mapping[tuple[int, int], int]
) -> Stage | None:
    """The replay's first choices against the server's.

    The server's own are the ids that its target verified; in rows from which nothing was drafted, the first of the best
    logits, as its argmax takes it (a top-k lists equal ones in any order).
    """
    if "topk_ids" not in draft.ids:
        return None
    kept = held_rows(draft, "topk_ids", live)
    if not kept.any():
        return None
    listed, chosen = draft.ids["topk_ids"][live[kept]], mine[kept]
    best = np.zeros(listed.shape, bool)
    best[:, 0] = True
    if "topk_logits" in draft.tensors:
        logits = draft.tensors["topk_logits"].take(live[kept])[:, : listed.shape[1]]
        best[:, : logits.shape[1]] = logits == logits[:, :1]
    order = draft.ids["topk_draft_ids"][live[kept]] if "topk_draft_ids" in draft.ids else listed
    argmax = np.where(best, order, np.iinfo(np.int64).max).argmin(1)
    theirs = listed[np.arange(len(listed)), argmax]
    for k, row in enumerate(rows[kept]):
        theirs[k] = drafted.get((step, int(row)), theirs[k])
    equal = theirs == chosen
    tied = equal | ((listed == chosen[:, None]) & best).any(1)
    return Stage(step, PROPOSAL, int(kept.sum()), None, None, float(equal.mean()), float(tied.mean()))
