"""What every slot of one side is: a boundary by value, a known function of one, or only what its file declares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drafttrace.compare.facts import DECLARED, VALUE, Explanation, StreamFacts
from drafttrace.compare.halves import find_half, in_company
from drafttrace.compare.hypotheses import (
    Fit,
    bytes_reread,
    far_fits,
    identity,
    near_fits,
    residual,
    scalar,
    usable,
    zeroed,
)
from drafttrace.compare.locate import Located, distance
from drafttrace.compare.measure import massive_channels
from drafttrace.compare.rounding import FEWEST_KINDS, kinds
from drafttrace.compare.sample import Sample, Stream
from drafttrace.compare.thresholds import Thresholds
from drafttrace.tracer.rows import Floats

_LARGE, _LEAVES = float(np.log(1.5)), 0.05  # a factor that no rounding makes of one row, and what it may leave
_LIMIT = {"rotation": 0.15, "bytes": 0.2}
_MOST_LEFT = 0.12
_MOST_CANDIDATES = 12
_SAME = 0.01  # relative L2 that any two bf16 kernels may differ by
_NEAR = 0.25
_ROTATED = 0.6


def stream_facts(
    streams: Sequence[Stream],
    located: Sequence[Located | None],
    sample: Sample,
    atlas: Sequence[Stream],
    others: Sequence[Stream],
    thresholds: Thresholds,
) -> tuple[StreamFacts, ...]:
    """The facts about each stream. located: its place among ``atlas`` (Nones without one). others: the other side."""
    found = [
        _facts(stream, place, sample, atlas, others, thresholds)
        for stream, place in zip(streams, located, strict=True)
    ]
    return in_company(found, streams, sample, atlas)


def _facts(
    stream: Stream,
    located: Located | None,
    sample: Sample,
    atlas: Sequence[Stream],
    others: Sequence[Stream],
    thresholds: Thresholds,
) -> StreamFacts:
    def made(
        boundary: int | None, by: str | None, explanation: Explanation | None = None, broken: bool = False
    ) -> StreamFacts:
        return StreamFacts(
            stream.side, stream.slot, stream.name, stream.boundary, boundary, by, located, explanation, broken
        )

    declared: tuple[int | None, str | None] = (stream.boundary, DECLARED if stream.boundary is not None else None)
    if located is not None and located.by_value.found and located.by_value.distance < 0.35:
        scaled = _scaled(stream, sample, atlas, located.by_value.boundary, thresholds)
        return made(located.by_value.boundary, VALUE, scaled)
    x = sample.read(stream)
    whole = np.isfinite(x).all(1) & x.any(1)
    broken = whole.mean() < 0.5 if len(x) else True
    explanation = _explanation(x, sample, _candidates(located, atlas, others), thresholds, bool(broken))
    if explanation is None and located is not None and not broken and len(kinds(x)) >= FEWEST_KINDS:
        explanation = find_half(x, stream.boundary, sample, atlas)
    if explanation is not None and explanation.boundary is not None:
        return made(explanation.boundary, VALUE, explanation, bool(broken))
    return made(declared[0], declared[1], explanation, bool(broken))


def _scaled(
    stream: Stream, sample: Sample, atlas: Sequence[Stream], boundary: int, thresholds: Thresholds
) -> Explanation | None:
    """A factor on a slot that stands where it should: a few percent stay below every limit of the distance."""
    target = next(a for a in atlas if a.boundary == boundary)
    return scale_only(sample.read(stream), sample.read(target), target.name, boundary, thresholds)


def scale_only(x: Floats, y: Floats, name: str, boundary: int | None, thresholds: Thresholds) -> Explanation | None:
    """A scalar fit, or channels of zeros, that take away most of a small distance, else None."""
    some = kinds(x)
    a, b = usable(x[some], y[some])
    if len(a) < FEWEST_KINDS:
        return None
    plain, scaled = identity(a, b), scalar(a, b)
    if not np.isfinite(plain.residual):
        return None
    if abs(scaled.fitted["factor"] - 1) > thresholds.scale and scaled.residual < min(
        0.5 * plain.residual, _MOST_LEFT
    ):
        return Explanation(scaled, name, boundary, plain.residual)
    masked = zeroed(a, b)
    if masked is not None and masked.residual < min(0.5 * plain.residual, _MOST_LEFT):
        return Explanation(masked, name, boundary, plain.residual)
    return None


def _candidates(located: Located | None, atlas: Sequence[Stream], others: Sequence[Stream]) -> list[Stream]:
    """The states to explain a stream by: the boundaries at the smallest angle first, then the other side's states."""
    by_angle = sorted(located.cosine, key=lambda k: -_known(located.cosine[k])) if located is not None else []
    near = set(by_angle[:_MOST_CANDIDATES])
    if located is None or (located.cosine and max(map(_known, located.cosine.values())) < 0.5):
        near = {a.boundary for a in atlas if a.boundary is not None}  # a rotation or misread bytes leave no angle
    return [a for a in atlas if a.boundary in near] + list(others)


