"""What one layer added to the residual stream, handed over in the stream's place: the residual was not added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from drafttrace.compare.facts import VALUE, Explanation, StreamFacts
from drafttrace.compare.hypotheses import Fit, plain_angle, residual_half
from drafttrace.compare.locate import distance
from drafttrace.compare.rounding import walk
from drafttrace.compare.sample import Sample, Stream
from drafttrace.compare.thresholds import REACHED
from drafttrace.tracer.rows import Floats

_ALONE = 0.5  # 1 - cosine with the increment, for a slot that has to prove it by itself
_AS_GOOD = 1.5
_CLEARLY = 0.8


def find_half(x: Floats, declared: int | None, sample: Sample, atlas: Sequence[Stream]) -> Explanation | None:
    """x as what one layer added to the stream, or as a state inside a layer; None where neither fits.

    Neighbouring layers add alike things: the declared boundary is taken where its layer fits about as well as the best.
    """
    for before, after, stream in _layers(sample, atlas):
        # Between two boundaries that are nearer to each other than rounding, everything stands.
        if distance(before, after).rel_l2 <= REACHED * walk(stream.boundary, stream):
            continue
        inside = _inside_layer(x, before, after)
        if inside is not None:
            return Explanation(inside, stream.name, stream.boundary, 0.0)
    fits = _fits(x, sample, atlas)
    if not fits:
        return None
    nearest = min(_known(plain_angle(x, sample.read(stream))) for stream in atlas)
    fit, stream = fits[0]
    if fit.residual > _ALONE or fit.residual > 0.6 * nearest:
        return None
    mine = [one for one in fits if one[1].boundary == declared and one[0].residual <= _AS_GOOD * fit.residual]
    fit, stream = mine[0] if mine else fits[0]
    return Explanation(fit, stream.name, stream.boundary, float(nearest))


def in_company(
    facts: Sequence[StreamFacts], streams: Sequence[Stream], sample: Sample, atlas: Sequence[Stream]
) -> tuple[StreamFacts, ...]:
    """The facts again, with slots explained as halves that only beside a slot which is one for certain are believed."""
    if not any(f.explanation is not None and f.explanation.fit.name == "residual-half" for f in facts):
        return tuple(facts)
    return tuple(_joined(f, s, sample, atlas) for f, s in zip(facts, streams, strict=True))


def _joined(fact: StreamFacts, stream: Stream, sample: Sample, atlas: Sequence[Stream]) -> StreamFacts:
    if fact.explanation is not None or fact.broken or fact.by == VALUE or stream.kind != "slot":
        return fact
    fits = _fits(sample.read(stream), sample, atlas)
    if len(fits) < 2 or fits[0][1].boundary != stream.boundary:
        return fact
    (fit, at), second = fits[0], fits[1][0]
    if fit.residual > _CLEARLY * second.residual:
        return fact
    return replace(
        fact, boundary=at.boundary, by=VALUE, explanation=Explanation(fit, at.name, at.boundary, second.residual)
    )


def _layers(sample: Sample, atlas: Sequence[Stream]) -> Iterator[tuple[Floats, Floats, Stream]]:
    """What enters and what leaves every layer that the atlas has both of, and the stream that leaves."""
    previous: tuple[int, Floats] | None = None
    for stream in atlas:
        rows = sample.read(stream)
        if stream.boundary is None:
            continue
        if previous is not None and stream.boundary == previous[0] + 1:
            yield previous[1], rows, stream
        previous = (stream.boundary, rows)


def _fits(x: Floats, sample: Sample, atlas: Sequence[Stream]) -> list[tuple[Fit, Stream]]:
    """x against what every layer added, the best first."""
    fits = [(residual_half(x, before, after), stream) for before, after, stream in _layers(sample, atlas)]
    return sorted((one for one in fits if np.isfinite(one[0].residual)), key=lambda one: one[0].residual)


def _inside_layer(x: Floats, before: Floats, after: Floats) -> Fit | None:
    """x stands between two boundaries: the attention half of a layer is in it, the MLP half is not."""
    whole = distance(before, after).rel_l2
    to_before, to_after = distance(x, before).rel_l2, distance(x, after).rel_l2
    if max(to_before, to_after) < 0.95 * whole and to_before**2 + to_after**2 < 1.3 * whole**2:
        return Fit("inside-layer", to_after, 2.0, {"to_before": to_before, "to_after": to_after, "layer": whole})
    return None


def _known(value: float) -> float:
    return value if np.isfinite(value) else np.inf
