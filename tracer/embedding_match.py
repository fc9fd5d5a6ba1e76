"""How near stored rows lie to embedding rows, and how near they would if they were those, rounded to their number format.

A copy differs from the table by rounding only, and what rounding leaves is the format's business: 0.002 for bf16, 0.03
to 0.06 for 8-bit floats, and more where a row shares its scale with larger ones, so that small numbers lose all their
bits. A neighbouring boundary differs by what a layer adds, which is little where the embedding is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.tracer.rows import DType, Floats, Raw, to_float32, true_values

_MADE = 3 * 2.0**-9  # relative L2 that a product with a factor, both in bf16, may leave before a row is stored
_TIMES = 2.0  # what is cut off instead of rounded is off by twice as much
_COARSE = 0.25  # relative L2 of rounding beyond which every small state is near
_NEAR = 0.06  # relative L2 that an earlier format of 8 bits may have left
# Smallest exponent of a normal number.
_LEAST = {DType.FP8_E4M3: -6, DType.FP8_E5M2: -14, DType.FP16: -14}


@dataclass(frozen=True, eq=False)
class Match:
    """Medians over rows, relative to the size of the embedding. distance: relative L2; rounding: what storing the rows in
    their format leaves of it. values: the rows ``[n, H]`` that were held against the embedding."""

    distance: float
    rounding: float
    values: Floats
    dtype: DType

    @property
    def limit(self) -> float:
        """The relative L2 up to which rounding explains the difference."""
        return _MADE + _TIMES * self.rounding

    @property
    def is_told(self) -> bool:
        """Whether the rows are stored finely enough to tell anything."""
        return math.isfinite(self.distance) and self.rounding <= _COARSE

    @property
    def is_same(self) -> bool:
        return self.is_told and self.distance <= self.limit

    @property
    def is_open(self) -> bool:
        """Whether it may be the embedding all the same: rounded before it was stored, or stored too coarsely."""
        return not self.is_same and math.isfinite(self.distance) and self.distance <= max(_NEAR, self.limit)


def match(raw: Raw, dtype: DType, scale: Floats | None, expected: Floats) -> Match:
    """Stored rows ``[n, H]`` and their factors ``[n]``, as :meth:`Rows.take_raw` gives them, against the embedding's."""
    values = true_values(raw, dtype, scale)
    size = np.linalg.norm(expected, axis=-1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        distance = np.linalg.norm(values - expected, axis=-1) / size
        rounding = _rounding(raw, dtype, scale) / size
    known = (size > 0) & np.isfinite(distance) & np.isfinite(rounding)
    if not known.any():
        return Match(math.inf, math.inf, values, dtype)
    return Match(float(np.median(distance[known])), float(np.median(rounding[known])), values, dtype)


def _rounding(raw: Raw, dtype: DType, scale: Floats | None) -> Floats:
    """The length ``[n]`` of what rounding to the format took from every row: a twelfth of the square of a step each."""
    stored = to_float32(raw, dtype)
    exponent = np.maximum(np.frexp(stored)[1] - 1, _LEAST.get(dtype, -126))
    steps = np.ldexp(np.ones(stored.shape, np.float64), exponent - dtype.mantissa_bits)
    length: Floats = np.sqrt((steps**2).sum(-1) / 12).astype(np.float32)
    return length if scale is None else length * np.abs(scale)


def nearest(found: Sequence[Match | None]) -> list[bool]:
    """Which of several states are the embedding: of those that rounding alone takes from it the nearest, and copies of it.

    States of other values cannot all be one boundary, however near to each other they lie.
    """
    same = [each for each in found if each is not None and each.is_same]
    best = min(same, key=lambda each: each.distance, default=None)
    return [
        best is not None and each is not None and each.is_same and (each is best or _is_copy(each, best))
        for each in found
    ]


def _is_copy(one: Match, other: Match) -> bool:
    """Whether two states hold the same numbers, as far as their formats allow to say."""
    if one.dtype is not other.dtype or one.values.shape != other.values.shape:
        return True
    return np.array_equal(one.values, other.values, equal_nan=True)
