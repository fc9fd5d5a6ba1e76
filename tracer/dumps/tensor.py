"""A stored tensor: a box cut out of something that can be read in parts. Nothing is read before it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.rows import DType, Floats, Raw, Rows, to_float32

Array = npt.NDArray[Any]
# Per axis of a source: the first index, and how many.
Box = tuple[tuple[int, int], ...]

# Name of a number format -> numpy storage. Floats that numpy lacks are stored as unsigned integers.
STORAGE: dict[str, np.dtype[Any]] = {kind.value: kind.storage for kind in DType} | {
    name: np.dtype(name)
    for name in ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
}


class Source(ABC):
    """Where a tensor's elements lie. shape: of the whole. Reading holds what was asked for, and little more."""

    shape: tuple[int, ...]

    @abstractmethod
    def read(self, box: Box) -> Array:
        """The elements of a box that lies inside, in storage form, with all axes. Not to be written to.

        Raises UnreadableFile where the file does not hold them any more.
        """


class Held(Source):
    """Elements that are in memory already."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape = tuple(int(size) for size in array.shape)

    def read(self, box: Box) -> Array:
        part: Array = self._array[tuple(slice(start, start + count) for start, count in box)]
        return part


@dataclass(frozen=True, eq=False, repr=False)
class Tensor:
    """A box of a source, with some of its axes picked away. kind: the name of the number format (:data:`STORAGE`).

    axes: those of the source that are left, in order; every other one is one element long.
    """

    source: Source
    kind: str
    box: Box
    axes: tuple[int, ...]

    @staticmethod
    def of(source: Source, kind: str) -> Tensor:
        """All of a source."""
        return Tensor(source, kind, tuple((0, size) for size in source.shape), tuple(range(len(source.shape))))

    @staticmethod
    def held(array: Array, kind: str) -> Tensor:
        """An array in memory, in storage form."""
        return Tensor.of(Held(array), kind)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.box[axis][1] for axis in self.axes)

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def float_kind(self) -> DType | None:
        """The number format of hidden states; None for integers and booleans."""
        return DType(self.kind) if self.kind in set(DType) else None

    def cut(self, axis: int, start: int, stop: int) -> Tensor:
        """``start..stop`` of an axis, both inside."""
        place = self.axes[axis]
        first = self.box[place][0]
        box = (*self.box[:place], (first + start, stop - start), *self.box[place + 1 :])
        return Tensor(self.source, self.kind, box, self.axes)  # replace() takes longer than reading a few rows

    def pick(self, axis: int, index: int) -> Tensor:
        """One entry of an axis, which goes away."""
        axes = (*self.axes[:axis], *self.axes[axis + 1 :])
        return Tensor(self.source, self.kind, self.cut(axis, index, index + 1).box, axes)

    def read(self) -> Array:
        """All elements in storage form, with the tensor's shape. Raises UnreadableFile as :meth:`Source.read` does."""
        whole = self.source.read(self.box)
        if len(self.axes) == whole.ndim:
            return whole
        part: Array = whole[tuple([slice(None) if axis in self.axes else 0 for axis in range(whole.ndim)])]
        return part

    def ints(self) -> npt.NDArray[np.int64]:
        """A copy as int64. Raises ValueError for floats that are not whole numbers, and for numbers beyond int64."""
        kind = self.float_kind
        if kind is None:
            held = self.read()
            if self.kind == "uint64" and held.size and int(held.max()) >= 1 << 63:
                raise ValueError("numbers beyond int64")
            return held.astype(np.int64)
        values = self.floats()
        if values.size and not (np.isfinite(values).all() and (values == np.rint(values)).all()):
            raise ValueError("floats that are no whole numbers")
        return values.astype(np.int64)

    def floats(self) -> Floats:
        """A copy as float32, for small tensors."""
        kind = self.float_kind
        return (
            self.read().astype(np.float32) if kind is None else to_float32(np.ascontiguousarray(self.read()), kind)
        )

    def __repr__(self) -> str:
        return f"{self.kind}[{', '.join(map(str, self.shape))}]"


def of_numbers(value: list[Any]) -> Tensor | None:
    """A tensor of nested lists of numbers, as JSON and ``tolist`` have them: fp32 or int64. None for other lists."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "f":
            return Tensor.held(array.astype(np.float32), "fp32")
        return Tensor.held(array.astype(np.int64), "int64") if array.dtype.kind in "iub" else None
    except (ValueError, OverflowError):  # of lists of several lengths, and of numbers beyond float64
        return None


@dataclass(frozen=True)
class Unreadable:
    """A field that holds no numbers of ours, such as a text beside the states. why: the error for whoever asks for it."""

    why: str

    def __str__(self) -> str:
        return self.why


class StoredRows(Rows):
    """The rows of a two-dimensional tensor of floats, read when they are asked for."""

    def __init__(self, tensor: Tensor, dtype: DType, scales: Floats | None = None) -> None:
        self._tensor = tensor
        self._scales = scales
        rows, width = tensor.shape
        self.shape = (rows, width)
        self.dtype = dtype

    def raw(self, start: int, stop: int) -> Raw:
        start, stop, _step = slice(start, stop).indices(self.shape[0])
        return self._tensor.cut(0, start, max(start, stop)).read()

    def scale(self, start: int, stop: int) -> Floats | None:
        return None if self._scales is None else self._scales[start:stop]
