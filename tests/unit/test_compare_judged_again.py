"""A saved result that is judged again by its own limits says what it said, whatever the fault is."""

from __future__ import annotations

from dataclasses import replace

import compare_faults as faults
import numpy as np
import pytest
from compare_world import bf16, dumped, make_world, served

from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import FAULT, Result
from drafttrace.compare.thresholds import Noise, parse_thresholds
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.rows import Floats

WORLD = make_world(layers=16)
WIRING = (2, 7, 12)
DUMP = dumped(WORLD.noisy(0.004), WIRING)
ODD = [10, 17, 28, 41]


def embed(change: object) -> Capture:
    """The trace with another embedding beside the same layer sweep."""
    trace = served(WORLD, WIRING)
    assert trace.embed is not None and callable(change)
    return replace(trace, embed=replace(trace.embed, rows=bf16(change(trace.embed.rows.floats().copy()))))


def garbled(x: Floats) -> Floats:
    x = x.copy()
    x[ODD] = np.random.default_rng(2).permuted(x[ODD], axis=1)
    return x


def rolled(x: Floats) -> Floats:
    return np.roll(x, 1, axis=0)


def turned(x: Floats) -> Floats:
    return np.asarray(x @ np.linalg.qr(np.random.default_rng(5).standard_normal((x.shape[1],) * 2))[0])


def copied(x: Floats) -> Floats:
    x = x.copy()
    x[30:36] = x[20:26]
    return x


def halved(x: Floats) -> Floats:
    x = x.copy()
    x[1::2] = np.random.default_rng(3).permuted(x[1::2], axis=1)
    return x


CHANGES = {
    "some rows": garbled,
    "a token off": rolled,
    "another basis": turned,
    "copied rows": copied,
    "every other row": halved,
    "a factor": lambda x: x / 7,
}
IN_DUMP: dict[str, faults.Fault] = {
    "states one row later": faults.shifted_states(1),
    "ids shifted by two": faults.shifted_ids(2),
    "another order": faults.permuted((1, 0, 2)),
    "misread": faults.reread_as_fp16,
    "rotated": faults.rotated,
    "zeros": faults.zeroed((1,)),
    "zero rows": faults.zero_rows((4, 9)),
    "a NaN": faults.nan_at(9),
    "one wrong row": faults.one_wrong_row(20),
    "one unknown row": faults.one_unknown_row(20),
    "scaled": faults.scaled(1.5, (1,)),
    "a slot fewer": faults.without_first,
    "fp8": faults.fp8,
    "other tokens": faults.extra_tokens(3, 8),
    "truncated": faults.truncated(40),
    "the last state": faults.over_last(garbled),
    **{f"{name} in slot 1": faults.over_slots(change, (1,)) for name, change in CHANGES.items()},
    "two faults": lambda dump: faults.over_slots(garbled, (2,))(faults.over_slots(rolled, (1,))(dump)),
}


def told(result: Result) -> tuple[object, ...]:
    return (
        result.verdict,
        result.exit_code,
        result.summary,
        [(f.id, f.severity, f.summary) for f in result.findings],
    )


def same(found: Result) -> None:
    saved = Result.from_json(found.to_json())
    assert told(rejudge(saved, saved.thresholds)) == told(found)


@pytest.mark.parametrize("name", CHANGES)
def test_a_fault_of_the_embedding_outlives_its_report(name: str) -> None:
    """`drafttrace report RESULT.json --threshold ...` made a match of it: no tensors are left to find it in again."""
    found = diff(embed(CHANGES[name]), DUMP)
    if name not in {"a factor"}:  # which may be the model's own
        assert found.verdict == "mismatch" and any(f.severity == FAULT for f in found.findings)
    same(found)


@pytest.mark.parametrize("sweep", [True, False])
@pytest.mark.parametrize("name", IN_DUMP)
def test_a_result_judged_by_its_own_limits_is_the_same(name: str, sweep: bool) -> None:
    left = served(WORLD, WIRING)
    same(diff(left if sweep else replace(left, boundaries={}), IN_DUMP[name](DUMP)))


@pytest.mark.parametrize("reference", [DUMP, None])
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_trace_s_own_sweep_tells_outlives_its_report(name: str, reference: Capture | None) -> None:
    left = served(WORLD, WIRING)
    rows = bf16(CHANGES[name](left.slots[1].rows.floats()))
    slots = tuple(replace(slot, rows=rows) if i == 1 else slot for i, slot in enumerate(left.slots))
    found = diff(replace(left, slots=slots), reference)
    assert found.verdict == "mismatch"
    same(found)


def slightly(level: float, rows: list[int] | slice) -> object:
    """Noise of ``level`` per element on some rows."""

    def change(x: Floats) -> Floats:
        x = x.copy()
        size = np.linalg.norm(x[rows], axis=1, keepdims=True) / np.sqrt(x.shape[1])
        x[rows] += level * size * np.random.default_rng(3).standard_normal(x[rows].shape)
        return x

    return change


NEAR = {
    "noise in some rows": slightly(0.02, ODD),
    "more of it": slightly(0.05, ODD),
    "noise in all rows": slightly(0.02, slice(None)),
    "a small gain": lambda x: x * (1 + 0.02 * np.random.default_rng(0).standard_normal(x.shape[1])),
}
SETTINGS = ([], ["match=0.01", "noise=0.01"], ["match=0.005", "noise=0.01", "blind_noise=0.01"])


@pytest.mark.parametrize("floor", [None, 0.01, 0.04])
@pytest.mark.parametrize("name", NEAR)
def test_other_limits_say_of_a_saved_result_what_they_say_of_the_tensors(name: str, floor: float | None) -> None:
    """Near 0.01: what the trace's own sweep showed was lost where a limit had told of its slot, and looser ones did not;
    and whether a gain was looked for hung on the limits."""
    change = NEAR[name]
    left = served(WORLD, WIRING)
    assert callable(change)
    rows = bf16(change(left.slots[1].rows.floats()))
    left = replace(left, slots=tuple(replace(s, rows=rows) if i == 1 else s for i, s in enumerate(left.slots)))
    noise = None if floor is None else Noise("two recordings", (floor,) * 3, (2 * floor,) * 3)
    fresh = [diff(left, DUMP, thresholds=parse_thresholds(s), noise=noise) for s in SETTINGS]
    for saved in fresh:
        for wanted, settings in zip(fresh, SETTINGS, strict=True):
            assert told(rejudge(Result.from_json(saved.to_json()), parse_thresholds(settings))) == told(wanted)
