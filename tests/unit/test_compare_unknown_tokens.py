"""Tokens whose id nobody knows (-1): their rows are paired with none, and no fault is made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_world import World, bf16, dumped, make_world, served

from drafttrace.compare.align import common_prefix, find_offset, plan
from drafttrace.compare.diff import diff
from drafttrace.compare.masks import find_mask_shifts
from drafttrace.compare.repeats import find_repeats
from drafttrace.compare.result import Result
from drafttrace.tracer.capture import Capture, Ints

WORLD = make_world(layers=6, tokens=40)
WIRING = (0, 3, 4)


def known_only(dump: Capture, keep: Ints | slice) -> Capture:
    """The dump with the ids ``keep`` alone, as a reader makes it of a file that holds fewer ids than rows."""
    tokens = np.full(len(dump.tokens), -1, np.int64)
    tokens[keep] = dump.tokens[keep]
    return replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens))


def parted(at: int) -> World:
    """Another text from token ``at`` on: other ids, and other states wherever they depend on those."""
    other = make_world(layers=6, tokens=40, seed=5)
    tokens = np.concatenate([WORLD.tokens[:at], other.tokens[at:]])
    streams = [np.concatenate([a[:at], b[at:]]) for a, b in zip(WORLD.streams, other.streams, strict=True)]
    return replace(WORLD, tokens=tokens, streams=streams)


def faults(result: Result) -> list[str]:
    return [f.id for f in result.findings if f.severity == "fault"]


def test_rows_of_unknown_tokens_behind_a_few_known_ones_are_not_compared() -> None:
    """5 ids and 129 rows: 80 rows were compared, and the ones after the texts had parted were stale and unexplained."""
    dump = known_only(dumped(parted(20), WIRING), slice(0, 5))
    result = diff(served(WORLD, WIRING, prompt=30), dump)
    assert result.verdict == "match" and not faults(result)
    assert result.alignment.rows_compared == 5 and result.alignment.coverage == 5 / 40
    left_out = {skipped.reason: skipped.count for skipped in result.alignment.skipped}
    assert left_out["the reference does not know the token's id"] == 35
    assert left_out["reference: the token's id is not known"] == 35
    assert "reference: no row on the left" not in left_out


def test_unknown_tokens_on_the_left_are_not_compared_either() -> None:
    found = plan(known_only(dumped(WORLD, WIRING), slice(0, 5)), dumped(parted(20), WIRING))
    assert found.positions.tolist() == [0, 1, 2, 3, 4] and found.unknown == 35
    assert found.skipped["the token's id is not known"] == 35


def test_a_gap_of_unknown_tokens_is_left_out_and_the_rows_around_it_are_compared() -> None:
    keep = np.r_[0:10, 15:40]
    found = plan(served(WORLD, WIRING), known_only(dumped(WORLD, WIRING), keep))
    assert found.positions.tolist() == keep.tolist() and found.difference is None
    assert found.skipped["the reference does not know the token's id"] == 5


def test_tokens_that_agree_by_chance_behind_a_gap_prove_nothing() -> None:
    """The texts part inside the gap; two tokens of the other text happen to be the same."""
    dump = dumped(parted(12), WIRING)
    tokens = dump.tokens.copy()
    tokens[10:15], tokens[15:17] = -1, WORLD.tokens[15:17]
    found = plan(served(WORLD, WIRING), replace(dump, tokens=tokens, table=dump.table.of_tokens(tokens)))
    assert found.difference is not None and found.difference.index == 17
    assert found.positions.tolist() == list(range(10))
    assert found.skipped["behind tokens that are not known"] == 2


def test_the_leading_token_that_a_layout_does_not_keep_is_paired() -> None:
    found = plan(served(WORLD, WIRING), known_only(dumped(WORLD, WIRING), slice(1, None)))
    assert found.positions.tolist() == list(range(40)) and found.unknown == 0 and not found.skipped


def test_a_leading_unknown_token_before_another_text_is_no_overlap() -> None:
    dump = known_only(dumped(parted(0), WIRING), slice(1, None))
    result = diff(served(WORLD, WIRING), dump)
    assert result.exit_code == 2 and result.alignment.rows_compared == 0
    assert faults(result) == ["no-overlap"] and "token 1, the first that both sides know" in result.summary


@pytest.mark.parametrize("side", ["left", "reference"])
def test_a_dump_without_token_ids_is_told_in_one_sentence(side: str) -> None:
    nameless, other = known_only(dumped(WORLD, WIRING), slice(0, 0)), served(WORLD, WIRING)
    result = diff(nameless, other) if side == "left" else diff(other, nameless)
    assert result.exit_code == 2 and faults(result) == ["no-overlap"]
    assert result.summary == "“dump.pt” keeps no token ids, so nobody can tell which row belongs to which."
    assert "--tokens" in result.findings[0].remedy


def test_three_known_tokens_are_too_few_to_say_that_all_is_well() -> None:
    result = diff(served(WORLD, WIRING), known_only(dumped(parted(3), WIRING), slice(0, 3)))
    assert result.exit_code == 2 and "Only 3 tokens are known to be the same" in result.summary


def test_unknown_tokens_are_no_evidence_of_moved_ids() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, 5000, 60), np.full(120, -1, np.int64)
    right[:5] = rng.integers(0, 5000, 5)
    assert find_offset(left, right, 0) == (0, 0)


def test_a_common_prefix_ends_at_the_first_unknown_token() -> None:
    tokens = WORLD.tokens
    for unknown, expected in ((slice(5, None), 5), (slice(0, 1), 40), (slice(0, 2), 0), (slice(0, None), 0)):
        other = tokens.copy()
        other[unknown] = -1
        assert common_prefix(tokens, other) == common_prefix(other, tokens) == expected


def test_masks_over_unknown_tokens_are_not_held_against_each_other() -> None:
    mask = np.zeros(40, np.int64)
    mask[20:30] = 1
    left = replace(served(WORLD, WIRING), mask=np.roll(mask, 1))
    dump = replace(dumped(WORLD, WIRING), mask=mask)
    assert [m.shift for m in find_mask_shifts(left, dump, None, None)] == [-1]
    assert not find_mask_shifts(left, known_only(dump, slice(0, 5)), None, None)


def test_equal_rows_of_unknown_tokens_are_no_copies() -> None:
    """The unknown token may be the very one whose row is equal: an embedding repeats wherever its token does."""
    dump = dumped(WORLD, (3,))
    rows = dump.slots[0].rows.floats().copy()
    rows[30] = rows[7]
    copied = replace(dump, slots=(replace(dump.slots[0], rows=bf16(rows)),))
    assert [r.rows[1].position for r in find_repeats(copied)] == [30]
    assert not find_repeats(known_only(copied, slice(0, 20)))
