"""Bookkeeping of KV cache slots: which slot holds which token of which request.

``req_to_token`` [pool, pool_len] int32 is SGLang's table: row = request, column = position, value = slot.

Call sites: ``sglang/kernels/ops/kvcache/cache_move.py``, ``sglang/kernels/ops/speculative/cache_locs.py``,
``sglang/srt/mem_cache/allocation.py``, ``sglang/srt/layers/attention/intel_amx_backend.py``.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Writes newly allocated slots into the table: columns start..end of each request, one request after another.

    req_pool_indices, start_offset, end_offset [R]; out_cache_loc [sum of end - start, or more].
    """
    rows, columns = _windows(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: len(rows)].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Reads slots from the table into ``out_cache_loc``: columns start..end of each request, packed together.

    req_pool_indices, start_offset, end_offset [R]; out_cache_loc [sum of end - start, or more].
    """
    rows, columns = _windows(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: len(rows)] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Reads the slots of a draft round: topk * num_steps columns of each request from its length on.

    req_pool_indices, seq_lens [R]; out_cache_loc [R * topk * num_steps].
    """
    ends = seq_lens + topk * num_steps
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """A table with one row per draft branch: the request's committed slots, then that branch's own.

    req_pool_indices, seq_lens [R] -> [R * topk, pool_len]. In a request's row the slots of branch b stand at
    columns length + b * num_steps .. + num_steps; in the result they follow the committed ones directly. Only the
    first length + num_steps columns of a row mean anything.
    """
    table = req_to_token[req_pool_indices].repeat_interleave(topk, dim=0)
    lengths = seq_lens.repeat_interleave(topk)[:, None]
    branch = torch.arange(topk).repeat(len(seq_lens))[:, None]
    step = torch.arange(num_steps)
    own = table.gather(1, lengths + branch * num_steps + step)
    return table.scatter_(1, lengths + step, own)


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copies slots within each of the cache buffers, all reads before all writes.

    data_ptrs [buffers] uint64 addresses, strides [buffers] bytes per slot; tgt_loc, src_loc [N] slots.
    """
    if not len(tgt_loc):
        return
    target, source = tgt_loc.long(), src_loc.long()
    slots = int(torch.maximum(target, source).max()) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        rows = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        rows[target] = rows[source]


def _windows(req_pool_indices: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column, in the table, of each element of the windows start..end, one request after another."""
    counts = (end - start).long()
    rows = req_pool_indices.long().repeat_interleave(counts)
    packed_start = counts.cumsum(0) - counts
    columns = torch.arange(len(rows)) + (start.long() - packed_start).repeat_interleave(counts)
    return rows, columns
