"""`diff TRACE` said "none" of traces with zeros and NaN in them: without a reference nobody looked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from compare_world import bf16, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT
from drafttrace.tracer.capture import Accepted, Capture, Probe


def trace(slot: int = 0, rows: tuple[int, ...] = (), value: float = 0.0) -> Capture:
    left = served(make_world(layers=8, tokens=40), (1, 3, 6), prompt=30)
    slots = list(left.slots)
    held = slots[slot].rows.floats().copy()
    held[list(rows)] = value
    slots[slot] = replace(slots[slot], rows=bf16(held))
    return replace(left, slots=tuple(slots), probes=(Probe("aux/0", 2, 2, 9, 0),))


def faults(left: Capture) -> list[tuple[str, tuple[int, ...], dict[str, object]]]:
    return [(f.id, f.slots, dict(f.evidence)) for f in diff(left, None).findings if f.severity == FAULT]


def test_a_slot_of_zeros_is_named_without_a_reference() -> None:
    left = trace()
    assert faults(left) == []
    count = len(left.table)
    [(name, slots, _)] = faults(trace(0, tuple(range(count))))
    assert (name, slots) == ("zero-rows", (0,))


def test_one_row_that_is_not_finite_is_named_without_a_reference() -> None:
    found = faults(trace(2, (7,), np.nan))
    assert found == [("nan-inf", (2,), {"2": {"rows": 1, "positions": [7]}})]
    assert faults(trace(1, (9,), np.inf))[0][0] == "nan-inf"


def test_rejected_rows_and_rows_that_were_not_recorded_are_no_fault() -> None:
    left = trace()
    rejected = tuple(int(row) for row in np.flatnonzero(left.table.accepted == Accepted.REJECTED))
    assert rejected and faults(trace(1, rejected)) == []
    gone = trace(1, (5, 6))
    present = np.ones(len(gone.table), np.bool_)
    present[[5, 6]] = False
    assert faults(gone) and faults(replace(gone, present={gone.slots[1].name: present})) == []
