"""From two captures and their pairs of rows to where every slot stands: the value side of the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drafttrace.compare.align import Alignment
from drafttrace.compare.explain import scale_only, stream_facts
from drafttrace.compare.facts import DECLARED, VALUE, StreamFacts
from drafttrace.compare.hypotheses import Doubles, normed, usable
from drafttrace.compare.locate import (
    Distance,
    Located,
    choose_shift,
    cross_distances,
    locate,
    neighbour_distances,
    shift_scores,
)
from drafttrace.compare.rounding import FEWEST_KINDS, kinds, walk
from drafttrace.compare.sample import (
    MIN_ROWS,
    Sample,
    Stream,
    choose,
    other_streams,
    slot_streams,
    sweep_streams,
)
from drafttrace.compare.thresholds import REACHED, Thresholds
from drafttrace.compare.wiring import Reading, read
from drafttrace.tracer.capture import Capture

_AS_THE_OTHERS = 2.0  # times the distance of the slots that lie furthest off


@dataclass(frozen=True)
class Sides:
    """The streams of both captures."""

    left_slots: tuple[Stream, ...]
    left_others: tuple[Stream, ...]
    left_sweep: tuple[Stream, ...]
    reference_slots: tuple[Stream, ...]
    reference_others: tuple[Stream, ...]
    reference_sweep: tuple[Stream, ...]
    _chosen: dict[int, tuple[Alignment, Sample, tuple[Stream, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @staticmethod
    def of(left: Capture, reference: Capture) -> Sides:
        """All streams of two captures."""
        return Sides(
            slot_streams("left", left),
            other_streams("left", left),
            sweep_streams("left", left),
            slot_streams("reference", reference),
            other_streams("reference", reference),
            sweep_streams("reference", reference),
        )


@dataclass(frozen=True)
class Location:
    """Where every stream stands. atlas: the side whose sweep located them, or None.

    neighbours: per boundary the distance to its nearest neighbour. cross: left name -> reference name -> distance.
    same: left slot -> the reference slot that it equals, row by row.
    """

    sample: Sample
    atlas: str | None
    atlas_streams: tuple[Stream, ...]
    left: tuple[StreamFacts, ...]
    reference: tuple[StreamFacts, ...]
    neighbours: Mapping[int, float]
    cross: Mapping[str, Mapping[str, Distance]]
    norm_weight: Doubles | None
    same: Mapping[int, int]


def find_shift(alignment: Alignment, sides: Sides) -> int:
    """The row shift that the values ask for, 0 where the pairing by ids is right."""
    sample, atlas = _sample(alignment, sides)
    mine = (*sides.left_slots, *sides.left_others, *(a for a in atlas if a.side == "left"))
    theirs = sides.reference_slots or sides.reference_others
    if any(a.side == "reference" for a in atlas):
        mine, theirs = (*sides.left_slots,), (*sides.reference_slots,)
    if len(sample) < MIN_ROWS or not mine or not theirs:
        return 0
    return choose_shift(shift_scores(sample, mine, theirs))


def locate_all(alignment: Alignment, sides: Sides, thresholds: Thresholds) -> Location:
    """Place every slot and last state of both sides."""
    sample, atlas = _sample(alignment, sides)
    side = atlas[0].side if atlas else None
    neighbours = neighbour_distances(sample, atlas) if atlas else {}
    left_lasts = tuple(s for s in sides.left_others if s.kind == "last")
    right_lasts = tuple(s for s in sides.reference_others if s.kind == "last")
    left, right = (*sides.left_slots, *left_lasts), (*sides.reference_slots, *right_lasts)

    def places(streams: Sequence[Stream]) -> tuple[Located | None, ...]:
        if not atlas:
            return (None,) * len(streams)
        return locate(sample, streams, atlas, thresholds.located, neighbours)

    ours = stream_facts(left, places(left), sample, atlas, (*sides.reference_slots, *right_lasts), thresholds)
    theirs = stream_facts(right, places(right), sample, atlas, (*sides.left_slots, *left_lasts), thresholds)
    rows, columns = (*sides.left_slots, *sides.left_others), (*sides.reference_slots, *sides.reference_others)
    table = cross_distances(sample, rows, columns)
    cross = {
        r.name: {c.name: d for c, d in zip(columns, line, strict=True)} for r, line in zip(rows, table, strict=True)
    }
    if not atlas:
        ours = _without_sweep(ours, theirs, cross, sides, sample, thresholds)
    weight = _norm_weight(sample, atlas, left_lasts)
    return Location(
        sample, side, atlas, ours, theirs, neighbours, cross, weight, _equals(sides, cross, sample, thresholds)
    )


def _equals(
    sides: Sides, cross: Mapping[str, Mapping[str, Distance]], sample: Sample, thresholds: Thresholds
) -> dict[int, int]:
    """The left slots that equal a slot of the reference, each with the nearest one's number."""
    slots = {s.name: s.slot for s in sides.reference_slots}
    own = {s.slot: s for s in sides.reference_slots}
    nearest = (
        (s.slot, _nearest(cross.get(s.name, {}), slots, own.get(s.slot), sample, thresholds))
        for s in sides.left_slots
    )
    return {i: slots[best[0]] for i, best in nearest if best is not None and best[1].rel_l2 <= thresholds.match}


