"""Norms and broken rows of a matrix of hidden states, read in blocks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
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
    count = len(rows) if count is None else min(count, len(rows))
    spans = _spans(count, rows.width)
    norms: list[npt.NDArray[np.float64]] = []
    broken: dict[str, list[npt.NDArray[np.int64]]] = {"nan": [], "zero": [], "repeated": []}
    read = 0
    row0: float | None = None
    with np.errstate(over="ignore", invalid="ignore"):
        for start, stop in spans:
            squares, finite, again = _look_at(rows, start, stop)
            norm = np.sqrt(squares)
            read += len(norm)
            for kind, mask in (("nan", ~finite), ("zero", finite & (norm == 0)), ("repeated", again)):
                broken[kind].append(np.flatnonzero(mask) + start)
            if start == 0 and finite[0]:
                row0 = float(norm[0])
            skip = 1 if start == 0 and count > 1 else 0
            norms.append(norm[skip:][finite[skip:]])
    every = np.concatenate(norms) if norms else np.empty(0)
    none = len(every) == 0
    places = {kind: np.concatenate(found) if found else np.empty(0, np.int64) for kind, found in broken.items()}
    first = {kind: int(found[0]) if len(found) else None for kind, found in places.items()}
    return RowStatistics(
        rows_read=read,
        norm_mean=None if none else float(every.mean()),
        norm_std=None if none else float(every.std()),
        norm_min=None if none else float(every.min()),
        norm_median=None if none else float(np.median(every)),
        norm_max=None if none else float(every.max()),
        norm_row0=row0,
        nan_rows=len(places["nan"]),
        zero_rows=len(places["zero"]),
        repeated_rows=len(places["repeated"]),
        first_nan_row=first["nan"],
        first_zero_row=first["zero"],
        first_repeated_row=first["repeated"],
    )


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
