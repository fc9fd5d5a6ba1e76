"""Every slot of one side against the slot in the same place of the other, row by row; embedding and last state too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.describe import RowIds
from drafttrace.compare.facts import VALUE, StreamFacts
from drafttrace.compare.measure import RowMeasures, massive_channels, measure_many, median
from drafttrace.compare.sample import Stream
from drafttrace.compare.streams import Location, Sides
from drafttrace.tracer.capture import Capture, Ints, Norm

EMBED, LAST = -2, -1


@dataclass(frozen=True)
class MeasuredSlot:
    """One state of the left side against one of the reference, every row measured that both recorded.

    index: the slot, LAST or EMBED. massive: the channels that ``measures.cosine_trimmed`` leaves out. pairs, ids: the
    rows, one entry per measured pair.
    """

    index: int
    left: Stream
    reference: Stream
    massive: Ints
    measures: RowMeasures
    pairs: Alignment
    ids: RowIds


def measured_slots(left: Capture, sides: Sides, alignment: Alignment, location: Location) -> Iterator[MeasuredSlot]:
    """The slots that both sides have, in order; a slot without a common row has empty measures."""
    pairs = list(enumerate(zip(sides.left_slots, sides.reference_slots, strict=False)))
    plans = [_plan(index, mine, theirs, alignment, location) for index, (mine, theirs) in pairs]
    yield from _measure(left, plans)


def measured_others(
    left: Capture, reference: Capture, sides: Sides, alignment: Alignment, location: Location
) -> Iterator[MeasuredSlot]:
    """Embedding and last state, where both sides have the same thing."""
    embeds = (_of_kind(sides.left_others, "embed"), _of_kind(sides.reference_others, "embed"))
    for index, (mine, theirs) in ((EMBED, embeds), (LAST, _lasts(left, reference, sides, location))):
        if mine is None or theirs is None or mine.rows.width != theirs.rows.width:
            continue
        made = [_measured(left, index, mine, theirs, pairs, location) for pairs in _pairings(alignment, index)]
        if len(made[0].measures):
            yield min(made, key=lambda one: _middle(one.measures))


def _pairings(alignment: Alignment, index: int) -> Sequence[Alignment]:
    """The pairs, and those that the ids give where the slots' rows stand elsewhere: the last state need not."""
    return (alignment, alignment.moved(0)) if index == LAST and alignment.shift else (alignment,)


def _measured(
    left: Capture, index: int, mine: Stream, theirs: Stream, pairs: Alignment, location: Location
) -> MeasuredSlot:
    [made] = _measure(left, [_plan(index, mine, theirs, pairs, location)])
    return made


def _middle(rows: RowMeasures) -> float:
    middle = median(rows.rel_l2) if len(rows) else np.nan
    return middle if np.isfinite(middle) else np.inf


@dataclass(frozen=True)
class _Plan:
    index: int
    left: Stream
    reference: Stream
    massive: Ints
    pairs: Alignment


def _plan(index: int, mine: Stream, theirs: Stream, alignment: Alignment, location: Location) -> _Plan:
    keep = mine.has(alignment.left_rows) & theirs.has(alignment.reference_rows)
    massive = massive_channels(location.sample.read(theirs)) if len(location.sample) else np.empty(0, np.int64)
    return _Plan(index, mine, theirs, massive, alignment if keep.all() else alignment.at(keep))


def _measure(left: Capture, plans: Sequence[_Plan]) -> Iterator[MeasuredSlot]:
    """Slots of the same rows are measured together: they lie side by side in their files."""
    for _, group in groupby(plans, key=lambda plan: id(plan.pairs)):
        together = list(group)
        pairs = together[0].pairs
        slots = [(plan.left.rows, plan.reference.rows, plan.massive) for plan in together]
        measures = measure_many(slots, pairs.left_rows, pairs.reference_rows)
        ids = RowIds.of(left, pairs)
        for plan, rows in zip(together, measures, strict=True):
            yield MeasuredSlot(plan.index, plan.left, plan.reference, plan.massive, rows, pairs, ids)


def _lasts(
    left: Capture, reference: Capture, sides: Sides, location: Location
) -> tuple[Stream | None, Stream | None]:
    """The two states to compare as "last": both on the same side of the final norm.

    A trace keeps the state after the final norm, most dumps the one before it: then the boundary that the dump's state
    is stands in for it out of the trace's sweep, if there is one. Nothing is compared where no such pair exists.
    """
    mine, theirs = _of_kind(sides.left_others, "last"), _of_kind(sides.reference_others, "last")
    if mine is None or theirs is None:
        return None, None
    ours, others = _place(left, location.left), _place(reference, location.reference)
    if ours.raw == others.raw and (not ours.raw or None in (ours.boundary, others.boundary) or ours == others):
        return mine, theirs
    if others.raw and (found := _at(sides.left_sweep, _before_the_norm(left, others))) is not None:
        return found, theirs
    if ours.raw and (found := _at(sides.reference_sweep, ours.boundary)) is not None:
        return mine, found
    return None, None


@dataclass(frozen=True)
class _Place:
    """Where a last state stands. raw: before the final norm."""

    raw: bool
    boundary: int | None


def _place(capture: Capture, streams: Iterable[StreamFacts]) -> _Place:
    fact = next((s for s in streams if s.index == LAST), None)
    norm = capture.last.norm if capture.last is not None else Norm.UNKNOWN
    boundary = fact.boundary if fact is not None else None
    proven = fact is not None and fact.by == VALUE and fact.explanation is None
    return _Place(norm is Norm.PRE or (norm is Norm.UNKNOWN and proven), boundary)


def _before_the_norm(left: Capture, place: _Place) -> int | None:
    """The boundary that a last state before the final norm is meant to be: its own, else B(n), where a sweep of every
    boundary did not find it anywhere."""
    if place.boundary is not None or left.last is None or left.last.boundary is None:
        return place.boundary
    swept = all(k in left.boundaries for k in range(left.last.boundary + 1))
    return left.last.boundary if swept else None


def _at(sweep: Iterable[Stream], boundary: int | None) -> Stream | None:
    return next((s for s in sweep if boundary is not None and s.boundary == boundary), None)


def _of_kind(streams: tuple[Stream, ...], kind: str) -> Stream | None:
    return next((s for s in streams if s.kind == kind), None)
