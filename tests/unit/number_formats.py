"""Rows in every number format, with every kind of value, for tests of the compiled kernel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.rows import DType, to_float32

FORMATS = list(DType)
FP8 = {DType.FP8_E4M3, DType.FP8_E5M2}


def stored(values: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[np.generic]:
    """Values rounded down to a format's storage; fp8 by the nearest code in its table."""
    if dtype is DType.BF16:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in FP8:
        table = to_float32(np.arange(256, dtype=np.uint8), dtype)
        codes = np.argsort(np.where(np.isfinite(table), table, np.inf), kind="stable")[: np.isfinite(table).sum()]
        return codes[np.clip(np.searchsorted(table[codes], values), 0, len(codes) - 1)].astype(np.uint8)
    with np.errstate(over="ignore"):
        return values.astype(dtype.storage)


def sample(dtype: DType, count: int, width: int, seed: int) -> npt.NDArray[np.generic]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((count, width)) * 10.0 ** rng.uniform(-1, 1, (count, 1))
    return stored(values.astype(np.float32), dtype)


def every_code(dtype: DType, width: int) -> npt.NDArray[np.generic]:
    """Rows of every 8-bit code, or of spread 16-bit codes: all NaNs, infinities, subnormals and zeros."""
    if dtype in FP8:
        codes = np.arange(256, dtype=np.uint8)
    elif dtype in (DType.BF16, DType.FP16):
        codes = np.arange(0, 65536, 7, dtype=np.uint16).view(dtype.storage)
    else:
        wild = [0.0, -0.0, 1e-45, -1e-40, 1e-30, 1e30, 3e38, -3.4e38, np.inf, -np.inf, np.nan, 1.0, -2.5]
        codes = np.array(wild, dtype.storage)
    return np.resize(codes, (len(codes) // width + 2) * width).reshape(-1, width)
