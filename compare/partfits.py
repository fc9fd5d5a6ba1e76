"""What the rows are that differ while the slot's others do not: the same explanations, fitted on exactly these rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from drafttrace.compare.describe import part_rows
from drafttrace.compare.explain import stream_facts
from drafttrace.compare.facts import VALUE, Explanation, PartFacts, StreamFacts
from drafttrace.compare.judge import limits_of
from drafttrace.compare.locate import Located, distance, locate, neighbour_distances
from drafttrace.compare.measure import Bools, Doubles, measure_rows, median
from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.part_sides import odd_side
from drafttrace.compare.result import SlotResult
from drafttrace.compare.rowparts import FoundPart, find_parts
from drafttrace.compare.sample import MAX_ROWS, MAX_VALUES, Sample, Stream, spread
from drafttrace.compare.streams import Location, Sides, stand_in
from drafttrace.compare.thresholds import Limits, Thresholds, slot_limits
from drafttrace.compare.undone import undo
from drafttrace.tracer.capture import Ints

_FEWEST = 4
_TIMES_LEFT = 4.0  # of what a fit leaves in the median: rows further off are something else, too
_LEAST_TURNED = 0.06  # relative L2 in the directions that the fitted rows span: rounding is largest in the faintest
_SWEPT = 0.5  # share of the rows that a sweep must hold to place them
_OF_ONE_SIZE = 2.0


@dataclass(frozen=True)
class Beside:
    """What rows can be explained by. atlas: the sweep. to_left, to_reference: states of the other side, the slot's own
    partner first."""

    atlas: tuple[Stream, ...]
    to_left: tuple[Stream, ...]
    to_reference: tuple[Stream, ...]

    @staticmethod
    def of(sides: Sides, location: Location, own: tuple[Stream, Stream], home: Stream | None = None) -> Beside:
        """The slots of both sides; home: what one of ``own`` is as a whole, where that is not the other one."""
        partners = (*own, *([home] if home is not None else []))

        def first(side: str, slots: tuple[Stream, ...]) -> tuple[Stream, ...]:
            mine = tuple(s for s in partners if s.side == side)
            return (*mine, *(s for s in slots if s not in mine))

        left, reference = first("left", sides.left_slots), first("reference", sides.reference_slots)
        return Beside(location.atlas_streams, reference, left)


def fit_parts(
    measured: MeasuredSlot,
    judged: SlotResult,
    wholes: Sequence[WholeSlot],
    location: Location,
    sides: Sides,
    thresholds: Thresholds,
) -> tuple[PartFacts, ...]:
    """The facts about every part of one slot. wholes: ``whole_slots`` of one that differs as a whole, or is explained by
    a fit of all its rows."""
    if measured.index < 0:
        return ()
    beyond = judged.rel_l2.p50 > judged.judged.noise_limit
    if (beyond and not judged.parts) or (wholes and not beyond):
        return tuple(_own_parts(wholes, thresholds))
    if not judged.parts:
        return ()
    found = find_parts(
        part_rows(measured.measures, measured.ids, thresholds), limits_of(judged, thresholds), thresholds
    )
    beside = Beside.of(sides, location, (measured.left, measured.reference))
    return tuple(_fit(measured, one, beside, thresholds) for one in found)


def _own_parts(wholes: Sequence[WholeSlot], thresholds: Thresholds) -> Iterator[PartFacts]:
    """Parts of a slot that is another state than it should be: against that state, and not the other side's slot."""
    for own in wholes:
        looked = part_rows(own.measured.measures, own.measured.ids, thresholds)
        alone = replace(
            looked, odd=np.zeros(len(looked.odd), np.bool_)
        )  # of another state's rows nobody else tells
        for found in find_parts(looked, own.limits, thresholds) or find_parts(alone, own.limits, thresholds):
            fitted = _fit(own.measured, found, own.beside, thresholds)
            yield replace(fitted, is_left=None, is_reference=None, own=True, beyond=own.beyond)


@dataclass(frozen=True)
class WholeSlot:
    """A slot beside what its rows are as a whole. beyond: the fit that was taken out of all of them, None where there is
    none. limits: what its rows are judged by."""

    measured: MeasuredSlot
    beside: Beside
    limits: Limits
    beyond: str | None


