"""The share of rounds that accepted each draft position."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import drafttrace
from drafttrace.compare.acceptance import accept_curve
from drafttrace.compare.coverage import outside, rounds_of, sayable

ROOT = Path(__file__).resolve().parents[2]


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


def test_the_draft_s_vocabulary_is_read_from_the_folder_that_the_trace_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    incident = "traces/tiny-kimi/as-trained.h5"
    found = drafttrace.diff(incident, drafttrace.open(incident))
    assert (found.acceptance.outside, found.acceptance.counted_rounds) == (0.0, 31)
    monkeypatch.chdir(tmp_path)  # the folder is not here: every round counts
    found = drafttrace.diff(ROOT / incident, drafttrace.open(ROOT / incident))
    assert (found.acceptance.outside, found.acceptance.counted_rounds) == (None, 31)


def test_rounds_are_counted_by_the_token_that_they_had_to_say() -> None:
    # The answer: 7 from the prefill; round 1 adds 1, 2; round 2 adds 9; round 3 adds 3, 4, and 4 is cut off.
    answer = [7, 1, 2, 9, 3]
    assert sayable([2, 1, 2], answer, {1, 3}) == (2, 2)
    assert sayable([2, 1, 2], answer, {9}) == (1,)
    assert sayable([2, 1, 2], answer[:2], {9}) is None  # counts of another text
    assert sayable([2, 1], [*answer, 5, 6], {9}) is None
    assert outside(answer, {7, 1, 2, 3}) == 0.2


def test_nothing_accepted_rules_out_three_in_n() -> None:
    assert rounds_of([1] * 30).at_most == pytest.approx(1.1)
    assert rounds_of([]).at_most == math.inf
