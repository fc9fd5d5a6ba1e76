"""The hash behind ``sampling_seed``: the same seed and position give the same noise on every device.

Call site: ``sglang/kernels/ops/sampling/murmur_hash.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def murmur_hash32_cpu(seed: Tensor, positions: Tensor, col_indices: Tensor) -> Tensor:
    """MurmurHash3 (32 bit) of seed, position and column: [R], [R], [C] -> [R, C] uint32.

    The 16 hashed bytes are the 64-bit seed, low half first, then the position and the column as 32 bits each.
    """
    # int64 wraps modulo 2**64, which leaves the low 32 bits of every product right.
    wide_seed = seed.view(torch.int64) if seed.dtype == torch.uint64 else seed.long()
    hashed = torch.zeros((), dtype=torch.int64)
    for block in (wide_seed & _MASK, (wide_seed >> 32) & _MASK, positions.long() & _MASK):
        hashed = _mix(hashed, block)
    hashed = _mix(hashed[:, None], col_indices.long() & _MASK) ^ 16
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    return (hashed ^ hashed >> 16).to(torch.uint32)


def _mix(hashed: Tensor, block: Tensor) -> Tensor:
    block = _rotate_left(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    return _rotate_left(hashed ^ block, 13) * 5 + 0xE6546B64 & _MASK


def _rotate_left(x: Tensor, bits: int) -> Tensor:
    return (x << bits | x >> 32 - bits) & _MASK
