"""A transformed slot and its origin with the transformation taken out of both: what else differs then shows row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from drafttrace.compare.hypotheses import Doubles, Fit, restored, rms, usable
from drafttrace.compare.rotations import agreeing, coordinates, frames
from drafttrace.compare.sample import Sample, Stream
from drafttrace.tracer.rows import DType, Floats, Raw, Rows

Change = Callable[[Doubles], npt.NDArray[np.floating]]


class ChangedRows(Rows):
    """The rows of another matrix, each changed by itself, made when they are read."""

    dtype = DType.FP32

    def __init__(self, rows: Rows, change: Change, width: int) -> None:
        self._rows, self._change = rows, change
        self.shape = (len(rows), width)

    def raw(self, start: int, stop: int) -> Raw:
        """Rows ``start..stop`` as float32."""
        return self._changed(self._rows.floats(start, stop))

    def take(self, index: npt.NDArray[np.int64]) -> Floats:
        """The rows ``index``."""
        return self._changed(self._rows.take(index))

    def _changed(self, values: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return np.asarray(self._change(values.astype(np.float64)), np.float32)


@dataclass(frozen=True)
class Undone:
    """What makes the rows of a slot and those of its origin equal. width: of the rows that come out."""

    slot: Change
    origin: Change
    width: int

    def of_slot(self, stream: Stream) -> Stream:
        """The slot's own rows."""
        return replace(stream, rows=ChangedRows(stream.rows, self.slot, self.width))

    def of_origin(self, stream: Stream) -> Stream:
        """Rows that the slot could have been made from."""
        return replace(stream, rows=ChangedRows(stream.rows, self.origin, self.width))


def undo(fit: Fit, sample: Sample, stream: Stream, origin: Stream) -> Undone | None:
    """How a fit of ``stream`` by ``origin`` is taken out; None for one that says nothing of single rows."""
    x, y = sample.read(stream), sample.read(origin)
    return _undo(fit, x.astype(np.float64), y.astype(np.float64)) if x.shape == y.shape else None


def _same(rows: Doubles) -> Doubles:
    return rows


def _undo(fit: Fit, x: Doubles, y: Doubles) -> Undone | None:
    width, fitted = x.shape[1], fit.fitted
    if fit.name == "scalar":
        return Undone(_same, lambda rows: fitted["factor"] * rows, width)
    if fit.name == "rms":
        return Undone(_same, lambda rows: fitted["factor"] * _unit(rows), width)
    if fit.name == "gain":
        return Undone(_same, lambda rows: fitted["gain"] * rows, width)
    if fit.name == "normed":
        return Undone(_same, lambda rows: fitted["gain"] * _unit(rows), width)
    if fit.name == "un-normed":
        return Undone(lambda rows: fitted["gain"] * _unit(rows), _same, width)
    if fit.name == "zeroed":
        kept = np.ones(width)
        kept[fitted["channels"]] = 0
        return Undone(_same, lambda rows: kept * rows, width)
    if fit.name == "bytes":
        return _undo_bytes(fit, x, y)
    return _undo_rotation(fit, x, y) if fit.name == "rotation" else None


def _unit(rows: Doubles) -> Doubles:
    """The rows over their root mean square; zeros stay zeros."""
    size = rms(rows)
    unit: Doubles = rows / np.where(size > 0, size, 1.0)
    return unit


def _undo_bytes(fit: Fit, x: Doubles, y: Doubles) -> Undone | None:
    read_as = fit.fitted["read_as"]

    def read_again(rows: Doubles) -> Doubles:
        # The bytes of NaN mean a number in the other format, but a row of nothing else was no state.
        back = restored(rows, read_as).astype(np.float64)
        return np.where(np.isfinite(rows).any(axis=1, keepdims=True), back, np.nan)

    if fit.then is None:
        return Undone(read_again, _same, x.shape[1])
    further = _undo(fit.then, restored(x, read_as).astype(np.float64), y)
    if further is None:
        return None
    return replace(further, slot=lambda rows: further.slot(read_again(rows)))


def _undo_rotation(fit: Fit, x: Doubles, y: Doubles) -> Undone | None:
    """The coordinates of both sides' rows in the directions that the sample's rows span, and what lies in none of these: no
    map of them is needed."""
    x, y = usable(np.asarray(x, np.float32), np.asarray(y, np.float32))
    good = agreeing(x, y)
    ours, theirs = frames(x[good], y[good])
    further = _undo(fit.then, x, y) if fit.then is not None else None
    before = further.origin if further is not None else _same
    return Undone(
        lambda rows: coordinates(rows, ours),
        lambda rows: coordinates(np.asarray(before(rows), np.float64), theirs),
        ours.shape[1] + 1,
    )
