"""A slot whose rows stand a token off says nothing of the other slots, nor of its own rows that it does not move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_world import dumped, make_world, served
from edited_captures import with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT, Finding
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.rows import Floats

WORLD = make_world(layers=16, tokens=100)
WIRING = (2, 7, 12)
NOISY = WORLD.noisy(0.004)
ODD = [10, 17, 28, 41]


def rolled(x: Floats) -> Floats:
    return np.roll(x, 1, axis=0)


def garbage(x: Floats) -> Floats:
    return np.random.default_rng(2).permuted(x, axis=1)


def odd(x: Floats) -> Floats:
    x[ODD] = garbage(x[ODD])
    return x


def dump() -> Capture:
    return dumped(NOISY, WIRING)


def trace(sweep: bool = True) -> Capture:
    left = served(WORLD, WIRING)
    return left if sweep else replace(left, boundaries={})


def told(left: Capture, reference: Capture) -> list[Finding]:
    return [f for f in diff(left, reference).findings if f.severity == FAULT]


def ids(found: list[Finding]) -> list[tuple[str, tuple[int, ...]]]:
    return [(f.id, f.slots) for f in found]


@pytest.mark.parametrize("sweep", [True, False])
@pytest.mark.parametrize("change", [garbage, odd])
def test_a_shift_of_one_slot_does_not_silence_another(change: object, sweep: bool) -> None:
    """Slot 2 was garbage, and only the shift of slot 1 was told."""
    assert callable(change)
    found = told(trace(sweep), with_slot(with_slot(dump(), 1, rolled), 2, change))
    assert ids(found) == [("token-shift", (1,)), ("unexplained", (2,))]


@pytest.mark.parametrize("change", [garbage, odd])
def test_a_shift_of_all_slots_does_not_silence_one(change: object) -> None:
    """Its rows are compared where they belong, so that what differs there is something else."""
    assert callable(change)
    moved = dump()
    for slot in range(3):
        moved = with_slot(moved, slot, rolled)
    assert ids(told(trace(), moved)) == [("token-shift", (0, 1, 2))]
    assert ids(told(trace(), with_slot(moved, 2, change))) == [("token-shift", (0, 1, 2)), ("unexplained", (2,))]


def test_a_shift_does_not_silence_rows_of_its_own_slot() -> None:
    found = told(trace(), with_slot(with_slot(dump(), 1, rolled), 1, odd))
    assert ids(found) == [("token-shift", (1,)), ("unexplained", (1,))]
    assert found[1].evidence["1"] == ODD and "while the others match" not in found[1].summary


def test_the_side_of_a_shift_is_the_one_that_its_sweep_contradicts() -> None:
    """A shifted slot of the dump was "The server's rows", and the remedy was at the server's capture."""
    for slot in (1, 2):
        theirs = told(trace(), with_slot(dump(), slot, rolled))
        assert ids(theirs) == [("token-shift", (slot,))]
        assert theirs[0].summary.startswith(
            f"The reference's rows of slot {slot} hold the state of one token before"
        )
        assert "writer of the dump" in theirs[0].remedy and "capture point" not in theirs[0].remedy
        ours = told(with_slot(trace(), slot, rolled), dump())
        assert ids(ours) == [("token-shift", (slot,))]
        assert ours[0].summary.startswith(f"The server's rows of slot {slot} hold the state of one token before")
        assert "capture point" in ours[0].remedy and "writer of the dump" not in ours[0].remedy
    blind = told(trace(sweep=False), with_slot(dump(), 1, rolled))
    assert ids(blind) == [("token-shift", (1,))]
    assert "no layer sweep tells which side" in blind[0].summary and "--boundaries all" in blind[0].remedy


def test_shifts_of_two_slots_the_other_way_are_two() -> None:
    """Both were told with the offset of the first."""
    found = told(trace(), with_slot(with_slot(dump(), 1, rolled), 2, lambda x: np.roll(x, -1, axis=0)))
    assert [(f.id, f.slots) for f in found] == [("token-shift", (1,)), ("token-shift", (2,))]
    assert "p-1" in found[0].summary and "p+1" in found[1].summary


@pytest.mark.parametrize("count", [2, 6, 24])
@pytest.mark.parametrize("sweep", [True, False])
def test_a_run_of_copied_rows_is_one_finding(count: int, sweep: bool) -> None:
    """Every run of two and more was stale-rows, and "none of the known causes fits" for the same rows."""

    def copied(x: Floats) -> Floats:
        x[50 : 50 + count] = x[20 : 20 + count]
        return x

    found = told(trace(sweep), with_slot(dump(), 1, copied))
    assert ids(found) == [("stale-rows", (1,))]
    assert sorted(map(int, found[0].evidence["1"])) == list(range(50, 50 + count))
    assert ids(told(with_slot(trace(sweep), 1, copied), dump())) == [("stale-rows", (1,))]


def test_copied_rows_do_not_silence_the_slot_s_others() -> None:
    """From twenty copies on, all rows of the slot counted as told."""

    def both(x: Floats) -> Floats:
        x[50:74] = x[20:44]
        x[[80, 84, 88, 93, 96]] = garbage(x[[80, 84, 88, 93, 96]])
        return x

    assert ids(told(trace(), with_slot(dump(), 1, both))) == [("stale-rows", (1,)), ("unexplained", (1,))]
