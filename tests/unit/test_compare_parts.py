"""Faults that touch less than half of the rows: the median over all of them is right, so it says nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compare_world import Floats, bf16, dumped, make_world, rms, served

from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import FAULT, Result, load_result
from drafttrace.compare.thresholds import DEFAULT
from drafttrace.tracer.capture import Capture, Phase

WORLD = make_world(layers=14, tokens=64)
WIRING = (2, 6, 11)
CLOSE = WORLD.noisy(0.01)
SLOT = 1
Change = Callable[[Floats], Floats]


def with_rows(capture: Capture, which: Any, change: Change, slot: int = SLOT) -> Capture:
    """Some rows of one slot changed."""
    rows = capture.slots[slot].rows.floats().copy()
    rows[which] = change(rows[which])
    slots = list(capture.slots)
    slots[slot] = replace(slots[slot], rows=bf16(rows))
    return replace(capture, slots=tuple(slots))


def noisy(level: float) -> Change:
    def change(rows: Floats) -> Floats:
        size = np.linalg.norm(rows, axis=1, keepdims=True) / np.sqrt(rows.shape[1])
        return rows + level * size * np.random.default_rng(7).standard_normal(rows.shape)

    return change


def negated(rows: Floats) -> Floats:
    return -rows


def trace(**options: Any) -> Capture:
    return served(WORLD, WIRING, prompt=44, **options)


def verify(capture: Capture) -> Any:
    return capture.table.phase == Phase.VERIFY


def first(found: Result) -> Any:
    faults = [f for f in found.findings if f.severity == FAULT]
    assert faults and found.exit_code == 1, found.summary
    return faults[0]


TRANSFORMED: dict[str, tuple[str, Change]] = {
    "times four": ("scale", lambda x: x * 4),
    "times 1.3": ("scale", lambda x: x * 1.3),
    "times 1.04": ("scale", lambda x: x * 1.04),
    "times thirty": ("scale", lambda x: x * 30),
    "negated": ("scale", negated),
    "normed": ("norm-extra", rms),
    "noise": ("unexplained", noisy(0.3)),
    "clipped": ("unexplained", lambda x: np.clip(x, -0.4, 0.4)),
}


@pytest.mark.parametrize("sweep", [None, ()])
@pytest.mark.parametrize("fault", TRANSFORMED)
def test_verify_rows_alone_are_named_first(fault: str, sweep: tuple[int, ...] | None) -> None:
    """The target's verify pass under graphs: they were a MATCH in which nothing is wrong."""
    wanted, change = TRANSFORMED[fault]
    left = trace(sweep=sweep)
    found = diff(with_rows(left, verify(left), change), dumped(CLOSE, WIRING))
    named = first(found)
    assert (named.id, named.slots) == (wanted, (SLOT,)), [(f.id, f.summary) for f in found.findings]
    assert "all 20 verify rows (positions 44 to 63)" in named.summary.lower()
    assert "limit" in named.summary and "the other rows" in named.summary


@pytest.mark.parametrize("fault", TRANSFORMED)
@pytest.mark.parametrize(("start", "stop"), [(5, 25), (30, 55)])
def test_a_run_of_rows_is_named_first(start: int, stop: int, fault: str) -> None:
    """Rows behind a chunk's border, or of a cached prefix."""
    wanted, change = TRANSFORMED[fault]
    named = first(diff(served(WORLD, WIRING), with_rows(dumped(CLOSE, WIRING), slice(start, stop), change)))
    wanted = {"norm-extra": "norm-missing"}.get(wanted, wanted)  # the dump has the norm, so that serving lacks it
    assert (named.id, named.slots) == (wanted, (SLOT,))
    assert f"rows at positions {start} to {stop - 1}" in named.summary


@pytest.mark.parametrize("step", [1, -1, 4])
def test_rows_of_another_boundary_are_named(step: int) -> None:
    left = trace()
    other = trace().boundaries[WIRING[SLOT] + step].floats()
    found = diff(with_rows(left, verify(left), lambda x: other[verify(left)]), dumped(CLOSE, WIRING))
    named = first(found)
    assert named.id == ("boundary-offset" if abs(step) == 1 else "wrong-boundary"), named.summary
    assert f"hold B{WIRING[SLOT] + step} where training had B{WIRING[SLOT]}" in named.summary


def test_rows_of_the_dump_at_another_boundary_are_the_dumps_fault() -> None:
    late = CLOSE.streams[WIRING[SLOT] + 1]
    named = first(diff(trace(), with_rows(dumped(CLOSE, WIRING), slice(5, 25), lambda x: late[5:25])))
    assert named.id == "boundary-offset" and named.evidence["side"] == "reference"
    assert f"hold B{WIRING[SLOT] + 1} where the server has B{WIRING[SLOT]}" in named.summary


