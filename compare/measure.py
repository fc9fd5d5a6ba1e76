"""Distances between paired rows, read in blocks: stored rows in, one number per row out.

:func:`measure_block` is the plain definition of every number, in float64. Where the compiled kernel was built
(:mod:`drafttrace.compare.kernels`), :func:`measure_rows` uses that, which reads the stored values once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from drafttrace.compare.kernels import blocks, native
from drafttrace.compare.kernels.hashes import Hashes
from drafttrace.compare.result import Stats
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import DType, Floats, Raw, Rows, to_float32

Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
BLOCK_BYTES = 32 * 2**20
_AT_ONCE = 1 << 14  # rows whose sums are kept until they have become measures
_NO_CHANNELS = np.empty(0, np.int64)
_YES_OR_NO = ("nan_", "zero_", "flat_")


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

    @staticmethod
    def empty(count: int) -> RowMeasures:
        """Room for the measures of ``count`` rows."""
        kinds = (np.bool_ if field.name.startswith(_YES_OR_NO) else np.float64 for field in fields(RowMeasures))
        return RowMeasures(*(np.empty(count, kind) for kind in kinds))

    def exchanged(self) -> RowMeasures:
        """The same with the sides in each other's place; distances stay relative to what they were."""
        sides = ("norm", "nan", "zero", "flat")
        ours = {f"{one}_left": getattr(self, f"{one}_reference") for one in sides}
        theirs = {f"{one}_reference": getattr(self, f"{one}_left") for one in sides}
        return replace(self, **ours, **theirs)

    def put(self, part: slice, measures: RowMeasures) -> None:
        """Write the measures of some of the rows."""
        for field in fields(self):
            getattr(self, field.name)[part] = getattr(measures, field.name)

    @property
    def norm_ratio(self) -> Doubles:
        """norm_left / norm_reference per row."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio: Doubles = self.norm_left / self.norm_reference
        return ratio


def measure_rows(
    left: Rows, left_index: Ints, right: Rows, right_index: Ints, massive: Ints | None = None
) -> RowMeasures:
    """Measure row ``left_index[i]`` of ``left`` against row ``right_index[i]`` of ``right``, for all i.

    massive: channels that ``cosine_trimmed`` leaves out. Widths must agree. Memory stays at a few blocks.
    """
    return measure_many([(left, right, massive)], left_index, right_index)[0]


def measure_many(
    slots: Sequence[tuple[Rows, Rows, Ints | None]], left_index: Ints, right_index: Ints
) -> tuple[RowMeasures, ...]:
    """:func:`measure_rows` for several slots of the same rows, which usually lie side by side in their files: every
    block of rows is measured for all slots before the next one is read. slots: (left, right, massive) each."""
    for left, right, _massive in slots:
        if left.width != right.width:
            raise ValueError(f"rows of width {left.width} and {right.width}")
    if native.available() and len(left_index) and all(left.width for left, _right, _massive in slots):
        jobs = [blocks.Slot(a, b, _NO_CHANNELS if massive is None else massive) for a, b, massive in slots]
        made = tuple(RowMeasures.empty(len(left_index)) for _ in jobs)
        for start in range(0, len(left_index), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            outputs = blocks.measure(jobs, left_index[part], right_index[part], BLOCK_BYTES // 8)
            for whole, output, job in zip(made, outputs, jobs, strict=True):
                whole.put(part, _of_output(output, job.massive))
        return made
    return tuple(_measure_plainly(a, left_index, b, right_index, massive) for a, b, massive in slots)


def _measure_plainly(
    left: Rows, left_index: Ints, right: Rows, right_index: Ints, massive: Ints | None
) -> RowMeasures:
    step = max(16, BLOCK_BYTES // (4 * max(1, left.width)))
    parts = []
    for start in range(0, max(1, len(left_index)), step):
        ours, theirs = left_index[start : start + step], right_index[start : start + step]
        parts.append(measure_block(left.take(ours), right.take(theirs), massive))
    return RowMeasures(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(RowMeasures)))


def measure_block(left: Floats, right: Floats, massive: Ints | None = None) -> RowMeasures:
    """The measures of one block, both sides ``[n, H]`` float32."""
    with np.errstate(all="ignore"):
        finite_left: Bools = np.asarray(np.isfinite(left).all(1))
        finite_right: Bools = np.asarray(np.isfinite(right).all(1))
        any_left: Bools = np.asarray(left.any(1))
        any_right: Bools = np.asarray(right.any(1))
        x, y = left.astype(np.float64), right.astype(np.float64)
        difference = x - y
        norm_left, norm_right = np.sqrt((x * x).sum(1)), np.sqrt((y * y).sum(1))
        cosine = (x * y).sum(1) / (norm_left * norm_right)
        rel = np.sqrt((difference * difference).sum(1)) / norm_right
        trimmed = cosine.copy() if massive is None or len(massive) == 0 else _trimmed_cosine(x, y, massive)
        max_abs = np.abs(difference).max(1, initial=0.0)
        ulp = np.median(_bf16_steps(left, right), axis=1) if left.size else np.zeros(len(left))
    for values in (cosine, trimmed, rel, max_abs, ulp):
        values[~(finite_left & finite_right)] = np.nan
    return RowMeasures(
        cosine=cosine,
        cosine_trimmed=trimmed,
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


def _of_output(out: native.Output, massive: Ints) -> RowMeasures:
    """What the kernel's sums say."""
    column = {name: out.sums[:, i] for i, name in enumerate(native.COLUMNS)}

    def flag(bit: int) -> Bools:
        return np.asarray((out.flags & bit) != 0, np.bool_)

    nan_left, nan_reference = flag(native.NAN_LEFT), flag(native.NAN_RIGHT)
    with np.errstate(all="ignore"):
        norm_left, norm_reference = np.sqrt(column["xx"]), np.sqrt(column["yy"])
        cosine = column["xy"] / (norm_left * norm_reference)
        rel = np.sqrt(column["dd"]) / norm_reference
        trimmed = column["trimmed_xy"] / np.sqrt(column["trimmed_xx"] * column["trimmed_yy"])
    trimmed = trimmed if len(massive) else cosine.copy()
    max_abs, ulp = column["max_abs"].copy(), column["ulp"].copy()
    for values in (cosine, trimmed, rel, max_abs, ulp):
        values[nan_left | nan_reference] = np.nan
    return RowMeasures(
        cosine=cosine,
        cosine_trimmed=trimmed,
        norm_left=norm_left,
        norm_reference=norm_reference,
        rel_l2=rel,
        max_abs=max_abs,
        ulp=ulp,
        nan_left=nan_left,
        nan_reference=nan_reference,
        zero_left=flag(native.ZERO_LEFT),
        zero_reference=flag(native.ZERO_RIGHT),
        flat_left=flag(native.FLAT_LEFT),
        flat_reference=flag(native.FLAT_RIGHT),
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


def massive_channels(rows: Floats | native.Block, factor: float = 12.0) -> Ints:
    """Channels whose typical magnitude is far beyond the others': the ones that make unrelated rows look alike.

    rows: a sample ``[m, H]`` without massive rows, float32 or as it is stored. At most H/16 channels (but up to 8), the
    largest first.
    """
    count, width = (rows.raw if isinstance(rows, native.Block) else rows).shape
    if count == 0 or width < 8:
        return np.empty(0, np.int64)
    level = _column_levels(rows)
    typical = float(np.median(level))
    order = np.argsort(-level)[: max(min(8, width // 8), width // 16)]
    return np.sort(order[level[order] > factor * typical]).astype(np.int64) if typical > 0 else order[:0]


def _column_levels(rows: Floats | native.Block) -> Floats:
    """The median magnitude of every column ``[H]``; what is not finite counts as zero. Magnitudes of bf16 are in the order
    of their bits."""
    if isinstance(rows, native.Block) and rows.dtype is DType.BF16 and rows.scale is None:
        bits = np.bitwise_and(rows.raw, 0x7FFF)
        bits[bits >= 0x7F80] = 0
        return _column_medians(bits, DType.BF16)
    values = rows.floats() if isinstance(rows, native.Block) else rows
    return _column_medians(np.abs(np.nan_to_num(values, posinf=0, neginf=0)), DType.FP32)


def _column_medians(values: Raw, dtype: DType) -> Floats:
    """The median of every column ``[H]``: as np.median(values, axis=0), with the columns' values side by side."""
    ordered = np.sort(np.ascontiguousarray(values.T), axis=1)
    middle = ordered.shape[1] // 2
    above = to_float32(ordered[:, middle], dtype)
    if ordered.shape[1] % 2:
        return above
    return np.asarray((to_float32(ordered[:, middle - 1], dtype) + above) / np.float32(2), np.float32)


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
    """Rows that repeat, bit for bit, the row before them although their tokens differ. ``token_id``: one per row, -1
    where it is not known. A row that is not finite repeats nothing."""
    return count_repeated(blocks.hash_rows(rows, index, BLOCK_BYTES // 8), rows, index, token_id)


def count_repeated(hashes: Hashes, rows: Rows, index: Ints, token_id: Ints) -> int:
    """As :func:`duplicate_rows`, from the hashes of the rows; only rows with equal hashes are read again."""
    other = (token_id[1:] != token_id[:-1]) & (token_id[1:] >= 0) & (token_id[:-1] >= 0)
    same = np.flatnonzero((hashes[1:] == hashes[:-1]) & other) + 1
    step = max(16, BLOCK_BYTES // (16 * max(1, rows.width)))  # both sides, stored and as float32
    count = 0
    for start in range(0, len(same), step):
        here = same[start : start + step]
        values = rows.take(index[here])
        bits, before = values.view(np.uint32), rows.take(index[here - 1]).view(np.uint32)
        count += int(((bits == before).all(1) & (bits != 0).any(1) & np.isfinite(values).all(1)).sum())
    return count
