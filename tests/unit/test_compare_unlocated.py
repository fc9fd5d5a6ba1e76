"""Wirings of which not every boundary is known: what is said rests on the rows, and nothing is printed as "?"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from compare_world import dumped, make_world, served
from edited_captures import TRACES, Floats, faults, with_slot

import drafttrace
from drafttrace.compare.diff import diff
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture, RowTable, Slot

SWEPT = 64
FIELDS = ("position", "token_id", "phase", "round", "accepted", "step", "frame")


@cache
def _open(path: str) -> Capture:
    return drafttrace.open(TRACES / path)


def _first(ids: Sequence[int], sweep: Sequence[int]) -> Finding:
    """The first finding where a real server's swept rows are wired as ``ids`` and ``sweep`` is what the trace holds."""
    trace, dump = _open("tiny-llama/healthy.h5"), _open("tiny-llama/dump/hidden_states/hs_0.safetensors")
    table = RowTable(*(getattr(trace.table, name)[:SWEPT] for name in FIELDS))
    slots = tuple(Slot(f"aux/{i}", trace.boundaries[k], k, "live") for i, k in enumerate(ids))
    swept = {k: trace.boundaries[k] for k in sweep}
    left = replace(trace, table=table, slots=slots, embed=None, last=None, draft=None, probes=(), boundaries=swept)
    result = diff(left, dump)
    assert not any("?" in finding.summary + finding.remedy for finding in result.findings)
    return result.findings[0]


@pytest.mark.parametrize("sweep", [(), (7, 8, 9, 12, 13, 14, 15, 16)])
@pytest.mark.parametrize("tail", [15, 5])
def test_a_shift_with_an_unlocated_tail_is_no_permutation(sweep: tuple[int, ...], tail: int) -> None:
    """It was told as slots 1, 2 and 0, with the remedy to hand them over in the order [?, B8, B13]."""
    found = _first((8, 13, tail), sweep)
    assert found.id == "slot-shift"
    assert "what training had in slot i+1" in found.summary and "slot 2 holds" in found.summary
    assert "sweep" in found.remedy


@pytest.mark.parametrize("front", [0, 1, 5])
def test_a_shift_with_an_unlocated_front_is_no_permutation(front: int) -> None:
    assert _first((front, 2, 8), ()).id == "slot-shift"


def test_a_permutation_without_a_sweep_says_the_order_of_fc_s_blocks() -> None:
    found = _first((2, 13, 8), ())
    assert found.id == "slot-permutation" and "old block [0, 2, 1][i]" in found.remedy


def test_a_permutation_outside_a_partial_sweep_is_seen_by_the_slots_themselves() -> None:
    found = _first((2, 13, 8), (0, 1, 2, 3))
    assert (found.id, found.slots) == ("slot-permutation", (1, 2))


def test_a_slot_that_holds_another_one_is_told_by_the_slots_numbers() -> None:
    found = _first((2, 8, 8), ())
    assert found.id == "wrong-boundary" and "slot 2 holds what training had in slot 1" in found.summary


@pytest.mark.parametrize("seed", range(4))
def test_slots_in_few_bits_beside_a_last_state_in_more_are_no_other_wiring(seed: int) -> None:
    """The last slot is B(n), and so is the last state before the norm: the state was nearer than the slot."""
    world = make_world(layers=8, tokens=20, width=64, seed=seed)
    left, right = (
        served(world, (2, 5, 8), sweep=()),
        dumped(world.noisy(0.005, seed=seed + 1), (2, 5, 8), last="pre"),
    )
    for slot in range(3):
        right = with_slot(right, slot, in_four_bits)
    assert faults(diff(left, right)) == []
    early = with_slot(right, 1, lambda x: in_four_bits(world.streams[4]))
    assert faults(diff(left, early))[0] == "boundary-offset"


def in_four_bits(values: Floats) -> Floats:
    part, power = np.frexp(values)
    return np.asarray(np.ldexp(np.round(part * 16) / 16, power), np.float32)
