"""What one row is that differs from its partner: tried row by row, where there are too few for a fit over several.

A fit over many rows is judged on other rows than it was made on. One row has nothing to be judged on, so that only what
leaves almost nothing over counts here: another row of the same states, or a change with one free number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.describe import part_rows
from drafttrace.compare.facts import VALUE, PartFacts, SingleFacts, SingleRow
from drafttrace.compare.hypotheses import is_plausible, restored
from drafttrace.compare.judge import limits_of
from drafttrace.compare.measure import Bools, Doubles
from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.part_sides import odd_side
from drafttrace.compare.partfits import WholeSlot
from drafttrace.compare.repeats import relative_distances
from drafttrace.compare.result import SlotResult
from drafttrace.compare.sample import Stream, spread
from drafttrace.compare.streams import Location, Sides
from drafttrace.compare.thresholds import Limits, Thresholds
from drafttrace.tracer.capture import Ints

_MOST = 16  # rows of a slot: of more, what they have in common is looked for
_LEAVES = 0.03  # relative L2 that two kernels in bf16 leave of one state
_MOSTLY = 0.5  # of the same distance: what a change of the row's own partner leaves at most
_CLEARLY = 0.3  # of the distance to the row's own partner
_SEARCHED = 4096  # rows of each side among which a row is looked for
_FEWEST_CHANNELS = 8
_COMPARED = 8


def fit_singles(
    measured: MeasuredSlot,
    judged: SlotResult,
    parts: Sequence[PartFacts],
    wholes: Sequence[WholeSlot],
    location: Location,
    sides: Sides,
    thresholds: Thresholds,
) -> tuple[SingleFacts, ...]:
    """The rows of one slot that differ, and are no part of it that is looked at as a whole. wholes: ``whole_slots`` of one
    that differs as a whole, or is explained by a fit of all its rows."""
    known = [int(p) for part in parts if _stands(part) for p in part.positions]
    if judged.rel_l2.p50 <= judged.judged.noise_limit and not wholes:
        limits = limits_of(judged, thresholds)
        return tuple(_singles(measured, limits, known, location.atlas_streams, sides, thresholds, None))
    found: list[SingleFacts] = []
    for own in wholes:
        found += _singles(own.measured, own.limits, known, own.beside.atlas, None, thresholds, own)
    return tuple(found)


def _stands(part: PartFacts) -> bool:
    """Whether a part is more than some rows here and there of which nothing is known."""
    explained = part.left.explanation or part.reference.explanation
    known = part.left.by == part.reference.by == VALUE
    placed = known and part.left.boundary != part.reference.boundary
    placed = placed or part.is_left is not None or part.is_reference is not None
    return part.part.kind != "spread" or explained is not None or placed or len(part.positions) > _MOST


def _singles(
    measured: MeasuredSlot,
    limits: Limits,
    known: Sequence[int],
    atlas: Sequence[Stream],
    sides: Sides | None,
    thresholds: Thresholds,
    own: object,
) -> Iterator[SingleFacts]:
    rows = part_rows(measured.measures, measured.ids, thresholds)
    far = (rows.plain & (rows.rel_l2 > limits.noise)) | rows.odd
    far &= ~np.isin(rows.position, np.array(known, np.int64))
    if not far.any() or far.sum() > _MOST or 2 * far.sum() > len(far):
        return
    named, rest = [], []
    tried = _Tried.of(measured, atlas, sides, far, rows.plain)
    for index in np.flatnonzero(far):
        one = _named(int(index), tried, thresholds)
        if one is not None:
            named.append(one)
        elif own is not None:
            rest.append(int(rows.position[index]))
    if named or rest:
        worst = {int(rows.position[i]): float(rows.rel_l2[i]) for i in np.flatnonzero(far)}
        yield SingleFacts(measured.index, tuple(named), tuple(rest), worst, len(far), limits.noise, own is not None)


@dataclass(frozen=True)
class _Tried:
    """What the rows are held against. far, plain: masks of the pairs."""

    measured: MeasuredSlot
    atlas: Sequence[Stream]
    sides: Sides | None
    far: Bools
    plain: Bools

    @staticmethod
    def of(
        measured: MeasuredSlot, atlas: Sequence[Stream], sides: Sides | None, far: Bools, plain: Bools
    ) -> _Tried:
        """The same, as one thing."""
        return _Tried(measured, atlas, sides, far, plain)

    def index(self, side: str) -> Ints:
        """The rows of a side, one per pair."""
        pairs = self.measured.pairs
        return pairs.left_rows if side == "left" else pairs.reference_rows

    def row(self, stream: Stream, index: int) -> Doubles | None:
        """One row of a stream; None where it has none there."""
        at = self.index(stream.side)[index : index + 1]
        return stream.rows.take(at)[0].astype(np.float64) if stream.has(at).all() else None

    def same(self, mine: Stream, other: Stream) -> bool:
        """Whether the rows of a side that are right are another stream's as well: then it says nothing of one of them."""
        good = spread(np.flatnonzero(self.plain & ~self.far), _COMPARED)
        pairs = [(self.row(mine, int(i)), self.row(other, int(i))) for i in good]
        held = [_apart(a, b) for a, b in pairs if a is not None and b is not None]
        return bool(held) and float(np.median(held)) < _LEAVES


