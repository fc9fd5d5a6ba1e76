"""The tensors of a trace as lazy rows: nothing is read before it is asked for, and then only that."""

from __future__ import annotations

import time
from collections.abc import Iterator

import h5py

from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import DType, Raw, Rows
from drafttrace.tracer.trace import bfloat16
from drafttrace.tracer.trace.h5open import TraceFile
from drafttrace.tracer.trace.layout import TensorSpec
from drafttrace.tracer.trace.sums import StoredSums

BLOCK_BYTES = 16 << 20
"""Bytes that one step of a walk over a tensor holds."""


class H5Rows(Rows):
    """The first ``count`` rows of a dataset of a trace, read raw. Keeps the file open."""

    dtype: DType

    def __init__(
        self, trace: TraceFile, dataset: h5py.Dataset, spec: TensorSpec, count: int, sums: StoredSums | None
    ) -> None:
        """sums: of the side that the dataset is of; rows are held against them whenever they are read."""
        assert isinstance(spec.dtype, DType)
        self._sums = sums
        self._trace = trace
        self._dataset = dataset.id
        self._spec = spec
        self.shape = (count, spec.width)
        self.dtype = spec.dtype

    def raw(self, start: int, stop: int) -> Raw:
        """Rows ``start..stop`` in storage form. Raises UnreadableFile where the file is damaged there."""
        start, stop, _ = slice(start, stop).indices(self.shape[0])
        with self._trace.reading(f"{self._spec.name}, rows {start} to {stop},"):
            found = self._read(start, max(start, stop))
        if self._sums is not None:
            self._sums.check(self._spec.name, start, found)
        return found

    def _read(self, start: int, stop: int) -> Raw:
        try:
            return bfloat16.read_rows(self._dataset, start, stop, self._spec)
        except (OSError, RuntimeError):
            if self._trace.closed_properly:
                raise
        time.sleep(0.05)  # the index of the chunks can be met half written; rows that are listed are there
        return bfloat16.read_rows(self._dataset, start, stop, self._spec)


def blocks(rows: Rows, size: int = BLOCK_BYTES) -> Iterator[tuple[int, int]]:
    """``(start, stop)`` of consecutive blocks of about ``size`` bytes that cover ``rows``."""
    step = max(1, size // max(1, rows.width * rows.dtype.storage.itemsize))
    for start in range(0, len(rows), step):
        yield start, min(start + step, len(rows))


def check_tensor(trace: TraceFile, dataset: h5py.Dataset, spec: TensorSpec, count: int) -> None:
    """Whether a dataset is what the layout says and holds ``count`` rows, all of them inside the file.

    HDF5 reads what lies behind the end of a file as zeros. In a closed file it notices; in one whose writer died
    it does not, so the places of the chunks are compared with the size of the file. Raises UnreadableFile.
    """
    name = dataset.name
    shape = dataset.shape
    if len(shape) != 2 or shape[1] != spec.width:
        raise UnreadableFile(
            f"'{trace.path}' is damaged: {name} has the shape {shape}, not [rows, {spec.width}]; record it again."
        )
    if not dataset.id.get_type().equal(bfloat16.hdf5_type(spec.dtype)):
        raise UnreadableFile(f"'{trace.path}' is damaged: {name} is not stored as {spec.dtype}; record it again.")
    if shape[0] < count:
        raise UnreadableFile(
            f"'{trace.path}' is damaged: {name} has {shape[0]} rows where the table has {count}; record it again."
        )
    trace.refuse_cut_off(dataset, spec.row_bytes, count)
