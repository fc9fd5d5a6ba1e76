"""A recorded noise floor moves the limits within bounds: two recordings of one server are no measure of another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compare_world import dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.noise_pair import measure_noise
from drafttrace.compare.thresholds import DEFAULT, Noise, parse_thresholds, slot_limits

WORLD = make_world(layers=12, tokens=48)
BASE = (2, 6, 9)


def test_recordings_that_are_equal_bit_for_bit_do_not_make_a_healthy_trace_a_mismatch() -> None:
    """The floor was 0, the limits those of rounding, and every other implementation was wrong."""
    floor = measure_noise(served(WORLD, BASE), served(WORLD, BASE))
    assert set(floor.rel_l2) == {0.0}
    found = diff(served(WORLD, BASE), dumped(WORLD.noisy(0.03), BASE), noise=floor)
    assert (found.verdict, found.exit_code) == ("match", 0)
    for slot in found.slots:
        assert slot.judged.match_limit >= DEFAULT.floor_match
        assert "floor of 0 (the two recordings are equal bit for bit" in slot.judged.against
        assert "not under 0.035/0.07" in slot.judged.against


@pytest.mark.parametrize(
    ("floor", "limits"),
    [
        ((0.0, 0.0), (0.035, 0.07)),
        ((0.005, 0.01), (0.035, 0.07)),
        ((0.02, 0.03), (0.04, 0.08)),
        ((0.03, 0.2), (0.06, 0.2)),
        ((0.2, 0.4), (0.25, 0.25)),  # as wide as the default is, and no wider
    ],
)
def test_a_floor_narrows_and_widens_within_bounds(floor: tuple[float, float], limits: tuple[float, float]) -> None:
    found = slot_limits(DEFAULT, floor, None)
    assert (found.match, found.noise) == pytest.approx(limits)


def test_what_bounded_the_limits_is_told() -> None:
    assert slot_limits(DEFAULT, (0.02, 0.03), None).against == "a recorded noise floor of 0.02"
    assert "not under 0.035/0.07" in slot_limits(DEFAULT, (0.005, 0.01), None).against
    assert "no more than the default 0.25" in slot_limits(DEFAULT, (0.2, 0.4), None).against


def test_the_lower_bound_is_a_threshold() -> None:
    bare = parse_thresholds(["floor_match=0", "blind_noise=0"])
    assert slot_limits(bare, (0.001, 0.002), None).match == pytest.approx(0.002)


def test_rows_of_a_noisy_floor_still_show_a_fault() -> None:
    floor = measure_noise(served(WORLD, BASE), served(WORLD.noisy(0.02), BASE))
    found = diff(served(WORLD, BASE), dumped(WORLD, (2, 7, 9)), noise=floor)
    assert found.findings[0].id == "boundary-offset" and found.exit_code == 1


@pytest.mark.parametrize(
    ("floor", "verdict"), [(None, "mismatch"), (0.02, "mismatch"), (0.1, "noise"), (0.2, "noise")]
)
def test_a_difference_within_the_recorded_floor_is_no_fault_beside_a_near_boundary(
    floor: float | None, verdict: str
) -> None:
    """The limit was six tenths of the way to the neighbour, however large the floor was that had been recorded."""
    world = make_world(layers=16, tokens=60)
    reference = dumped(world, (0, 3, 8), declared=(0, 3, 8))
    slots = (
        reference.slots[0],
        dumped(world.noisy(0.09), (0, 3, 8), declared=(0, 3, 8)).slots[1],
        reference.slots[2],
    )
    noise = None if floor is None else Noise("twice", (0.0, floor, floor), (0.0, floor, floor))
    found = diff(served(world, (0, 3, 8)), replace(reference, slots=slots), noise=noise)
    assert found.verdict == verdict, found.summary
    assert ("tells neither from the other" in found.summary) is (verdict == "noise")
    assert found.exit_code == (1 if verdict == "mismatch" else 0)
