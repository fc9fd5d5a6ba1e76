"""Which row of a capture stands for which token position.

In a dump row t is token t. In a trace the rows stand in the order in which they were computed: every verify pass
computes a tree of drafted tokens, so a position comes back for each of its candidates, most of them rejected.
"""

from __future__ import annotations

import numpy as np

from drafttrace.tracer.capture import Accepted, Capture, Ints, Phase
from drafttrace.tracer.rows import Floats, Raw, Rows


def position_rows(capture: Capture, name: str | None = None) -> Ints:
    """``[valid_length]``: the row of every position, -1 where there is none.

    A row counts that was accepted, that carries the token which the request has there, and that was recorded for the
    tap ``name`` (a slot's name, ``embed`` or ``last``). Of several the one of the latest pass is taken.
    """
    table, tokens = capture.table, capture.tokens[: capture.valid_length]
    good = (table.position >= 0) & (table.position < len(tokens)) & (table.accepted != Accepted.REJECTED)
    # On a verify row "unknown" means: perhaps rejected.
    good &= ~((table.accepted == Accepted.UNKNOWN) & (table.phase == Phase.VERIFY))
    recorded = capture.present.get(name) if name is not None else None
    if recorded is not None:
        good &= recorded[: len(good)]
    rows = np.flatnonzero(good)
    here, there = table.token_id[rows], tokens[table.position[rows]]
    rows = rows[(here == there) | (here < 0) | (there < 0)]
    rows = rows[np.argsort(table.frame[rows], kind="stable")]
    chosen = np.full(len(tokens), -1, np.int64)
    chosen[table.position[rows]] = rows
    return chosen


class TakenRows(Rows):
    """Some rows of a matrix, in any order, read when they are asked for."""

    def __init__(self, rows: Rows, index: Ints) -> None:
        self._rows, self._index = rows, index
        self.shape = len(index), rows.width
        self.dtype = rows.dtype

    def raw(self, start: int, stop: int) -> Raw:
        return self._rows.take_raw(self._index[start:stop])[0]

    def scale(self, start: int, stop: int) -> Floats | None:
        return self._rows.take_raw(self._index[start:stop])[1]
