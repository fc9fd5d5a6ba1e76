"""Inner products of paired rows, in every number format and instruction set, against float64; what is located by them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading

import numpy as np
import numpy.typing as npt
import pytest
from number_formats import FORMATS, FP8, every_code, sample, stored

from drafttrace.compare import locate
from drafttrace.compare import sample as sampling
from drafttrace.compare.kernels import blocks as native_blocks
from drafttrace.compare.kernels import native
from drafttrace.compare.kernels.native import Block
from drafttrace.compare.kernels.pairs import cross_dots
from drafttrace.compare.locate import cross_distances, distance, neighbour_distances
from drafttrace.compare.measure import massive_channels
from drafttrace.compare.sample import Sample, Stream
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import ArrayRows, DType, Floats, Raw, to_float32

needs_kernel = pytest.mark.skipif(not native.available(), reason="no C compiler was there when this was installed")
LEVELS = range(min(native.level(), 2) + 1)  # those above AVX-512 are about fp8 rows
CODES = {DType.BF16, DType.FP16, *FP8}


def test_an_array_of_no_rows_has_any_strides() -> None:
    """Every `watch` died at its first warm run: none of the rows behind the cached prefix was one of the first trace's
    sweep."""
    empty = np.ndarray((0, 128), np.uint16, strides=(0, 0))
    assert len(Block(empty, DType.BF16).raw) == 0
    with pytest.raises(ValueError, match="bytes apart"):
        Block(np.zeros((4, 8), np.uint16)[:, ::2], DType.BF16)


def blocks(dtype: DType, count: int, rows: int, width: int, seed: int = 0) -> list[Block]:
    """Streams of one format; fp8 with a factor per row in every second one."""
    scale = np.linspace(0.5, 2, rows, dtype=np.float32)
    return [
        Block(sample(dtype, rows, width, 100 * seed + k), dtype, scale if dtype in FP8 and k % 2 else None)
        for k in range(count)
    ]


def doubles(block: Block) -> npt.NDArray[np.float64]:
    """What the rows mean, not by way of the block's own conversion."""
    values = to_float32(block.raw, block.dtype).astype(np.float64)
    return values if block.scale is None else values * block.scale[:, None]


def assert_products(found: npt.NDArray[np.float64], xs: list[Block], ys: list[Block], rows: slice) -> None:
    """``[n, len(xs), len(ys)]`` within what float32 sums lose, relative to the lengths of both rows."""
    with np.errstate(all="ignore"):
        x, y = (np.stack([doubles(b)[rows] for b in side], axis=1) for side in (xs, ys))
        known = np.einsum("rsh,rkh->rsk", x, y)
        size = np.linalg.norm(x, axis=2)[:, :, None] * np.linalg.norm(y, axis=2)[:, None]
        wrong = np.abs(found - known) / np.maximum(size, 1e-30)
    broken = ~np.isfinite(known)
    np.testing.assert_array_equal(~np.isfinite(found), broken)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(known))
    assert found.shape == known.shape and not (wrong[~broken] > 1e-6).any()


