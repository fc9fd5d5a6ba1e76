"""Rows that are not finite: NaN equals NaN in its bits, and is a copy of nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_world import bf16, dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.measure import duplicate_rows
from drafttrace.compare.repeats import find_borrowed, find_repeats
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.row_statistics import row_statistics

WORLD = make_world(layers=6, tokens=40)
WIRING = (0, 3, 4)


def broken(capture: Capture, value: float, slots: tuple[int, ...] = (0, 1, 2)) -> Capture:
    """Every row of some slots, and of the last state, is ``value``."""

    def rows(old: object) -> object:
        return bf16(np.full(old.shape, value, np.float32))  # type: ignore[attr-defined]

    assert capture.last is not None
    return replace(
        capture,
        slots=tuple(replace(s, rows=rows(s.rows)) if k in slots else s for k, s in enumerate(capture.slots)),
        last=replace(capture.last, rows=rows(capture.last.rows)),
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["left", "reference"])
def test_a_capture_of_nan_alone_is_nan_inf_and_not_constant(side: str, value: float) -> None:
    """constant-rows was named first for a dump of NaN, and its remedy is another one."""
    left, dump = served(WORLD, WIRING), dumped(WORLD, WIRING)
    result = diff(broken(left, value), dump) if side == "left" else diff(left, broken(dump, value))
    ids = [f.id for f in result.findings if f.severity == "fault"]
    assert ids[0] == "nan-inf" and result.exit_code == 1
    assert not {"constant-rows", "stale-rows", "padding-leak", "cross-request"} & set(ids)
    assert all(slot.constant_rows == slot.duplicate_rows == 0 for slot in result.slots)


def test_nan_is_named_before_a_constant_slot() -> None:
    dump = broken(dumped(WORLD, WIRING), np.nan, (1,))
    same = bf16(np.repeat(WORLD.streams[4][5:6], 40, 0))
    dump = replace(dump, slots=(*dump.slots[:2], replace(dump.slots[2], rows=same)))
    ids = [f.id for f in diff(served(WORLD, WIRING), dump).findings if f.severity == "fault"]
    assert ids.index("nan-inf") < ids.index("constant-rows")


def test_a_few_nan_rows_are_no_copies_of_each_other_and_of_no_other_request() -> None:
    dump = dumped(WORLD, WIRING)
    rows = WORLD.streams[3].copy()
    rows[[12, 25]] = np.nan
    odd = replace(dump, slots=(dump.slots[0], replace(dump.slots[1], rows=bf16(rows)), dump.slots[2]))
    assert not find_repeats(odd)
    other = replace(odd, path="other.h5", tokens=np.roll(odd.tokens, 3))
    other = replace(other, table=other.table.of_tokens(other.tokens))
    assert {b.row.row for b in find_borrowed(odd, [other], {}) if b.slot == 1}.isdisjoint({12, 25})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_repeat_nothing(value: float) -> None:
    rows = bf16(np.full((6, 64), value, np.float32))
    assert duplicate_rows(rows, np.arange(6), np.arange(6)) == 0
    found = row_statistics(rows)
    assert found.repeated_rows == 0 and found.nan_rows == 6


@pytest.mark.parametrize(("value", "name"), [(np.nan, "nan-inf"), (np.inf, "nan-inf"), (0.0, "zero-rows")])
def test_one_broken_row_of_the_last_state_is_named(value: float, name: str) -> None:
    """A dump with a NaN in its last state was a MATCH in which nothing is wrong: only slots were looked through."""
    dump = dumped(WORLD, WIRING)
    assert dump.last is not None
    rows = dump.last.rows.floats().copy()
    rows[20] = value
    result = diff(served(WORLD, WIRING), replace(dump, last=replace(dump.last, rows=bf16(rows))))
    found = next(f for f in result.findings if f.id == name)
    assert found.summary.startswith("1 row in the last state is ") and "(reference)" in found.summary
    assert found.slots == () and found.evidence["last"] == {"left": 0, "reference": 1}
    begins = [(one["side"], one["tap"], one["position"]) for one in found.evidence["begins"]]
    assert begins == [("reference", dump.last.name, 20)] and found.evidence["follows"] == []
    assert (result.verdict, result.exit_code) == ("mismatch", 1)
