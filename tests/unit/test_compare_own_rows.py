"""``drafttrace diff TRACE``: a slot might hold anything, as long as fc's input followed it; its own sweep says what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from compare_world import bf16, rms
from edited_captures import TRACES, Floats, draft_of, faults, trace, with_slot

import drafttrace
from drafttrace.compare.diff import diff
from drafttrace.compare.result import Finding
from drafttrace.tracer.capture import Capture, Phase

PAIRS = pytest.mark.parametrize("pair", ["kimi", "llama"])
Change = Callable[[Floats], Floats]


def served(
    pair: str, slots: tuple[int, ...], change: Change, where: npt.NDArray[np.bool_] | None = None
) -> Capture:
    """The trace with slots changed on their way from the target: what the draft takes up follows them."""
    healthy = trace(pair)
    left = healthy

    def changed(values: Floats) -> Floats:
        rows = np.ones(len(values), np.bool_) if where is None else where
        values[rows] = change(values[rows].copy())
        return values

    for slot in slots:
        left = with_slot(left, slot, changed)
    before, after = (np.concatenate([s.rows.floats() for s in one.slots], axis=1) for one in (healthy, left))
    made_of = {row.tobytes(): number for number, row in enumerate(before)}
    draft = draft_of(left)
    tensors = dict(draft.tensors)
    for name in ("hidden_in", "fc_in"):
        values = tensors[name].floats().copy()
        if values.shape[1] != after.shape[1]:
            continue
        for row, held in enumerate(values):
            if (source := made_of.get(held.tobytes())) is not None:
                values[row] = after[source]
        tensors[name] = bf16(values)
    return replace(left, draft=replace(draft, tensors=tensors))


def only(left: Capture, name: str, slots: tuple[int, ...]) -> Finding:
    result = diff(left, None)
    assert faults(result) == [name] and result.exit_code == 1, [(f.id, f.summary) for f in result.findings]
    assert result.findings[0].slots == slots, result.findings[0].summary
    return result.findings[0]


def rows_of(pair: str, part: str) -> npt.NDArray[np.bool_] | None:
    table = trace(pair).table
    return {
        "all rows": None,
        "prefill": table.phase == Phase.PREFILL,
        "verify": table.phase == Phase.VERIFY,
        "a run": (table.position >= 10) & (table.position < 20),
        "every 4th": table.position % 4 == 1,
    }[part]


def turned(values: Floats) -> Floats:
    width = values.shape[1]
    return values @ np.linalg.qr(np.random.default_rng(2).standard_normal((width, width)))[0].astype(np.float32)


def garbage(values: Floats) -> Floats:
    return 9 * np.random.default_rng(1).standard_normal(values.shape).astype(np.float32)


def reread(values: Floats) -> Floats:
    return bf16(values).raw(0, len(values)).view(np.float16).astype(np.float32)


CHANGES: dict[str, tuple[str, Change]] = {
    "doubled": ("scale", lambda values: values * 2),
    "scaled": ("scale", lambda values: values * 1.3),
    "normed": ("norm-extra", rms),
    "rotated": ("rotation", turned),
    "garbage": ("unexplained", garbage),
    "misread": ("dtype-reinterpretation", reread),
}


@PAIRS
@pytest.mark.parametrize("part", ["all rows", "prefill", "verify", "a run", "every 4th"])
@pytest.mark.parametrize("how", list(CHANGES))
def test_a_slot_that_is_not_the_boundary_of_its_own_sweep_is_named(pair: str, part: str, how: str) -> None:
    """All of them were a match: 'the trace agrees with itself'."""
    name, change = CHANGES[how]
    found = only(served(pair, (1,), change, rows_of(pair, part)), name, (1,))
    assert "limit 0.01" in found.summary and "layer sweep" in found.summary
    where = {"all rows": "The server's slot 1", "verify": "verify rows", "a run": "positions 10 to 19"}
    assert where.get(part, "rows") in found.summary


@PAIRS
def test_a_few_percent_and_the_embedding_s_slot_are_named_too(pair: str) -> None:
    found = only(served(pair, (0,), lambda values: values * 1.02), "scale", (0,))
    assert "times 1.02" in found.summary
    found = only(served(pair, (0, 1, 2), lambda values: values * 2), "scale", (0, 1, 2))
    assert found.summary.count("times 2") == 1


@PAIRS
def test_rows_at_another_boundary_or_of_another_position_are_named(pair: str) -> None:
    said = trace(pair).slots[1].boundary
    assert said is not None
    late = trace(pair).boundaries[said + 1].floats()[10:20]
    found = only(served(pair, (1,), lambda _: late, rows_of(pair, "a run")), "boundary-offset", (1,))
    assert f"they hold B{said + 1}" in found.summary
    found = only(served(pair, (1,), lambda values: np.roll(values, 1, axis=0)), "token-shift", (1,))
    assert "position p-1" in found.summary


@PAIRS
def test_one_row_is_enough_and_no_row_without_a_sweep_is(pair: str) -> None:
    one = trace(pair).table.position == 17
    found = only(served(pair, (1,), lambda values: values * 2, one), "unexplained", (1,))
    assert "1 of 6" in found.summary and "(position 17)" in found.summary
    left = served(pair, (1,), lambda values: values * 2)
    said = left.slots[1].boundary
    without = {k: rows for k, rows in left.boundaries.items() if k != said}
    assert faults(diff(replace(left, boundaries=without), None)) == []


@PAIRS
def test_rows_that_are_told_otherwise_are_not_told_twice(pair: str) -> None:
    run = rows_of(pair, "a run")
    only(served(pair, (1,), np.zeros_like, run), "zero-rows", (1,))
    only(served(pair, (1,), lambda values: np.repeat(values[3:4], len(values), 0)), "constant-rows", (1,))


@pytest.mark.parametrize("name", ["tiny-kimi/as-trained.h5", "tiny-kimi/shifted.h5", "smol/as-trained.h5"])
def test_the_other_committed_traces_agree_with_their_sweeps(name: str) -> None:
    assert faults(diff(drafttrace.open(TRACES / name), None)) == []
