"""`diff TRACE` said "none" of traces with zeros and NaN in them: without a reference nobody looked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dump_layouts
import numpy as np
import pytest
from compare_world import bf16, make_world, served

from drafttrace.compare.broken import find_broken
from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT
from drafttrace.tracer.capture import Accepted, Capture, Probe
from drafttrace.tracer.open import open_capture


def trace(slot: int = 0, rows: tuple[int, ...] = (), value: float = 0.0) -> Capture:
    left = served(make_world(layers=8, tokens=40), (1, 3, 6), prompt=30)
    slots = list(left.slots)
    held = slots[slot].rows.floats().copy()
    held[list(rows)] = value
    slots[slot] = replace(slots[slot], rows=bf16(held))
    return replace(left, slots=tuple(slots), probes=(Probe("aux/0", 2, 2, 9, 0),))


def faults(left: Capture) -> list[tuple[str, tuple[int, ...], dict[str, Any]]]:
    return [(f.id, f.slots, dict(f.evidence)) for f in diff(left, None).findings if f.severity == FAULT]


def test_a_slot_of_zeros_is_named_without_a_reference() -> None:
    left = trace()
    assert faults(left) == []
    count = len(left.table)
    [(name, slots, _)] = faults(trace(0, tuple(range(count))))
    assert (name, slots) == ("zero-rows", (0,))


def test_one_row_that_is_not_finite_is_named_without_a_reference() -> None:
    [(name, slots, evidence)] = faults(trace(2, (7,), np.nan))
    assert (name, slots) == ("nan-inf", (2,))
    [begins] = evidence.pop("begins")
    assert (begins["tap"], begins["position"], begins["phase"]) == ("aux/2", 7, "prefill")
    assert evidence == {"2": {"rows": 1, "positions": [7]}, "follows": []}
    assert faults(trace(1, (9,), np.inf))[0][0] == "nan-inf"


def test_rejected_rows_and_rows_that_were_not_recorded_are_no_fault() -> None:
    left = trace()
    rejected = tuple(int(row) for row in np.flatnonzero(left.table.accepted == Accepted.REJECTED))
    assert rejected and faults(trace(1, rejected)) == []
    gone = trace(1, (5, 6))
    present = np.ones(len(gone.table), np.bool_)
    present[[5, 6]] = False
    assert faults(gone) and faults(replace(gone, present={gone.slots[1].name: present})) == []


@pytest.mark.parametrize("layout", ["AM-EAGLE3", "AM-DSPARK", "TS-DEBUG"])
def test_the_padded_tail_of_a_dump_is_no_fault(layout: str, tmp_path: Path) -> None:
    """'zero-rows: 3 of 16 rows are zero', of rows that inspect called padding."""
    case = next(case for case in dump_layouts.CASES if case.id == layout)
    dump = open_capture(f"{case.write(tmp_path)}#0")
    tail = np.flatnonzero(dump.table.position >= dump.valid_length)
    assert len(tail) == 3 and not dump.slots[0].rows.take(tail).any()
    assert find_broken(dump) == () and diff(dump, None).findings == ()
    held = dump.slots[0].rows.floats().copy()
    held[4] = 0
    broken = replace(dump, slots=(replace(dump.slots[0], rows=bf16(held)), *dump.slots[1:]))
    assert [(one.kind, one.rows, one.at) for one in find_broken(broken)] == [("zero-rows", dump.valid_length, (4,))]