def _nearest(
    line: Mapping[str, Distance],
    names: Mapping[str, object],
    own: Stream | None,
    sample: Sample,
    thresholds: Thresholds,
) -> tuple[str, Distance] | None:
    """The nearest reference state; ``own``, the slot in the same place, where it is not told apart from that: where it
    lies within rounding, or is hardly further off, or where all rows are one and the same."""
    best = best_of(line, names)
    held = line.get(own.name) if own is not None else None
    if best is None or own is None or held is None or best[0] == own.name:
        return best
    rounded = REACHED * walk(own.boundary, own)
    alike = len(kinds(sample.read(own), FEWEST_KINDS)) < FEWEST_KINDS and held.rel_l2 <= thresholds.narrow
    hardly = held.rel_l2 <= thresholds.match and best[1].rel_l2 > thresholds.located * held.rel_l2
    return (own.name, held) if held.rel_l2 <= rounded or hardly or alike else best


def _norm_weight(sample: Sample, atlas: Sequence[Stream], lasts: Sequence[Stream]) -> Doubles | None:
    """The final norm's weight, fitted between the left side's last boundary and its last state."""
    if not atlas or not lasts or lasts[0].boundary is None:
        return None
    before = [a for a in atlas if a.side == "left" and a.boundary == lasts[0].boundary]
    if not before:
        return None
    x, y = usable(sample.read(lasts[0]), sample.read(before[0]))
    fit = normed(x, y) if len(x) >= 4 else None
    return fit.fitted["gain"] if fit is not None and fit.residual < 0.05 else None


def _sample(alignment: Alignment, sides: Sides) -> tuple[Sample, tuple[Stream, ...]]:
    """The rows to look at, and the sweep that covers them: the one with more boundaries, the left side's where both have
    as many. Chosen once for each alignment: it takes reading."""
    known = sides._chosen.get(id(alignment))
    if known is None:
        known = sides._chosen[id(alignment)] = alignment, *_choose(alignment, sides)
    return known[1], known[2]


def _choose(alignment: Alignment, sides: Sides) -> tuple[Sample, tuple[Stream, ...]]:
    # A trace may hold a few boundaries of its own: a wiring's right ones need not be among them.
    for sweep in sorted((sides.left_sweep, sides.reference_sweep), key=len, reverse=True):
        if len(sweep) < 2:
            continue
        left = (*sides.left_slots, *(s for s in sweep if s.side == "left"))
        right = (*sides.reference_slots, *(s for s in sweep if s.side == "reference"))
        sample = choose(alignment, left, right)
        if len(sample) >= MIN_ROWS:
            return sample, sweep
    return choose(alignment, sides.left_slots, sides.reference_slots), ()


def _without_sweep(
    ours: tuple[StreamFacts, ...],
    theirs: tuple[StreamFacts, ...],
    cross: Mapping[str, Mapping[str, Distance]],
    sides: Sides,
    sample: Sample,
    thresholds: Thresholds,
) -> tuple[StreamFacts, ...]:
    """Left slots that equal a state of the reference get that state's declared boundary, by value.

    States without a declared boundary stand for themselves under the numbers -1, -2, ... (see :func:`stand_in`).
    """
    names = {s.name: s for s in theirs}
    # Two dumps call their slots alike: one table for each side.
    mine, streams = ({s.name: s for s in slots} for slots in (sides.left_slots, sides.reference_slots))
    found = []
    own = {s.slot: s for s in sides.reference_slots}
    for fact in ours:
        best = _nearest(cross.get(fact.name, {}), names, own.get(fact.index), sample, thresholds)
        if fact.index < 0 or best is None or best[1].rel_l2 > thresholds.match:
            found.append(fact)
            continue
        if names[best[0]].index < 0:
            best = _own_in_coarser_bits(fact, ours, theirs, cross, thresholds) or best
        other = names[best[0]]
        scaled = None
        if other.name in streams:
            x, y = sample.read(mine[fact.name]), sample.read(streams[other.name])
            scaled = scale_only(x, y, other.name, other.declared, thresholds)
        found.append(
            StreamFacts(
                fact.side,
                fact.index,
                fact.name,
                fact.declared,
                stand_in(other),
                VALUE,
                fact.located,
                scaled,
                fact.broken,
            )
        )
    return tuple(found)


