"""A stored tensor: memory-mapped bytes with a shape and a number format, read without torch."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import ArrayRows, DType, Floats, Raw, to_float32

# Bytes that may be resident before they are given back. Large enough to keep a block of several slots.
_RESIDENT = 64 << 20

Array = npt.NDArray[Any]

# Name of a number format -> numpy storage. Floats that numpy lacks are stored as unsigned integers.
STORAGE: dict[str, np.dtype[Any]] = {kind.value: kind.storage for kind in DType} | {
    name: np.dtype(name)
    for name in ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
}


class MappedFile:
    """A file mapped read-only. Pages that were read are given back after every 64 MiB, so that reading a dump of
    any size keeps a small resident set; the pages stay in the system's file cache."""

    def __init__(self, path: Path, fd: int | None = None) -> None:
        """Map ``path`` (or the open descriptor ``fd``, which stays the caller's). Raises UnreadableFile."""
        self.path = path
        try:
            handle = os.open(path, os.O_RDONLY) if fd is None else fd
            try:
                size = os.fstat(handle).st_size
                self._map = mmap.mmap(handle, size, access=mmap.ACCESS_READ) if size else None
            finally:
                if fd is None:
                    os.close(handle)
        except OSError as error:
            raise UnreadableFile(
                f"The file '{path}' cannot be read ({error.strerror or error}); check it."
            ) from None
        self.bytes: npt.NDArray[np.uint8] = (
            np.empty(0, np.uint8) if self._map is None else np.frombuffer(self._map, np.uint8)
        )
        self._touched = 0

    def touched(self, count: int) -> None:
        """Count ``count`` bytes as about to be read; give pages back once enough were."""
        self._touched += count
        if self._touched > _RESIDENT and self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = count


@dataclass(frozen=True, eq=False)
class Tensor:
    """Array in storage form (see :data:`STORAGE`), the name of its number format, and the map it lies in."""

    array: Array
    kind: str
    file: MappedFile | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.array.shape)

    @property
    def ndim(self) -> int:
        return int(self.array.ndim)

    @property
    def float_kind(self) -> DType | None:
        """The number format of hidden states; None for integers and booleans."""
        return DType(self.kind) if self.kind in set(DType) else None

    def with_array(self, array: Array) -> Tensor:
        """The same tensor under another view of its bytes."""
        return Tensor(array, self.kind, self.file)

    def ints(self) -> npt.NDArray[np.int64]:
        """A copy as int64. Raises ValueError for a tensor of floats that are not whole numbers."""
        kind = self.float_kind
        if kind is None:
            return self.array.astype(np.int64)
        values = to_float32(np.ascontiguousarray(self.array), kind)
        if values.size and not (np.isfinite(values).all() and (values == np.rint(values)).all()):
            raise ValueError("floats that are no whole numbers")
        return values.astype(np.int64)

    def floats(self) -> Floats:
        """A copy as float32, for small tensors."""
        kind = self.float_kind
        return self.array.astype(np.float32) if kind is None else to_float32(np.ascontiguousarray(self.array), kind)

    def __repr__(self) -> str:
        return f"{self.kind}[{', '.join(map(str, self.shape))}]"


class StoredRows(ArrayRows):
    """Rows that lie in a mapped file: what was read is given back, so that memory stays small."""

    def __init__(
        self, array: Array, dtype: DType, file: MappedFile | None = None, scales: Floats | None = None
    ) -> None:
        super().__init__(array, dtype, scales)
        self._file = file

    def raw(self, start: int, stop: int) -> Raw:
        block = super().raw(start, stop)
        if self._file is not None:  # the system maps whatever lies around a page, so other slots' rows count, too
            self._file.touched(max(block.nbytes, len(block) * abs(block.strides[0])))
        return block