def whole_slots(
    measured: MeasuredSlot, location: Location, sides: Sides, thresholds: Thresholds
) -> Iterator[WholeSlot]:
    """Every side's slot against the state that it is as a whole: a boundary, or what it is a known function of. Where each
    side is such a function of the other one, the better explained side alone."""
    both = [(measured.left, location.left), (measured.reference, location.reference)]
    known = [(stream, fact) for stream, streams in both for fact in streams if fact.index == measured.index]
    changed = [fact for _, fact in known if fact.explanation is not None]
    best = min(changed, key=lambda fact: fact.explanation.fit.score if fact.explanation else 0.0, default=None)
    for stream, fact in known:
        if fact.explanation is not None:
            own = _unchanged(measured, stream, fact, location, sides, thresholds) if best is fact else None
        else:
            own = _moved(measured, stream, fact, location, sides, thresholds)
        if own is not None:
            yield own


def _moved(
    measured: MeasuredSlot,
    stream: Stream,
    fact: StreamFacts,
    location: Location,
    sides: Sides,
    thresholds: Thresholds,
) -> WholeSlot | None:
    """A slot that is another boundary, beside that boundary."""
    if fact.by != VALUE or fact.boundary is None:
        return None
    pairs = measured.pairs
    index = {"left": pairs.left_rows, "reference": pairs.reference_rows}
    homes = [(home, home.has(index[home.side])) for home in _homes(stream, fact.boundary, location, sides)]
    if not homes:
        return None
    home, kept = max(homes, key=lambda one: one[1].sum())
    limits = slot_limits(thresholds, None, location.neighbours.get(fact.boundary))
    beside = Beside.of(sides, location, (measured.left, measured.reference), home)
    return _own(measured, stream, home, kept, beside, limits, None)


def _unchanged(
    measured: MeasuredSlot,
    stream: Stream,
    fact: StreamFacts,
    location: Location,
    sides: Sides,
    thresholds: Thresholds,
) -> WholeSlot | None:
    """A transformed slot beside its origin, with the transformation taken out of both."""
    explained = fact.explanation
    assert explained is not None
    index = {"left": measured.pairs.left_rows, "reference": measured.pairs.reference_rows}
    origins = [(one, one.has(index[one.side])) for one in _origins(stream, explained, location, sides)]
    if not origins:
        return None
    origin, kept = max(origins, key=lambda one: one[1].sum())
    undone = undo(explained.fit, location.sample, stream, origin)
    if undone is None:
        return None
    mine, home = undone.of_slot(stream), undone.of_origin(origin)
    limits = slot_limits(
        thresholds, None, location.neighbours.get(fact.boundary) if fact.boundary is not None else None
    )
    fits = (explained.fit, explained.fit.then)
    turned = any(fit is not None and fit.name == "rotation" for fit in fits)
    least = 0.0 if turned else _TIMES_LEFT * explained.fit.residual
    limits = replace(limits, match=max(limits.match, least), noise=max(limits.noise, least))
    atlas = tuple(home if a is origin else undone.of_origin(a) for a in location.atlas_streams)
    beside = Beside(atlas, (home,), (mine,)) if stream.side == "left" else Beside(atlas, (mine,), (home,))
    own = _own(measured, mine, home, kept, beside, limits, explained.fit.name)
    return _limited(own, stream.rows.width) if own is not None and turned else own


def _limited(own: WholeSlot, width: int) -> WholeSlot:
    """A turned slot, with limits for what is seen of its rows: no more of a difference than the share of the channels that
    the directions span, and rounding by as much as most rows show. width: of the slot."""
    seen = float(np.sqrt(min(1.0, own.measured.left.rows.width / width)))
    usual = _TIMES_LEFT * median(own.measured.measures.rel_l2)
    limit = max(_LEAST_TURNED, seen * own.limits.noise, usual if np.isfinite(usual) else 0.0)
    return replace(own, limits=replace(own.limits, match=limit, noise=limit))


def _origins(stream: Stream, explained: Explanation, location: Location, sides: Sides) -> Iterator[Stream]:
    """What a transformed slot is made from: the state that explains it, and what the other side holds of that. A sweep may
    end long before the rows do."""
    left = stream.side == "left"
    others = (*sides.reference_slots, *sides.reference_others) if left else (*sides.left_slots, *sides.left_others)
    sweep = [
        a for a in location.atlas_streams if explained.boundary is not None and a.boundary == explained.boundary
    ]
    facts = location.reference if left else location.left
    held = {f.name for f in facts if f.explanation is None and f.by == VALUE and f.boundary == explained.boundary}
    held = held if sweep else {explained.target}
    yield from (s for s in (*sweep, *(s for s in others if s.name in held)) if s.rows.width == stream.rows.width)