def test_one_row_in_four_is_named_by_its_step() -> None:
    named = first(diff(trace(), with_rows(dumped(CLOSE, WIRING), slice(3, None, 4), lambda x: x * 2)))
    assert named.id == "scale" and "every 4th row from position 3 to 63 (16 rows)" in named.summary.lower()


@pytest.mark.parametrize("share", [0.2, 0.45])
def test_rows_here_and_there_are_counted(share: float) -> None:
    which = np.random.default_rng(1).random(len(WORLD.tokens)) < share
    which[0] = False
    found = diff(trace(), with_rows(dumped(CLOSE, WIRING), which, noisy(0.3)))
    named = first(found)
    assert named.id == "unexplained" and f"{which.sum()} of 63 rows spread over positions" in named.summary
    assert "for at most 5% of the rows" in named.summary


def test_two_slots_exchanged_in_the_verify_pass_are_a_permutation() -> None:
    left = trace()
    rows = [slot.rows.floats() for slot in left.slots]
    both = with_rows(left, verify(left), lambda x: rows[2][verify(left)], 1)
    both = with_rows(both, verify(left), lambda x: rows[1][verify(left)], 2)
    for sweep in (left.boundaries, {}):
        named = first(diff(replace(both, boundaries=sweep), dumped(CLOSE, WIRING)))
        assert (named.id, named.slots) == ("slot-permutation", (1, 2)), named.summary


def test_verify_rows_of_all_slots_are_one_finding_with_every_number() -> None:
    left = trace()
    for slot in range(3):
        left = with_rows(left, verify(left), lambda x, by=2.0 + slot: x * by, slot)
    found = diff(left, dumped(CLOSE, WIRING))
    scales = [f for f in found.findings if f.id == "scale"]
    assert len(scales) == 1 and scales[0].slots == (0, 1, 2)
    assert re.search(
        r"times 2(\.00\d)? \(slot 0\), 3(\.00\d)? \(slot 1\) and 4(\.00\d)? \(slot 2\)", scales[0].summary
    )


def test_verify_rows_that_hold_an_earlier_position_are_no_unexplained_ones() -> None:
    left = trace()
    held = WORLD.streams[WIRING[SLOT]][left.table.position - 1]
    found = diff(with_rows(left, verify(left), lambda x: held[verify(left)]), dumped(CLOSE, WIRING))
    assert first(found).id in {"token-shift", "stale-rows"}, [(f.id, f.summary) for f in found.findings]
    assert "unexplained" not in {f.id for f in found.findings}


def test_a_wrong_part_that_is_the_larger_one_is_still_a_part() -> None:
    left = served(WORLD, WIRING, prompt=20)
    found = diff(with_rows(left, verify(left), lambda x: x * 4), dumped(CLOSE, WIRING))
    assert first(found).id == "scale" and "all 44 verify rows" in first(found).summary.lower()
    assert len([f for f in found.findings if f.severity == FAULT]) == 1


def test_rows_from_a_chunk_border_on_are_no_window() -> None:
    found = diff(served(WORLD, WIRING), with_rows(dumped(CLOSE, WIRING), slice(40, None), lambda x: x * 1.5))
    assert [f.id for f in found.findings if f.severity == FAULT] == ["scale"]


def test_a_part_is_judged_again_without_tensors() -> None:
    left = trace()
    wrong = with_rows(left, verify(left), noisy(0.3))
    wide = replace(DEFAULT, match=0.5, noise=2, neighbour_match=9, neighbour_noise=9)
    # What its own sweep contradicts stays wrong, whatever the limits; without one, the limits decide.
    for ours, said in (
        (wrong, ("mismatch", ["unexplained"])),
        (replace(wrong, boundaries={}), ("match", ["none"])),
    ):
        saved = load_result(json.dumps(diff(ours, dumped(CLOSE, WIRING)).to_json()))
        assert saved.slots[SLOT].verdict == "mismatch" and saved.slots[SLOT].parts[0].phase == "verify"
        loose = rejudge(saved, wide)
        assert (loose.verdict, [f.id for f in loose.findings]) == said
        assert rejudge(loose, DEFAULT).to_json() == saved.to_json()


def test_a_named_part_stays_a_fault_under_any_threshold() -> None:
    left = trace()
    saved = diff(with_rows(left, verify(left), lambda x: x * 4), dumped(CLOSE, WIRING))
    loose = rejudge(saved, replace(DEFAULT, match=10, noise=10, neighbour_match=99, neighbour_noise=99))
    assert loose.verdict == "mismatch" and loose.findings[0].id == "scale"


