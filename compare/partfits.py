"""What the rows are that differ while the slot's others do not: the same explanations, fitted on exactly these rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drafttrace.compare.describe import part_rows
from drafttrace.compare.explain import stream_facts
from drafttrace.compare.facts import PartFacts
from drafttrace.compare.judge import limits_of
from drafttrace.compare.locate import Located, distance, locate, neighbour_distances
from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.result import SlotResult
from drafttrace.compare.rowparts import FoundPart, find_parts
from drafttrace.compare.sample import MAX_ROWS, MAX_VALUES, Sample, Stream, spread
from drafttrace.compare.streams import Location, Sides
from drafttrace.compare.thresholds import Thresholds
from drafttrace.tracer.capture import Ints

_FEWEST = 4
_SWEPT = 0.5  # share of the rows that a sweep must hold to place them


def fit_parts(
    measured: MeasuredSlot, judged: SlotResult, location: Location, sides: Sides, thresholds: Thresholds
) -> tuple[PartFacts, ...]:
    """The facts about every part of one slot."""
    if not judged.parts or measured.index < 0:
        return ()
    found = find_parts(
        part_rows(measured.measures, measured.ids, thresholds), limits_of(judged, thresholds), thresholds
    )
    return tuple(_fit(measured, one, location, sides, thresholds) for one in found)


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
    [left] = stream_facts((ours,), (place(ours),), sample, atlas, sides.reference_slots, thresholds)
    [right] = stream_facts((theirs,), (place(theirs),), sample, atlas, sides.left_slots, thresholds)
    return PartFacts(
        slot=measured.index,
        part=found.part,
        left=left,
        reference=right,
        is_left=_other(sample, ours, sides.reference_slots, thresholds),
        is_reference=_other(sample, theirs, sides.left_slots, thresholds),
        positions=pairs.positions[rows],
        left_rows=pairs.left_rows[rows],
    )


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
