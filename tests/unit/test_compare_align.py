"""Pairs of rows from token ids: prefixes, offsets, rejected rows, cached prefixes, truncation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from compare_world import dumped, make_world, served
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttrace.compare.align import common_prefix, find_offset, plan
from drafttrace.tracer.capture import Capture

WORLD = make_world(layers=6, tokens=40)


def test_every_token_pairs_with_its_own_row_and_rejected_rows_are_told() -> None:
    left = served(WORLD, (2, 3, 4), prompt=21)
    found = plan(left, dumped(WORLD, (2, 3, 4)))
    assert found.positions.tolist() == list(range(40))
    assert found.reference_rows.tolist() == list(range(40))
    assert left.table.position[found.left_rows].tolist() == list(range(40))
    assert found.skipped == {"rejected draft rows": 9}
    assert not (left.table.accepted[found.left_rows] == 0).any()


def test_generated_tokens_that_the_dump_lacks_are_skipped() -> None:
    dump = dumped(WORLD, (2, 3, 4))
    short = replace(dump, tokens=dump.tokens[:25], table=dump.table.of_tokens(dump.tokens[:25]), valid_length=25)
    found = plan(served(WORLD, (2, 3, 4), prompt=25), short)
    assert len(found) == 25 and found.truncated is None and found.difference is None
    assert found.skipped["beyond the reference's tokens"] == 15


def test_an_own_answer_of_the_server_is_no_divergence() -> None:
    dump = dumped(WORLD, (2, 3, 4))
    tokens = dump.tokens.copy()
    tokens[30:] = 9
    other = replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens))
    found = plan(served(WORLD, (2, 3, 4), prompt=30), other)
    assert found.natural and found.difference is not None and found.difference.index == 30
    assert len(found) == 30
    assert found.skipped["at or after the first token that differs"] == 10


def test_padding_of_the_dump_is_left_out() -> None:
    dump = replace(dumped(WORLD, (2, 3, 4)), valid_length=33)
    found = plan(served(WORLD, (2, 3, 4)), dump)
    assert len(found) == 33
    assert found.skipped["reference: padding, or beyond the tokens"] == 7


def test_a_cached_prefix_is_a_gap() -> None:
    left = served(WORLD, (2, 3, 4))
    keep = left.table.position >= 12
    table = type(left.table)(*(getattr(left.table, name)[keep] for name in left.table.__dataclass_fields__))
    found = plan(replace(left, table=table), dumped(WORLD, (2, 3, 4)))
    assert found.prefix_gap == 12
    assert found.positions.tolist() == list(range(12, 40))


def test_rows_that_no_slot_recorded_are_told_and_those_of_some_slots_are_kept() -> None:
    left = served(WORLD, (2, 3, 4))
    mask = np.ones(40, np.bool_)
    mask[5] = False
    found = plan(replace(left, present=dict.fromkeys(("aux/0", "aux/1", "aux/2"), mask)), dumped(WORLD, (2, 3, 4)))
    assert 5 not in found.positions
    assert found.skipped["not recorded in any slot"] == 1
    assert 5 in plan(replace(left, present={"aux/1": mask}), dumped(WORLD, (2, 3, 4))).positions


def test_truncation_inside_the_prompt_is_told() -> None:
    dump = dumped(WORLD, (2, 3, 4))
    short = replace(dump, tokens=dump.tokens[:25], table=dump.table.of_tokens(dump.tokens[:25]), valid_length=25)
    assert plan(served(WORLD, (2, 3, 4), prompt=40), short).truncated == "reference"
    mask = np.zeros(40, np.int64)
    mask[30:] = 1
    own = np.concatenate([WORLD.tokens[:20], np.arange(20) + 500])
    left = served(replace(WORLD, tokens=own), (2, 3, 4), prompt=20)
    assert plan(left, replace(dump, mask=mask)).truncated == "left"
    assert plan(served(WORLD, (2, 3, 4), prompt=20), replace(dump, mask=mask)).truncated is None


def test_a_loss_mask_that_leaves_out_the_beginning_of_the_answer_is_no_cut_prompt() -> None:
    """Masks without the reasoning, or of the last turn only: "the prompt was truncated", exit 1, where all slots match."""
    mask = np.zeros(40, np.int64)
    mask[30:] = 1
    dump = replace(dumped(WORLD, (2, 3, 4)), mask=mask)

    def answered(same: int) -> Capture:
        """A prompt of 20 tokens; the server says the same as the dump up to token ``same``."""
        own = np.concatenate([WORLD.tokens[:same], np.arange(40 - same) + 500])
        return served(replace(WORLD, tokens=own), (2, 3, 4), prompt=20)

    assert plan(answered(20), dump).truncated == plan(answered(23), dump).truncated == "left"
    assert plan(answered(24), dump).truncated is None  # four tokens of the same answer
    header = int(WORLD.tokens[16])
    assert plan(answered(20), dump, opens={header}).truncated is None
    assert plan(answered(20), dump, opens={int(WORLD.tokens[3])}).truncated == "left"
    # The text before the mask ends as the prompt does: the header of the last turn.
    tokens = WORLD.tokens.copy()
    tokens[28:30] = tokens[18:20]
    repeated = replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens))
    assert plan(answered(20), repeated).truncated is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=12, max_size=60),
    st.integers(1, 5),
    st.integers(100, 140),
)
def test_tokens_put_in_front_give_their_offset(tokens: list[int], extra: int, first: int) -> None:
    left = np.array(tokens, np.int64)
    right = np.concatenate([np.arange(extra) + first, left])
    offset, run = find_offset(left, right, common_prefix(left, right))
    assert run >= len(left)
    low, high = max(0, -offset), min(len(left), len(right) - offset)
    assert (left[low:high] == right[low + offset : high + offset]).sum() >= len(left)


def test_unrelated_tokens_have_no_offset() -> None:
    rng = np.random.default_rng(0)
    assert find_offset(rng.integers(0, 5000, 60), rng.integers(0, 5000, 60), 0) == (0, 0)
