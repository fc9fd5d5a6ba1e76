"""Explanations that are tested by fitting, never by eye: ``x`` is what was found, ``y`` what it should come from.

Every fit is made on half of the sample's rows and judged on the other half, so that free parameters cannot explain
noise. ``residual`` is the median relative L2 that is left after the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.compare.rotations import agreeing, apart
from drafttrace.tracer.rows import Floats

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_AS_LARGE = 0.3
_ONE_SIZE = 0.02
_MOST_ROWS = 0.55
_ROUNDS, _FAR_OFF = 2, 4.0  # of fitting a gain, and the multiple of the usual rest from which a row is left out
_SAME_WAY = 0.8  # cosine of states that are turned nowhere
_FACTOR = 0.01  # a factor nearer to 1 is none
_SPREAD = (0.7, 5.0)  # standard deviation of the states' sizes, in powers of two
_MISREAD, _SECOND = 0.2, 0.1  # what misread bytes may leave by themselves, and with a second cause beside them


@dataclass(frozen=True)
class Fit:
    """One explanation of x by y: its name, what is left, its handicap (freedom), and what was fitted. then: a second one
    that holds beside it: x is y through that one first."""

    name: str
    residual: float
    handicap: float
    fitted: Mapping[str, Any] = field(default_factory=dict)
    then: Fit | None = None

    @property
    def score(self) -> float:
        """The residual with the handicap of the fit's freedom: smaller explains better."""
        return (self.residual + 1e-9) * self.handicap


def usable(x: Floats, y: Floats) -> tuple[Doubles, Doubles]:
    """The paired rows that are finite and not zero on both sides, as float64."""
    good = np.isfinite(x).all(1) & np.isfinite(y).all(1) & x.any(1) & y.any(1)
    return x[good].astype(np.float64), y[good].astype(np.float64)


