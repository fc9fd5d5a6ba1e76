"""Rows of a slot that stand a token off, and slots whose states several tokens share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16, dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT
from drafttrace.tracer.capture import Accepted, Capture, Phase

WORLD = make_world(layers=10, tokens=44)
# One token stands at a third of all places: its embedding is the same row every time.
WORLD.tokens[1::3] = 7
WORLD.streams[0][1::3] = WORLD.streams[0][1]
WIRING = (0, 5, 8)
NOISY = WORLD.noisy(0.02)


def trace() -> Capture:
    return served(WORLD, WIRING, prompt=36)


def faults(left: Capture) -> list[tuple[str, tuple[int, ...]]]:
    return [(f.id, f.slots) for f in diff(left, dumped(NOISY, WIRING)).findings if f.severity == FAULT]


def moved(left: Capture, offset: int) -> Capture:
    """The prompt's rows of all slots hold the state of position p + offset; the layer sweep stays right."""
    index = np.flatnonzero(left.table.phase == Phase.PREFILL)
    slots = []
    for slot in left.slots:
        rows = slot.rows.floats().copy()
        rows[index] = rows[index[np.clip(np.arange(len(index)) + offset, 0, len(index) - 1)]]
        slots.append(replace(slot, rows=bf16(rows)))
    return replace(left, slots=tuple(slots))


@pytest.mark.parametrize("offset", [-1, 1, -2])
def test_slots_a_token_off_against_their_own_sweep_are_a_token_shift(offset: int) -> None:
    """They were stale rows: one pair of equal rows, at the edge, was all that the finding spoke of."""
    assert faults(trace()) == []
    assert faults(moved(trace(), offset)) == [("token-shift", (0, 1, 2))]


def test_a_stale_row_speaks_for_the_embedding_s_slot_too() -> None:
    """Bits do not tell there, because tokens share states; the odd row was left unexplained."""
    left = trace()
    rows = {
        p: int(np.flatnonzero((left.table.position == p) & (left.table.accepted == Accepted.ACCEPTED))[0])
        for p in (9, 20)
    }
    slots = []
    for slot in left.slots:
        held = slot.rows.floats().copy()
        held[rows[20]] = held[rows[9]]
        slots.append(replace(slot, rows=bf16(held)))
    assert faults(replace(left, slots=tuple(slots))) == [("stale-rows", (0, 1, 2))]
