"""The KV cache bookkeeping of the CPU test server against loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

# On a machine with the real sgl_kernel there is nothing to test.
pytest.importorskip("sgl_kernel.torch_ops", exc_type=ImportError)

import sgl_kernel

POOL, POOL_LEN = 6, 20

windows = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=5)
# SGLang passes lengths as int32 in one place and int64 in another.
index_types = st.sampled_from([torch.int32, torch.int64])


def table() -> torch.Tensor:
    return torch.arange(POOL * POOL_LEN, dtype=torch.int32).view(POOL, POOL_LEN) + 1000


def some_rows(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(POOL, generator=torch.Generator().manual_seed(seed))[:count]


@settings(max_examples=40, deadline=None)
@given(windows, index_types, st.integers(0, 9))
def test_assign_req_to_token_pool(sizes: list[tuple[int, int]], index_type: torch.dtype, seed: int) -> None:
    rows = some_rows(len(sizes), seed)
    start = torch.tensor([s for s, _ in sizes], dtype=index_type)
    end = torch.tensor([s + n for s, n in sizes], dtype=index_type)
    slots = torch.arange(sum(n for _, n in sizes) + 3) + 5
    expected = table()
    next_slot = iter(slots.tolist())
    for row, (first, count) in zip(rows.tolist(), sizes, strict=True):
        for column in range(first, first + count):
            expected[row, column] = next(next_slot)
    actual = table()
    sgl_kernel.assign_req_to_token_pool_cpu(rows, actual, start, end, slots, POOL_LEN)
    assert torch.equal(actual, expected)


@settings(max_examples=40, deadline=None)
@given(windows, index_types, st.integers(0, 9))
def test_assign_extend_cache_locs(sizes: list[tuple[int, int]], index_type: torch.dtype, seed: int) -> None:
    rows = some_rows(len(sizes), seed)
    start = torch.tensor([s for s, _ in sizes], dtype=index_type)
    end = torch.tensor([s + n for s, n in sizes], dtype=index_type)
    expected = [
        int(table()[row, column])
        for row, (first, count) in zip(rows.tolist(), sizes, strict=True)
        for column in range(first, first + count)
    ]
    out = torch.full((len(expected) + 2,), -7)
    sgl_kernel.assign_extend_cache_locs_cpu(rows, table(), start, end, out, POOL_LEN)
    assert out.tolist() == [*expected, -7, -7]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3))
def test_assign_draft_cache_locs_contiguous(lengths: list[int], topk: int, steps: int) -> None:
    rows = some_rows(len(lengths), 3)
    out = torch.zeros(len(lengths) * topk * steps, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        rows, table(), torch.tensor(lengths), out, POOL_LEN, topk, steps
    )
    expected = []
    for row, length in zip(rows.tolist(), lengths, strict=True):
        expected += table()[row, length : length + topk * steps].tolist()
    assert out.tolist() == expected


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3))
def test_build_draft_decode_metadata(lengths: list[int], topk: int, steps: int) -> None:
    rows = some_rows(len(lengths), 4)
    result = sgl_kernel.build_draft_decode_metadata_cpu(table(), rows, torch.tensor(lengths), topk, steps, POOL_LEN)
    assert result.shape == (len(lengths) * topk, POOL_LEN)
    assert result.dtype == torch.int32
    for request, (row, length) in enumerate(zip(rows.tolist(), lengths, strict=True)):
        source = table()[row].tolist()
        for branch in range(topk):
            own = source[length + branch * steps : length + (branch + 1) * steps]
            assert result[request * topk + branch, : length + steps].tolist() == source[:length] + own


def test_build_draft_decode_metadata_leaves_the_table_alone() -> None:
    original = table()
    sgl_kernel.build_draft_decode_metadata_cpu(original, torch.tensor([1]), torch.tensor([3]), 2, 2, POOL_LEN)
    assert torch.equal(original, table())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 6), st.integers(0, 99))
def test_copy_all_layer_kv_cache(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    buffers = [
        torch.randn(16, 2, 4, generator=generator).to(torch.bfloat16),
        torch.randn(16, 3, generator=generator),
        torch.randint(0, 255, (16, 5), generator=generator, dtype=torch.uint8),
    ]
    target = torch.randperm(16, generator=generator)[:count]
    source = torch.randint(0, 16, (count,), generator=generator)
    expected = [buffer.clone() for buffer in buffers]
    for before, after in zip(buffers, expected, strict=True):
        for to, origin in zip(target.tolist(), source.tolist(), strict=True):
            after[to] = before[origin]
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer[0].numel() * buffer.element_size() for buffer in buffers])
    sgl_kernel.copy_all_layer_kv_cache_cpu(addresses, strides, target, source)
    for actual, wanted in zip(buffers, expected, strict=True):
        assert torch.equal(actual, wanted)
