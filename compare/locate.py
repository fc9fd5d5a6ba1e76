"""Which state a slot is: every slot against the other side's slots, and against measured boundaries.

Neighbouring boundaries are alike (cosine 0.85 to 0.99), so a boundary counts as found only by its margin to the
second best. Distances are medians over the sample's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from drafttrace.compare.kernels.native import Block
from drafttrace.compare.kernels.pairs import RowSums, cross_dots, row_sums
from drafttrace.compare.measure import massive_channels
from drafttrace.compare.rounding import FEWEST_KINDS, kinds, told_apart
from drafttrace.compare.sample import Sample, Stream
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Floats

SHIFTS = (-2, -1, 0, 1, 2)
_CLEARLY_UNMOVED = 0.3
_AT_ONCE = 16 << 20  # bytes of the columns that go into one product
_FAINT = 1e-20  # sums of squares below which products of float32 underflow
_NEAR = 0.05  # relative L2 or angle below which inner products cancel too much


@dataclass(frozen=True)
class Distance:
    """How far two sets of rows are apart: relative L2, cosine, and the angle without massive channels (a chord)."""

    rel_l2: float
    cosine: float
    angle: float


_NOTHING = Distance(*(float("nan"),) * 3)


@dataclass(frozen=True)
class Place:
    """Where one stream stands among the boundaries, by one distance.

    boundary: the best one. margin: second best over best. second: the second best boundary. found: by margin.
    """

    boundary: int
    distance: float
    margin: float
    second: int | None
    found: bool


@dataclass(frozen=True)
class Located:
    """One stream against every boundary of the atlas: ``by_value`` with relative L2, ``by_angle`` whatever the scale."""

    name: str
    by_value: Place
    by_angle: Place
    rel_l2: Mapping[int, float]
    cosine: Mapping[int, float]


def distance(x: Floats, y: Floats, massive: Ints | None = None) -> Distance:
    """Median distances between paired rows ``[m, H]``; rows that are not finite or zero on a side are left out."""
    return _of_sums(row_sums(x, y, massive))


def _of_sums(sums: RowSums) -> Distance:
    with np.errstate(all="ignore"):
        rel = np.sqrt(sums.dd / sums.yy)
        cosine = sums.xy / np.sqrt(sums.xx * sums.yy)
        trimmed = sums.trimmed_xy / np.sqrt(sums.trimmed_xx * sums.trimmed_yy)
        angle = np.sqrt(np.maximum(0.0, 2 - 2 * trimmed))
    return Distance(_median(rel), _median(cosine), _median(angle))


def _median(values: np.ndarray) -> float:
    """The median of what is finite. By sorting: of a sample's few rows np.median takes three times as long, and a matrix
    asks for thousands."""
    finite = np.sort(values[np.isfinite(values)])
    if not len(finite):
        return float("nan")
    return float(finite[(len(finite) - 1) // 2 : len(finite) // 2 + 1].mean())


def cross_distances(sample: Sample, rows: Sequence[Stream], columns: Sequence[Stream]) -> list[list[Distance]]:
    """Every row stream against every column stream, of equal width or not (NaN then).

    Columns go by in blocks: one matrix product per sampled row and block gives all inner products, from which the
    distances follow. Pairs that come out near are measured again, value by value: there the products would cancel.
    """
    held = [sample.stored(stream) for stream in rows]
    table: list[list[Distance]] = [[_NOTHING] * len(columns) for _ in rows]
    for others in _some_at_once(sample, columns):
        for width in {other.width for other in others.values()}:
            mine = [i for i, x in enumerate(held) if x.width == width]
            theirs = [k for k, other in others.items() if other.width == width]
            if not mine:
                continue
            found = _block_distances([held[i] for i in mine], [others[k] for k in theirs])
            for i, line in zip(mine, found, strict=True):
                for k, one in zip(theirs, line, strict=True):
                    table[i][k] = one
    return table


def _some_at_once(sample: Sample, columns: Sequence[Stream]) -> Iterator[dict[int, Block]]:
    """The columns by their numbers, a few megabytes at a time."""
    others: dict[int, Block] = {}
    size = 0
    for k, stream in enumerate(columns):
        others[k] = sample.stored(stream)
        size += others[k].raw.nbytes
        if size >= _AT_ONCE:
            yield others
            others, size = {}, 0
    if others:
        yield others


def _block_distances(xs: Sequence[Block], ys: Sequence[Block]) -> list[list[Distance]]:
    massive = [massive_channels(y) for y in ys]
    kept = [y.without(channels) for y, channels in zip(ys, massive, strict=True)]
    # Lengths by float64 sums: a distance is what is left when a product is taken from them, and keeps few of their digits.
    own_x = [row_sums(rows, rows).xx for rows in (x.floats() for x in xs)]
    own_y = [row_sums(rows, rows, m) for rows, m in zip((y.floats() for y in ys), massive, strict=True)]
    dots = cross_dots(xs, kept)
    table = []
    for i, x in enumerate(xs):
        line = []
        for k, y in enumerate(ys):
            part_x, part_y = (rows.columns(massive[k]).astype(np.float64) for rows in (x, y))
            with np.errstate(all="ignore"):
                xx, xy = own_x[i], dots[i, k] + (part_x * part_y).sum(1)
                dd = np.maximum(0.0, xx + own_y[k].yy - 2 * xy)
                trimmed_xx = xx - (part_x * part_x).sum(1)
            sums = RowSums(xx, own_y[k].yy, xy, dd, trimmed_xx, own_y[k].trimmed_yy, dots[i, k])
            one = _of_sums(sums)
            faint = bool((xx < _FAINT).any() or (sums.yy < _FAINT).any())
            near = faint or not (one.rel_l2 > _NEAR and one.angle > _NEAR)  # NaN, too
            line.append(distance(x.floats(), y.floats(), massive[k]) if near else one)
        table.append(line)
    return table


def best_place(distances: Mapping[int, float], ratio: float) -> Place | None:
    """The best boundary by a distance per boundary; found where it is below ``ratio`` times the second best."""
    known = sorted((d, k) for k, d in distances.items() if np.isfinite(d))
    if not known:
        return None
    best, boundary = known[0]
    if len(known) == 1:
        return Place(boundary, best, float("nan"), None, best < 0.1)
    second = known[1][0]
    margin = second / best if best > 0 else float("inf")
    return Place(boundary, best, min(margin, 1e6), known[1][1], best < ratio * second)


def locate(
    sample: Sample,
    streams: Sequence[Stream],
    atlas: Sequence[Stream],
    ratio: float,
    neighbours: Mapping[int, float],
) -> tuple[Located | None, ...]:
    """Every stream's place among the atlas' boundaries; None where nothing could be measured.

    A boundary is found only when it is also nearer than its own neighbours are to it: a state that the sweep lacks
    has a nearest boundary too. Nor is one whose neighbour is nearer than rounding leaves two runs.
    """
    table = cross_distances(sample, streams, atlas)
    found: list[Located | None] = []
    for stream, line in zip(streams, table, strict=True):
        by_boundary = {a.boundary: d for a, d in zip(atlas, line, strict=True) if a.boundary is not None}
        value = best_place({k: d.rel_l2 for k, d in by_boundary.items()}, ratio)
        angle = best_place({k: d.angle for k, d in by_boundary.items()}, ratio)
        if value is None or angle is None:
            found.append(None)
            continue
        step = neighbours.get(value.boundary)
        if value.distance >= (ratio * step if step is not None else 0.1):
            value = replace(value, found=False)
        different = len(kinds(sample.read(stream), FEWEST_KINDS))
        if step is not None and not told_apart(step, value.boundary, stream, atlas[0], different):
            value = replace(value, found=False)
        rel, cosine = ({k: getattr(d, what) for k, d in by_boundary.items()} for what in ("rel_l2", "cosine"))
        found.append(Located(stream.name, value, angle, rel, cosine))
    return tuple(found)


def neighbour_distances(sample: Sample, atlas: Sequence[Stream]) -> dict[int, float]:
    """Per boundary the relative L2 to the nearer of its neighbours k-1 and k+1 that the atlas holds."""
    step: dict[int, float] = {}
    previous: tuple[int, Floats] | None = None
    nearest: dict[int, float] = {}
    for stream in atlas:
        if stream.boundary is None:
            continue
        mine = sample.read(stream)
        if previous is not None and previous[0] == stream.boundary - 1:
            sums = row_sums(previous[1], mine)
            with np.errstate(all="ignore"):
                step[stream.boundary], back = (_median(np.sqrt(sums.dd / own)) for own in (sums.yy, sums.xx))
            nearest[previous[0]] = min(back, nearest.get(previous[0], np.inf))
            nearest[stream.boundary] = step[stream.boundary]
        previous = (stream.boundary, mine)
    return {k: float(d) for k, d in nearest.items() if np.isfinite(d)}


def shift_scores(sample: Sample, left: Sequence[Stream], reference: Sequence[Stream]) -> dict[int, float]:
    """Per row shift s: how well the reference rows moved by s are explained by some stream of the left side.

    The score is the mean over reference streams of the smallest centred angle: subtracting the mean row takes away
    what all tokens share. Where no angle fits at any shift (a rotation), inner products between rows decide.
    """
    mine = [_centred(sample.read(stream)) for stream in left]
    unmoved = {0: [_centred(sample.read(stream)) for stream in reference]}
    scores = _best_means(unmoved, mine, lambda x, y: distance(x, y).angle)
    if scores and scores[0] < _CLEARLY_UNMOVED:
        return scores
    others = {shift: [_centred(sample.read(stream, shift)) for stream in reference] for shift in SHIFTS}
    by_angle = _best_means(others, mine, lambda x, y: distance(x, y).angle)
    if not by_angle or min(by_angle.values()) < 0.9:
        return by_angle
    return _best_means(others, mine, gram_distance)


def _best_means(
    others: Mapping[int, Sequence[Floats]], mine: Sequence[Floats], measure: Callable[[Floats, Floats], float]
) -> dict[int, float]:
    scores = {}
    for shift, held in others.items():
        best = []
        for other in held:
            values = [measure(x, other) for x in mine if x.shape == other.shape]
            finite = [v for v in values if np.isfinite(v)]
            if finite:
                best.append(min(finite))
        if best:
            scores[shift] = float(np.mean(best))
    return scores


def gram_distance(x: Floats, y: Floats) -> float:
    """How much the inner products of unit rows differ between x and y; the same for every rotation of either."""
    good = np.isfinite(x).all(1) & np.isfinite(y).all(1) & x.any(1) & y.any(1)
    if good.sum() < 4:
        return float("nan")
    a, b = (rows[good].astype(np.float64) for rows in (x, y))
    a, b = a / np.linalg.norm(a, axis=1, keepdims=True), b / np.linalg.norm(b, axis=1, keepdims=True)
    return float(np.linalg.norm(a @ a.T - b @ b.T) / max(1e-12, float(np.linalg.norm(b @ b.T - np.eye(len(b))))))


def _centred(rows: Floats) -> Floats:
    finite = np.isfinite(rows).all(1)
    if finite.sum() < 2:
        return rows
    scaled: Floats = rows - rows[finite].mean(0, keepdims=True)
    return scaled


def choose_shift(scores: Mapping[int, float], ratio: float = 0.7) -> int:
    """The shift that fits clearly better than none, else 0."""
    if 0 not in scores:
        return 0
    best = min(scores, key=lambda s: (scores[s], abs(s)))
    return best if best != 0 and scores[best] < ratio * scores[0] else 0
