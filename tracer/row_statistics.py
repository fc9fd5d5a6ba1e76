"""Norms and broken rows of a matrix of hidden states, read in blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Floats, Rows

_BLOCK_BYTES = 8 << 20
# Elements that are read whole; a larger matrix is sampled in evenly spread blocks.
_WHOLE = 48_000_000


@dataclass(frozen=True)
class RowStatistics:
    """Of the rows that were read. Norms are L2 over one row, of the finite rows only; None where there are none.

    norm_row0 is apart: the first row of a sequence is often a hundred times larger than the others, which would
    spoil every mean. nan_rows: rows with a NaN or an infinity. repeated_rows: finite rows
    equal to the one before them. The first row of each kind stands beside its count, None where there is none.
    """

    rows_read: int
    norm_mean: float | None
    norm_std: float | None
    norm_min: float | None
    norm_median: float | None
    norm_max: float | None
    norm_row0: float | None
    nan_rows: int
    zero_rows: int
    repeated_rows: int
    first_nan_row: int | None
    first_zero_row: int | None
    first_repeated_row: int | None

    def at(self, rows: Ints) -> RowStatistics:
        """The same of rows that were picked out of a matrix: row k was row ``rows[k]`` there."""

        def there(row: int | None) -> int | None:
            return None if row is None else int(rows[row])

        return replace(
            self,
            first_nan_row=there(self.first_nan_row),
            first_zero_row=there(self.first_zero_row),
            first_repeated_row=there(self.first_repeated_row),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def row_statistics(rows: Rows, count: int | None = None) -> RowStatistics:
    """Read the first ``count`` rows (default: all), or evenly spread blocks of a large matrix, and sum up."""
    return statistics_together([rows], count)[0]


def statistics_together(matrices: Sequence[Rows], count: int | None = None) -> list[RowStatistics]:
    """:func:`row_statistics` of every matrix, block by block of all of them: slots that lie row by row in one tensor
    are read from the file once, not once for each."""
    found = [_Found() for _ in matrices]
    counts = [len(rows) if count is None else min(count, len(rows)) for rows in matrices]
    spans = [_spans(number, rows.width) for number, rows in zip(counts, matrices, strict=True)]
    with np.errstate(over="ignore", invalid="ignore"):
        for block in itertools.zip_longest(*spans):
            for k, span in enumerate(block):
                if span is not None:
                    found[k].add(matrices[k], *span, apart=counts[k] > 1)
    return [one.summed_up() for one in found]


@dataclass
class _Found:
    """What the blocks of one matrix held: norms of the finite rows but the first, and where rows are broken."""

    read: int = 0
    row0: float | None = None
    norms: list[npt.NDArray[np.float64]] = field(default_factory=list)
    nan: list[npt.NDArray[np.int64]] = field(default_factory=list)
    zero: list[npt.NDArray[np.int64]] = field(default_factory=list)
    repeated: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, rows: Rows, start: int, stop: int, *, apart: bool) -> None:
        """Look at rows ``start..stop``. apart: row 0 is none of the others' norms."""
        squares, finite, again = _look_at(rows, start, stop)
        norm = np.sqrt(squares)
        self.read += len(norm)
        for places, mask in ((self.nan, ~finite), (self.zero, finite & (norm == 0)), (self.repeated, again)):
            places.append(np.flatnonzero(mask) + start)
        if start == 0 and finite[0]:
            self.row0 = float(norm[0])
        skip = 1 if start == 0 and apart else 0
        self.norms.append(norm[skip:][finite[skip:]])

    def summed_up(self) -> RowStatistics:
        every = np.sort(np.concatenate(self.norms)) if self.norms else np.empty(0)
        none = len(every) == 0
        nan, zero, repeated = (
            np.concatenate(places) if places else np.empty(0, np.int64)
            for places in (self.nan, self.zero, self.repeated)
        )
        return RowStatistics(
            rows_read=self.read,
            norm_mean=None if none else float(every.mean()),
            norm_std=None if none else float(every.std()),
            norm_min=None if none else float(every[0]),
            norm_median=None if none else float(every[(len(every) - 1) // 2] + every[len(every) // 2]) / 2,
            norm_max=None if none else float(every[-1]),
            norm_row0=self.row0,
            nan_rows=len(nan),
            zero_rows=len(zero),
            repeated_rows=len(repeated),
            first_nan_row=_first(nan),
            first_zero_row=_first(zero),
            first_repeated_row=_first(repeated),
        )


def _first(places: npt.NDArray[np.int64]) -> int | None:
    return int(places[0]) if len(places) else None


def _look_at(
    rows: Rows, start: int, stop: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Sums of squares, which rows are finite, and which equal the one before them in the block: each ``[n]``."""
    from drafttrace.compare.kernels import blocks, native

    again = np.zeros(stop - start, np.bool_)
    out = blocks.sums_of(rows, start, stop)
    if out is not None:
        finite = (out.flags & native.NAN_LEFT) == 0
        hashes = out.hashes[:, 0]
        again[1:] = (hashes[1:] == hashes[:-1]) & finite[1:]
        return out.sums[:, 0], finite, again
    block = rows.floats(start, stop)
    squares = np.einsum("rh,rh->r", block, block, dtype=np.float64, casting="same_kind")
    finite = _finite_rows(block, squares)
    again[1:] = (block[1:] == block[:-1]).all(-1) & finite[1:]
    return squares, finite, again


def _finite_rows(block: Floats, squares: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which rows hold no NaN and no infinity. A finite sum of squares already shows it, which is cheaper."""
    finite = np.isfinite(squares)
    if not finite.all():
        finite = np.asarray(np.isfinite(block).all(axis=-1), np.bool_)
    return finite


def _spans(count: int, width: int) -> list[tuple[int, int]]:
    """Blocks of rows to read: all of them, or as many as fit the budget, spread evenly and with the first ones."""
    size = max(1, _BLOCK_BYTES // (4 * max(width, 1)))
    starts = list(range(0, count, size))
    allowed = max(2, _WHOLE // max(size * width, 1))
    if len(starts) > allowed:
        starts = [starts[k] for k in sorted({round(k * (len(starts) - 1) / (allowed - 1)) for k in range(allowed)})]
    return [(start, min(count, start + size)) for start in starts]