@pytest.mark.parametrize("compiled_too", [False, True])
@pytest.mark.parametrize(("nx", "ny"), [(1, 1), (3, 5), (4, 4), (8, 62), (9, 2)])
def test_inner_products_of_paired_rows(
    nx: int, ny: int, compiled_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled_too and not native.available():
        pytest.skip("no C compiler was there when this was installed")
    if not compiled_too:
        monkeypatch.setattr(native, "available", lambda: False)
    for dtype in (DType.FP32, DType.BF16):
        xs, ys = blocks(dtype, nx, 5, 1500), blocks(dtype, ny, 5, 1500, 1)
        assert_products(cross_dots(xs, ys).transpose(2, 0, 1), xs, ys, slice(0, 5))


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_inner_products_of_any_number_of_streams_and_channels(dtype: DType, level: int) -> None:
    """Registers hold 8 by 3 or 4 by 6 of them: less and more, and widths that no vector divides."""
    shapes = [(n, m, 40) for n in range(1, 14) for m in (1, 2, 3, 5, 6, 7, 13)]
    shapes += [(3, 4, 1), (8, 3, 15), (2, 3, 31), (8, 4, 33), (5, 7, 4096), (9, 5, 8211)]
    for nx, ny, width in shapes:
        xs, ys = blocks(dtype, nx, 3, width), blocks(dtype, ny, 3, width, 1)
        assert_products(native.Products(xs, ys).of(0, 3, use_level=level), xs, ys, slice(0, 3))


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("left", "right"), list(itertools.product(FORMATS, FORMATS)))
def test_inner_products_of_every_pair_of_formats(left: DType, right: DType, level: int) -> None:
    for width in (1, 47, 1057):
        xs, ys = blocks(left, 5, 2, width), blocks(right, 4, 2, width, 1)
        assert_products(native.Products(xs, ys).of(0, 2, use_level=level), xs, ys, slice(0, 2))


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
def test_streams_of_all_formats_beside_each_other(level: int) -> None:
    """More of them than one pass takes, those of bf16 scattered among the others; out of an order by format."""
    xs = [block for k, dtype in enumerate(FORMATS) for block in blocks(dtype, 2, 3, 1100, k)]
    ys = [block for k in range(3) for dtype in FORMATS for block in blocks(dtype, 2, 3, 1100, 20 + k)]
    assert_products(native.Products(xs, ys).of(0, 3, use_level=level), xs, ys, slice(0, 3))


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_inner_products_of_rows_that_are_not_finite(dtype: DType, level: int) -> None:
    """A NaN or an infinity in the first, the last or a middle channel; it stays with its row and its stream."""
    nan = {DType.BF16: 0x7FC0, **dict.fromkeys(FP8, 0x7F)}.get(dtype, np.nan)
    infinity = {DType.BF16: 0xFF80, DType.FP8_E4M3: 0xFF, DType.FP8_E5M2: 0xFC}.get(dtype, -np.inf)
    for width in (33, 70):
        xs, ys = blocks(dtype, 3, 6, width), blocks(dtype, 4, 6, width, 1)
        for row, (channel, value) in enumerate(itertools.product((0, 32, width - 1), (nan, infinity))):
            xs[1].raw[row, channel] = value
            ys[2].raw[(row + 1) % 6, channel] = value
        found = native.Products(xs, ys).of(0, 6, use_level=level)
        assert not np.isfinite(found[:, 1]).any() and np.isfinite(found[:, [0, 2]][:, :, [0, 1, 3]]).all()
        assert_products(found, xs, ys, slice(0, 6))


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", sorted(CODES))
def test_every_code_is_the_value_that_it_stands_for(dtype: DType, level: int) -> None:
    """Against rows of one channel each, which pick the values out one by one."""
    codes = Block(np.ascontiguousarray(every_code(dtype, 1)), dtype)
    one = Block(np.ones((len(codes), 1), np.float32), DType.FP32)
    with np.errstate(invalid="ignore"):
        known = to_float32(codes.raw, dtype)[:, 0].astype(np.float64)
    normal = np.isnan(known) | (np.abs(known) >= 1e-37) | (known == 0)  # subnormals of float32 may count as zero
    for xs, ys in (([codes], [one]), ([one], [codes])):
        found = native.Products(xs, ys).of(0, len(codes), use_level=level)[:, 0, 0]
        np.testing.assert_array_equal(found[normal], known[normal])


@needs_kernel
@pytest.mark.parametrize("level", LEVELS)
def test_a_part_of_the_rows_and_every_instruction_set(level: int) -> None:
    xs, ys = (
        [*blocks(DType.FP8_E4M3, 3, 7, 1030), *blocks(DType.BF16, 2, 7, 1030)],
        blocks(DType.BF16, 6, 7, 1030, 1),
    )
    products = native.Products(xs, ys)
    for start, stop in ((0, 7), (3, 5), (6, 7), (2, 2)):
        assert_products(products.of(start, stop, use_level=level), xs, ys, slice(start, stop))


