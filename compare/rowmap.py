"""Which reference row every deviating row of a slot is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.repeats import relative_distances
from drafttrace.compare.rowblocks import RowMap, fit_blocks
from drafttrace.compare.sample import spread
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.rows import Rows, to_float32

_MIN_ROWS = 6
_ROWS, _REFERENCE_ROWS = 96, 2048
_SCREEN = 512  # channels


def find_row_map(slot: MeasuredSlot, left: Capture, ranks: int = 0, wanted: Sequence[Ints] = ()) -> RowMap | None:
    """Where the deviating rows of a slot stand in the reference; None where most of them stand nowhere in it.

    The pass with most rows is looked at; then the ``wanted`` rows (numbers of the left table), among all rows. ranks: how
    many the server has, 0 where that is not known.
    """
    frames = left.table.frame[slot.pairs.left_rows]
    if len(frames) < _MIN_ROWS:
        return None
    values, counts = np.unique(frames, return_counts=True)
    here = np.flatnonzero(frames == values[counts.argmax()])[:_REFERENCE_ROWS]
    found = _map_of(slot, left, ranks, here, here[~(slot.measures.rel_l2[here] < 0.15)])
    if found is None and len(wanted):
        off = np.flatnonzero(np.isin(slot.pairs.left_rows, np.concatenate(wanted)))[: _REFERENCE_ROWS // 2]
        others = np.setdiff1d(np.arange(len(frames)), off)
        here = np.sort(np.concatenate([off, spread(others, _REFERENCE_ROWS - len(off))]))
        found = _map_of(slot, left, ranks, here, off[~(slot.measures.rel_l2[off] < 0.15)])
    return found


def _map_of(slot: MeasuredSlot, left: Capture, ranks: int, here: Ints, off: Ints) -> RowMap | None:
    """Which of the rows ``here`` every row ``off`` is."""
    if len(off) < 3:
        return None
    chosen = off[np.linspace(0, len(off) - 1, min(_ROWS, len(off))).round().astype(np.int64)]
    ours, theirs = slot.pairs.left_rows[chosen], slot.pairs.reference_rows[here]
    if slot.left.rows.width > _SCREEN:  # most faults move no rows: a part of the channels shows it
        some = relative_distances(_some(slot.left.rows, ours), _some(slot.reference.rows, theirs))
        if (some.min(1) < 0.3).sum() < max(3, 0.6 * len(chosen)):
            return None
    distance = relative_distances(
        slot.left.rows.take(ours).astype(np.float64), slot.reference.rows.take(theirs).astype(np.float64)
    )
    near = distance.argmin(1)
    tokens = slot.ids.token_id
    best = distance[np.arange(len(chosen)), near]
    distance[tokens[here][None] == tokens[here[near]][:, None]] = np.inf  # the same token's rows may be alike
    other = (best < 0.15) & (best < 0.5 * distance.min(1)) & (tokens[here[near]] != tokens[chosen])
    if other.sum() < max(3, 0.6 * len(chosen)):
        return None
    position = slot.pairs.positions
    places = {int(i): k for k, i in enumerate(here)}
    own = np.array([places[int(i)] for i in chosen[other]], np.int64)
    return RowMap(
        slot=slot.index,
        pairs=tuple(
            (int(position[a]), int(position[b])) for a, b in zip(chosen[other], here[near[other]], strict=True)
        ),
        looked_at=len(chosen),
        rel_l2=float(np.median(best[other])),
        blocks=fit_blocks(own, near[other].astype(np.int64), len(here), ranks)
        if _whole(left, slot, here)
        else None,
    )


def _some(rows: Rows, index: Ints) -> npt.NDArray[np.float64]:
    """About :data:`_SCREEN` evenly spread channels of some rows."""
    raw, scale = rows.take_raw(index)
    values = to_float32(np.ascontiguousarray(raw[:, :: rows.width // _SCREEN]), rows.dtype)
    return (values if scale is None else values * scale[:, None]).astype(np.float64)


def _whole(left: Capture, slot: MeasuredSlot, here: Ints) -> bool:
    """Whether the compared rows are all rows of their pass, so that their places are the pass's own."""
    rows = slot.pairs.left_rows[here]
    return bool(
        len(rows)
        and (np.diff(rows) == 1).all()
        and (left.table.frame == left.table.frame[rows[0]]).sum() == len(rows)
    )