def _named(index: int, tried: _Tried, thresholds: Thresholds) -> SingleRow | None:
    """What a row of one of the sides is; None where nothing fits."""
    measured = tried.measured
    x, y = tried.row(measured.left, index), tried.row(measured.reference, index)
    if x is None or y is None or len(x) < _FEWEST_CHANNELS:
        return None
    place = int(measured.pairs.positions[index])
    own = float(measured.measures.rel_l2[index])
    found = _elsewhere(index, x, y, own, tried) or _changed(x, y, min(_LEAVES, _MOSTLY * own), thresholds)
    if found is None:
        return None
    side = found.side or _unlike_the_sweep(index, x, y, tried)
    if side is None:
        alone = np.zeros(len(tried.far), np.bool_)
        alone[index] = True
        # Two streams of one side can be compared, too: a slot with its own side's boundary.
        side = odd_side(measured, alone, tried.plain & ~tried.far)
    return SingleRow(place, found.kind, side, found.left_over, found.value, found.more)


def _unlike_the_sweep(index: int, x: Doubles, y: Doubles, tried: _Tried) -> str | None:
    """The side whose row is not what the sweep holds of the slot's boundary there, where the other side's is."""
    ours, theirs = tried.measured.left, tried.measured.reference
    for stream in tried.atlas:
        held = tried.row(stream, index)
        if stream.boundary is None or stream.boundary not in {ours.boundary, theirs.boundary} or held is None:
            continue
        left, right = _apart(x, held) < _LEAVES, _apart(y, held) < _LEAVES
        if left is not right and tried.same(ours, stream):
            return "reference" if left else "left"
    return None


@dataclass(frozen=True)
class _Found:
    kind: str
    side: str | None
    left_over: float
    value: float | int | None = None
    more: str = ""


def _changed(x: Doubles, y: Doubles, limit: float, thresholds: Thresholds) -> _Found | None:
    """The row as a simple change of its partner, which leaves less than ``limit``."""
    for side, a in (("left", x), ("reference", y)):
        if a.any() and (a == a[0]).all():
            return _Found("constant", side, 0.0)
    with np.errstate(all="ignore"):
        factor = float(x @ y / (y @ y))
        left = _apart(x, factor * y)
    if left < limit and abs(factor - 1) > thresholds.scale:
        return _Found("scale", None, left, factor)
    misread = _misread(x, y)
    if misread is not None:
        return misread
    for side, a, b in (("left", x, y), ("reference", y, x)):
        gone = (a == 0) & (b != 0)
        if 2 <= gone.sum() < len(a) and (left := _apart(np.where(gone, b, a), b)) < limit:
            return _Found("zeroed", side, left, int(gone.sum()))
    return None