@needs_kernel
def test_rows_that_lie_apart_or_one_behind_the_other() -> None:
    """A slot of a dump of four: its rows are a stride apart."""
    wide = sample(DType.BF16, 5, 4 * 50, 0)
    slots = [Block(wide[:, 50 * k : 50 * (k + 1)], DType.BF16) for k in range(4)]
    assert_products(native.Products(slots, slots).of(0, 5), slots, slots, slice(0, 5))


@needs_kernel
def test_products_that_make_no_sense_are_refused() -> None:
    xs, ys = blocks(DType.BF16, 2, 5, 40), blocks(DType.BF16, 2, 5, 41)
    with pytest.raises(ValueError, match=r"aligned rows of \(5, 40\) expected, got \(5, 41\)"):
        native.Products(xs, ys)
    odd = np.zeros(2 * 5 * 40 + 1, np.uint8)[1:].view(np.uint16).reshape(5, 40)
    with pytest.raises(ValueError, match="aligned rows"):
        native.Products(xs, [Block(odd, DType.BF16)])
    for start, stop in ((0, 6), (-1, 2), (3, 2)):
        with pytest.raises(ValueError, match=f"rows {start} to {stop} of 5"):
            native.Products(xs, xs).of(start, stop)


@needs_kernel
def test_threads_stay_from_one_product_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one took longer than the product itself on a busy machine."""
    monkeypatch.setattr(native_blocks, "threads", lambda: 3)
    seen: set[int] = set()
    original = native.Products.of

    def watched(self: native.Products, start: int, stop: int) -> npt.NDArray[np.float64]:
        seen.add(threading.get_ident())
        return original(self, start, stop)

    monkeypatch.setattr(native.Products, "of", watched)
    xs, ys = blocks(DType.BF16, 8, 40, 1100), blocks(DType.BF16, 40, 40, 1100, 1)
    for _ in range(4):
        assert_products(cross_dots(xs, ys).transpose(2, 0, 1), xs, ys, slice(0, 40))
    assert 2 <= len(seen) <= 3 and threading.get_ident() in seen


@needs_kernel
@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no process is forked off here")
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_process_that_was_forked_off_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_blocks, "threads", lambda: 2)
    xs, ys = blocks(DType.BF16, 8, 40, 1100), blocks(DType.BF16, 40, 40, 1100, 1)
    cross_dots(xs, ys)
    child = multiprocessing.get_context("fork").Process(target=cross_dots, args=(xs, ys))
    child.start()
    child.join(30)
    hung = child.is_alive()
    child.kill()
    assert not hung and child.exitcode == 0


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
@pytest.mark.parametrize("size", [1.0, 1e-25, 1e-12, 1e19])
def test_distances_by_products_are_the_distances_by_differences(size: float, dtype: DType) -> None:
    """Near, far, equal, zero and broken streams, with massive channels, whatever their magnitude."""
    rng = np.random.default_rng(8)
    base = rng.standard_normal((40, 256)).astype(np.float32) * np.float32(size)
    base[:, [3, 77]] *= 300
    noise = rng.standard_normal((40, 256)).astype(np.float32) * np.float32(size)
    broken = base.copy()
    broken[5, 5] = np.nan
    broken[6] = 0
    streams = {"a": base, "near": base + noise / 1000, "far": base + noise, "other": noise, "broken": broken}
    held = {name: ArrayRows(stored(rows, dtype), dtype) for name, rows in streams.items()}
    named = [Stream("left", "slot", name, rows, None) for name, rows in held.items()]
    index = np.arange(40)
    found = cross_distances(Sample(index, index, index), named, named)
    for i, x in enumerate(rows.floats() for rows in held.values()):
        for k, y in enumerate(rows.floats() for rows in held.values()):
            known = distance(x, y, massive_channels(y))
            assert found[i][k].rel_l2 == pytest.approx(known.rel_l2, rel=1e-3, abs=1e-7)
            assert found[i][k].cosine == pytest.approx(known.cosine, abs=1e-5)
            assert found[i][k].angle == pytest.approx(known.angle, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_row_that_a_stream_does_not_have_is_nan_in_every_format(dtype: DType) -> None:
    scales = np.linspace(1, 2, 6, dtype=np.float32) if dtype in FP8 else None
    rows = ArrayRows(sample(dtype, 6, 20, 0), dtype, scales)
    present = np.array([True, True, False, True, True, True])
    there = Stream("reference", "slot", "a", rows, None, present=present)
    index = np.array([0, 2, 3, 5])
    chosen = Sample(index, index, index)
    found = chosen.read(there, 1)
    np.testing.assert_array_equal(found[:3], rows.floats()[[1, 3, 4]])
    assert np.isnan(found[3]).all() and found.shape == (4, 20)
    assert np.isnan(chosen.read(there)[1]).all()
    part = chosen.part(np.array([3, 1]))
    assert np.isnan(part.read(there)[1]).all() and not np.isnan(part.read(there)[0]).any()
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1


@pytest.mark.parametrize("count", [1, 6, 7])
def test_massive_channels_of_bf16_words_are_those_of_their_values(count: int) -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal((count, 64)).astype(np.float32)
    values[:, [5, 60]] *= -40
    values[:, 9] *= 11.9
    values[0, 3], values[count - 1, 4], values[0, 5] = np.nan, -np.inf, np.inf
    words = Block(stored(values, DType.BF16), DType.BF16)
    np.testing.assert_array_equal(massive_channels(words), massive_channels(words.floats()))
    assert 60 in massive_channels(words)
    fp16 = Block(stored(values, DType.FP16), DType.FP16)
    np.testing.assert_array_equal(massive_channels(fp16), massive_channels(fp16.floats()))


class Counted(ArrayRows):
    """Rows that count how often one of them is read."""

    read = 0

    def take_raw(self, index: Ints) -> tuple[Raw, Floats | None]:
        self.read += len(index)
        return super().take_raw(index)


def test_a_sweep_is_read_once_for_all_that_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """61 layers of 36 rows, 7168 wide, are 32 MB as bf16, and 64 MB as float32: more than is kept."""
    monkeypatch.setattr(sampling, "_KEPT_BYTES", sampling._KEPT_BYTES // 256)
    rows, width = 36, 7168 // 256
    sweep = [Counted(sample(DType.BF16, rows, width, k), DType.BF16) for k in range(62)]
    atlas = [Stream("left", "sweep", f"boundary/{k}", s, k) for k, s in enumerate(sweep)]
    index = np.arange(rows)
    chosen = Sample(index, index, index)
    neighbour_distances(chosen, atlas)
    cross_distances(chosen, atlas[3:6], atlas)
    cross_distances(chosen, atlas[9:10], atlas)
    assert {s.read for s in sweep} == {rows}


def test_a_kept_sample_stays_within_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_KEPT_BYTES", 1000)
    index = np.arange(5)
    chosen = Sample(index, index, index)
    for k in range(20):
        dtype = FORMATS[k % len(FORMATS)]
        chosen.read(Stream("left", "slot", f"{k}", ArrayRows(sample(dtype, 5, 13, k), dtype), None))
        assert sum(block.raw.nbytes for _stream, block in chosen._kept.values()) <= 1000
    assert len(chosen._kept) > 1


def test_columns_go_into_products_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    index = np.arange(5)
    streams = [
        Stream("left", "sweep", f"{k}", ArrayRows(sample(dtype, 5, width, k), dtype), k)
        for k, (dtype, width) in enumerate(itertools.product(FORMATS, (24, 31)))
    ]
    known = cross_distances(Sample(index, index, index), streams, streams)
    monkeypatch.setattr(locate, "_AT_ONCE", 300)
    found = cross_distances(Sample(index, index, index), streams, streams)
    for i, k in itertools.product(range(len(streams)), repeat=2):
        if (i - k) % 2:
            assert np.isnan(found[i][k].rel_l2) and np.isnan(known[i][k].rel_l2)
        else:
            assert found[i][k].rel_l2 == pytest.approx(known[i][k].rel_l2, rel=1e-9, abs=1e-12)
