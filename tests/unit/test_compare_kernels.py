"""The compiled row kernel against the plain definition in float64, for every number format and instruction set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from number_formats import FORMATS, FP8, every_code, sample, stored

from drafttrace.compare import measure
from drafttrace.compare.kernels import blocks, native
from drafttrace.compare.kernels.hashes import plain_hashes
from drafttrace.compare.kernels.pairs import row_sums
from drafttrace.compare.measure import RowMeasures, duplicate_rows, measure_many, measure_rows
from drafttrace.tracer.row_statistics import row_statistics
from drafttrace.tracer.rows import ArrayRows, DType, Rows, runs, to_float32

needs_kernel = pytest.mark.skipif(not native.available(), reason="no C compiler was there when this was installed")
LEVELS = range(native.level() + 1) if native.available() else range(1)


def plain(left: Rows, right: Rows, index: npt.NDArray[np.int64], massive: npt.NDArray[np.int64]) -> RowMeasures:
    return measure._measure_plainly(left, index, right, index, massive)


def compiled(
    left: Rows, right: Rows, index: npt.NDArray[np.int64], massive: npt.NDArray[np.int64], level: int
) -> RowMeasures:
    out = native.Output.empty(len(index))
    a, ours = blocks.block(left, index)
    b, theirs = blocks.block(right, index)
    native.measure(a, ours, b, theirs, massive, out, use_level=level)
    for side, rows in enumerate((left, right)):
        np.testing.assert_array_equal(out.hashes[:, side], plain_hashes(*rows.take_raw(index)))
    return measure._of_output(out, massive)


def assert_alike(found: RowMeasures, known: RowMeasures, exact: bool) -> None:
    """exact: one side is fp32 or fp64, whose sums are float64 throughout; else blocks are summed in float32."""
    rel, floor = (1e-9, 1e-12) if exact else (2e-6, 2e-7)
    for name in ("norm_left", "norm_reference", "cosine", "cosine_trimmed"):
        np.testing.assert_allclose(getattr(found, name), getattr(known, name), rtol=rel, atol=floor, err_msg=name)
    np.testing.assert_allclose(found.rel_l2, known.rel_l2, rtol=max(rel, 1e-6), atol=0, err_msg="rel_l2")
    np.testing.assert_allclose(found.max_abs, known.max_abs, rtol=1e-6, atol=0, err_msg="max_abs")
    np.testing.assert_allclose(found.ulp, known.ulp, rtol=1e-6, atol=1e-30, err_msg="ulp")
    for name in ("nan", "zero", "flat"):
        for side in ("left", "reference"):
            field = f"{name}_{side}"
            np.testing.assert_array_equal(getattr(found, field), getattr(known, field), err_msg=field)


def is_exact(left: DType, right: DType) -> bool:
    return bool({left, right} & {DType.FP32, DType.FP64})


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("right_dtype", FORMATS)
@pytest.mark.parametrize("left_dtype", FORMATS)
def test_every_pair_of_formats(left_dtype: DType, right_dtype: DType, level: int) -> None:
    for width in (1, 2, 7, 64, 1023, 1025, 2050):
        x, y = sample(left_dtype, 6, width, width), sample(right_dtype, 6, width, width + 1)
        scales = np.array([1, 0.5, 3, 1, 7, 1e-3], np.float32)
        left = ArrayRows(x, left_dtype, scales if left_dtype in FP8 else None)
        right = ArrayRows(y, right_dtype, scales[::-1].copy() if right_dtype in FP8 else None)
        index = np.array([0, 5, 3, 3, 1, 2, 4])
        for massive in (np.empty(0, np.int64), np.unique(np.array([0, width // 2, width - 1]))):
            if len(massive) == width:
                continue
            found = compiled(left, right, index, massive, level)
            assert_alike(found, plain(left, right, index, massive), is_exact(left_dtype, right_dtype))


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("other", [DType.FP8_E4M3, DType.FP8_E5M2, DType.BF16, DType.FP32])
@pytest.mark.parametrize("dtype", sorted(FP8))
def test_fp8_without_factors_in_every_place_of_a_row(dtype: DType, other: DType, level: int) -> None:
    """Every finite code at every place of 64, with channels left out or not: values are looked up 64 at a time."""
    codes = np.arange(256, dtype=np.uint8)
    codes = codes[np.isfinite(to_float32(codes, dtype))]
    width = len(codes) + 70
    x = np.stack([np.roll(np.resize(codes, width), k) for k in range(64)])
    left, right = ArrayRows(x, dtype), ArrayRows(sample(other, 64, width, 3), other)
    index = np.arange(64)
    for massive in (np.empty(0, np.int64), np.array([0, 1, 63, 64, 200])):
        for a, b in ((left, right), (right, left), (left, left)):
            exact = DType.FP32 in (a.dtype, b.dtype)
            assert_alike(compiled(a, b, index, massive, level), plain(a, b, index, massive), exact)
    broken = x.copy()
    broken[5, 33], broken[6, width - 1] = 0x7F, 0xFF
    found = compiled(ArrayRows(broken, dtype), right, index, np.empty(0, np.int64), level)
    assert np.flatnonzero(found.nan_left).tolist() == [5, 6]


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_sums_between_massive_channels_and_at_every_end(dtype: DType, level: int) -> None:
    """Channels that are left out cut a row into parts: next to each other, at its ends, and parts of every length."""
    nothing: list[int] = []
    for width, massive in (
        *((w, nothing) for w in range(1, 70)),
        (8300, nothing),
        (8300, [0, 1, 2, 8298, 8299]),
        (8300, [4095, 4096, 8192]),
        (700, [*np.cumsum(np.arange(1, 37))]),
        (130, [*range(0, 130, 2)]),
    ):
        left, right = (ArrayRows(sample(dtype, 2, width, width + k), dtype) for k in range(2))
        index, channels = np.arange(2), np.array(massive, np.int64)
        found, known = compiled(left, right, index, channels, level), plain(left, right, index, channels)
        assert_alike(found, known, is_exact(dtype, dtype))


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_value_of_a_format(dtype: DType, level: int) -> None:
    """NaN, infinities, subnormals, the largest and the smallest values, alone in a row and together."""
    for width in (1, 3, 16):
        x = every_code(dtype, width)
        y = np.roll(x, 1, axis=0)
        index = np.arange(len(x))
        left, right = ArrayRows(x, dtype), ArrayRows(y, dtype)
        nothing = np.empty(0, np.int64)
        assert_alike(
            compiled(left, right, index, nothing, level), plain(left, right, index, nothing), is_exact(dtype, dtype)
        )


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-20, 1e-13, 1e15, 1e18, 1e25, 3e37])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_rows_whose_squares_overflow_or_underflow_float32(dtype: DType, size: float, level: int) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal((2, 4, 2048)) * size).astype(np.float32)
    left, right = ArrayRows(stored(x, dtype), dtype), ArrayRows(stored(y, dtype), dtype)
    index, massive = np.arange(4), np.array([3, 1500])
    assert_alike(
        compiled(left, right, index, massive, level), plain(left, right, index, massive), is_exact(dtype, dtype)
    )


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
def test_a_tiny_difference_of_large_rows_is_not_lost(level: int) -> None:
    x = np.full((1, 1000), 1.0, np.float32)
    x[0, :10] = 1e-25
    y = x.copy()
    y[0, :10] = 2e-25
    left, right = ArrayRows(stored(x, DType.BF16), DType.BF16), ArrayRows(stored(y, DType.BF16), DType.BF16)
    index, nothing = np.arange(1), np.empty(0, np.int64)
    found = compiled(left, right, index, nothing, level)
    assert 0 < found.rel_l2[0] < 1e-25
    assert_alike(found, plain(left, right, index, nothing), False)


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_zero_flat_and_equal_rows(dtype: DType, level: int) -> None:
    values = np.zeros((6, 40), np.float32)
    values[1] = -0.0
    values[2] = 2.0
    values[3] = 2.0
    values[3, 39] = 1.0
    values[4, ::2] = -0.0
    values[5] = np.arange(40)
    rows = ArrayRows(stored(values, dtype), dtype)
    index, nothing = np.arange(6), np.empty(0, np.int64)
    found = compiled(rows, rows, index, nothing, level)
    assert found.zero_left.tolist() == [True, True, False, False, True, False]
    assert found.flat_left.tolist() == [False, False, True, False, False, False]
    assert (found.rel_l2[[2, 3, 5]] == 0).all() and (found.ulp == 0).all()
    assert_alike(found, plain(rows, rows, index, nothing), is_exact(dtype, dtype))


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
def test_massive_channels_do_not_cost_the_others_their_digits(level: int) -> None:
    """The trimmed sums are summed without the massive channels, not made by taking them away afterwards."""
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, 3, 4096)).astype(np.float32)
    x[:, [7, 99]] += 30_000
    y[:, [7, 99]] -= 25_000
    left, right = ArrayRows(stored(x, DType.BF16), DType.BF16), ArrayRows(stored(y, DType.BF16), DType.BF16)
    index, massive = np.arange(3), np.array([7, 99])
    found, known = compiled(left, right, index, massive, level), plain(left, right, index, massive)
    np.testing.assert_allclose(found.cosine_trimmed, known.cosine_trimmed, atol=1e-7)


@needs_kernel
def test_slots_of_a_wider_tensor_are_read_where_they_are() -> None:
    """Unaligned, strided and not: a slot is a view of a wider matrix, and may begin at any byte."""
    width, count = 33, 5
    wide = sample(DType.BF16, count, 3 * width, 0)
    buffer = np.empty(wide.nbytes + 1, np.uint8)
    shifted = buffer[1:].view(np.uint16).reshape(wide.shape)
    shifted[:] = wide
    index, nothing = np.arange(count), np.empty(0, np.int64)
    right = ArrayRows(sample(DType.BF16, count, width, 1), DType.BF16)
    for k in range(3):
        part = slice(k * width, (k + 1) * width)
        known = plain(ArrayRows(np.ascontiguousarray(wide[:, part]), DType.BF16), right, index, nothing)
        for held in (wide, shifted):
            found = measure_rows(ArrayRows(held[:, part], DType.BF16), index, right, index)
            assert_alike(found, known, False)


@needs_kernel
def test_threads_and_blocks_do_not_change_a_bit() -> None:
    x, y = sample(DType.BF16, 700, 512, 0), sample(DType.BF16, 700, 512, 1)
    rng = np.random.default_rng(2)
    ours, theirs = rng.permutation(700)[:600], rng.permutation(700)[:600]
    slot = blocks.Slot(ArrayRows(x, DType.BF16), ArrayRows(y, DType.BF16), np.array([5]))
    whole = blocks.measure([slot], ours, theirs, 1 << 30, workers=1)[0]
    for workers, size in ((1, 1), (2, 1 << 20), (3, 1 << 30)):
        other = blocks.measure([slot], ours, theirs, size, workers=workers)[0]
        for name in ("sums", "flags", "hashes"):
            np.testing.assert_array_equal(getattr(other, name), getattr(whole, name), err_msg=name)


def test_several_slots_at_once_give_what_each_gives_alone() -> None:
    index = np.arange(20)
    slots = [
        (
            ArrayRows(sample(DType.BF16, 20, 64, k), DType.BF16),
            ArrayRows(sample(DType.FP16, 20, 64, 9 - k), DType.FP16),
            m,
        )
        for k, m in enumerate((None, np.array([3]), np.array([0, 63])))
    ]
    for together, (left, right, massive) in zip(measure_many(slots, index, index), slots, strict=True):
        alone = measure_rows(left, index, right, index, massive)
        for name in ("cosine", "cosine_trimmed", "rel_l2", "ulp"):
            np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))


def test_without_the_kernel_the_answers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (
        ArrayRows(sample(DType.BF16, 40, 96, 0), DType.BF16),
        ArrayRows(sample(DType.BF16, 40, 96, 1), DType.BF16),
    )
    index, tokens = np.arange(40), np.arange(40)
    first = measure_rows(x, index, y, index, np.array([2]))
    repeated = duplicate_rows(x, np.array([0, 0, 1]), tokens[:3])
    monkeypatch.setattr(native, "available", lambda: False)
    assert_alike(first, measure_rows(x, index, y, index, np.array([2])), False)
    assert repeated == duplicate_rows(x, np.array([0, 0, 1]), tokens[:3]) == 1


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("width", [1, 3, 4, 9, 1000])
def test_hashes_follow_their_definition(dtype: DType, width: int, level: int) -> None:
    raw = sample(dtype, 9, width, 4)
    scale = np.linspace(0.5, 2, 9, dtype=np.float32) if dtype in FP8 else None
    found = native.hash_rows(native.Block(raw, dtype, scale), np.arange(9), use_level=level)
    np.testing.assert_array_equal(found, plain_hashes(raw, scale))


def test_hashes_tell_rows_apart() -> None:
    """Also those that differ only in signs, order, or by trailing zeros."""
    base = sample(DType.BF16, 1, 64, 0)[0]
    flipped, swapped = base.copy(), base.copy()
    flipped[[3, 7]] ^= 0x8000
    swapped[[0, 4]] = swapped[[4, 0]]
    hashes = plain_hashes(np.stack([base, flipped, swapped, np.roll(base, 1), np.zeros_like(base)]), None)
    assert len(set(hashes.tolist())) == 5
    one, two = (plain_hashes(np.zeros((1, n), np.uint16), None)[0] for n in (4, 5))
    assert one != two


@needs_kernel
def test_the_kernel_refuses_what_would_read_outside() -> None:
    rows = native.Block(sample(DType.BF16, 4, 8, 0), DType.BF16)
    out, nothing = native.Output.empty(1), np.empty(0, np.int64)
    good = np.array([0])
    for bad in (np.array([4]), np.array([-1])):
        with pytest.raises(ValueError, match="rows"):
            native.measure(rows, bad, rows, good, nothing, out)
        with pytest.raises(ValueError, match="rows"):
            native.hash_rows(rows, bad)
    with pytest.raises(ValueError, match="channels"):
        native.measure(rows, good, rows, good, np.array([8]), out)
    with pytest.raises(ValueError, match="room"):
        native.measure(rows, good, rows, good, nothing, native.Output.empty(2))
    with pytest.raises(ValueError, match="8 channels against 1 of 4"):
        native.measure(rows, good, native.Block(sample(DType.BF16, 4, 4, 0), DType.BF16), good, nothing, out)
    with pytest.raises(ValueError, match="bytes apart"):
        native.Block(sample(DType.BF16, 4, 8, 0)[:, ::2], DType.BF16)
    with pytest.raises(ValueError, match="makes no sense"):
        native.measure(rows, good, rows, good, nothing, out, use_level=99)


def test_spans_stay_small_where_rows_lie_far_apart() -> None:
    near, far = np.arange(100), np.arange(100) * 1000
    assert list(blocks.spans(near, near, 40)) == [(0, 40), (40, 80), (80, 100)]
    assert [b for _a, b in blocks.spans(far, near, 40)] == list(range(1, 101))
    mixed = np.concatenate([np.arange(50), 10_000 + np.arange(50)])
    cuts = list(blocks.spans(mixed, near, 100))
    assert cuts[0][0] == 0 and cuts[-1][1] == 100 and all(np.ptp(mixed[a:b]) < 400 for a, b in cuts)
    assert list(blocks.spans(near[:0], near[:0], 40)) == []


def test_taking_a_few_rows_reads_only_those() -> None:
    """A sample of rows that is spread over a dump of 20 GB must not read all of it."""

    class Counting(ArrayRows):
        read = 0

        def raw(self, start: int, stop: int) -> npt.NDArray[np.generic]:
            self.read += stop - start
            return super().raw(start, stop)

    rows = Counting(sample(DType.BF16, 5000, 4, 0), DType.BF16)
    index = np.array([4000, 10, 11, 13, 4999, 0, 10])
    np.testing.assert_array_equal(rows.take(index), rows.floats()[index])
    rows.read = 0
    rows.take(index)
    assert rows.read <= 8
    assert runs(np.arange(10), most=4) == [(0, 4), (4, 8), (8, 10)]
    assert rows.take(index[:0]).shape == (0, 4)


def test_sums_of_rows_in_memory_with_and_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(3).standard_normal((2, 6, 300)).astype(np.float32)
    x[2, 7] = np.inf
    first = row_sums(x, y, np.array([0, 299]))
    monkeypatch.setattr(native, "available", lambda: False)
    second = row_sums(x, y, np.array([0, 299]))
    for name in ("xx", "yy", "xy", "dd", "trimmed_xx", "trimmed_yy", "trimmed_xy"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-12, err_msg=name)


@needs_kernel
def test_rows_that_were_measured_are_not_read_again_for_their_hashes() -> None:
    rows, other = (ArrayRows(sample(DType.BF16, 30, 16, k), DType.BF16) for k in (0, 1))
    index = np.arange(5, 25)
    measure_rows(rows, index, other, index)
    known = plain_hashes(rows.raw(0, 30), None)
    read: list[int] = []
    original = rows.raw
    rows.raw = lambda start, stop: (read.append(stop - start), original(start, stop))[1]  # type: ignore[method-assign]
    np.testing.assert_array_equal(blocks.hash_rows(rows, np.arange(30)[::-1].copy(), 1 << 20), known[::-1])
    assert sum(read) <= 30 and read != []
    read.clear()
    np.testing.assert_array_equal(blocks.hash_rows(rows, index, 1 << 20), known[index])
    assert read == []


@needs_kernel
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16, DType.FP32])
def test_statistics_of_a_matrix_are_the_same_with_and_without_the_kernel(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(6).standard_normal((50, 70)).astype(np.float32)
    values[0] *= 100
    values[7] = values[6]
    values[20:22] = 0
    values[30, 4], values[31, 4], values[32] = np.nan, np.nan, np.inf
    rows = ArrayRows(stored(values, dtype), dtype)
    first = row_statistics(rows).to_json()
    monkeypatch.setattr(native, "available", lambda: False)
    second = row_statistics(rows).to_json()
    assert first.keys() == second.keys()
    for name, value in second.items():
        assert first[name] == pytest.approx(value, rel=1e-6), name
    assert (first["nan_rows"], first["zero_rows"], first["repeated_rows"]) == (3, 2, 2)
