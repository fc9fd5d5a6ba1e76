"""A matrix of hidden states, read in blocks, whatever it is stored in.

A dump can hold 50 GB. Nothing here reads more than the rows that were asked for, and nothing imports torch.
"""

from __future__ import annotations

import enum
import itertools
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Raw = npt.NDArray[np.generic]


class DType(enum.StrEnum):
    """Number formats of stored hidden states. The value is what reports print."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The numpy dtype of the raw array: unsigned integers where numpy has no such float."""
        return np.dtype(_STORAGE[self])

    @property
    def mantissa_bits(self) -> int:
        """Explicit mantissa bits; the relative rounding step is ``2 ** -(mantissa_bits + 1)``."""
        return _MANTISSA[self]


_STORAGE = {
    DType.BF16: np.uint16,
    DType.FP16: np.float16,
    DType.FP32: np.float32,
    DType.FP64: np.float64,
    DType.FP8_E4M3: np.uint8,
    DType.FP8_E5M2: np.uint8,
}
_MANTISSA = {
    DType.BF16: 7,
    DType.FP16: 10,
    DType.FP32: 23,
    DType.FP64: 52,
    DType.FP8_E4M3: 3,
    DType.FP8_E5M2: 2,
}


def _fp8_table(exponent_bits: int, mantissa_bits: int, finite_only: bool) -> Floats:
    """All 256 values of an 8-bit float (OCP 8-bit floating point specification, 2023)."""
    code = np.arange(256)
    sign = np.where(code >> 7, -1.0, 1.0)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    value = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    if finite_only:  # e4m3fn: one NaN code per sign, no infinities
        value[(code & 0x7F) == 0x7F] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    table: Floats = (sign * value).astype(np.float32)
    return table


_FP8 = {DType.FP8_E4M3: _fp8_table(4, 3, True), DType.FP8_E5M2: _fp8_table(5, 2, False)}


def to_float32(raw: npt.NDArray[np.generic], dtype: DType) -> Floats:
    """Raw storage as float32, exactly (fp64 is rounded)."""
    if dtype is DType.BF16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype in _FP8:
        table: Floats = _FP8[dtype][raw]
        return table
    return raw.astype(np.float32)


class Rows(ABC):
    """A ``[rows, width]`` matrix that hands out blocks of rows.

    Attributes: ``shape`` is ``(rows, width)``, ``dtype`` the stored number format.
    """

    shape: tuple[int, int]
    dtype: DType

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        return self.shape[1]

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.dtype.storage.itemsize

    @abstractmethod
    def raw(self, start: int, stop: int) -> Raw:
        """Rows ``start..stop`` in storage form ``[stop - start, width]`` (``dtype.storage``)."""

    def scale(self, start: int, stop: int) -> Floats | None:
        """Per-row factors ``[stop - start]`` that make the raw values true ones; None where there are none."""
        return None

    def floats(self, start: int = 0, stop: int | None = None) -> Floats:
        """Rows ``start..stop`` as float32 ``[n, width]``, scales applied."""
        stop = self.shape[0] if stop is None else stop
        return true_values(self.raw(start, stop), self.dtype, self.scale(start, stop))

    def take(self, index: npt.NDArray[np.int64]) -> Floats:
        """The rows ``index`` as float32 ``[len(index), width]``. Rows in between are not kept in memory."""
        raw, scale = self.take_raw(index)
        return true_values(raw, self.dtype, scale)

    def take_raw(self, index: npt.NDArray[np.int64]) -> tuple[Raw, Floats | None]:
        """The rows ``index`` in storage form ``[len(index), width]``, and their factors where there are any.

        Neighbouring rows are read together; memory stays at what was asked for and one run of rows.
        """
        raw = np.empty((len(index), self.width), self.dtype.storage)
        scale: Floats | None = None
        for start, stop in runs(index):
            part = index[start:stop]
            low, high = int(part.min()), int(part.max()) + 1
            raw[start:stop] = self.raw(low, high)[part - low]
            factors = self.scale(low, high)
            if factors is not None:
                scale = np.empty(len(index), np.float32) if scale is None else scale
                scale[start:stop] = factors[part - low]
        return raw, scale


def true_values(raw: Raw, dtype: DType, scale: Floats | None = None) -> Floats:
    """Stored rows ``[n, width]`` as float32, times their factors ``[n]``. One of infinity makes NaN of a zero, which
    whoever looks at the numbers tells."""
    values = to_float32(raw, dtype)
    if scale is None:
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        found: Floats = values * scale[:, None]
    return found


def runs(index: npt.NDArray[np.int64], gap: int = 2, most: int = 1024) -> list[tuple[int, int]]:
    """Cuts of ``index`` into parts ``index[start:stop]`` that are worth reading as one span of rows each: entries
    that are at most ``gap`` rows apart, and no more than ``most`` of them."""
    if len(index) == 0:
        return []
    far = np.flatnonzero(np.abs(np.diff(index)) > gap) + 1
    cuts = [0, *far.tolist(), len(index)]
    return [(k, min(k + most, b)) for a, b in itertools.pairwise(cuts) for k in range(a, b, most)]


class ArrayRows(Rows):
    """Rows held by a numpy array; columns may be a strided slice of a wider tensor."""

    def __init__(self, array: npt.NDArray[np.generic], dtype: DType, scales: Floats | None = None) -> None:
        if array.ndim != 2 or array.dtype != dtype.storage:
            raise ValueError(f"expected [rows, width] of {dtype.storage}, got {array.shape} {array.dtype}")
        self._array = array
        self._scales = scales
        self.shape = (int(array.shape[0]), int(array.shape[1]))
        self.dtype = dtype

    def raw(self, start: int, stop: int) -> Raw:
        return self._array[start:stop]

    def scale(self, start: int, stop: int) -> Floats | None:
        return None if self._scales is None else self._scales[start:stop]
