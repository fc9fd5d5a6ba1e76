"""Rows in other rows' places that no ranks put there."""

from __future__ import annotations

import numpy as np
import pytest
from edited_captures import dump, faults, trace, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.rowblocks import fit_blocks, fit_repeated


def test_a_few_rows_of_other_places_are_no_ranks_blocks() -> None:
    """Three rows that held the row three before were "blocks of 16 ranks in another order", on a server with one rank; a
    row that stands at every second place was "the first rank's block" of 24."""
    place = np.array([20, 30, 41])
    assert fit_blocks(place, place - 3, 48) is None and fit_blocks(place, place // 2, 48) is None
    assert fit_blocks(np.arange(24), (np.arange(24) + 8) % 24, 24, 1) is None
    even = np.arange(2, 48, 2)
    assert fit_repeated(even, np.zeros_like(even), 48) is None
    assert fit_repeated(np.arange(24, 48), np.arange(24), 48) is not None


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_moved_rows_of_a_server_with_one_rank_are_not_mixed_up_by_rank(pair: str) -> None:
    healthy = trace(pair)
    for rows in ([20, 30, 41], [8, 17, 23, 33, 40, 44]):
        index = np.arange(len(healthy.table))
        index[rows] -= 3
        wrong = with_slot(healthy, 1, lambda x, index=index: x[index])
        assert "rows-by-rank" not in faults(diff(wrong, dump(pair)))
