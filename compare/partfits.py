"""What the rows are that differ while the slot's others do not: the same explanations, fitted on exactly these rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from drafttrace.compare.describe import part_rows
from drafttrace.compare.explain import stream_facts
from drafttrace.compare.facts import VALUE, PartFacts, StreamFacts
from drafttrace.compare.judge import limits_of
from drafttrace.compare.locate import Located, distance, locate, neighbour_distances
from drafttrace.compare.measure import measure_rows
from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.part_sides import odd_side
from drafttrace.compare.result import SlotResult
from drafttrace.compare.rowparts import FoundPart, find_parts
from drafttrace.compare.sample import MAX_ROWS, MAX_VALUES, Sample, Stream, spread
from drafttrace.compare.streams import Location, Sides, stand_in
from drafttrace.compare.thresholds import Thresholds, slot_limits
from drafttrace.tracer.capture import Ints

_FEWEST = 4
_SWEPT = 0.5  # share of the rows that a sweep must hold to place them


def fit_parts(
    measured: MeasuredSlot, judged: SlotResult, location: Location, sides: Sides, thresholds: Thresholds
) -> tuple[PartFacts, ...]:
    """The facts about every part of one slot."""
    if measured.index < 0:
        return ()
    if not judged.parts and judged.rel_l2.p50 > judged.judged.noise_limit:
        return tuple(_own_parts(measured, location, sides, thresholds))
    if not judged.parts:
        return ()
    found = find_parts(
        part_rows(measured.measures, measured.ids, thresholds), limits_of(judged, thresholds), thresholds
    )
    return tuple(_fit(measured, one, location, sides, thresholds) for one in found)


def _own_parts(
    measured: MeasuredSlot, location: Location, sides: Sides, thresholds: Thresholds
) -> Iterator[PartFacts]:
    """Parts of a slot that is another state than it should be: against that state, and not the other side's slot."""
    for stream, streams in ((measured.left, location.left), (measured.reference, location.reference)):
        fact = next((f for f in streams if f.index == measured.index), None)
        if fact is None or fact.by != VALUE or fact.boundary is None or fact.explanation is not None:
            continue
        pairs = measured.pairs
        index = {"left": pairs.left_rows, "reference": pairs.reference_rows}
        homes = [(home, home.has(index[home.side])) for home in _homes(stream, fact.boundary, location, sides)]
        if not homes:
            continue
        home, kept = max(homes, key=lambda one: one[1].sum())
        if kept.sum() < 2 * _FEWEST:
            continue
        pairs, ids = pairs.at(kept), measured.ids.at(kept)
        index = {"left": pairs.left_rows, "reference": pairs.reference_rows}
        rows = measure_rows(stream.rows, index[stream.side], home.rows, index[home.side], measured.massive)
        two = (stream, home) if stream.side == "left" else (home, stream)
        own = MeasuredSlot(measured.index, *two, measured.massive, rows, pairs, ids)
        limits = slot_limits(thresholds, None, location.neighbours.get(fact.boundary))
        looked = part_rows(rows, ids, thresholds)
        alone = replace(looked, odd=np.zeros(len(rows), np.bool_))  # of another state's rows nobody else tells
        for found in find_parts(looked, limits, thresholds) or find_parts(alone, limits, thresholds):
            fitted = _fit(own, found, location, sides, thresholds)
            yield replace(fitted, is_left=None, is_reference=None, own=True)


def _homes(stream: Stream, boundary: int, location: Location, sides: Sides) -> Iterator[Stream]:
    """The states that a slot as a whole equals: its boundary in the sweep, and, for the server's slot, what the reference
    holds of it in another place. A sweep may end long before the rows do."""
    found = [a for a in location.atlas_streams if a.boundary == boundary]
    if stream.side == "left":
        held = {t.name for t in location.reference if t.explanation is None and stand_in(t) == boundary}
        found += [s for s in (*sides.reference_slots, *sides.reference_others) if s.name in held]
    yield from (home for home in found if home.rows.width == stream.rows.width)


def _fit(
    measured: MeasuredSlot, found: FoundPart, location: Location, sides: Sides, thresholds: Thresholds
) -> PartFacts:
    rows = np.flatnonzero(found.rows)
    pairs = measured.pairs
    sample, atlas = _sample(measured, rows, location.atlas_streams)
    near = neighbour_distances(sample, atlas) if atlas else {}

    def place(stream: Stream) -> Located | None:
        return locate(sample, (stream,), atlas, thresholds.located, near)[0] if atlas else None

    ours, theirs = measured.left, measured.reference
    others = {side: tuple(s for s in (ours, theirs) if s.side == side) for side in ("left", "reference")}
    for slots in (sides.left_slots, sides.reference_slots):
        others[slots[0].side] += tuple(s for s in slots if s not in (ours, theirs))
    [left] = stream_facts((ours,), (place(ours),), sample, atlas, others["reference"], thresholds)
    [right] = stream_facts((theirs,), (place(theirs),), sample, atlas, others["left"], thresholds)
    return PartFacts(
        slot=measured.index,
        part=found.part,
        left=left,
        reference=right,
        is_left=_other(sample, ours, sides.reference_slots, thresholds),
        is_reference=_other(sample, theirs, sides.left_slots, thresholds),
        positions=pairs.positions[rows],
        left_rows=pairs.left_rows[rows],
        odd_side=_odd_side(measured, found, left, right, thresholds),
    )


def _odd_side(
    measured: MeasuredSlot, found: FoundPart, left: StreamFacts, right: StreamFacts, thresholds: Thresholds
) -> str | None:
    """The side that differs, where both are explained by each other and no sweep says which of them is right."""
    if left.explanation is None or right.explanation is None:
        return None
    return odd_side(measured, found.rows, part_rows(measured.measures, measured.ids, thresholds).plain)


def _sample(measured: MeasuredSlot, rows: Ints, sweep: Sequence[Stream]) -> tuple[Sample, tuple[Stream, ...]]:
    """The part's rows to look at, and the sweep, where that holds enough of them."""
    pairs = measured.pairs
    swept = np.ones(len(rows), np.bool_)
    for stream in sweep:
        index = pairs.left_rows if stream.side == "left" else pairs.reference_rows
        swept &= stream.has(index[rows])
    atlas = tuple(sweep) if len(sweep) > 1 and swept.sum() >= max(_FEWEST, _SWEPT * len(rows)) else ()
    chosen = rows[swept] if atlas else rows
    most = min(MAX_ROWS, max(32, MAX_VALUES // max(1, measured.left.rows.width)))
    chosen = spread(chosen, most)
    return Sample(pairs.left_rows[chosen], pairs.reference_rows[chosen], pairs.positions[chosen]), atlas


def _other(sample: Sample, stream: Stream, others: Sequence[Stream], thresholds: Thresholds) -> int | None:
    """The slot of the other side whose rows these are, though it is not theirs."""
    x = sample.read(stream)
    for other in others:
        fits = other.slot != stream.slot and other.rows.width == stream.rows.width
        if fits and distance(x, sample.read(other)).rel_l2 < thresholds.match:
            return other.slot
    return None
