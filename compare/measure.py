"""Distances between paired rows, read in blocks. Float32 rows in, float64 sums, one number per row out.

:func:`measure_rows` is the seam behind which a faster kernel may stand; :func:`measure_block` is its plain definition.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from drafttrace.compare.result import Stats
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Floats, Rows

Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
BLOCK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class RowMeasures:
    """One value per paired row, ``[n]`` each.

    cosine, cosine_trimmed (without the massive channels), norm_left, norm_reference, rel_l2
    (|left - reference| / |reference|), max_abs, ulp (median over channels of the distance in bf16 steps),
    nan_left, nan_reference (any channel not finite), zero_left, zero_reference, flat_left, flat_reference
    (every channel the same value). A row with a zero or non-finite side has NaN where no value is meant.
    """

    cosine: Doubles
    cosine_trimmed: Doubles
    norm_left: Doubles
    norm_reference: Doubles
    rel_l2: Doubles
    max_abs: Doubles
    ulp: Doubles
    nan_left: Bools
    nan_reference: Bools
    zero_left: Bools
    zero_reference: Bools
    flat_left: Bools
    flat_reference: Bools

    def __len__(self) -> int:
        return len(self.cosine)

    @property
    def norm_ratio(self) -> Doubles:
        """norm_left / norm_reference per row."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio: Doubles = self.norm_left / self.norm_reference
        return ratio

    def at(self, keep: Bools | Ints) -> RowMeasures:
        """The measures of some of the rows."""
        return RowMeasures(*(getattr(self, f.name)[keep] for f in fields(self)))


def measure_rows(
    left: Rows, left_index: Ints, right: Rows, right_index: Ints, massive: Ints | None = None
) -> RowMeasures:
    """Measure row ``left_index[i]`` of ``left`` against row ``right_index[i]`` of ``right``, for all i.

    massive: channels that ``cosine_trimmed`` leaves out. Widths must agree. Memory stays at a few blocks.
    """
    if left.width != right.width:
        raise ValueError(f"rows of width {left.width} and {right.width}")
    step = max(16, BLOCK_BYTES // (4 * max(1, left.width)))
    count = len(left_index)
    parts = [
        measure_block(left.take(left_index[a : a + step]), right.take(right_index[a : a + step]), massive)
        for a in range(0, max(1, count), step)
    ]
    return RowMeasures(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(RowMeasures)))


def measure_block(left: Floats, right: Floats, massive: Ints | None = None) -> RowMeasures:
    """The measures of one block, both sides ``[n, H]`` float32."""
    finite_left: Bools = np.asarray(np.isfinite(left).all(1))
    finite_right: Bools = np.asarray(np.isfinite(right).all(1))
    any_left: Bools = np.asarray(left.any(1))
    any_right: Bools = np.asarray(right.any(1))
    x, y = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(all="ignore"):
        difference = x - y
        norm_left, norm_right = np.sqrt((x * x).sum(1)), np.sqrt((y * y).sum(1))
        cosine = (x * y).sum(1) / (norm_left * norm_right)
        rel = np.sqrt((difference * difference).sum(1)) / norm_right
        trimmed = cosine if massive is None or len(massive) == 0 else _trimmed_cosine(x, y, massive)
        max_abs = np.abs(difference).max(1, initial=0.0)
        ulp = np.median(_bf16_steps(left, right), axis=1) if left.size else np.zeros(len(left))
    bad = ~(finite_left & finite_right)
    for values in (cosine, rel, max_abs, ulp):
        values[bad] = np.nan
    if trimmed is not cosine:
        trimmed[bad] = np.nan
    return RowMeasures(
        cosine=cosine,
        cosine_trimmed=trimmed.copy(),
        norm_left=norm_left,
        norm_reference=norm_right,
        rel_l2=rel,
        max_abs=max_abs,
        ulp=ulp,
        nan_left=~finite_left,
        nan_reference=~finite_right,
        zero_left=~any_left,
        zero_reference=~any_right,
        flat_left=_flat(left),
        flat_reference=_flat(right),
    )


def _trimmed_cosine(x: Doubles, y: Doubles, massive: Ints) -> Doubles:
    keep = np.ones(x.shape[1], np.bool_)
    keep[massive] = False
    x, y = x[:, keep], y[:, keep]
    cosine: Doubles = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return cosine


def _flat(rows: Floats) -> Bools:
    """Rows whose channels all hold one non-zero value."""
    flat: Bools = (rows == rows[:, :1]).all(1) & rows.any(1)
    return flat


def _bf16_steps(left: Floats, right: Floats) -> Doubles:
    """|left - right| in bf16 steps of the reference's magnitude: how many representable values lie between."""
    exponent = np.frexp(np.maximum(np.abs(right), np.float32(1e-38)))[1]
    steps: Doubles = np.abs(left.astype(np.float64) - right) / np.ldexp(1.0, exponent - 8)
    return steps


def massive_channels(rows: Floats, factor: float = 12.0) -> Ints:
    """Channels whose typical magnitude is far beyond the others': the ones that make unrelated rows look alike.

    rows: a sample ``[m, H]`` without massive rows. At most H/16 channels (but up to 8), the largest first.
    """
    if rows.shape[0] == 0 or rows.shape[1] < 8:
        return np.empty(0, np.int64)
    level = np.median(np.abs(np.nan_to_num(rows, posinf=0, neginf=0)), axis=0)
    typical = float(np.median(level))
    order = np.argsort(-level)[: max(min(8, rows.shape[1] // 8), rows.shape[1] // 16)]
    return np.sort(order[level[order] > factor * typical]).astype(np.int64) if typical > 0 else order[:0]


def massive_rows(norms: Doubles, factor: float = 8.0) -> Bools:
    """Rows whose norm is far beyond the median row's; row 0 of real models is one."""
    finite = norms[np.isfinite(norms) & (norms > 0)]
    if len(finite) == 0:
        return np.zeros(len(norms), np.bool_)
    massive: Bools = norms > factor * float(np.median(finite))
    return massive


def stats(values: Doubles) -> Stats:
    """Mean, extremes and percentiles of the finite values; all NaN where there are none."""
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return Stats(*(float("nan"),) * 6)
    low, middle, high = (float(p) for p in np.percentile(finite, (1, 50, 99)))
    return Stats(float(finite.mean()), float(finite.min()), low, middle, high, float(finite.max()))


def median(values: Doubles) -> float:
    """The median of the finite values, NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def duplicate_rows(rows: Rows, index: Ints, token_id: Ints) -> int:
    """Rows that repeat, bit for bit, the row before them although their tokens differ. ``token_id``: one per row."""
    count = 0
    step = max(16, BLOCK_BYTES // (4 * max(1, rows.width)))
    for start in range(0, len(index) - 1, step):
        stop = min(start + step + 1, len(index))  # one row more: the next block's first row has a row before it too
        bits = rows.take(index[start:stop]).view(np.uint32)
        same = (bits[1:] == bits[:-1]).all(1) & (bits[1:] != 0).any(1)
        count += int((same & (token_id[start + 1 : stop] != token_id[start : stop - 1])).sum())
    return count