def _own(
    measured: MeasuredSlot,
    stream: Stream,
    home: Stream,
    kept: Bools,
    beside: Beside,
    limits: Limits,
    beyond: str | None,
) -> WholeSlot | None:
    if kept.sum() < 2 * _FEWEST:
        return None
    pairs, ids = measured.pairs.at(kept), measured.ids.at(kept)
    index = {"left": pairs.left_rows, "reference": pairs.reference_rows}
    massive = measured.massive if beyond is None else None
    rows = measure_rows(stream.rows, index[stream.side], home.rows, index[home.side], massive)
    two = (stream, home) if stream.side == "left" else (home, stream)
    rows = rows if stream.side == "left" else rows.exchanged()
    own = MeasuredSlot(measured.index, *two, measured.massive, rows, pairs, ids)
    return WholeSlot(own, beside, limits, beyond)


def _homes(stream: Stream, boundary: int, location: Location, sides: Sides) -> Iterator[Stream]:
    """The states that a slot as a whole equals: its boundary in the sweep, and, for the server's slot, what the reference
    holds of it in another place. A sweep may end long before the rows do."""
    found = [a for a in location.atlas_streams if a.boundary == boundary]
    if stream.side == "left":
        held = {t.name for t in location.reference if t.explanation is None and stand_in(t) == boundary}
        found += [s for s in (*sides.reference_slots, *sides.reference_others) if s.name in held]
    yield from (home for home in found if home.rows.width == stream.rows.width)


def _fit(measured: MeasuredSlot, found: FoundPart, beside: Beside, thresholds: Thresholds) -> PartFacts:
    rows = np.flatnonzero(found.rows)
    pairs = measured.pairs
    sample, atlas, swept = _sample(measured, rows, beside.atlas, found.part.kind)
    near = neighbour_distances(sample, atlas) if atlas else {}

    def place(stream: Stream) -> Located | None:
        return locate(sample, (stream,), atlas, thresholds.located, near)[0] if atlas else None

    ours, theirs = measured.left, measured.reference
    [left] = stream_facts((ours,), (place(ours),), sample, atlas, beside.to_left, thresholds)
    [right] = stream_facts((theirs,), (place(theirs),), sample, atlas, beside.to_reference, thresholds)
    return PartFacts(
        slot=measured.index,
        part=found.part,
        left=left,
        reference=right,
        is_left=_other(sample, ours, beside.to_left, thresholds),
        is_reference=_other(sample, theirs, beside.to_reference, thresholds),
        positions=pairs.positions[rows],
        left_rows=pairs.left_rows[rows],
        odd_side=_odd_side(measured, found, left, right, thresholds),
        swept=swept,
    )


def _odd_side(
    measured: MeasuredSlot, found: FoundPart, left: StreamFacts, right: StreamFacts, thresholds: Thresholds
) -> str | None:
    """The side that differs, where both are explained by each other and no sweep says which of them is right."""
    if left.explanation is None or right.explanation is None:
        return None
    return odd_side(measured, found.rows, part_rows(measured.measures, measured.ids, thresholds).plain)


def _sample(
    measured: MeasuredSlot, rows: Ints, sweep: Sequence[Stream], kind: str
) -> tuple[Sample, tuple[Stream, ...], int]:
    """The part's rows to look at, and the sweep, where that holds enough of them; how many it holds."""
    pairs = measured.pairs
    swept = np.ones(len(rows), np.bool_)
    for stream in sweep:
        index = pairs.left_rows if stream.side == "left" else pairs.reference_rows
        swept &= stream.has(index[rows])
    enough = swept.sum() >= max(_FEWEST, _SWEPT * len(rows))
    # A sweep may end within a run: rows in order that differ by as much are told by those of them that it holds.
    enough |= kind != "spread" and swept.sum() >= _FEWEST and _alike(measured.measures.rel_l2[rows], swept)
    atlas = tuple(sweep) if len(sweep) > 1 and enough else ()
    chosen = rows[swept] if atlas else rows
    most = min(MAX_ROWS, max(32, MAX_VALUES // max(1, measured.left.rows.width)))
    chosen = spread(chosen, most)
    sample = Sample(pairs.left_rows[chosen], pairs.reference_rows[chosen], pairs.positions[chosen])
    return sample, atlas, int(swept.sum()) if atlas else 0


def _alike(rel_l2: Doubles, some: Bools) -> bool:
    """Whether some of the rows differ as the others do."""
    return bool(1 / _OF_ONE_SIZE <= median(rel_l2[some]) / max(1e-12, median(rel_l2[~some])) <= _OF_ONE_SIZE)


def _other(sample: Sample, stream: Stream, others: Sequence[Stream], thresholds: Thresholds) -> int | None:
    """The slot of the other side whose rows these are, though it is not theirs."""
    x = sample.read(stream)
    for other in others:
        fits = other.slot != stream.slot and other.rows.width == stream.rows.width
        if fits and distance(x, sample.read(other)).rel_l2 < thresholds.match:
            return other.slot
    return None
