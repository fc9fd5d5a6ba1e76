"""A tensor whose elements lie in a file at fixed distances: read in runs, or in slabs that neighbouring slots share.

Slots often lie side by side, so the rows of one are thin stripes. Whoever reads block by block asks for the same rows
of the next slot right away: the rows are read once, whole, and the last few slabs are kept.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.tracer.dumps.tensor import STORAGE, Array, Box, Source, Tensor
from drafttrace.tracer.file_bytes import Bytes, FileBytes

# A slab may be this large, and this many times what was asked of it.
_SLAB_BYTES = 32 << 20
_SLAB_SHARE = 8
# Bytes of slabs that are kept, over all files.
_KEPT_BYTES = 64 << 20
# Reading a little too much in one go is cheaper than reading twice.
_SLACK = 1.25


@dataclass(frozen=True)
class _Slab:
    """Bytes from ``begin`` of a file, in front of a buffer that may be longer."""

    source: weakref.ref[FileSource]
    begin: int
    length: int
    buffer: bytearray

    def bytes(self, begin: int, length: int) -> Bytes:
        view = np.frombuffer(self.buffer, np.uint8, length, begin - self.begin)
        view.flags.writeable = False
        return view


_slabs: deque[_Slab] = deque()
_lock = threading.Lock()


def file_tensor(
    file: FileBytes, begin: int, shape: Sequence[int], kind: str, strides: Sequence[int] | None = None
) -> Tensor:
    """The tensor at byte ``begin``. strides: in bytes, none negative; default one row after the other. The caller
    has made sure that it lies inside the file."""
    return Tensor.of(FileSource(file, begin, tuple(shape), STORAGE[kind], strides), kind)


class FileSource(Source):
    """Elements of a file at ``begin + sum(index * stride)``."""

    def __init__(
        self,
        file: FileBytes,
        begin: int,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        strides: Sequence[int] | None = None,
    ) -> None:
        self.shape = shape
        self._file, self._begin, self._dtype = file, begin, dtype
        steps = [math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape))]
        self._strides = tuple(steps if strides is None else strides)
        self._order = sorted(range(len(shape)), key=lambda axis: -self._strides[axis])  # outermost first

    def read(self, box: Box) -> Array:
        counts = tuple(count for _start, count in box)
        if 0 in counts:
            return np.empty(counts, self._dtype)
        item = self._dtype.itemsize
        places = zip(box, self._strides, strict=True)
        offset = sum(start * stride for (start, _count), stride in places)
        wanted = item * math.prod(counts)
        span = self._reach(counts)
        if span <= _SLACK * wanted:
            return self._view(self._file.read(self._begin + offset, span), 0, counts)
        first, length = self._rows_of(box)
        if length <= min(_SLAB_BYTES, _SLAB_SHARE * wanted):
            return self._view(self._slab(self._begin + first, length), offset - first, counts)
        return self._gathered(offset, counts)

    def _reach(self, counts: Sequence[int], axes: Sequence[int] | None = None) -> int:
        """Bytes from the first to the last element."""
        used = range(len(counts)) if axes is None else axes
        return self._dtype.itemsize + sum((counts[axis] - 1) * self._strides[axis] for axis in used)

    def _view(self, data: Bytes, offset: int, counts: tuple[int, ...]) -> Array:
        array: Array = np.ndarray(counts, self._dtype, data.data, offset, self._strides)
        return array

    def _rows_of(self, box: Box) -> tuple[int, int]:
        """Offset and length of the whole rows that a box lies in: every axis inside its outermost long one in full."""
        place = next(k for k, axis in enumerate(self._order) if box[axis][1] > 1)
        outer, inner = self._order[: place + 1], self._order[place + 1 :]
        first = sum(box[axis][0] * self._strides[axis] for axis in outer)
        counts = [self.shape[axis] if axis in inner else box[axis][1] for axis in range(len(box))]
        return first, self._reach(counts)

    def _slab(self, begin: int, length: int) -> Bytes:
        """Bytes of the file, out of what was read last where they are there."""
        with _lock:
            for slab in _slabs:
                if slab.begin <= begin and begin + length <= slab.begin + slab.length and slab.source() is self:
                    return slab.bytes(begin, length)
            slab = _Slab(weakref.ref(self), begin, length, _spare(self, length))
            self._file.gather(np.frombuffer(slab.buffer, np.uint8, length), [begin], length)
            _slabs.append(slab)
            return slab.bytes(begin, length)

    def _gathered(self, offset: int, counts: tuple[int, ...]) -> Array:
        """Run by run: what lies between the runs is not read."""
        run, outer = self._dtype.itemsize, list(self._order)
        while outer and self._strides[outer[-1]] == run:
            run *= counts[outer.pop()]
        out = np.empty(run * math.prod(counts[axis] for axis in outer), np.uint8)
        self._file.gather(out, self._places(self._begin + offset, outer, counts), run)
        array = out.view(self._dtype).reshape([counts[axis] for axis in self._order])
        return array.transpose(np.argsort(self._order))

    def _places(self, first: int, axes: list[int], counts: tuple[int, ...]) -> Iterator[int]:
        if not axes:
            yield first
            return
        for index in range(counts[axes[0]]):
            yield from self._places(first + index * self._strides[axes[0]], axes[1:], counts)


def _spare(source: FileSource, length: int) -> bytearray:
    """A buffer for a slab: that of the source's last slab, where nobody looks at it any more, else a new one.

    The oldest slabs are let go.
    """
    spare: bytearray | None = None
    for slab in [slab for slab in _slabs if slab.source() in {source, None}]:
        _slabs.remove(slab)
        if length <= len(slab.buffer) <= 2 * length and _is_free(slab.buffer):
            spare = slab.buffer
    while sum(len(slab.buffer) for slab in _slabs) + length > _KEPT_BYTES and _slabs:
        _slabs.popleft()
    return bytearray(length) if spare is None else spare


def _is_free(buffer: bytearray) -> bool:
    """Whether no array looks into a buffer: it cannot change its length then."""
    try:
        buffer.append(0)
        buffer.pop()
    except BufferError:
        return False
    return True
