"""Row identity: strides, accept counts, trees."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drafttrace.hooks.identity import (
    RowGroup,
    Verdict,
    accepted_rows,
    extend_ranges,
    outside_output,
    stride_range,
)
from drafttrace.tracer.capture import Accepted, Phase

A, R, U = int(Accepted.ACCEPTED), int(Accepted.REJECTED), int(Accepted.UNKNOWN)


def verdict(*nodes: int, count: int | None = None) -> Verdict:
    return Verdict(np.array(nodes, np.int64), len(nodes) if count is None else count)


def test_a_chain_accepts_its_first_rows() -> None:
    # Request 1 of a batch with 4 draft tokens: its rows are 4..7; two of them hold.
    group = RowGroup(Phase.VERIFY, -1, first=4)
    assert accepted_rows(group, 4, verdict(4, 5, -1, -1, count=2)).tolist() == [A, A, R, R]


def test_a_tree_accepts_the_nodes_on_its_path() -> None:
    group = RowGroup(Phase.VERIFY, -1, first=6)
    assert accepted_rows(group, 6, verdict(6, 8, 11, -1, count=3)).tolist() == [A, R, A, R, R, A]


def test_padding_after_the_path_accepts_nothing() -> None:
    # The verifier pads with node 0 in some releases: only `count` entries are real.
    group = RowGroup(Phase.VERIFY, -1, first=0)
    assert accepted_rows(group, 4, verdict(0, 0, 0, 0, count=1)).tolist() == [A, R, R, R]


def test_draft_extend_has_the_path_at_its_front() -> None:
    group = RowGroup(Phase.DRAFT_EXTEND_VERIFY, -1, first=12)
    assert accepted_rows(group, 4, verdict(13, 15, count=2)).tolist() == [A, A, R, R]


def test_draft_steps_of_a_chain_are_accepted_as_far_as_the_path_goes() -> None:
    # count 2: the bonus token's row and one draft token, the one that step 0 was given.
    said = verdict(0, 1, -1, -1, count=2)
    got = [accepted_rows(RowGroup(Phase.DRAFT_DECODE, step, 0), 1, said).tolist() for step in range(3)]
    assert got == [[A], [R], [R]]


def test_draft_steps_of_a_tree_are_not_guessed() -> None:
    assert accepted_rows(RowGroup(Phase.DRAFT_DECODE, 0, 0, branches=2), 2, verdict(0, 1)).tolist() == [U, U]


def test_without_a_verdict_nothing_is_claimed() -> None:
    assert accepted_rows(RowGroup(Phase.VERIFY, -1, 0), 2, None).tolist() == [U, U]
    assert accepted_rows(RowGroup(Phase.PREFILL, -1, 0), 2, None).tolist() == [A, A]


def test_rows_beyond_the_text_are_outside() -> None:
    assert outside_output(np.array([8, 9, 10, 11]), 10).tolist() == [False, False, True, True]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_extend_ranges_tile_the_batch(lengths: list[int]) -> None:
    ranges = extend_ranges(lengths)
    assert [stop - start for start, stop in ranges] == lengths
    assert [start for start, _ in ranges[1:]] == [stop for _, stop in ranges[:-1]]


@given(st.integers(0, 50), st.integers(1, 16))
def test_strides_follow_each_other(index: int, stride: int) -> None:
    start, stop = stride_range(index, stride)
    assert stop - start == stride and start == sum(stride for _ in range(index))


@given(st.integers(1, 8), st.integers(0, 5), st.data())
def test_exactly_count_verify_rows_are_accepted(width: int, index: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, width))
    path = data.draw(st.permutations(range(width)))[:count]
    nodes = np.array([index * width + node for node in sorted(path)] + [-1] * (width - count))
    rows = accepted_rows(RowGroup(Phase.VERIFY, -1, index * width), width, Verdict(nodes, count))
    assert (rows == A).sum() == count