def test_a_long_comparison_counts_its_part_from_the_rows_that_it_keeps() -> None:
    world = make_world(layers=5, tokens=3000, width=32)
    rows = np.arange(3000)[1200:1700]
    found = diff(served(world, (1, 3, 4)), with_rows(dumped(world.noisy(0.01), (1, 3, 4)), rows, noisy(0.5)))
    assert found.slots[SLOT].parts[0].rows == 500 and len(found.slots[SLOT].series.position) < 3000
    again = rejudge(load_result(json.dumps(found.to_json())), replace(DEFAULT, accept=1.1))
    kept, part = again.slots[SLOT].parts[0], found.slots[SLOT].parts[0]
    assert (kept.kind, kept.first, kept.last, kept.rows) == (part.kind, part.first, part.last, part.rows)
    assert again.verdict == "mismatch"


def test_the_report_shows_every_part_beside_its_limit() -> None:
    left = trace()
    text = " ".join(str(diff(with_rows(left, verify(left), noisy(0.3)), dumped(CLOSE, WIRING))).split())
    assert "slot 1: all 20 verify rows (positions 44 to 63) are beyond noise (median relative L2" in text


def test_two_faults_in_two_parts_of_one_slot_are_both_named() -> None:
    left, late = trace(), CLOSE.streams[WIRING[SLOT] + 1]
    wrong = with_rows(left, verify(left), lambda x: x * 4)
    found = diff(wrong, with_rows(dumped(CLOSE, WIRING), slice(5, 25), lambda x: late[5:25]))
    assert {f.id for f in found.findings if f.severity == FAULT} == {"scale", "boundary-offset"}


def test_a_result_of_an_older_release_is_read_and_judged_again() -> None:
    """It lacks the parts, and the thresholds that came with them; its rows show them all the same."""
    left = trace()
    plain = diff(with_rows(left, verify(left), noisy(0.3)), dumped(CLOSE, WIRING)).to_json()
    for slot in (*plain["slots"], *plain["others"]):
        del slot["parts"]
    for name in ("part", "row_far", "floor_match"):
        del plain["thresholds"][name]
    read = load_result(json.dumps(plain))
    assert read.slots[SLOT].parts == () and read.thresholds == DEFAULT
    assert rejudge(read, DEFAULT).slots[SLOT].parts[0].phase == "verify"


@pytest.mark.parametrize("which", ["accepted draft tokens", "tokens that the target chose"])
def test_verify_rows_are_told_apart_by_who_chose_their_token(which: str) -> None:
    """Rows that are gathered by a wrong stride are those that the draft had guessed."""
    left = trace()
    chosen = (left.table.position - 44) % 2 == 0
    rows = verify(left) & (chosen if which.startswith("tokens") else ~chosen)
    saved = diff(with_rows(left, rows, noisy(0.3)), dumped(CLOSE, WIRING))
    assert f"all 10 verify rows of {which}" in first(saved).summary.lower()
    assert rejudge(load_result(json.dumps(saved.to_json())), DEFAULT).to_json() == saved.to_json()
    assert first(diff(with_rows(left, rows, lambda x: x * 2), dumped(CLOSE, WIRING))).id == "scale"


@pytest.mark.parametrize("fault", ["times four", "noise"])
@pytest.mark.parametrize("live", [(3, 7, 12), (6, 11, 12)])
def test_verify_rows_of_a_server_that_is_wired_wrong_are_told_too(live: tuple[int, ...], fault: str) -> None:
    """Against another boundary all rows are wrong: the slot's own boundary tells which of them are not even that."""
    left = served(WORLD, live, prompt=44)
    plain = {f.id for f in diff(left, dumped(CLOSE, WIRING)).findings if f.severity == FAULT}
    wanted, change = TRANSFORMED[fault]
    found = diff(with_rows(left, verify(left), change), dumped(CLOSE, WIRING))
    assert {f.id for f in found.findings if f.severity == FAULT} == {*plain, wanted}
    told = next(f for f in found.findings if f.id == wanted and f.slots == (SLOT,))
    assert "all 20 verify rows" in told.summary.lower() and "unlike the other rows there" in told.summary


def test_rows_of_a_dump_that_is_wired_wrong_are_told_too() -> None:
    late = CLOSE.streams[9]
    found = diff(trace(), with_rows(dumped(CLOSE, (3, 7, 12)), slice(5, 25), lambda x: late[5:25]))
    ids = [f.id for f in found.findings if f.severity == FAULT]
    assert ids[0] == "boundary-offset" and "wrong-boundary" in ids, [f.summary for f in found.findings]
    assert "hold B9 where its other rows hold B7" in " ".join(f.summary for f in found.findings)
