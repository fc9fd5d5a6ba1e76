"""Blocks of any size are read once for all slots, into memory that is used again and never under somebody's eyes."""

from __future__ import annotations

import gc
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from drafttrace.tracer.dumps import slabs
from drafttrace.tracer.dumps.file_tensor import FileSource
from drafttrace.tracer.dumps.tensor import StoredRows, Tensor
from drafttrace.tracer.file_bytes import FileBytes
from drafttrace.tracer.rows import DType

ROWS, SLOTS, WIDTH = 4096, 4, 512


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    data = np.random.default_rng(0).integers(0, 1 << 16, (ROWS, SLOTS, WIDTH), np.uint16)
    data.tofile(tmp_path / "x")
    return FileSource(FileBytes(tmp_path / "x"), 0, data.shape, data.dtype)


def stored(source: FileSource) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    return np.fromfile(source._file.path, np.uint16).reshape(ROWS, SLOTS, WIDTH)


def stripe(
    source: FileSource, slot: int, start: int, count: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    return source.read(((start, count), (slot, 1), (0, WIDTH)))[:, 0]


@pytest.mark.parametrize("size", [64, 256, 512, 1024, 4096])
def test_every_size_of_a_block_reads_the_file_once_for_all_slots(
    size: int, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 32 MiB a block of every slot was gathered stripe by stripe, at a fifth of the speed."""
    read: list[int] = []
    real = FileBytes.gather
    monkeypatch.setattr(FileBytes, "gather", lambda *a: (read.append(len(a[1])), real(*a))[1])
    for start in range(0, min(ROWS, 8 * size), size):
        for slot in range(SLOTS):
            stripe(source, slot, start, size)
    assert sum(read) == min(ROWS, 8 * size) * SLOTS * WIDTH * 2
    assert len(read) == min(ROWS, 8 * size) // size


def test_rows_that_are_there_are_handed_out_with_few_calls(source: FileSource) -> None:
    """Blocks of 64 rows stood at 0.69 of the raw speed: 40 Python calls for each slot of each block, whose bytes were
    there."""
    slot = StoredRows(Tensor.of(source, "bf16").pick(1, 1), DType.BF16)
    slot.raw(0, 64)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _arg: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        slot.raw(64, 128)  # the first of its rows
        first = len(calls)
        slot.raw(64, 128)
    finally:
        sys.setprofile(None)
    assert len(calls) - first <= 16, calls[first:]


def test_a_box_after_a_box_of_the_same_size_is_read_where_it_lies(source: FileSource) -> None:
    """How a box is read is worked out once for every size of one; where it lies is not part of that."""
    whole = stored(source)
    boxes = [
        (0, 64, 0, 1),
        (640, 64, 3, 1),
        (5, 1, 2, 1),
        (9, 1, 3, 1),
        (0, 64, 1, 2),
        (64, 64, 2, 2),
        (7, 0, 0, 1),
    ]
    for start, count, slot, slots in [*boxes, *reversed(boxes)]:
        found = source.read(((start, count), (slot, slots), (0, WIDTH)))
        assert np.array_equal(found, whole[start : start + count, slot : slot + slots])


def test_a_block_that_somebody_holds_never_changes(source: FileSource) -> None:
    """Memory goes back only when the last array into it is gone, also one made of another."""
    whole = stored(source)
    held = [(start, stripe(source, slot, start, 512)[3:, ::2]) for start in range(0, ROWS, 512) for slot in (1, 3)]
    for (start, block), slot in zip(held, [1, 3] * 8, strict=True):
        assert np.array_equal(block, whole[start : start + 512, slot][3:, ::2])
        assert not block.flags.writeable


def test_memory_is_used_again_and_bounded(source: FileSource) -> None:
    slabs._slabs.clear()
    slabs._pool.clear()
    block = None
    for start in range(0, ROWS, 512):
        for slot in range(SLOTS):
            block = stripe(source, slot, start, 512)  # the one before is still held when this one is read
    assert block is not None and len(slabs._pool) == 2
    kept = [stripe(source, 0, start, 1024) for start in range(0, ROWS, 1024)]
    assert sum(len(one.pages) for one in slabs._pool) <= slabs._POOL_BYTES and len(kept) == 4


def test_more_than_the_bound_is_held_by_nobody_but_the_caller(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    slabs._slabs.clear()
    slabs._pool.clear()
    monkeypatch.setattr(slabs, "SLAB_BYTES", 1 << 20)
    monkeypatch.setattr(slabs, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(slabs, "_KEPT_BYTES", 1 << 20)
    monkeypatch.setattr(slabs, "_POOL_BYTES", 2 << 20)
    whole = stored(source)
    for size in (128, 256, 1024):  # 512 KiB, 1 MiB, and 4 MiB, which is gathered
        blocks = [stripe(source, slot, 0, size) for slot in range(SLOTS)]
        assert all(np.array_equal(block, whole[:size, slot]) for slot, block in enumerate(blocks))
        assert sum(len(one.pages) for one in slabs._pool) <= slabs._POOL_BYTES


def test_a_large_block_of_one_slot_is_read_once_for_all_in_two_pieces_of_memory(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 4,096 rows of 4 x 4,096 channels were gathered stripe by stripe, at a quarter of the speed."""
    slabs._slabs.clear()
    slabs._pool.clear()
    monkeypatch.setattr(slabs, "SLAB_BYTES", 2 << 20)
    monkeypatch.setattr(slabs, "LARGE_BYTES", 4 << 20)
    monkeypatch.setattr(slabs, "_POOL_BYTES", 4 << 20)
    read: list[int] = []
    real = FileBytes.gather
    monkeypatch.setattr(FileBytes, "gather", lambda *a: (read.append(len(a[1])), real(*a))[1])
    block = None
    gathered = stripe(source, 0, 0, 1024)  # whoever reads may want nothing but this slot
    assert read.pop() == 1 << 20 and not slabs._slabs
    for start in (0, 1024, 2048, 3072):
        rows = 700 if start == 3072 else 1024  # the last block is a smaller one, and no third piece
        for slot in range(SLOTS):
            block = stripe(source, slot, start, rows)
            assert np.array_equal(block, stored(source)[start : start + rows, slot])
    assert block is not None and read == [*[4 << 20] * 3, 700 << 12]
    assert [len(one.pages) for one in slabs._pool] == [4 << 20] * 2 and gathered.any()


def test_large_blocks_of_one_slot_alone_or_of_two_files_are_gathered(
    source: FileSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that reads down slot by slot would hold 128 MiB of each side."""
    slabs._slabs.clear()
    slabs._pool.clear()
    monkeypatch.setattr(slabs, "SLAB_BYTES", 2 << 20)
    monkeypatch.setattr(slabs, "LARGE_BYTES", 4 << 20)
    for slot in (0, 1):
        for start in range(0, ROWS, 1024):
            stripe(source, slot, start, 1024)
    assert not slabs._slabs
    shutil.copy(tmp_path / "x", tmp_path / "y")
    other = FileSource(FileBytes(tmp_path / "y"), 0, (ROWS, SLOTS, WIDTH), np.dtype(np.uint16))
    for slot in range(SLOTS):
        assert np.array_equal(stripe(source, slot, 0, 1024), stripe(other, slot, 0, 1024))
    assert [slab.source() for slab in slabs._slabs] == [source]


def test_memory_is_let_go_with_the_last_file(tmp_path: Path) -> None:
    """A notebook does not hold 256 MiB for a dump that it has closed."""
    slabs._slabs.clear()
    slabs._pool.clear()
    np.zeros((ROWS, SLOTS, WIDTH), np.uint16).tofile(tmp_path / "y")
    other = FileSource(FileBytes(tmp_path / "y"), 0, (ROWS, SLOTS, WIDTH), np.dtype(np.uint16))
    block = stripe(other, 1, 0, 512)
    assert slabs._pool and slabs._slabs
    del other
    gc.collect()
    assert not slabs._pool and not slabs._slabs
    assert not block.any()


def test_contiguous_blocks_use_memory_again(tmp_path: Path) -> None:
    np.arange(ROWS * WIDTH, dtype=np.uint16).tofile(tmp_path / "z")
    flat = FileSource(FileBytes(tmp_path / "z"), 0, (ROWS, WIDTH), np.dtype(np.uint16))
    slabs._pool.clear()
    first = flat.read(((0, 1024), (0, WIDTH)))
    again = first.copy()
    for start in range(0, ROWS, 1024):
        block = flat.read(((start, 1024), (0, WIDTH)))
        assert np.array_equal(
            block, np.fromfile(tmp_path / "z", np.uint16).reshape(ROWS, WIDTH)[start : start + 1024]
        )
    assert np.array_equal(first, again) and len(slabs._pool) == 3
