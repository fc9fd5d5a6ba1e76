"""A tensor whose elements lie in a file at fixed distances: read in runs, or in slabs that neighbouring slots share.

Slots often lie side by side, so the rows of one are thin stripes. Whoever reads block by block asks for the same rows
of the next slot right away: the rows are read once, whole, and the last few slabs are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class _Plan:
    """How a box of so many elements per axis is read, wherever it begins: blocks of one size follow each other.

    wanted: its bytes. span: from its first byte to its last. outer: which axes the whole rows it lies in begin at its own
    place of; the others are there in full. length: of those rows, in bytes.
    """

    counts: tuple[int, ...]
    wanted: int
    span: int
    outer: tuple[bool, ...]
    length: int


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
        self._plan = _Plan((-1,), 0, 0, (), 0)  # of no box
        self._order = sorted(range(len(shape)), key=lambda axis: -self._strides[axis])  # outermost first

    def read(self, box: Box) -> Array:
        counts = tuple([count for _start, count in box])
        plan = self._plan
        if counts != plan.counts:
            plan = self._plan = self._planned(counts)
        if plan.wanted == 0:
            return np.empty(counts, self._dtype)
        offset = first = 0
        for (start, _count), stride, whole in zip(box, self._strides, plan.outer, strict=True):
            offset += start * stride
            first += start * stride * whole
        if plan.span <= _SLACK * plan.wanted:
            return self._view(slabs.run_bytes(self._file, self._begin + offset, plan.span), 0, counts)
        length = plan.length
        across = self._goes_across(first, length)
        small = length <= slabs.SLAB_BYTES
        if length <= _SLAB_SHARE * plan.wanted and (
            small or (across and slabs.has_room_for(self, length, plan.wanted))
        ):
            held = slabs.slab_bytes(self, self._file, self._begin + first, length)
            return self._view(held, offset - first, counts)
        return self._gathered(offset, counts)

    def _planned(self, counts: tuple[int, ...]) -> _Plan:
        """The whole rows that a box lies in have every axis inside its outermost long one in full."""
        wanted = self._dtype.itemsize * math.prod(counts)
        place = next((k for k, axis in enumerate(self._order) if counts[axis] > 1), len(counts) - 1)
        outer = self._order[: place + 1]
        whole = [counts[axis] if axis in outer else self.shape[axis] for axis in range(len(counts))]
        flags = tuple([axis in outer for axis in range(len(counts))])
        return _Plan(counts, wanted, self._reach(counts), flags, self._reach(whole))

    def _goes_across(self, first: int, length: int) -> bool:
        """Whether the same rows of several slots are asked for, one after the other, now or in the block before. Who walks
        down one slot alone has no use for the others."""
        if (first, length) == self._rows:
            self._stripes += 1
        else:
            self._across, self._stripes = self._stripes > 1, 1
            self._rows = first, length
        return self._across or self._stripes > 1

    def _reach(self, counts: Sequence[int]) -> int:
        """Bytes from the first to the last element."""
        steps = zip(counts, self._strides, strict=True)
        return self._dtype.itemsize + sum((count - 1) * stride for count, stride in steps)

    def _view(self, data: Bytes, offset: int, counts: tuple[int, ...]) -> Array:
        array: Array = np.ndarray(counts, self._dtype, data.data, offset, self._strides)
        return array

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
