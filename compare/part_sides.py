"""Which side's rows a part differs in: the one whose rows are unlike those beside them on the same side.

A transformation can be told of either side: A is B times 16, or B is A times 0.0625. Both sides hold the same tokens, so
that whatever is special about the tokens shows on both; what one side alone shows is the fault.
"""

from __future__ import annotations

import numpy as np

from drafttrace.compare.measure import Bools, Doubles
from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.sample import MAX_VALUES, spread
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Rows

_BESIDE = 8  # rows of the same side that a row is held against
_MOST = 64
_CLEAR, _TIMES = (
    0.12,
    2.5,
)  # what the odd side shows beyond the other one: in units of the logarithm or cosine, and times it
_FEWEST = 8


def odd_side(measured: MeasuredSlot, part: Bools, plain: Bools) -> str | None:
    """``left`` or ``reference``; None where the rows themselves do not decide. part, plain: masks ``[n]``."""
    beside = np.flatnonzero(plain & ~part)
    rows = np.flatnonzero(part & plain)
    if len(beside) < _FEWEST or len(rows) == 0:
        return None
    most = max(_FEWEST, min(_MOST, MAX_VALUES // max(1, measured.left.rows.width)))
    rows = spread(rows, most)
    near = np.stack([_nearest(measured.pairs.positions, row, beside) for row in rows])
    index = {"left": measured.pairs.left_rows, "reference": measured.pairs.reference_rows}
    norms = {"left": measured.measures.norm_left, "reference": measured.measures.norm_reference}
    scores = {}
    for side, stream in (("left", measured.left), ("reference", measured.reference)):
        scores[side] = np.array(
            [
                _size(np.log(norms[side]), rows, near),
                _spread(np.log(norms[side]), rows, near),
                _direction(stream.rows, index[side], rows, near),
            ]
        )
    left, reference = scores["left"], scores["reference"]
    for one, two, side in ((left, reference, "left"), (reference, left, "reference")):
        clear = (one - two > _CLEAR) & (one > _TIMES * two)
        against = (two - one > _CLEAR) & (two > _TIMES * one)
        if clear.any() and not against.any():
            return side
    return None


def _nearest(positions: Ints, row: int, beside: Ints) -> Ints:
    order = np.argsort(np.abs(positions[beside] - positions[row]), kind="stable")
    nearest: Ints = beside[np.resize(order[:_BESIDE], _BESIDE)]
    return nearest


def _size(logs: Doubles, rows: Ints, near: Ints) -> float:
    """How far the rows' norms are from those of the rows beside them."""
    return float(abs(np.median(logs[rows] - np.median(logs[near], axis=1))))


def _spread(logs: Doubles, rows: Ints, near: Ints) -> float:
    """How much less, or more, the rows' norms vary than those of the rows beside them: a norm makes them all alike."""
    own, others = np.std(logs[rows]), np.std(logs[near])
    return float(abs(np.log((own + 0.02) / (others + 0.02)))) / 2


def _direction(values: Rows, index: Ints, rows: Ints, near: Ints) -> float:
    """How much less the rows look like those beside them than these look like each other."""
    used, place = np.unique(near, return_inverse=True)
    if len(used) > 4 * _MOST:
        return 0.0
    others = _unit(values.take(index[used]).astype(np.float64))
    own = _unit(values.take(index[rows]).astype(np.float64))
    beside = others[place.reshape(near.shape)]
    towards = np.einsum("rh,rnh->rn", own, beside).mean()
    gram = np.einsum("rnh,rmh->rnm", beside, beside)
    same = near[:, :, None] == near[:, None, :]
    usual = gram[~same].mean() if (~same).any() else 1.0
    return float(abs(towards - usual))


def _unit(rows: Doubles) -> Doubles:
    unit: Doubles = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    return unit
