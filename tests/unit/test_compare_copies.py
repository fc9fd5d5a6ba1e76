"""Rows that hold another row's bytes: stale, constant, another request's, a padding row's, another rank's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compare_world import bf16, dumped, make_world, served

from drafttrace.compare import report_markdown
from drafttrace.compare.diff import diff
from drafttrace.compare.repeats import find_borrowed, find_repeats
from drafttrace.compare.result import FAULT, Result
from drafttrace.compare.rowblocks import fit_blocks
from drafttrace.tracer.capture import Accepted, Capture, Slot
from drafttrace.tracer.rows import ArrayRows

WORLD = make_world(layers=10, tokens=44)
OTHER = make_world(layers=10, tokens=44, seed=5)
WIRING = (2, 5, 8)
NOISY = WORLD.noisy(0.02)


def trace(world: Any = WORLD, path: str = "trace.h5", **options: Any) -> Capture:
    return replace(served(world, WIRING, prompt=30, **options), path=path)


def over_slot(left: Capture, slot: int, change: Callable[[np.ndarray], None]) -> Capture:
    """The stored bits of one slot changed in place."""
    slots = list(left.slots)
    bits = np.asarray(slots[slot].rows.raw(0, len(left.table))).copy()
    change(bits)
    slots[slot] = replace(slots[slot], rows=ArrayRows(bits, slots[slot].rows.dtype))
    return replace(left, slots=tuple(slots))


def row_of(left: Capture, position: int) -> int:
    """The accepted row of a position."""
    return int(np.flatnonzero((left.table.position == position) & (left.table.accepted == Accepted.ACCEPTED))[0])


def faults(found: Result) -> list[str]:
    return [f.id for f in found.findings if f.severity == FAULT]


def copy_row(left: Capture, to: int, source: int, slot: int = 1) -> Capture:
    def change(bits: np.ndarray) -> None:
        bits[row_of(left, to)] = bits[row_of(left, source)]

    return over_slot(left, slot, change)


def test_healthy_captures_repeat_nothing() -> None:
    for capture in (trace(), dumped(WORLD, WIRING), served(WORLD, (0, 2, 10))):
        assert find_repeats(capture) == ()
    assert find_borrowed(trace(), [trace(OTHER, "other.h5")], {}) == ()


def test_a_stale_row_is_found_without_any_reference() -> None:
    left = copy_row(trace(), 35, 31)
    [repeat] = find_repeats(left)
    assert (repeat.slot, [r.position for r in repeat.rows], repeat.count) == (1, [31, 35], 2)
    for reference in (None, dumped(NOISY, WIRING)):
        found = diff(replace(left, probes=(_probe(),)), reference)
        assert faults(found) == ["stale-rows"], found.findings
        assert found.findings[0].evidence == {"1": {"35": [31, 0]}}


def _probe() -> Any:
    from drafttrace.tracer.capture import Probe

    return Probe("target/aux/0", 3, 3, 44, 0)


def test_a_row_that_repeats_a_rejected_one_is_stale_too() -> None:
    left = trace()
    rejected = int(np.flatnonzero(left.table.accepted == Accepted.REJECTED)[0])

    def change(bits: np.ndarray) -> None:
        bits[row_of(left, 40)] = bits[rejected]

    assert faults(diff(over_slot(left, 2, change), dumped(NOISY, WIRING))) == ["stale-rows"]


def test_the_embedding_of_tokens_that_share_a_vector_is_no_copy() -> None:
    world = make_world(layers=4, tokens=60)
    world.streams[0][world.tokens % 3 == 0] = world.streams[0][0]  # a third of the vocabulary was never trained
    left = served(world, (0, 2, 3), declared=(None, None, None), sweep=())
    assert find_repeats(left) == ()


def test_rows_of_one_text_under_another_request_are_no_copies() -> None:
    assert find_borrowed(trace(), [trace(path="again.h5")], {}) == ()


def test_a_row_of_another_request_is_named_with_its_trace() -> None:
    other = trace(OTHER, "other.h5")

    def change(bits: np.ndarray) -> None:
        bits[row_of(left, 33)] = np.asarray(other.slots[1].rows.raw(0, len(other.table)))[row_of(other, 36)]

    left = trace()
    wrong = over_slot(left, 1, change)
    for reference in (None, dumped(NOISY, WIRING)):
        found = diff(replace(wrong, probes=(_probe(),)), reference, others=[other])
        assert faults(found) == ["cross-request"], [(f.id, f.summary) for f in found.findings]
        [row] = found.findings[0].evidence["rows"]
        assert (row["position"], row["trace"], row["their_position"], row["rel_l2"]) == (33, "other.h5", 36, 0)
    assert faults(diff(wrong, dumped(NOISY, WIRING))) == [
        "unexplained"
    ]  # without the other trace nothing says whose


def test_the_name_of_another_trace_cannot_inject_markup() -> None:
    other = trace(OTHER, "![x](http://e)`<b>@all</b>.h5")
    left = trace()

    def change(bits: np.ndarray) -> None:
        bits[row_of(left, 33)] = np.asarray(other.slots[1].rows.raw(0, len(other.table)))[row_of(other, 36)]

    found = diff(over_slot(left, 1, change), dumped(NOISY, WIRING), others=[other])
    assert faults(found) == ["cross-request"]
    text = re.sub(r"~~~json\n.*?\n~~~\n", "", report_markdown.render(found), flags=re.S)
    assert "all" in text and not re.search(r"(?<!\\)\]\(|<b>|@all", text)


def test_a_row_that_another_request_computed_in_another_batch_is_found_by_its_values() -> None:
    other = trace(OTHER.noisy(0.005), "other.h5")
    left = trace()

    def change(bits: np.ndarray) -> None:
        held = bf16(OTHER.streams[5])
        bits[row_of(left, 33)] = np.asarray(held.raw(36, 37))[0]

    found = diff(over_slot(left, 1, change), dumped(NOISY, WIRING), others=[other])
    assert faults(found) == ["cross-request"] and 0 < found.findings[0].evidence["rows"][0]["rel_l2"] < 0.03


def test_a_row_of_ours_in_another_trace_is_the_other_trace_s_fault() -> None:
    left, other = trace(), trace(OTHER, "other.h5")

    def change(bits: np.ndarray) -> None:
        bits[row_of(other, 36)] = np.asarray(left.slots[1].rows.raw(0, len(left.table)))[row_of(left, 33)]

    found = diff(left, dumped(NOISY, WIRING), others=[over_slot(other, 1, change)])
    assert found.exit_code == 0 and "cross-request" in {f.id for f in found.findings if f.severity == "note"}


def padded(left: Capture, rounds: tuple[int, ...]) -> Capture:
    return replace(left, padded=np.isin(left.table.round, rounds))


def leaked(left: Capture, positions: tuple[int, ...]) -> Capture:
    nothing = np.asarray(bf16(np.random.default_rng(8).standard_normal((1, 64)) * 40).raw(0, 1))[0]

    def change(bits: np.ndarray) -> None:
        for position in positions:
            bits[row_of(left, position)] = nothing

    return over_slot(left, 1, change)


def test_the_same_row_in_several_padded_batches_is_a_padding_row() -> None:
    left = padded(leaked(trace(), (31, 34, 36)), (0, 1, 2, 3, 4))
    for reference in (None, dumped(NOISY, WIRING)):
        found = diff(replace(left, probes=(_probe(),)), reference)
        assert faults(found) == ["padding-leak"], [(f.id, f.summary) for f in found.findings]
    without = diff(replace(left, padded=np.zeros(len(left.table), np.bool_)), dumped(NOISY, WIRING))
    assert faults(without) == ["stale-rows"]


def test_a_stale_row_in_a_padded_batch_stays_a_stale_row() -> None:
    left = padded(copy_row(trace(), 35, 31), (0, 1, 2, 3, 4))
    assert faults(diff(left, dumped(NOISY, WIRING))) == ["stale-rows"]


def test_odd_rows_in_padded_batches_only_point_at_padding() -> None:
    left = trace()
    rng = np.random.default_rng(3)

    def change(bits: np.ndarray) -> None:
        for position in (34, 38):
            bits[row_of(left, position)] = rng.permutation(bits[row_of(left, position)])

    found = diff(padded(over_slot(left, 1, change), (2, 4)), dumped(NOISY, WIRING))
    assert faults(found) == ["padding-leak"] and found.findings[0].confidence == 0.6


BLOCKS: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "blocks swapped": (lambda i: (i + 15) % 30, 2),
    "first block for every rank": (lambda i: i % 15, 2),
    "every row twice": (lambda i: i // 2, 2),
    "interleaved": (lambda i: (i % 3) * 10 + i // 3, 3),
    "in turn, put in blocks": (lambda i: (i % 10) * 3 + i // 10, 3),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_that_ranks_mixed_up_are_named(name: str) -> None:
    rule, ranks = BLOCKS[name]
    left = trace(about={})
    left = replace(left, about={**left.about, "server_args": {"tp_size": ranks}})

    def change(bits: np.ndarray) -> None:
        bits[:30] = bits[rule(np.arange(30))]

    wrong = over_slot(over_slot(left, 1, change), 2, change)
    found = diff(wrong, dumped(NOISY, WIRING))
    assert faults(found)[0] == "rows-by-rank", [(f.id, f.summary) for f in found.findings]
    assert found.findings[0].evidence["ranks"] == ranks and set(found.findings[0].slots) == {1, 2}
    assert "stale-rows" not in faults(found)


def test_rows_repeated_per_rank_are_seen_without_a_reference() -> None:
    left = replace(trace(), probes=(_probe(),), about={"server_args": {"tp_size": 2}})

    def change(bits: np.ndarray) -> None:
        bits[:30] = bits[np.arange(30) // 2]

    assert faults(diff(over_slot(left, 1, change), None)) == ["rows-by-rank"]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (lambda i: i // 2, "rows-by-rank"),
        (lambda i: i % 22, "rows-by-rank"),
        (lambda i: np.where(i == 20, 10, i), "stale-rows"),
    ],
)
def test_a_dump_with_rows_of_other_tokens_is_named_in_all_slots(
    rule: Callable[[np.ndarray], np.ndarray], wanted: str
) -> None:
    dump = dumped(NOISY, (0, 5, 8))
    rows = rule(np.arange(44))
    slots = tuple(replace(s, rows=bf16(s.rows.floats()[rows])) for s in dump.slots)
    found = diff(served(WORLD, (0, 5, 8), prompt=30), replace(dump, slots=slots))
    assert faults(found) == [wanted], [(f.id, f.summary, f.slots) for f in found.findings]
    assert set(found.findings[0].slots) == {0, 1, 2} and "reference" in found.findings[0].summary


def test_places_that_no_number_of_ranks_explains() -> None:
    place = np.arange(24)
    assert fit_blocks(place, np.random.default_rng(0).permutation(24), 24) is None
    found = fit_blocks(place, (place + 8) % 24, 24)
    assert found is not None and found.ranks == 3
    assert fit_blocks(place[:2], place[:2] + 1, 24) is None


def test_a_constant_slot_of_either_side_is_named() -> None:
    def change(bits: np.ndarray) -> None:
        bits[:] = bits[4]

    assert faults(diff(over_slot(trace(), 1, change), dumped(NOISY, WIRING)))[0] == "constant-rows"
    dump = dumped(NOISY, WIRING)
    slots = list(dump.slots)
    slots[1] = Slot("hidden_states[1]", bf16(np.repeat(NOISY.streams[5][4:5], 44, 0)), None, "the test")
    found = diff(trace(), replace(dump, slots=tuple(slots)))
    assert faults(found)[0] == "constant-rows" and "of the reference" in found.findings[0].summary


@pytest.mark.parametrize("negated", [False, True], ids=["the others right", "the others negated"])
def test_rows_of_negative_zeros_are_zero_rows(negated: bool) -> None:
    """Rows of -0.0 are equal bit for bit and not the bits of 0: they were stale rows before they were zeros."""

    def change(bits: np.ndarray) -> None:
        bits[::3] = 0
        bits[::3] |= 0x8000
        if negated:
            bits[np.arange(len(bits)) % 3 != 0] ^= 0x8000

    left = over_slot(trace(), 1, change)
    assert find_repeats(left) == ()
    found = diff(left, dumped(WORLD, WIRING))
    assert "zero-rows" in faults(found) and "stale-rows" not in faults(found), faults(found)
    assert ("scale" in faults(found)) is negated
