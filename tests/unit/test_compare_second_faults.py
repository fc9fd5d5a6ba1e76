"""A second fault of a slot was silent behind the first, and one fault was told as two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from compare_world import dumped, make_world, served
from edited_captures import Floats, dump, faults, trace, with_slot

from drafttrace.compare.diff import diff
from drafttrace.compare.judge import rejudge
from drafttrace.compare.result import Result
from drafttrace.compare.thresholds import DEFAULT
from drafttrace.tracer.rows import ArrayRows, DType

Change = Callable[[Floats], Floats]
SOME = [10, 17, 28, 41]
WORLD = make_world(layers=8, tokens=129, width=64)


def garbage(rows: Floats) -> Floats:
    rows = rows.copy()
    rows[SOME] = np.random.default_rng(2).permuted(rows[SOME], axis=1)
    return rows


def doubled(rows: Floats) -> Floats:
    rows = rows.copy()
    rows[[*SOME, 33, 40]] *= 2
    return rows


def copied(rows: Floats) -> Floats:
    rows = rows.copy()
    rows[20] = rows[27]
    return rows


def noisy(level: float) -> Change:
    def change(rows: Floats) -> Floats:
        rows = rows.copy()
        size = np.linalg.norm(rows[SOME], axis=1, keepdims=True) / np.sqrt(rows.shape[1])
        rows[SOME] += level * size * np.random.default_rng(3).standard_normal(rows[SOME].shape)
        return rows

    return change


def gained(rows: Floats, spread: float = 0.06) -> Floats:
    return rows * (1 + spread * np.random.default_rng(0).standard_normal(rows.shape[1]))


def turned(rows: Floats) -> Floats:
    return rows @ np.linalg.qr(np.random.default_rng(5).standard_normal((rows.shape[1],) * 2))[0]


def some_larger(rows: Floats) -> Floats:
    return np.where(np.arange(len(rows))[:, None] == 30, 1.5 * rows, rows)


@pytest.mark.parametrize("sweep", [True, False], ids=["sweep", "no sweep"])
@pytest.mark.parametrize(
    ("second", "named"),
    [(garbage, "unexplained"), (copied, "stale-rows"), (doubled, "scale")],
    ids=["4", "copy", "2x"],
)
@pytest.mark.parametrize("first", [gained, lambda x: 1.03 * x], ids=["gain", "factor"])
def test_a_small_fault_of_the_slot_hides_no_second_one(
    first: Change, second: Change, named: str, sweep: bool
) -> None:
    left = trace("llama") if sweep else replace(trace("llama"), boundaries={}, embed=None)
    found = diff(left, with_slot(dump("llama"), 1, lambda x: second(first(x))))
    whole = "norm-gain" if first is gained else "scale"
    assert sorted(faults(found)) == sorted([whole, named]), [(f.id, f.summary) for f in found.findings]


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_a_gain_below_every_limit_is_told_whether_or_not_there_is_a_sweep(pair: str) -> None:
    reference = with_slot(dump(pair), 1, lambda x: gained(x, 0.035))
    for left in (trace(pair), replace(trace(pair), boundaries={}, embed=None)):
        found = diff(left, reference)
        assert faults(found) == ["norm-gain"] and "with it, which counts where" in found.findings[0].summary
        assert not any("few_rows" in f.evidence for f in found.findings)


@pytest.mark.parametrize("level", [0.0, 0.3, 0.15])
@pytest.mark.parametrize("base", [0.003, 0.03])
def test_noisy_rows_of_a_rotated_slot_are_told(level: float, base: float) -> None:
    dumps = dumped(WORLD.noisy(base), (2, 4, 6))
    found = diff(served(WORLD, (2, 4, 6)), with_slot(dumps, 1, lambda x: turned(noisy(level)(x))))
    assert faults(found) == ["rotation", *(["unexplained"] if level else [])], [
        (f.id, f.summary) for f in found.findings
    ]
    if level:
        [told] = [f for f in found.findings if f.id == "unexplained"]
        assert told.evidence["single_rows"] == {"1": SOME}


@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_one_larger_row_of_a_rotated_slot_is_told(pair: str) -> None:
    found = diff(trace(pair), with_slot(dump(pair), 1, lambda x: turned(some_larger(x))))
    assert faults(found) == ["rotation", "scale"]
    assert "position 30" in next(f.summary for f in found.findings if f.id == "scale")


@pytest.mark.parametrize("held", [64, 80, 129])
@pytest.mark.parametrize("wiring", [(0, 3, 7), (3, 4, 7)])
def test_rows_of_another_boundary_beyond_the_sweep_are_one_finding(held: int, wiring: tuple[int, ...]) -> None:
    slot = wiring.index(3)
    left = served(WORLD, wiring, sweep_rows=held)

    def change(rows: Floats) -> Floats:
        rows[60:] = WORLD.streams[4][60:]
        return rows

    found = diff(with_slot(left, slot, change), dumped(WORLD.noisy(0.003), wiring))
    assert faults(found) == ["boundary-offset"], [(f.id, f.summary) for f in found.findings]
    assert found.findings[0].slots == (slot,) and "69 rows at positions 60 to 128" in found.findings[0].summary


def read_as_bf16(rows: Floats) -> ArrayRows:
    return ArrayRows(rows.astype(np.float16).view(np.uint16), DType.BF16)


@pytest.mark.parametrize("rows", [[], [12], [5, 20, 33], [12, 13, 14, 15]])
@pytest.mark.parametrize("side", ["left", "reference"])
def test_nan_of_fp16_is_a_number_in_bf16_and_told_beside_the_misreading(side: str, rows: list[int]) -> None:
    both = {"left": replace(trace("llama"), draft=None, probes=()), "reference": dump("llama")}
    values = both[side].slots[1].rows.floats().copy()
    values[rows] = np.nan
    slots = list(both[side].slots)
    slots[1] = replace(slots[1], rows=read_as_bf16(values))
    both[side] = replace(both[side], slots=tuple(slots))
    found = diff(both["left"], both["reference"])
    assert faults(found) == ["dtype-reinterpretation", *(["nan-inf"] if rows else [])]
    assert [f.evidence["1"][side] for f in found.findings if f.id == "nan-inf"] == ([len(rows)] if rows else [])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pair", ["kimi", "llama"])
def test_swapped_bytes_warn_nobody(pair: str) -> None:
    slots = list(dump(pair).slots)
    raw = np.ascontiguousarray(slots[1].rows.raw(0, len(slots[1].rows))).view(np.uint16)
    slots[1] = replace(slots[1], rows=ArrayRows(raw.byteswap(), DType.BF16))
    assert diff(trace(pair), replace(dump(pair), slots=tuple(slots))).exit_code == 1


def test_a_last_entry_that_is_not_last_is_told_of_either_side() -> None:
    left = served(WORLD, (0, 3, 7))
    for declared in (None, 6):
        wrong = dumped(WORLD, (0, 3, 7), last=6, last_declared=declared)
        for pair in ((left, wrong), (wrong, left)):
            [told] = [f for f in diff(*pair).findings if f.id == "last-not-last"]
            assert told.severity == ("fault" if declared is None else "note") and "B6" in told.summary
    assert not any(f.id == "last-not-last" for f in diff(dumped(WORLD, (0, 3, 7)), left).findings)


def test_boundaries_that_are_one_tensor_are_noted() -> None:
    left = served(WORLD, (0, 3, 7))
    twice = replace(left, boundaries={**left.boundaries, 5: left.boundaries[4]})
    notes = [f for f in diff(twice, dumped(WORLD, (0, 3, 7))).findings if f.id == "stale-rows"]
    assert [f.severity for f in notes] == ["note"] and "B4 and B5" in notes[0].summary
    assert not any(f.id == "stale-rows" for f in diff(left, dumped(WORLD, (0, 3, 7))).findings)


def test_a_result_is_judged_by_a_limit_as_its_comparison_is() -> None:
    strict = replace(DEFAULT, noise=0.01, match=0.01)
    found = diff(trace("kimi"), dump("kimi"), thresholds=strict)
    again = rejudge(Result.from_json(diff(trace("kimi"), dump("kimi")).to_json()), strict)
    assert again.verdict == found.verdict and again.findings == found.findings


def test_a_row_beside_a_factor_of_the_reference_is_the_reference_s() -> None:
    """Of a stream of the reference, the numbers of the two sides stood in each other's place."""
    found = diff(trace("llama"), with_slot(dump("llama"), 1, lambda x: 4 * some_larger(x)))
    [told] = [f for f in found.findings if "single_rows" in f.evidence]
    assert told.evidence["side"] == "reference" and "1.5" in told.summary, told.summary
