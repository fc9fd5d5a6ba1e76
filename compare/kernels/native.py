"""The compiled row kernel (``rows.c``), called through ctypes. Without a compiler at install time there is none.

Source: ``compare/kernels/rows.c``. While it runs, other Python threads do.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drafttrace.compare.kernels.hashes import Hashes
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import DType, Floats, Raw, true_values

LEVELS = ("plain C", "AVX2", "AVX-512", "AVX-512 with VBMI", "AVX-512 with VBMI and BF16")
COLUMNS = ("xx", "yy", "xy", "dd", "trimmed_xx", "trimmed_yy", "trimmed_xy", "max_abs", "ulp")
NAN_LEFT, NAN_RIGHT, ZERO_LEFT, ZERO_RIGHT, FLAT_LEFT, FLAT_RIGHT = (1 << bit for bit in range(6))
_WANT_ULP, _WANT_HASH = 1, 2
_FORMATS = (DType.BF16, DType.FP16, DType.FP32, DType.FP64, DType.FP8_E4M3, DType.FP8_E5M2)


class _Side(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
        ("format", ctypes.c_int64),
    ]


class _Job(ctypes.Structure):
    _fields_ = [
        ("left", _Side),
        ("right", _Side),
        ("width", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("massive_count", ctypes.c_int64),
        ("want", ctypes.c_int64),
        ("left_index", ctypes.c_void_p),
        ("right_index", ctypes.c_void_p),
        ("massive", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("flags", ctypes.c_void_p),
        ("hashes", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class Block:
    """Rows in storage form ``[n, width]`` (the channels of one row lie together), and one factor per row or None."""

    raw: Raw
    dtype: DType
    scale: Floats | None = None

    def __post_init__(self) -> None:
        if self.raw.ndim != 2 or self.raw.dtype != self.dtype.storage:
            raise ValueError(
                f"expected [rows, width] of {self.dtype.storage}, got {self.raw.shape} {self.raw.dtype}"
            )
        # numpy gives an array of no rows any strides, 0 among them.
        if len(self.raw) and self.raw.shape[1] > 1 and self.raw.strides[1] != self.raw.itemsize:
            raise ValueError(f"the channels of a row lie {self.raw.strides[1]} bytes apart")
        scale = self.scale
        if scale is not None and (
            scale.shape != (len(self.raw),) or scale.dtype != np.float32 or not scale.flags.c_contiguous
        ):
            raise ValueError(f"{len(self.raw)} rows with {scale.shape} factors of {scale.dtype}")

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def width(self) -> int:
        return int(self.raw.shape[1])

    def floats(self) -> Floats:
        """The rows as float32 ``[n, width]``, factors applied; not a copy where they are stored so."""
        if self.dtype is DType.FP32 and self.scale is None:
            return self.raw.view(np.float32)
        return true_values(self.raw, self.dtype, self.scale)

    def columns(self, channels: Ints) -> Floats:
        """Some of the channels as float32 ``[n, len(channels)]``, factors applied."""
        return true_values(self.raw[:, channels], self.dtype, self.scale)

    def part(self, rows: Ints) -> Block:
        """Some of the rows."""
        return Block(self.raw[rows], self.dtype, None if self.scale is None else self.scale[rows])

    def without(self, channels: Ints) -> Block:
        """The rows with some channels set to zero; the block itself where there are none."""
        if len(channels) == 0:
            return self
        kept = self.raw.copy()
        kept[:, channels] = 0
        return Block(kept, self.dtype, self.scale)

    def side(self) -> _Side:
        """What the kernel is told."""
        scale = None if self.scale is None else self.scale.ctypes.data
        return _Side(self.raw.ctypes.data, self.raw.strides[0], scale, _FORMATS.index(self.dtype))


@dataclass(frozen=True)
class Output:
    """Where results go, one entry per pair: ``sums`` ``[n, len(COLUMNS)]``, ``flags`` ``[n]`` of the bits above,
    ``hashes`` ``[n, 2]`` of the stored bytes of the left and of the right row."""

    sums: npt.NDArray[np.float64]
    flags: npt.NDArray[np.uint8]
    hashes: Hashes

    @staticmethod
    def empty(count: int) -> Output:
        """Room for ``count`` pairs."""
        return Output(np.empty((count, len(COLUMNS))), np.empty(count, np.uint8), np.empty((count, 2), np.uint64))

    def part(self, start: int, stop: int) -> Output:
        """A view of some of the pairs."""
        return Output(self.sums[start:stop], self.flags[start:stop], self.hashes[start:stop])


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled library; None where there is none or it was built from another source."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_rows{suffix}")
        if not path.exists():
            continue
        try:
            found = ctypes.CDLL(str(path))
            found.drafttrace_job_size.restype = ctypes.c_int64
            if found.drafttrace_job_size() == ctypes.sizeof(_Job) and found.drafttrace_cross:
                return found
        except (OSError, AttributeError):
            continue
    return None


def available() -> bool:
    """Whether there is a compiled kernel."""
    return library() is not None


def level() -> int:
    """The best instruction set of this machine, an index into :data:`LEVELS`."""
    found = library()
    return 0 if found is None else int(found.drafttrace_level())


def description() -> str:
    """What runs here, in words."""
    return f"compiled, {LEVELS[level()]}" if available() else "numpy (no compiled kernel was built)"


def measure(
    left: Block,
    left_index: Ints,
    right: Block,
    right_index: Ints,
    massive: Sequence[int] | Ints,
    out: Output,
    *,
    ulp: bool = True,
    hashes: bool = True,
    use_level: int | None = None,
) -> None:
    """Measure row ``left_index[i]`` of ``left`` against row ``right_index[i]`` of ``right`` into ``out``.

    massive: channels that the trimmed sums leave out. Raises ValueError for indices or channels out of range,
    RuntimeError where no kernel was built, MemoryError.
    """
    found = library()
    if found is None:
        raise RuntimeError("no compiled kernel")
    count, width = len(left_index), left.raw.shape[1]
    ours, theirs = _indices(left_index, left), _indices(right_index, right)
    channels = np.asarray(massive, np.int64)
    if len(channels):  # np.unique imports numpy.ma
        channels = np.unique(channels)
    if right.raw.shape[1] != width or len(theirs) != count:
        raise ValueError(f"{count} rows of {width} channels against {len(theirs)} of {right.raw.shape[1]}")
    if len(channels) and (channels[0] < 0 or channels[-1] >= width):
        raise ValueError(f"channels {channels[0]} to {channels[-1]} of {width}")
    for array, shape in ((out.sums, (count, len(COLUMNS))), (out.flags, (count,)), (out.hashes, (count, 2))):
        if array.shape != shape or not array.flags.c_contiguous:
            raise ValueError(f"room of {array.shape} where {shape} is needed")
    job = _Job(
        left.side(), right.side(), width, count, len(channels), ulp * _WANT_ULP + hashes * _WANT_HASH,
        ours.ctypes.data, theirs.ctypes.data, channels.ctypes.data,
        out.sums.ctypes.data, out.flags.ctypes.data, out.hashes.ctypes.data,
    )  # fmt: skip
    _check(found.drafttrace_measure(ctypes.byref(job), level() if use_level is None else use_level))


def hash_rows(rows: Block, index: Ints, *, use_level: int | None = None) -> Hashes:
    """Hashes ``[n]`` of the stored bytes of the rows ``index``. Raises as :func:`measure` does."""
    found = library()
    if found is None:
        raise RuntimeError("no compiled kernel")
    picked = _indices(index, rows)
    hashes = np.empty(len(picked), np.uint64)
    side = rows.side()
    _check(
        found.drafttrace_hash(
            ctypes.byref(side),
            ctypes.c_int64(rows.raw.shape[1]),
            ctypes.c_int64(len(picked)),
            ctypes.c_void_p(picked.ctypes.data),
            ctypes.c_void_p(hashes.ctypes.data),
            level() if use_level is None else use_level,
        )
    )
    return hashes


class Products:
    """Inner products of row r of every x with row r of every y, for whichever rows are asked for.

    xs, ys: ``[m, width]`` each, at least one of each, in any number formats. Raises ValueError for other shapes,
    RuntimeError without a kernel.
    """

    def __init__(self, xs: Sequence[Block], ys: Sequence[Block]) -> None:
        found = library()
        if found is None:
            raise RuntimeError("no compiled kernel")
        self._library = found
        self._blocks = tuple(xs), tuple(ys)  # they own the memory
        self._shape = xs[0].raw.shape
        for block in (*xs, *ys):
            if block.raw.shape != self._shape or not block.raw.flags.aligned:
                raise ValueError(f"aligned rows of {self._shape} expected, got {block.raw.shape}")
        self._sides = tuple((_Side * len(blocks))(*(block.side() for block in blocks)) for blocks in self._blocks)

    def of(self, start: int, stop: int, *, use_level: int | None = None) -> npt.NDArray[np.float64]:
        """The products ``[stop - start, len(xs), len(ys)]`` of some of the rows. Raises ValueError for rows that are not
        there, MemoryError."""
        rows, width = self._shape
        if not 0 <= start <= stop <= rows:
            raise ValueError(f"rows {start} to {stop} of {rows}")
        (xs, ys), (left, right) = self._blocks, self._sides
        out = np.zeros((stop - start, len(xs), len(ys)))
        sizes = (ctypes.c_int64(n) for n in (start, stop, width))
        _check(
            self._library.drafttrace_cross(
                left,
                ctypes.c_int64(len(xs)),
                right,
                ctypes.c_int64(len(ys)),
                *sizes,
                ctypes.c_void_p(out.ctypes.data),
                level() if use_level is None else use_level,
            )
        )
        return out


def _indices(index: Ints, block: Block) -> Ints:
    picked = np.ascontiguousarray(index, np.int64)
    if len(picked) and (int(picked.min()) < 0 or int(picked.max()) >= len(block.raw)):
        raise ValueError(f"rows {picked.min()} to {picked.max()} of {len(block.raw)}")
    return picked


def _check(code: int) -> None:
    if code == 1:
        raise MemoryError("the row kernel found no memory")
    if code:
        raise ValueError("the row kernel was given a job that makes no sense")
