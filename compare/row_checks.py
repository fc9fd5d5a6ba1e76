"""Which rows of a matrix can be no state, read once: not finite, zero, or one value in all channels; and their hashes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drafttrace.compare.kernels import native
from drafttrace.compare.kernels.blocks import block, spans
from drafttrace.compare.kernels.hashes import Hashes, plain_hashes
from drafttrace.compare.measure import BLOCK_BYTES, Bools
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Rows, to_float32

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class RowChecks:
    """Of every row that was looked at, arrays ``[n]``. flat: one value, not zero, in all channels. keys: of its bytes."""

    not_finite: Bools
    zero: Bools
    flat: Bools
    keys: Hashes

    def __len__(self) -> int:
        return len(self.keys)


def check_rows(rows: Rows, index: Ints, columns: slice = slice(None)) -> RowChecks:
    """The rows ``index`` of a matrix, or of some of its columns, in blocks of bounded size."""
    width = len(range(*columns.indices(rows.width)))
    step = max(16, BLOCK_BYTES // max(1, rows.width * rows.dtype.storage.itemsize))
    parts = [_check(rows, index[start:stop], columns) for start, stop in spans(index, index, step)] if width else []
    if not parts:
        none = np.zeros(len(index), np.bool_)
        return RowChecks(none, none, none, np.zeros(len(index), np.uint64))
    return RowChecks(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in RowChecks.__dataclass_fields__)
    )


def _check(rows: Rows, index: Ints, columns: slice) -> RowChecks:
    whole, where = block(rows, index)
    held = native.Block(whole.raw[:, columns], whole.dtype, whole.scale)
    if native.available():
        out = native.Output.empty(len(where))
        native.measure(held, where, held, where, _NOTHING, out, ulp=False)
        return RowChecks(
            np.asarray((out.flags & native.NAN_LEFT) != 0, np.bool_),
            np.asarray((out.flags & native.ZERO_LEFT) != 0, np.bool_),
            np.asarray((out.flags & native.FLAT_LEFT) != 0, np.bool_),
            out.hashes[:, 0],
        )
    scale = None if held.scale is None else held.scale[where]
    values = to_float32(held.raw[where], held.dtype)
    values = values if scale is None else values * scale[:, None]
    some: Bools = np.asarray(values.any(1), np.bool_)
    flat: Bools = np.asarray((values == values[:, :1]).all(1), np.bool_) & some
    finite: Bools = np.asarray(np.isfinite(values).all(1), np.bool_)
    return RowChecks(~finite, ~some, flat, plain_hashes(held.raw[where], scale))