def _own_in_coarser_bits(
    fact: StreamFacts,
    ours: Sequence[StreamFacts],
    theirs: Sequence[StreamFacts],
    cross: Mapping[str, Mapping[str, Distance]],
    thresholds: Thresholds,
) -> tuple[str, Distance] | None:
    """The slot of the reference in the same place, where it is no further off than the other slots from theirs: slots that
    were stored in fewer bits lie further off than a last state which was not, though both are one boundary."""
    slots = {s.index: s.name for s in theirs if s.index >= 0}
    own = {
        f.index: cross[f.name][slots[f.index]]
        for f in ours
        if f.index in slots and slots[f.index] in cross.get(f.name, {})
    }
    mine = own.pop(fact.index, None)
    usual = max((d.rel_l2 for d in own.values() if d.rel_l2 <= thresholds.match), default=0.0)
    if mine is None or not mine.rel_l2 <= min(thresholds.match, _AS_THE_OTHERS * usual):
        return None
    return slots[fact.index], mine


def best_of(line: Mapping[str, Distance], names: Mapping[str, object]) -> tuple[str, Distance] | None:
    """The nearest reference state among ``names``."""
    known = [(name, d) for name, d in line.items() if name in names and d.rel_l2 == d.rel_l2]
    return min(known, key=lambda one: one[1].rel_l2, default=None)


def stand_in(stream: StreamFacts) -> int:
    """A number for the boundary of a reference state: the declared one, else a negative one of its own, far from others."""
    if stream.boundary is not None:
        return stream.boundary
    return -1000 * (stream.index + 2)


@dataclass(frozen=True)
class Wirings:
    """Both wirings as integers, what they rest on, and how the left follows from the reference."""

    left: tuple[int | None, ...]
    reference: tuple[int | None, ...]
    tail: int | None
    by: str | None
    reading: Reading | None


def wirings(location: Location, layers: int | None) -> Wirings:
    """What the located (else declared) boundaries say about each other.

    layers: n of the target. The state behind the last layer was no slot of training, whatever stands beside it.
    """
    ours = [s for s in location.left if s.index >= 0]
    theirs = [s for s in location.reference if s.index >= 0]
    last = next((s for s in location.reference if s.index == -1), None)
    if location.atlas is None:
        left = tuple(_left_number(s, theirs) for s in ours)
        reference: tuple[int | None, ...] = tuple(stand_in(s) for s in theirs)
        tail = stand_in(last) if last is not None else None
    else:
        left, reference = _beyond_the_sweep(ours, theirs, location.same)
        tail = last.boundary if last is not None else None
    listed = tail if layers is None or tail is None or tail < layers else None
    reading = read(left, reference, listed) if left and reference else None
    counted = [s for s, number in zip(ours, left, strict=True) if number is not None]
    proven = any(s.by == VALUE for s in ours)
    proven = proven and all(s.by == VALUE or s.index in location.same for s in counted)
    if location.atlas is not None:
        equal = set(location.same.values())
        proven = proven and all(s.by == VALUE or s.index in equal for s in theirs if s.boundary is not None)
    by = VALUE if proven else DECLARED if any(s.by for s in ours) else None

    def shown(numbers: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(k if k is not None and k >= 0 else None for k in numbers)

    return Wirings(shown(left), shown(reference), shown([tail])[0], by, reading)


def _beyond_the_sweep(
    ours: Sequence[StreamFacts], theirs: Sequence[StreamFacts], same: Mapping[int, int]
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Both wirings where a sweep located what it holds: two slots that equal each other, and no boundary of the sweep,
    get one number."""
    reference = {s.index: s.boundary for s in theirs}
    left = {s.index: s.boundary for s in ours}
    located = {s.index for s in ours if s.by == VALUE}
    for mine, other in same.items():
        if mine in located or other not in reference:
            continue
        if reference[other] is None:
            reference[other] = stand_in(next(s for s in theirs if s.index == other))
        left[mine] = reference[other]
    return tuple(left.values()), tuple(reference.values())


def _left_number(stream: StreamFacts, theirs: Sequence[StreamFacts]) -> int | None:
    """A left slot's boundary without a sweep: that of the reference's slot that it is a function of. A declaration that the
    values contradict counts as unknown."""
    made_of = next(
        (t for t in theirs if stream.explanation is not None and t.name == stream.explanation.target), None
    )
    if made_of is not None:
        return stand_in(made_of)
    if stream.by != DECLARED:
        return stream.boundary
    same = [t for t in theirs if t.index == stream.index]
    if same and same[0].declared == stream.declared:
        return None
    return stream.boundary if all(t.declared is not None for t in theirs) else None