@cache
def halves(count: int) -> tuple[Ints, Ints]:
    """The rows that a fit is made on, and those that it is judged on: drawn, always alike, so that no fault of every
    second row falls on one half alone. The second half is no smaller."""
    order = np.random.default_rng(0).permutation(count)
    made, judged = np.sort(order[: count // 2]), np.sort(order[count // 2 :])
    return made, judged


def residual(x: Doubles, y: Doubles) -> float:
    """Median over rows of |x - y| / |x|: how much of x the explanation y leaves over."""
    if len(x) == 0:
        return float("nan")
    with np.errstate(all="ignore"):
        rel = np.sqrt(_squares(x - y) / _squares(x))
    finite = rel[np.isfinite(rel)]
    return float(np.median(finite)) if len(finite) else float("nan")


def _dots(x: Doubles, y: Doubles) -> Doubles:
    """Inner products of paired rows, ``[m]``, without a product matrix in memory."""
    dots: Doubles = np.einsum("rh,rh->r", x, y)
    return dots


def _squares(rows: Doubles) -> Doubles:
    return _dots(rows, rows)


def rms(rows: Doubles) -> Doubles:
    """Root mean square of every row, ``[m, 1]``."""
    value: Doubles = np.sqrt(_squares(rows) / max(1, rows.shape[1]))[:, None]
    return value


def identity(x: Doubles, y: Doubles) -> Fit:
    """x is y."""
    return Fit("identity", residual(x, y), 1.0)


def scalar(x: Doubles, y: Doubles) -> Fit:
    """x is y times one number (sqrt(H) at the embedding, muP multipliers)."""
    with np.errstate(all="ignore"):
        factors = _dots(x, y) / _squares(y)
    made, judged = halves(len(x))
    factor = float(np.median(factors[made])) if len(made) else float("nan")
    return Fit("scalar", residual(x[judged], factor * y[judged]), 1.3, _factor(factor, x.shape[1]))


def _factor(factor: float, width: int) -> dict[str, float]:
    return {"factor": factor, "factor_over_sqrt_h": factor / float(np.sqrt(width))}


def rms_normed(x: Doubles, y: Doubles) -> Fit:
    """x is y divided by its root mean square, times one number: an RMS norm with a flat weight. No fit where all rows have
    one size: there it is that number alone."""
    if _alike(rms(y)):
        return Fit("rms", float("nan"), 1.6)
    return _renamed(scalar(x, y / rms(y)), "rms", 1.6)


def zeroed(x: Doubles, y: Doubles) -> Fit | None:
    """x is y with some channels that are 0 in every row of x alone; None where no channel is."""
    if len(x) < 4:
        return None
    ours, theirs = x.any(0), y.any(0)
    gone = ~ours & theirs
    size = np.abs(y)
    # A coarse number format makes zeros of small channels beside massive ones: those are no missing ones.
    if not gone.any() or not np.median(size[:, gone]) > _AS_LARGE * np.median(size[:, ours | ~theirs]):
        return None
    return Fit("zeroed", residual(x, np.where(gone, 0.0, y)), 1.2, {"channels": np.flatnonzero(gone)})


def gain(x: Doubles, y: Doubles) -> Fit:
    """x is y times one factor per channel."""
    made, judged = halves(len(x))
    weight = _fit_gain(x[made], y[made])
    return Fit("gain", residual(x[judged], weight * y[judged]), 2.5, {"gain": weight})


def normed(x: Doubles, y: Doubles) -> Fit:
    """x is RMSNorm(y) with a weight per channel. No fit where all rows of y have one size."""
    if _alike(rms(y)):
        return Fit("normed", float("nan"), 2.5)
    return _renamed(gain(x, y / rms(y)), "normed", 2.5)


def un_normed(x: Doubles, y: Doubles) -> Fit:
    """y is RMSNorm(x) with a weight per channel: x lacks the norm. Judged on y, which is all the fit can give. No fit where
    all rows of x have one size."""
    if _alike(rms(x)):
        return Fit("un-normed", float("nan"), 2.5)
    return _renamed(gain(y, x / rms(x)), "un-normed", 2.5)


def rotated(x: Doubles, y: Doubles) -> Fit:
    """x is y under one orthogonal map: norms and all inner products between rows are kept, though the rows are not.

    No map needs to be fitted: the Gram matrices of the unit rows agree exactly when one exists (see
    :mod:`~drafttrace.compare.rotations`). Where all norms are changed by one number, or made alike, that is a second fit.
    """
    if len(x) < 4:
        return Fit("rotation", float("nan"), 3.0)
    good = agreeing(x, y)
    x, y = x[good], y[good]
    cosine = _dots(x, y) / np.sqrt(_squares(x) * _squares(y))
    if np.median(np.abs(cosine)) > _SAME_WAY:
        return Fit("rotation", float("nan"), 3.0)
    ratio = np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    factor = float(np.median(ratio))
    stretch, then, before = float(np.median(np.abs(ratio - 1))), None, y
    if _of_one_size(rms(x)) and not _of_one_size(rms(y)):
        size = float(np.median(rms(x)))
        stretch, then, before = 0.0, Fit("rms", 0.0, 1.6, _factor(size, x.shape[1])), size * y / rms(y)
    elif stretch > _FACTOR:
        stretch = float(np.median(np.abs(ratio / factor - 1)))
        then, before = Fit("scalar", stretch, 1.3, _factor(factor, x.shape[1])), factor * y
    sorted_channels = residual(np.sort(x, axis=1), np.sort(before, axis=1))
    fitted = {"norms_differ_by": stretch, "channels_permuted": sorted_channels < 0.05}
    return Fit("rotation", max(apart(x, y), stretch), 3.0, fitted, then)


def bytes_reread(x: Doubles, y: Doubles) -> Fit:
    """x is y with its bf16 bytes read as fp16, or its fp16 bytes read as bf16; the better of the two."""
    # Each side is the other one misread: the one that looks like no state is.
    handicap = 6.0 if is_plausible(x) else 2.0
    as_fp16 = restored(x, "fp16")
    as_bf16 = restored(x, "bf16")
    options = [
        Fit("bytes", _restored_residual(as_fp16, y), handicap, {"read_as": "fp16", "stored_as": "bf16"}),
        Fit("bytes", _restored_residual(as_bf16, y), handicap, {"read_as": "bf16", "stored_as": "fp16"}),
    ]
    best = min(options, key=_left_over)
    if _left_over(best) < _MISREAD:
        return best
    twice = [
        one for one in (_and_more(as_fp16, y, options[0]), _and_more(as_bf16, y, options[1])) if one is not None
    ]
    return min([best, *twice], key=_left_over)


def _left_over(fit: Fit) -> float:
    return fit.residual if np.isfinite(fit.residual) else np.inf


def is_plausible(back: Doubles) -> bool:
    """Whether values spread over powers of two as states do: misread bytes spread over far more, so that one channel is all
    that a distance sees, or over hardly any. One row throughout is no state, either."""
    if len(back) > 1 and (back == back[:1]).all():
        return False
    sizes = np.log2(np.abs(back[np.isfinite(back) & (back != 0)]))
    return bool(len(sizes)) and _SPREAD[0] < float(np.std(sizes)) < _SPREAD[1]


def _and_more(back: Floats, y: Doubles, plain: Fit) -> Fit | None:
    """Misread bytes of a state that is y only through another fit."""
    a, b = usable(back, y.astype(np.float32))
    if len(a) < 8 or not is_plausible(a):
        return None
    for fits in ((scalar, rms_normed, gain, normed), (rotated,)):
        best = min((fit(a, b) for fit in fits), key=lambda f: _left_over(f) * f.handicap)
        if best.residual < _SECOND:
            return Fit(plain.name, best.residual, plain.handicap * best.handicap, plain.fitted, best)
    return None


# Fits that keep the direction of most rows near y's, and those that do not: they need not be tried on an x that is
# near some state already.
NEAR: tuple[Callable[[Doubles, Doubles], Fit], ...] = (identity, scalar, rms_normed, gain, normed, un_normed)
FAR: tuple[Callable[[Doubles, Doubles], Fit], ...] = (rotated, bytes_reread)
PER_CHANNEL = frozenset({"gain", "normed", "un-normed"})
"""Names of the fits that find one factor per channel."""


def explain(x: Floats, y: Floats) -> tuple[Fit, ...]:
    """Every fit of x by y, the best explanation first; empty where fewer than 4 rows can be used."""
    return _sorted([*near_fits(x, y), *far_fits(x, y)])


def near_fits(x: Floats, y: Floats) -> tuple[Fit, ...]:
    """As :func:`explain`, with the fits of :data:`NEAR` alone."""
    left, right = usable(x, y)
    if len(left) < 4:
        return ()
    masked = zeroed(left, right)
    return _sorted([*(fit(left, right) for fit in NEAR), *([masked] if masked is not None else [])])


def far_fits(x: Floats, y: Floats) -> tuple[Fit, ...]:
    """As :func:`explain`, with the fits of :data:`FAR` alone."""
    left, right = usable(x, y)
    if len(left) >= 4:
        return _sorted([fit(left, right) for fit in FAR])
    # misread bytes may be NaN everywhere
    return _sorted([bytes_reread(x.astype(np.float64), y.astype(np.float64))] if len(x) >= 4 else [])


def _sorted(fits: Sequence[Fit]) -> tuple[Fit, ...]:
    return tuple(sorted((f for f in fits if np.isfinite(f.residual)), key=lambda f: f.score))


def residual_half(x: Floats, before: Floats, after: Floats) -> Fit:
    """x is what layer k-1 added, B(k) - B(k-1), or its MLP's part of that: the residual was not added.

    before / after: B(k-1) and B(k). ``residual`` is 1 - cosine of x with the increment, of which the MLP is a part;
    the fit is meant to be compared with :func:`plain_angle` of x against both boundaries.
    """
    x64, increment = usable(x, (after - before).astype(np.float32))
    if len(x64) < 4:
        return Fit("residual-half", float("nan"), 1.0)
    with np.errstate(all="ignore"):
        sizes = np.sqrt(_squares(x64)), np.sqrt(_squares(increment))
        cosine, ratio = _dots(x64, increment) / (sizes[0] * sizes[1]), sizes[0] / sizes[1]
    return Fit("residual-half", 1 - float(np.median(cosine)), 1.0, {"norm_ratio": float(np.median(ratio))})


def plain_angle(x: Floats, y: Floats) -> float:
    """1 - median cosine of x and y."""
    a, b = usable(x, y)
    if len(a) == 0:
        return float("nan")
    cosine = _dots(a, b) / np.sqrt(_squares(a) * _squares(b))
    return 1 - float(np.median(cosine))


def describe_gain(weight: Doubles) -> dict[str, float]:
    """What reports print of a fitted gain: its median, spread and extremes."""
    low, middle, high = (float(p) for p in np.percentile(weight, (5, 50, 95)))
    return {"median": middle, "p05": low, "p95": high, "std": float(np.std(weight))}


def _alike(sizes: Doubles) -> bool:
    """Whether all rows have one size, so that dividing by it is nothing that could be seen."""
    low, middle, high = np.percentile(sizes, (5, 50, 95)) if len(sizes) else (0.0, 0.0, 0.0)
    return bool(high - low < _ONE_SIZE * middle)


def _of_one_size(sizes: Doubles) -> bool:
    """Whether most rows have one size, whatever the others are."""
    return bool((np.abs(sizes / np.median(sizes) - 1) < _ONE_SIZE / 2).mean() > _MOST_ROWS)


def _fit_gain(x: Doubles, y: Doubles) -> Doubles:
    """One factor per channel, fitted again without the rows that the first one leaves most of: something else is wrong
    with those, too."""
    weight, left = _refined(x, y, _least_squares(x, y))
    if left > _SECOND:
        with np.errstate(all="ignore"):
            middle = np.median(x / np.where(y != 0, y, np.inf), axis=0)
        other, less = _refined(x, y, np.nan_to_num(middle))
        weight = other if less < left else weight
    return weight


def _refined(x: Doubles, y: Doubles, weight: Doubles) -> tuple[Doubles, float]:
    """A gain fitted to the rows that it explains best, and what it leaves of the middle one of all rows."""
    left = _rests(x, weight * y)
    for _ in range(_ROUNDS):
        good = left <= _FAR_OFF * np.median(left)
        if good.all() or good.sum() < 4:
            break
        weight = _least_squares(x[good], y[good])
        left = _rests(x, weight * y)
    return weight, float(np.median(left)) if len(left) else float("nan")


def _rests(x: Doubles, y: Doubles) -> Doubles:
    """|x - y| / |x| row by row."""
    rests: Doubles = np.sqrt(_squares(x - y) / np.maximum(_squares(x), 1e-300))
    return rests


def _least_squares(x: Doubles, y: Doubles) -> Doubles:
    weighted = y / np.maximum(_squares(y), 1e-30)[:, None]
    top, bottom = np.einsum("rh,rh->h", weighted, x), np.einsum("rh,rh->h", weighted, y)
    weight: Doubles = np.where(bottom > 0, top / np.maximum(bottom, 1e-300), 0.0)
    return weight


def _renamed(fit: Fit, name: str, handicap: float) -> Fit:
    return Fit(name, fit.residual, handicap, fit.fitted)


def restored(x: Doubles, read_as: str) -> Floats:
    """The values that x's bytes mean in the other 16-bit format, if x was read as ``read_as``."""
    with np.errstate(all="ignore"):
        if read_as == "fp16":
            bits = x.astype(np.float16).view(np.uint16).astype(np.uint32)
            return (bits << 16).view(np.float32)
        bits32 = x.astype(np.float32).view(np.uint32)
        rounded = ((bits32 + 0x7FFF + ((bits32 >> 16) & 1)) >> 16).astype(np.uint16)
        return rounded.view(np.float16).astype(np.float32)


def _restored_residual(back: Floats, y: Doubles) -> float:
    """Median over rows, on the channels that came back finite; NaN where most did not."""
    good = np.isfinite(back) & np.isfinite(y)
    if good.mean() < 0.5:
        return float("nan")
    a, b = np.where(good, back, 0).astype(np.float64), np.where(good, y, 0)
    return residual(b, a)
