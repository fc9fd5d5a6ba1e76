"""Two causes on one slot: a transformation of all rows, and something else beside it. The second one was told of nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compare_world import bf16, rms
from edited_captures import dump, trace

from drafttrace.compare.diff import diff
from drafttrace.compare.result import FAULT, Result
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.rows import ArrayRows, DType

Floats = np.ndarray[Any, Any]
Change = Callable[[Floats], Floats]
SLOT = 1


def turned(rows: Floats) -> Floats:
    width = rows.shape[1]
    return rows @ np.linalg.qr(np.random.default_rng(5).standard_normal((width, width)))[0]


def some(change: Change, start: int, stop: int) -> Change:
    def put_in(rows: Floats) -> Floats:
        rows = rows.copy()
        rows[start:stop] = change(rows[start:stop])
        return rows

    return put_in


def garbage(rows: Floats) -> Floats:
    return np.random.default_rng(2).permuted(rows, axis=1)


def changed(capture: Capture, change: Change, *, misread: bool = False) -> Capture:
    rows = bf16(change(capture.slots[SLOT].rows.floats()))
    if misread:
        rows = ArrayRows(np.asarray(rows.raw(0, len(rows))).view(np.float16), DType.FP16)
    slots = list(capture.slots)
    slots[SLOT] = replace(slots[SLOT], rows=rows)
    return replace(capture, slots=tuple(slots))


def gain(rows: Floats) -> Floats:
    return rows * (1 + 0.5 * np.sin(np.arange(rows.shape[1])))


WHOLE: dict[str, tuple[set[str], Change, bool]] = {
    "times four": ({"scale"}, lambda x: 4 * x, False),
    "normed": ({"norm-missing"}, rms, False),
    "a gain": ({"norm-gain"}, gain, False),
    "rotated": ({"rotation"}, turned, False),
    "rotated, times four": ({"rotation", "scale"}, lambda x: 4 * turned(x), False),
    "rotated, normed": ({"rotation", "norm-missing"}, lambda x: rms(turned(x)), False),
    "misread": ({"dtype-reinterpretation"}, lambda x: x, True),
    "misread, times four": ({"dtype-reinterpretation", "scale"}, lambda x: 4 * x, True),
    "misread, rotated": ({"dtype-reinterpretation", "rotation"}, turned, True),
}
PARTS: dict[str, tuple[str | None, Change]] = {
    "nothing": (None, lambda x: x),
    "garbage": ("unexplained", some(garbage, 20, 30)),
    "zeros": ("zero-rows", some(lambda x: 0 * x, 20, 30)),
    "twice as large": ("scale", some(lambda x: 2 * x, 20, 32)),
}


def faults(found: Result) -> list[str]:
    return [f.id for f in found.findings if f.severity == FAULT]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("sweep", [True, False], ids=["sweep", "no sweep"])
def test_a_part_of_a_transformed_slot_is_named_too(whole: str, part: str, sweep: bool) -> None:
    wanted, first, misread = WHOLE[whole]
    further, second = PARTS[part]
    left = trace("llama") if sweep else replace(trace("llama"), boundaries={}, embed=None)
    found = diff(left, changed(dump("llama"), lambda x: second(first(x)), misread=misread))
    expected = wanted | ({further} if further else set())
    assert set(faults(found)) == expected, [(f.id, f.summary) for f in found.findings]
    assert found.exit_code == 1
    if further in {"scale", "unexplained"}:
        told = [f for f in found.findings if f.id == further and "at positions 20 to" in f.summary]
        assert told and "limit" in told[0].summary, [(f.id, f.summary) for f in found.findings]
