"""The hash of a row's stored bytes, in plain numpy: the definition that the compiled kernel follows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.rows import Floats, Raw

Hashes = npt.NDArray[np.uint64]

_KEY = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_LOW = np.uint64(0xFFFFFFFF)


def plain_hashes(raw: Raw, scale: Floats | None) -> Hashes:
    """64-bit hashes ``[n]`` of the bytes of ``[n, width]`` rows and of each row's factor.

    A multilinear hash: the sum over 64-bit words of (low half + key) * (high half + key), the row's rest and its
    factor being the last two words. Made to tell rows apart, not to resist forgery.
    """
    count = len(raw)
    size = raw.shape[1] * raw.itemsize
    stored = np.ascontiguousarray(raw).view(np.uint8).reshape(count, size)
    whole = size // 8 * 8
    words = np.zeros((count, size // 8 + 2), np.uint64)
    words[:, : size // 8] = np.ascontiguousarray(stored[:, :whole]).view(np.uint64).reshape(count, size // 8)
    rest = np.zeros((count, 8), np.uint8)
    rest[:, : size - whole] = stored[:, whole:]
    words[:, -2] = rest.view(np.uint64)[:, 0]
    if scale is not None:
        words[:, -1] = np.ascontiguousarray(scale, np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        keys = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * _KEY
        low = ((words & _LOW) + (keys & _LOW)) & _LOW
        high = ((words >> np.uint64(32)) + (keys >> np.uint64(32))) & _LOW
        total = (low * high).sum(1, dtype=np.uint64) + np.uint64(size) * _KEY
        total ^= total >> np.uint64(29)
        total *= _MIX
    hashed: Hashes = total ^ (total >> np.uint64(32))
    return hashed