def _known(value: float) -> float:
    return value if np.isfinite(value) else -2.0


def _stands_there(x: Floats, candidates: Sequence[Floats]) -> bool:
    """Whether some candidate is so near that nothing is left to explain."""
    return any(y.shape == x.shape and distance(x, y).rel_l2 < _SAME for y in candidates)


def _explanation(
    x: Floats, sample: Sample, candidates: Sequence[Stream], thresholds: Thresholds, broken: bool
) -> Explanation | None:
    if not broken and _stands_there(x, [sample.read(stream) for stream in candidates]):
        return None
    some = kinds(x)
    if len(some) < FEWEST_KINDS:
        return _of_one_row(x, sample, candidates)
    chosen = some if not broken else np.arange(len(x))
    x = x[chosen]
    found: list[tuple[float, Stream, Fit]] = []
    plain = np.inf
    for fits in (near_fits, far_fits):
        for stream in candidates:
            y = sample.read(stream)[chosen]
            if y.shape != x.shape:
                continue
            for fit in fits(x, y):
                if fit.name == "identity":
                    plain = min(plain, fit.residual)
                elif fit.residual < _LIMIT.get(fit.name, _MOST_LEFT) and (not broken or fit.name == "bytes"):
                    found.append((fit.score, stream, fit))
        # Neither a rotation nor misread bytes leave a state near where it was, or a simple function of it.
        if (plain < _NEAR or found) and not broken:
            break
    if not found:
        return None
    _, stream, fit = min(found, key=lambda one: one[0])
    if fit.name == "rotation" and plain < _ROTATED:
        return None
    if fit.name == "scalar" and abs(fit.fitted["factor"] - 1) <= thresholds.scale:
        return None
    if not broken and fit.score > 0.7 * plain:
        return None
    return Explanation(fit, stream.name, stream.boundary, float(plain))


def _of_one_row(x: Floats, sample: Sample, candidates: Sequence[Stream]) -> Explanation | None:
    """Rows that are one and the same, or two or three: any gain and any turn leads from one row to another. What is left is
    a factor too large for rounding that holds in the other channels than the massive ones too, and misread bytes."""
    massive = massive_channels(x)
    found: list[tuple[Fit, Stream]] = []
    for stream in candidates:
        y = sample.read(stream)
        if y.shape != x.shape:
            continue
        a, b = usable(*(np.delete(rows, massive, axis=1) for rows in (x, y)))
        fits = [bytes_reread(x.astype(np.float64), y.astype(np.float64))] if len(x) >= 4 else []
        if len(a) >= 4 and abs(np.log(max(1e-12, abs((one := scalar(a, b)).fitted["factor"])))) > _LARGE:
            fits.append(one)
        found += [(fit, stream) for fit in fits if fit.residual < min(_LEAVES, _LIMIT.get(fit.name, _MOST_LEFT))]
    if not found:
        return None
    fit, stream = min(found, key=lambda one: one[0].score)
    return Explanation(fit, stream.name, stream.boundary, residual(*usable(x, sample.read(stream))))
