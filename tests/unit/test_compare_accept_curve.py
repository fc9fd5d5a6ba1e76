"""The share of rounds that accepted each draft position."""

from __future__ import annotations

import pytest

from drafttrace.compare.acceptance import accept_curve


@pytest.mark.parametrize(
    ("counts", "steps", "curve"),
    [
        ([6, 6, 6], 5, (1, 1, 1, 1, 1)),
        ([1, 1, 1, 1], 5, (0,)),
        ([2, 2, 2, 1], 5, (0.75, 0)),  # the second position is never right: the state that the draft recycles
        ([3, 2, 3, 3], 2, (1, 0.75)),
        ([3, 2, 3, 3], None, (1, 0.75, 0)),
        ([3, 3], 5, ()),
        ([], 5, ()),
    ],
)
def test_no_position_beyond_the_drafted_ones(
    counts: list[float], steps: int | None, curve: tuple[float, ...]
) -> None:
    """Full acceptance of five drafted tokens ended in a sixth position of 0 %."""
    assert accept_curve(counts, steps) == curve