def _misread(x: Doubles, y: Doubles) -> _Found | None:
    """The row with its bytes read in the other 16-bit format. Values that were stored once more after that let either side
    be the misread one."""
    found = []
    for side, a, b in (("left", x, y), ("reference", y, x)):
        for read_as, stored in (("fp16", "bf16"), ("bf16", "fp16")):
            back = restored(a, read_as).astype(np.float64)
            if np.isfinite(back).all() and (left := _apart(back, b)) < _LEAVES:
                found.append(_Found("bytes", side, left, None, f"{stored} bytes read as {read_as}"))
    looks = {side: is_plausible(rows[None]) for side, rows in (("left", x), ("reference", y))}
    return min(found, key=lambda one: (looks[one.side or ""], one.left_over), default=None)


def _apart(x: Doubles, y: Doubles) -> float:
    """|x - y| / |x|."""
    size = float(np.linalg.norm(x))
    return float(np.linalg.norm(x - y)) / size if size > 0 else float("nan")


def _elsewhere(index: int, x: Doubles, y: Doubles, own: float, tried: _Tried) -> _Found | None:
    """The row as another one: of another position, slot or boundary."""
    measured = tried.measured
    limit = min(_LEAVES, _CLEARLY * own)
    best: list[_Found] = []
    for side, a, theirs in (("left", x, measured.reference), ("reference", y, measured.left)):
        place, left = _nearest(a, index, theirs, tried)
        if left < limit:
            best.append(_Found("position", side, left, place))
        mine = measured.left if side == "left" else measured.reference
        for other in _others(side, theirs, tried.sides):
            held = tried.row(other, index)
            if held is not None and len(held) == len(a) and (left := _apart(a, held)) < limit:
                best += [_Found("slot", side, left, other.slot)] if not tried.same(mine, other) else []
        stream, left = _at_boundary(a, index, tried)
        if stream is not None and left < limit and not tried.same(mine, stream):
            best.append(_Found("boundary", side, left, stream.boundary))
    return min(best, key=lambda one: one.left_over, default=None)


def _others(side: str, theirs: Stream, sides: Sides | None) -> Sequence[Stream]:
    if sides is None:
        return ()
    slots = sides.reference_slots if side == "left" else sides.left_slots
    return [slot for slot in slots if slot.slot != theirs.slot]


def _nearest(a: Doubles, index: int, theirs: Stream, tried: _Tried) -> tuple[int, float]:
    """(position, relative L2) of the row of another position and token that is nearest to a row."""
    measured = tried.measured
    count = len(measured.pairs.positions)
    first = max(0, min(index - _SEARCHED // 2, count - _SEARCHED))
    here = np.arange(first, min(count, first + _SEARCHED))
    tokens = measured.ids.token_id  # the states of one token may be alike wherever it stands
    here = here[tokens[here] != tokens[index]]
    if len(here) == 0:
        return -1, np.inf
    held = theirs.rows.take(tried.index(theirs.side)[here]).astype(np.float64)
    distance = relative_distances(a[None], held)[0]
    nearest = int(distance.argmin())
    return int(measured.pairs.positions[here[nearest]]), float(distance[nearest])


def _at_boundary(a: Doubles, index: int, tried: _Tried) -> tuple[Stream | None, float]:
    """The boundary that a row is, and its relative L2 to that; None where the sweep does not tell."""
    found = []
    for stream in tried.atlas:
        held = tried.row(stream, index)
        if stream.boundary is not None and held is not None and len(held) == len(a):
            found.append((_apart(a, held), stream))
    if len(found) < 2:
        return None, np.inf
    (best, stream), (second, _) = sorted(found, key=lambda one: one[0])[:2]
    return (stream if best < _CLEARLY * second else None), best
