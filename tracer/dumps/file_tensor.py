"""A tensor whose elements lie in a file at fixed distances: read in runs, or in slabs that neighbouring slots share.

Slots often lie side by side, so the rows of one are thin stripes. Whoever reads block by block asks for the same rows
of the next slot right away: the rows are read once, whole, and the last few slabs are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from drafttrace.tracer.dumps import slabs
from drafttrace.tracer.dumps.tensor import STORAGE, Array, Box, Source, Tensor
from drafttrace.tracer.file_bytes import Bytes, FileBytes

# A slab may be this many times what was asked of it.
_SLAB_SHARE = 8
# Reading a little too much in one go is cheaper than reading twice.
_SLACK = 1.25


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
        self._rows, self._stripes, self._across = (-1, 0), 0, False
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
            return self._view(slabs.run_bytes(self._file, self._begin + offset, span), 0, counts)
        first, length = self._rows_of(box)
        across = self._goes_across(first, length)
        small = length <= slabs.SLAB_BYTES
        if length <= _SLAB_SHARE * wanted and (small or (across and slabs.has_room_for(self, length, wanted))):
            whole = slabs.slab_bytes(self, self._file, self._begin + first, length)
            return self._view(whole, offset - first, counts)
        return self._gathered(offset, counts)

    def _goes_across(self, first: int, length: int) -> bool:
        """Whether the same rows of several slots are asked for, one after the other, now or in the block before. Who walks
        down one slot alone has no use for the others."""
        if (first, length) == self._rows:
            self._stripes += 1
        else:
            self._across, self._stripes = self._stripes > 1, 1
            self._rows = first, length
        return self._across or self._stripes > 1

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
