"""States that stand at their boundary but for a norm or a gain per channel too small to move them away from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.facts import VALUE, Explanation, StreamFacts
from drafttrace.compare.hypotheses import PER_CHANNEL, near_fits
from drafttrace.compare.result import SlotResult
from drafttrace.compare.rounding import kinds
from drafttrace.compare.sample import MAX_ROWS, MAX_VALUES, Sample, Stream, spread
from drafttrace.compare.streams import Location, Sides
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Floats

Floors = Callable[[int], float]

_COUNTS_FROM = (
    0.02  # the relative L2 from which on such a fit counts, whatever the limits: a saved result keeps no rows
)
_MOST_LEFT = 0.12
_TAKEN_AWAY = 0.5
_FITS = PER_CHANNEL | {"rms"}


def small_fit(x: Floats, y: Floats, name: str, boundary: int | None, limit: float) -> Explanation | None:
    """``x`` as ``y`` (called ``name``) through a gain or a norm, where that takes away most of a distance beyond ``limit``.

    Rows ``[m, H]`` in pairs; None with fewer than eight, and where nothing fits.
    """
    some = kinds(x)
    fits = near_fits(x[some], y[some]) if len(some) >= 8 else ()
    plain = next((fit.residual for fit in fits if fit.name == "identity"), np.nan)
    if not plain > limit:
        return None
    best = next((fit for fit in fits if fit.name in _FITS), None)
    if best is None or best.residual >= min(_TAKEN_AWAY * plain, _MOST_LEFT):
        return None
    return Explanation(best, name, boundary, plain)


def with_small_fits(
    location: Location, slots: Sequence[SlotResult], sides: Sides, pairs: Alignment, tokens: Ints, floors: Floors
) -> Location:
    """The location with these fits as explanations: of slots that are found in the sweep on both sides, and that
    differ all the same.

    tokens: ``[rows]`` of the left table. floors: from a slot to what two healthy recordings of it differ by, 0 where
    nothing recorded says so: no fit counts below that.
    """
    if location.atlas is None or pairs.shift:
        return location
    pairs = _of_other_tokens(pairs, tokens)
    found = [fact for slot in slots if (fact := _deviant(slot, location, sides, pairs, floors)) is not None]
    if not found:
        return location

    def explained(facts: Sequence[StreamFacts]) -> tuple[StreamFacts, ...]:
        known = {(fact.side, fact.index): fact for fact in found}
        return tuple(known.get((fact.side, fact.index), fact) for fact in facts)

    return replace(location, left=explained(location.left), reference=explained(location.reference))


def _of_other_tokens(pairs: Alignment, tokens: Ints) -> Alignment:
    """The pairs with one row of every token. The rows of one token repeated are nearly one row: they share the error of
    their rounding, and a gain that is fitted on some of them then explains it in the others."""
    _, first = np.unique(tokens[pairs.left_rows], return_index=True)
    keep = np.zeros(len(pairs), np.bool_)
    keep[first] = True
    return pairs.at(keep)


def _deviant(
    slot: SlotResult, location: Location, sides: Sides, pairs: Alignment, floors: Floors
) -> StreamFacts | None:
    """The side's slot that is such a fit away from the boundary at which it is found, explained by it; the other side's may
    be found at another one."""
    limit = max(_COUNTS_FROM, floors(slot.slot))
    both = [next((f for f in facts if f.index == slot.slot), None) for facts in (location.left, location.reference)]
    ours, theirs = both
    if ours is None or theirs is None or not slot.rel_l2.p50 > limit:
        return None
    if any(part.others_rel_l2 <= limit for part in slot.parts):
        return None  # the other rows are right
    if any(f.by != VALUE or f.explanation is not None or f.broken for f in (ours, theirs)):
        return None
    for fact, streams in ((ours, sides.left_slots), (theirs, sides.reference_slots)):
        home = next((s for s in location.atlas_streams if s.boundary == fact.boundary), None)
        stream = next(s for s in streams if s.slot == slot.slot)
        if home is None or home.rows.width != stream.rows.width:
            continue
        sample = _sample(pairs, stream, home)
        fit = small_fit(sample.read(stream), sample.read(home), home.name, fact.boundary, limit)
        if fit is not None:
            return replace(fact, explanation=fit)
    return None


def _sample(pairs: Alignment, stream: Stream, home: Stream) -> Sample:
    """Compared rows that the slot and the boundary both have."""
    index = {"left": pairs.left_rows, "reference": pairs.reference_rows}
    rows = np.flatnonzero(stream.has(index[stream.side]) & home.has(index[home.side]))
    rows = spread(rows, min(MAX_ROWS, max(32, MAX_VALUES // max(1, stream.rows.width))))
    return Sample(pairs.left_rows[rows], pairs.reference_rows[rows], pairs.positions[rows])
