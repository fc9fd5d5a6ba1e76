"""What a last state is that stands at no boundary: its rows may be moved, or it is no final norm of the state before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from drafttrace.compare.facts import VALUE, Explanation, StreamFacts
from drafttrace.compare.hypotheses import Doubles, Fit, halves, near_fits, residual, rms, usable
from drafttrace.compare.rounding import FEWEST_KINDS, kinds
from drafttrace.compare.sample import Sample, Stream
from drafttrace.compare.streams import Location, Sides
from drafttrace.compare.taps import LAST
from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.rows import Floats

_SHIFTS = (-1, 1, -2, 2)
_MOST_LEFT, _TAKEN_AWAY = 0.12, 0.3
_FEWEST_ROWS = 16  # two numbers per channel are fitted on half of them
_UNLIKE = 0.3
_NEGATIVE = 0.8


def with_last_fits(location: Location, left: Capture, reference: Capture, sides: Sides, moved: bool) -> Location:
    """The location with what the last states are that nothing explains so far. moved: the rows were paired at another
    offset than their ids say, so that moved rows are told already."""

    def looked_at(facts: Sequence[StreamFacts], capture: Capture) -> tuple[StreamFacts, ...]:
        return tuple(_looked_at(f, capture, location, sides, moved) if f.index == LAST else f for f in facts)

    return replace(
        location, left=looked_at(location.left, left), reference=looked_at(location.reference, reference)
    )


def _looked_at(fact: StreamFacts, capture: Capture, location: Location, sides: Sides, moved: bool) -> StreamFacts:
    assert capture.last is not None
    mine = sides.left_others if fact.side == "left" else sides.reference_others
    stream = next(s for s in mine if s.kind == "last")
    end = max(
        (s for s in location.atlas_streams if s.boundary is not None), key=lambda s: s.boundary or 0, default=None
    )
    post = capture.last.norm is Norm.POST
    if fact.broken or len(location.sample) < FEWEST_KINDS:
        return fact
    plain = fact.by != VALUE and fact.explanation is None
    if plain and not moved:
        theirs = sides.reference_others if fact.side == "left" else sides.left_others
        targets = [s for s in (end, *(s for s in theirs if s.kind == "last")) if s is not None]
        for target in targets:
            found = _shifted(stream, target, location.sample)
            if found is not None:
                by = VALUE if target.boundary is not None else fact.by
                return replace(fact, explanation=found, by=by, boundary=target.boundary or fact.boundary)
    own = end is not None and end.side == fact.side and end.boundary == capture.last.boundary
    if post and own and end is not None and fact.boundary == end.boundary:
        return replace(fact, unlike=_unlike(location.sample.read(stream), location.sample.read(end)))
    return fact


def _shifted(stream: Stream, target: Stream, sample: Sample) -> Explanation | None:
    """The rows of ``stream`` as those of ``target`` some tokens on, through a norm or not."""
    y = sample.read(target)
    if stream.rows.width != target.rows.width or len(kinds(y, FEWEST_KINDS)) < FEWEST_KINDS:
        return None
    unmoved = _best(sample.read(stream), y)
    if unmoved is None or unmoved.residual < _MOST_LEFT:
        return None
    found: list[tuple[Fit, int]] = []
    for shift in _SHIFTS:
        at = Sample(sample.left + shift, sample.reference + shift, sample.positions)
        fit = _best(at.read(stream), y)
        if fit is not None and fit.residual < min(_MOST_LEFT, _TAKEN_AWAY * unmoved.residual):
            found.append((fit, shift))
    if not found:
        return None
    fit, shift = min(found, key=lambda one: one[0].score)
    told = Fit("shift", fit.residual, fit.handicap, {"rows": shift})
    return Explanation(told, target.name, target.boundary, unmoved.residual)


def _best(x: Floats, y: Floats) -> Fit | None:
    return next((f for f in near_fits(x, y) if f.name in {"identity", "normed", "rms"}), None)


def _unlike(x: Floats, y: Floats) -> float:
    """What is left of a state behind the final norm when any norm of ``y`` is taken away: one factor and one summand per
    channel, of rows of one size. 0 where that is little, or the rows are too few to tell; 2 where nearly all factors are
    negative, as no norm's are."""
    a, b = usable(x, y)
    if len(a) < _FEWEST_ROWS or len(kinds(x, FEWEST_KINDS)) < FEWEST_KINDS:
        return 0.0
    made, judged = halves(len(a))
    with np.errstate(all="ignore"):
        left = [_left_over(a, size, made, judged) for size in (b / rms(b), _standard(b))]
    rest, negative = min(left)
    if not np.isfinite(rest):
        return 0.0
    if rest > _UNLIKE:
        return rest
    return 2.0 if negative > _NEGATIVE else 0.0


def _standard(rows: Doubles) -> Doubles:
    centred: Doubles = rows - rows.mean(1, keepdims=True)
    scaled: Doubles = centred / rms(centred)
    return scaled


def _left_over(x: Doubles, y: Doubles, made: np.ndarray, judged: np.ndarray) -> tuple[float, float]:
    """(what is left of the judged rows, share of channels with a negative factor)."""
    middle_x, middle_y = x[made].mean(0), y[made].mean(0)
    dx, dy = x[made] - middle_x, y[made] - middle_y
    factor = (dx * dy).sum(0) / np.maximum((dy * dy).sum(0), 1e-30)
    fitted = middle_x + factor * (y[judged] - middle_y)
    return residual(x[judged], fitted), float((factor < 0).mean())
