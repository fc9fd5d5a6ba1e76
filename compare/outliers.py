"""Single rows that hold something else although their slot as a whole does not: the rule, and where it is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from drafttrace.compare.measure import Bools, Doubles, massive_rows
from drafttrace.compare.thresholds import Thresholds

if TYPE_CHECKING:
    from drafttrace.compare.result import Series


def ordinary(norm_left: Doubles, norm_reference: Doubles) -> Bools:
    """Rows that medians and verdicts are made from: finite, and massive on neither side."""
    broken = ~(np.isfinite(norm_left) & np.isfinite(norm_reference))
    keep: Bools = ~(broken | massive_rows(norm_left) | massive_rows(norm_reference))
    return keep if keep.any() else ~broken


def outliers(
    cosine: Doubles,
    trimmed: Doubles,
    rel_l2: Doubles,
    norm_left: Doubles,
    norm_reference: Doubles,
    thresholds: Thresholds,
) -> Bools:
    """Which rows hold something else, all arrays ``[n]``. A norm is 0 for a row of zeros, not finite for a broken one."""
    with np.errstate(invalid="ignore"):
        turned = (trimmed < thresholds.row_cosine) | (cosine < thresholds.row_cosine)
        far = turned & (rel_l2 > thresholds.row)
        far |= rel_l2 > max(thresholds.row, thresholds.row_far)  # a row times four has the right direction
        # Massive channels hide a wrong row from the plain distance, but not from the trimmed cosine.
        chord = np.sqrt(np.maximum(0.0, 2 - 2 * trimmed))
        plain = ordinary(norm_left, norm_reference)
        usual = chord[plain & np.isfinite(chord)]
        middle = float(np.median(usual)) if len(usual) else float("nan")
        far |= (trimmed < thresholds.row_hidden) & (chord > 5 * middle) & plain
    zero = (norm_left == 0) != (norm_reference == 0)
    broken = np.isfinite(norm_left) != np.isfinite(norm_reference)
    found: Bools = far | zero | broken
    return found


def outlier_positions(series: Series, thresholds: Thresholds) -> list[int]:
    """Positions of the outliers among the rows that a result keeps."""
    cosine, trimmed, rel_l2, left, reference = (
        np.array(getattr(series, name), np.float64)
        for name in ("cosine", "cosine_trimmed", "rel_l2", "norm_left", "norm_reference")
    )
    found = outliers(cosine, trimmed, rel_l2, left, reference, thresholds)
    return [int(p) for p, odd in zip(series.position, found, strict=True) if odd]
