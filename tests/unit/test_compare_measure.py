"""Row measures against their definition, and the inputs that fool other comparators."""

from __future__ import annotations

import numpy as np
import pytest
from compare_world import bf16
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttrace.compare import measure
from drafttrace.compare.measure import duplicate_rows, massive_channels, massive_rows, measure_rows, stats
from drafttrace.tracer.rows import ArrayRows, DType

RNG = np.random.default_rng(3)


def rows(values: np.ndarray) -> ArrayRows:
    return ArrayRows(values.astype(np.float32), DType.FP32)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(2, 33), st.integers(0, 10_000))
def test_measures_equal_their_definition(count: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, count, width)).astype(np.float32)
    index = rng.permutation(count).astype(np.int64)
    found = measure_rows(rows(x), np.arange(count), rows(y), index)
    for i in range(count):
        a, b = x[i].astype(np.float64), y[index[i]].astype(np.float64)
        assert found.cosine[i] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-12)
        assert found.rel_l2[i] == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(b))
        assert found.max_abs[i] == pytest.approx(np.abs(a - b).max())
        assert found.norm_ratio[i] == pytest.approx(np.linalg.norm(a) / np.linalg.norm(b))


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = RNG.standard_normal((2, 100, 16))
    index = np.arange(100)
    whole = measure_rows(rows(x), index, rows(y), index, np.array([3]))
    monkeypatch.setattr(measure, "BLOCK_BYTES", 1)
    parts = measure_rows(rows(x), index, rows(y), index, np.array([3]))
    for name in ("cosine", "cosine_trimmed", "rel_l2", "ulp", "max_abs"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_massive_channels_fool_cosine_but_not_the_trimmed_one() -> None:
    """Finding 10 of peers.md: unrelated tokens have cosine 0.97 with two massive channels."""
    x, y = RNG.standard_normal((2, 200, 4096)).astype(np.float32)
    for side in (x, y):
        side[:, 7] += 300
        side[:, 99] -= 240
    massive = massive_channels(y)
    assert massive.tolist() == [7, 99]
    found = measure_rows(rows(x), np.arange(200), rows(y), np.arange(200), massive)
    assert np.median(found.cosine) > 0.96
    assert abs(np.median(found.cosine_trimmed)) < 0.02


def test_ordinary_channels_are_not_massive() -> None:
    assert massive_channels(RNG.standard_normal((100, 64)).astype(np.float32)).size == 0


def test_bf16_steps_count_representable_values() -> None:
    y = np.full((1, 8), 1.0, np.float32)
    found = measure_rows(rows(y * (1 + 3 / 128)), np.arange(1), bf16(y), np.arange(1))
    assert found.ulp[0] == pytest.approx(3.0)


def test_broken_rows_are_flagged_and_poison_nothing() -> None:
    x = RNG.standard_normal((5, 8))
    x[1, 2], x[2], x[3], x[4, 0] = np.nan, 0, 4.0, np.inf
    found = measure_rows(rows(x), np.arange(5), rows(np.ones((5, 8))), np.arange(5))
    assert found.nan_left.tolist() == [False, True, False, False, True]
    assert found.zero_left.tolist() == [False, False, True, False, False]
    assert found.flat_left.tolist() == [False, False, False, True, False]
    assert np.isfinite(found.rel_l2[[0, 2, 3]]).all() and np.isnan(found.rel_l2[[1, 4]]).all()
    assert np.isfinite(stats(found.cosine).p50)


def test_massive_rows_are_found_by_norm() -> None:
    norms = np.array([25_000.0, 150, 160, 140, np.nan, 0, 155])
    assert massive_rows(norms).tolist() == [True, False, False, False, False, False, False]


def test_repeated_rows_of_other_tokens_are_counted() -> None:
    x = RNG.standard_normal((4, 8))
    x[2] = x[1]
    x[3] = x[1]
    assert duplicate_rows(rows(x), np.arange(4), np.array([1, 2, 3, 3])) == 1


def test_repeated_rows_are_counted_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.tile(RNG.standard_normal((1, 8)), (40, 1))
    monkeypatch.setattr(measure, "BLOCK_BYTES", 1)
    assert duplicate_rows(rows(x), np.arange(40), np.arange(40)) == 39


def test_no_rows_is_no_crash() -> None:
    empty = np.empty(0, np.int64)
    assert len(measure_rows(rows(np.ones((3, 4))), empty, rows(np.ones((3, 4))), empty)) == 0
    assert np.isnan(stats(np.empty(0)).p50)


def test_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="width 4 and 5"):
        measure_rows(rows(np.ones((3, 4))), np.arange(3), rows(np.ones((3, 5))), np.arange(3))
