"""Single rows that hold something else than the reference's, while the slot as a whole does not."""

from __future__ import annotations

import numpy as np

from drafttrace.compare.describe import outlier_rows
from drafttrace.compare.facts import RowFacts
from drafttrace.compare.measure import Bools
from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.thresholds import Thresholds

_MOST_OUTLIERS = 0.5


def row_facts(slot: MeasuredSlot, thresholds: Thresholds) -> RowFacts:
    """What is known about the odd rows of one slot. Outliers count only while they are the exception."""
    rows, pairs = slot.measures, slot.pairs
    outliers = outlier_rows(rows, thresholds)
    if len(outliers) == 0 or outliers.mean() > _MOST_OUTLIERS:
        outliers = np.zeros(len(rows), np.bool_)
    odd = outliers & ~rows.zero_left & ~rows.nan_left

    def at(mask: Bools) -> tuple[int, ...]:
        return tuple(int(p) for p in pairs.positions[mask])

    return RowFacts(
        slot=slot.index,
        outliers=at(outliers),
        zero_left=at(rows.zero_left),
        zero_reference=at(rows.zero_reference),
        nan_left=at(rows.nan_left),
        nan_reference=at(rows.nan_reference),
        odd_rows=tuple(int(r) for r in pairs.left_rows[odd]),
        good_rows=pairs.left_rows[~outliers],
    )
