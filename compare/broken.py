"""Rows of one capture that can be no state at all: not finite, or zero everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drafttrace.compare.measure import BLOCK_BYTES
from drafttrace.tracer.capture import Accepted, Capture

_MOST = 50


@dataclass(frozen=True)
class BrokenSlot:
    """One slot's broken rows: how many of ``rows``, and the positions of the first fifty of each kind."""

    slot: int
    rows: int
    not_finite: int
    zero: int
    not_finite_at: tuple[int, ...]
    zero_at: tuple[int, ...]


def find_broken(capture: Capture) -> tuple[BrokenSlot, ...]:
    """The slots with broken rows. Rows that the capture does not have, rejected ones and padding do not count."""
    kept = (capture.table.accepted != Accepted.REJECTED) & capture.in_text(len(capture.table))
    found = []
    for index, slot in enumerate(capture.slots):
        rows, present = slot.rows, capture.present.get(slot.name)
        usable = kept[: len(rows)] if present is None else kept[: len(rows)] & present[: len(rows)]
        bad = np.zeros((2, len(rows)), np.bool_)
        step = max(16, BLOCK_BYTES // (4 * max(1, rows.width)))
        for start in range(0, len(rows), step):
            stop = min(start + step, len(rows))
            values = rows.floats(start, stop)
            bad[0, start:stop] = ~np.isfinite(values).all(1)
            bad[1, start:stop] = ~values.any(1)
        bad &= usable
        if bad.any():
            at = [tuple(int(p) for p in capture.table.position[: len(rows)][kind][:_MOST]) for kind in bad]
            found.append(BrokenSlot(index, int(usable.sum()), int(bad[0].sum()), int(bad[1].sum()), *at))
    return tuple(found)
