"""Rows that stand a token or two off between two sides: whose they are, by a layer sweep, and which rows they are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.measure import Bools, Doubles
from drafttrace.compare.rowblocks import RowMap
from drafttrace.tracer.capture import Capture, Ints
from drafttrace.tracer.rows import Rows

_NEAR = 0.15  # relative L2 of the same state on both sides
_CLEARLY = 0.5
_FEWEST = 4
_AT_ONCE = 512


def moved_side(rows: RowMap, left: Capture, reference: Capture, alignment: Alignment) -> str | None:
    """The side whose rows of a slot are not where its own layer sweep has them: "left" or "reference"; None where no sweep
    tells. A side whose rows are where its sweep has them shows that the other one's are not."""
    place = {int(p): i for i, p in enumerate(alignment.positions)}
    known = [(place[p], place[q]) for p, q in rows.pairs if p in place and q in place]
    here, there = (np.array(one, np.int64) for one in zip(*known, strict=True)) if known else (_NONE, _NONE)
    ours = _stands(left, rows.slot, alignment.left_rows[here], alignment.left_rows[there])
    if ours is not None:
        return "left" if ours == "moved" else "reference"
    # The reference's row of q is what the left side has at p.
    theirs = _stands(reference, rows.slot, alignment.reference_rows[there], alignment.reference_rows[here])
    if theirs is not None:
        return "reference" if theirs == "moved" else "left"
    return None


_NONE = np.empty(0, np.int64)


def _stands(capture: Capture, slot: int, here: Ints, there: Ints) -> str | None:
    """``right`` where the slot's rows ``here`` are the sweep's, ``moved`` where they are its rows ``there``."""
    held = capture.slots[slot]
    sweep = capture.boundaries.get(held.boundary) if held.boundary is not None else None
    if sweep is None or sweep.width != held.rows.width:
        return None
    both = (here < min(len(sweep), len(held.rows))) & (there < len(sweep))
    here, there = here[both], there[both]
    if len(here) < _FEWEST:
        return None
    rows = held.rows.take(here).astype(np.float64)
    own, other = (_middle(rows, sweep, index) for index in (here, there))
    if own < _NEAR and own < _CLEARLY * other:
        return "right"
    return "moved" if other < _NEAR and other < _CLEARLY * own else None


def _middle(rows: Doubles, sweep: Rows, index: Ints) -> float:
    apart = _apart(rows, sweep.take(index).astype(np.float64))
    return float(np.median(apart))


def unmoved(
    rows: RowMap, d: int, side: str | None, left: Capture, reference: Capture, alignment: Alignment
) -> Sequence[int]:
    """Positions at which a side's row of a slot is like neither the other side's own row nor its row ``d`` away. side:
    whose rows are off; None where nobody knows: then the one that explains more is taken to be."""
    ours = (left.slots[rows.slot].rows, alignment.left_rows)
    theirs = (reference.slots[rows.slot].rows, alignment.reference_rows)
    positions = alignment.positions
    # A row that a moved side lacks, at the end of what was moved, is no row that holds something else.
    odd = []
    if side != "reference":
        odd.append(_odd(ours, theirs, _partners(positions, d)))
    if side != "left":
        odd.append(_odd(theirs, ours, _partners(positions, -d)))
    return [int(p) for p in positions[min(odd, key=lambda one: int(one.sum()))]]


def _partners(positions: Ints, d: int) -> Ints:
    """Of every position, where among them the one ``d`` tokens on stands; -1 for none."""
    place = {int(p): i for i, p in enumerate(positions)}
    return np.array([place.get(int(p) + d, -1) for p in positions], np.int64)


def _odd(mine: tuple[Rows, Ints], theirs: tuple[Rows, Ints], partner: Ints) -> Bools:
    """Which of the paired rows are like neither their partner nor the one ``d`` tokens on; at the ends nobody knows."""
    (rows, index), (others, of) = mine, theirs
    odd = np.zeros(len(index), np.bool_)
    inside = np.flatnonzero((partner >= 0) & (index < len(rows)) & (of < len(others)) & (of[partner] < len(others)))
    for start in range(0, len(inside), _AT_ONCE):
        at = inside[start : start + _AT_ONCE]
        x = rows.take(index[at]).astype(np.float64)
        own, other = (_apart(x, others.take(of[here]).astype(np.float64)) for here in (at, partner[at]))
        odd[at] = ~(np.fmin(own, other) < _NEAR)
    return odd


def _apart(x: Doubles, y: Doubles) -> Doubles:
    """|x - y| / |x| row by row."""
    with np.errstate(all="ignore"):
        apart: Doubles = np.linalg.norm(x - y, axis=1) / np.maximum(np.linalg.norm(x, axis=1), 1e-300)
    return np.nan_to_num(apart, nan=np.inf)
