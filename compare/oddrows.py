"""Single rows that hold something else, and where their bytes came from."""

from __future__ import annotations

import numpy as np

from drafttrace.compare.describe import outlier_rows
from drafttrace.compare.facts import RowFacts
from drafttrace.compare.measure import BLOCK_BYTES, Bools, RowMeasures
from drafttrace.compare.thresholds import Thresholds
from drafttrace.tracer.capture import Capture, Ints

_MOST_OUTLIERS = 0.5


def row_facts(
    slot: int, left: Capture, left_rows: Ints, positions: Ints, rows: RowMeasures, thresholds: Thresholds
) -> RowFacts:
    """What is known about the odd rows of one slot. Outliers count only while they are the exception."""
    outliers = outlier_rows(rows, thresholds)
    if outliers.mean() > _MOST_OUTLIERS if len(outliers) else True:
        outliers = np.zeros(len(rows), np.bool_)
    odd = np.flatnonzero(outliers & ~rows.zero_left & ~rows.nan_left)
    copies = _copies(slot, left, left_rows[odd], positions[odd]) if len(odd) else {}

    def at(mask: Bools) -> tuple[int, ...]:
        return tuple(int(p) for p in positions[mask])

    return RowFacts(
        slot=slot,
        outliers=at(outliers),
        zero_left=at(rows.zero_left),
        zero_reference=at(rows.zero_reference),
        nan_left=at(rows.nan_left),
        nan_reference=at(rows.nan_reference),
        copies=copies,
        rounds={int(p): int(left.table.round[r]) for p, r in zip(positions[odd], left_rows[odd], strict=True)},
    )


def _copies(slot: int, left: Capture, odd_rows: Ints, positions: Ints) -> dict[int, tuple[int, int]]:
    """Odd rows that repeat, bit for bit, another row of the slot: position -> (position, round) of that row.

    The row of another token counts only: equal tokens may share an embedding.
    """
    stored, table = left.slots[slot].rows, left.table
    wanted = {
        stored.take(np.array([row])).tobytes(): (int(row), int(p))
        for row, p in zip(odd_rows, positions, strict=True)
    }
    found: dict[int, tuple[int, int]] = {}
    step = max(16, BLOCK_BYTES // (4 * max(1, stored.width)))
    for start in range(0, len(stored), step):
        for i, row in enumerate(stored.floats(start, min(start + step, len(stored)))):
            here = start + i
            hit = wanted.get(row.tobytes())
            if hit is None or hit[0] == here or hit[1] in found or not row.any():
                continue
            if table.token_id[here] != table.token_id[hit[0]]:
                found[hit[1]] = (int(table.position[here]), int(table.round[here]))
    return found
