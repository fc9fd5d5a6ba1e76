"""Slots that hold another state than the server says, as its own trace shows: by its layer sweep, or by their equality."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drafttrace.compare.fc_input import is_state, same_rows
from drafttrace.compare.sample import spread
from drafttrace.tracer.capture import Accepted, Capture, Ints
from drafttrace.tracer.rows import Floats, Rows

_LOOKED_AT = 48
_FEWEST = 4
NEARLY_ALL = 0.9
"""The share of rows that have to be equal."""


@dataclass(frozen=True)
class OwnSlot:
    """A slot that is not what its trace declares. said: the declared boundary. holds: the boundary of the layer sweep
    whose rows it has, bit for bit, None where no sweep tells. twin: another slot with the same rows, though the server
    names another boundary for that. rows: how many were looked at."""

    slot: int
    said: int | None
    holds: int | None
    twin: int | None
    rows: int


def own_slots(trace: Capture) -> tuple[OwnSlot, ...]:
    """The slots of a trace that contradict it; empty for anything but a trace, and where rows cannot tell."""
    if not trace.format.startswith("drafttrace.trace") or not trace.slots:
        return ()
    present = [trace.present.get(slot.name) for slot in trace.slots]
    kept = (trace.table.accepted != Accepted.REJECTED) & trace.in_text(len(trace.table))
    for mask in present:
        kept = kept if mask is None else kept & mask[: len(kept)]
    index = np.flatnonzero(kept)
    if len(index) < _FEWEST:
        return ()
    index = index[np.unique(np.linspace(0, len(index) - 1, _LOOKED_AT).round().astype(np.int64))]
    held = [slot.rows.take(index) for slot in trace.slots]
    found = []
    for number, slot in enumerate(trace.slots):
        twins = [j for j in range(number) if _differ(trace, j, number) and _same(held[number], held[j])]
        holds = _holds(trace, slot.boundary, slot.rows)
        if holds is not None or twins:
            found.append(OwnSlot(number, slot.boundary, holds, twins[0] if twins else None, len(index)))
    placed = {one.slot for one in found if one.holds is not None}
    # Where the sweep says which of two equal slots is wrong, the other one is right.
    return tuple(one for one in found if one.holds is not None or one.twin not in placed)


def twin_boundaries(capture: Capture) -> tuple[tuple[int, int], ...]:
    """Pairs of boundaries of a layer sweep that hold the same rows, bit for bit."""
    first: dict[bytes, int] = {}
    found = []
    for k, rows in sorted(capture.boundaries.items()):
        index = _in_sweep(capture, len(rows))
        few = rows.take(spread(index, _FEWEST))
        other = first.setdefault(few.tobytes(), k)
        if other != k and len(capture.boundaries[other]) == len(rows):
            x, y = rows.take(index), capture.boundaries[other].take(index)
            found += [(other, k)] if _same(x, y) and bool(same_rows(x, y).all()) else []
    return tuple(found)


def _differ(trace: Capture, one: int, two: int) -> bool:
    """Whether two slots are meant to be different states."""
    first, second = trace.slots[one].boundary, trace.slots[two].boundary
    return first is None or first != second


def _same(x: Floats, y: Floats) -> bool:
    """Whether nearly all rows that can be states are equal, and they are not one row throughout."""
    states = is_state(x) & is_state(y)
    x, y = x[states], y[states]
    if len(x) < _FEWEST or same_rows(x, x[:1].repeat(len(x), 0)).mean() > 0.5:
        return False
    return bool(same_rows(x, y).mean() >= NEARLY_ALL)


def _holds(trace: Capture, said: int | None, rows: Rows) -> int | None:
    """The boundary of the sweep that a slot is, where that is another one than the server says."""
    own = trace.boundaries.get(said) if said is not None else None
    if own is None:
        return None
    index = _in_sweep(trace, min(len(own), len(rows)))
    mine = rows.take(index)
    if len(index) < _FEWEST or _same(mine, own.take(index)):
        return None
    for k, other in trace.boundaries.items():
        if k != said and len(other) >= len(own) and other.width == rows.width and _same(mine, other.take(index)):
            return k
    return None


def _in_sweep(trace: Capture, count: int) -> Ints:
    kept = (trace.table.accepted != Accepted.REJECTED)[:count] & trace.in_text(count)
    index = np.flatnonzero(kept)
    return (
        index[np.unique(np.linspace(0, max(0, len(index) - 1), _LOOKED_AT).round().astype(np.int64))]
        if len(index)
        else index
    )
