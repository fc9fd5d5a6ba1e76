"""One wrong row of many is named where it can be; a fault of a few rows hides no other one of its slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from edited_captures import dump, trace, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import FAULT, Finding, Result
from drafttrace.compare.thresholds import DEFAULT
from drafttrace.tracer.capture import Capture

Floats = np.ndarray[Any, Any]
Change = Callable[[Floats], Floats]


def at(positions: Sequence[int], change: Change) -> Change:
    def put_in(rows: Floats) -> Floats:
        rows[list(positions)] = change(rows[list(positions)])
        return rows

    return put_in


def garbage(rows: Floats) -> Floats:
    return np.random.default_rng(2).permuted(rows, axis=1)


def half_empty(rows: Floats) -> Floats:
    return np.where(np.arange(rows.shape[1]) < rows.shape[1] // 2, rows, 0)


def bare(pair: str) -> Capture:
    """The trace without what its draft read, which would tell a fault of the target's side by itself."""
    return replace(trace(pair), draft=None, probes=())


def faults(found: Result) -> list[Finding]:
    return [f for f in found.findings if f.severity == FAULT]


CASES: dict[str, tuple[str, Change]] = {
    "times four": ("scale", lambda x: 4 * x),
    "times 1.3": ("scale", lambda x: 1.3 * x),
    "negated": ("scale", lambda x: -x),
    "one value": ("constant-rows", lambda x: 0 * x + 1),
    "half of it zero": ("zero-rows", half_empty),
}


@pytest.mark.parametrize("rows", [(25,), (12, 40, 47)], ids=["one row", "three rows"])
@pytest.mark.parametrize("side", ["left", "reference"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_a_few_wrong_rows_are_named(pair: str, case: str, side: str, rows: tuple[int, ...]) -> None:
    """One row of the dump times four was "Nothing is wrong: all slots match", exit code 0."""
    wanted, change = CASES[case]
    ours, theirs = bare(pair), dump(pair)
    if side == "left":
        ours = with_slot(ours, 1, at(rows, change))
    else:
        theirs = with_slot(theirs, 1, at(rows, change))
    found = diff(ours, theirs)
    assert [f.id for f in faults(found)] == [wanted], [(f.id, f.summary) for f in found.findings]
    [named] = faults(found)
    assert named.slots == (1,) and named.evidence["side"] == side
    assert (
        "limit" in named.summary
        and f"{len(rows)} row{'s' if len(rows) > 1 else ''} cannot show more" in named.summary
    )
    assert [f.id for f in faults(rejudge(found, DEFAULT))] == [wanted]


@pytest.mark.parametrize("side", ["left", "reference"])
def test_a_row_of_another_position_is_named(side: str) -> None:
    def moved(x: Floats) -> Floats:
        x[20] = x[31] * 1.01  # not bit for bit
        return x

    ours, theirs = bare("kimi"), dump("kimi")
    ours, theirs = (with_slot(ours, 1, moved), theirs) if side == "left" else (ours, with_slot(theirs, 1, moved))
    [named] = faults(diff(ours, theirs))
    assert named.id == "stale-rows" and "position 20) holds the other side's state of position 31" in named.summary
    assert named.evidence["side"] == side


def test_a_row_of_another_boundary_is_named() -> None:
    left = bare("kimi")
    other = left.boundaries[4].floats()[25]

    def moved(x: Floats) -> Floats:
        x[25] = other
        return x

    [named] = faults(diff(left, with_slot(dump("kimi"), 1, moved)))
    assert named.id == "boundary-offset" and "(position 25) holds B4" in named.summary


def test_a_row_that_is_no_state_of_anything_stays_unexplained() -> None:
    [named] = faults(diff(bare("kimi"), with_slot(dump("kimi"), 1, at([20], garbage))))
    assert named.id == "unexplained"


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (at([5, 6], lambda x: 0 * x), at(range(20, 30), garbage), {"zero-rows", "unexplained"}),
        (at([5, 6], lambda x: x * np.nan), at(range(20, 30), garbage), {"nan-inf", "unexplained"}),
        (at([5, 6], lambda x: x[[0, 0]]), at(range(30, 40), garbage), {"stale-rows", "unexplained"}),
        (at([5, 6], lambda x: x[[0, 0]]), at(range(30, 40), lambda x: 2 * x), {"stale-rows", "scale"}),
        (at([5], lambda x: 4 * x), at([20], garbage), {"scale", "unexplained"}),
    ],
)
def test_a_fault_of_some_rows_hides_no_other_one(first: Change, second: Change, wanted: set[str]) -> None:
    """Two rows of zeros, and ten rows of garbage in the same slot: only the zeros were told."""
    found = diff(bare("llama"), with_slot(dump("llama"), 1, lambda x: second(first(x))))
    assert {f.id for f in faults(found)} == wanted, [(f.id, f.summary) for f in found.findings]


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_the_traces_own_sweep_speaks_beside_a_dump_too(pair: str) -> None:
    """Rows of the answer, which the dump does not hold, were looked at without a dump only: "match" with one."""
    broken = with_slot(bare(pair), 1, at(range(58, 63), garbage))
    found = diff(broken, dump(pair))
    [named] = faults(found)
    assert named.id == "unexplained" and "the trace's own layer sweep" in named.summary and found.exit_code == 1
    assert [f.id for f in faults(rejudge(found, DEFAULT))] == ["unexplained"]
    told = faults(diff(with_slot(bare(pair), 1, at(range(20, 30), lambda x: 2 * x)), dump(pair)))
    assert [f.id for f in told] == ["scale"]  # once, not by the comparison and by the sweep


def test_a_trace_without_a_draft_that_contradicts_itself_is_a_mismatch() -> None:
    """Its rows were not those of its own sweep, and the verdict was "incomparable", exit code 2."""
    found = diff(with_slot(bare("kimi"), 2, lambda x: 1.02 * at(range(30, 40), garbage)(x)), None)
    assert (found.verdict, found.exit_code) == ("mismatch", 1)
    assert {f.id for f in faults(found)} == {"scale", "unexplained"}, [(f.id, f.summary) for f in found.findings]
