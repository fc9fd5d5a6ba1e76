"""What the bytes of every row add up to, stored beside the rows: a byte that changed afterwards is noticed.

HDF5's own checksum (Fletcher32) is one for a whole chunk. A frame of six rows would write its chunk anew, and a writer that
is killed while it does so would spoil rows that were flushed long before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.trace import schema, texts
from drafttrace.tracer.trace.growing import create
from drafttrace.tracer.trace.h5create import TABLE_CHUNK
from drafttrace.tracer.trace.h5open import TraceFile

Sums = npt.NDArray[np.uint64]
_CHUNK_BYTES = 1 << 14


def row_sums(rows: npt.NDArray[Any]) -> Sums:
    """The sum of the bytes of every row ``[n, width]`` or ``[n]`` records, as 64-bit words, modulo 2 ** 64.

    One changed byte always changes it, and so does nearly everything else that disks and copies do. It is no defence
    against somebody who wants it to stay. Costs a third of writing the rows.
    """
    count = len(rows)
    if count == 0:
        return np.zeros(0, np.uint64)
    rows = np.ascontiguousarray(rows)
    if rows.ndim == 2 and rows.shape[1] * rows.itemsize % 8 == 0:
        words: Sums = rows.view(np.dtype("<u8")).sum(axis=1, dtype=np.uint64)
        return words
    stored = rows.view(np.uint8).reshape(count, -1)
    whole = stored.shape[1] // 8 * 8
    sums: Sums = stored[:, :whole].view(np.dtype("<u8")).sum(axis=1, dtype=np.uint64)
    for place, byte in enumerate(stored[:, whole:].T):
        sums += byte.astype(np.uint64) << np.uint64(8 * place)
    return sums


def chunk_rows(columns: int) -> int:
    """Rows of one chunk: no empty megabyte beside a short trace with a sweep over every layer."""
    return max(16, min(TABLE_CHUNK, _CHUNK_BYTES // (8 * columns)))


def make_sums(group: h5py.Group, columns: Sequence[str]) -> h5py.Dataset:
    """The empty table of sums of one side: a column for the row records, and one for every tensor."""
    count = len(columns)
    made = h5py.Dataset(create(group.id, schema.SUMS, h5py.h5t.STD_U64LE, chunk_rows(count), (count,)))
    texts.set_attribute(made, schema.ATTR_SUMMED, json.dumps(list(columns)))
    return made


def append_sums(dataset: h5py.Dataset, start: int, sums: Sums) -> None:
    """Writes ``sums`` as the rows from ``start`` on, and makes them visible to readers: once in every frame."""
    made = dataset.id
    made.set_extent((start + len(sums), sums.shape[1]))
    space = made.get_space()
    space.select_hyperslab((start, 0), sums.shape)
    made.write(h5py.h5s.create_simple(sums.shape), space, np.ascontiguousarray(sums), h5py.h5t.STD_U64LE)
    made.flush()


@dataclass(frozen=True)
class StoredSums:
    """The sums of one side of a trace that was written with them. columns: name -> column."""

    trace: TraceFile
    dataset: h5py.Dataset
    side: str
    columns: dict[str, int]

    def of(self, name: str, start: int, stop: int) -> Sums | None:
        """The sums of rows ``start..stop``; None for a tensor that has no column."""
        if name not in self.columns:
            return None
        with self.trace.reading(f"/{self.side}/{schema.SUMS}"):
            # Whole rows: HDF5 would fetch a single column number by number.
            return self._read(slice(start, stop))[:, self.columns[name]]

    def _read(self, rows: slice) -> Sums:
        try:
            found: Sums = self.dataset[rows]
        except (OSError, RuntimeError):
            if self.trace.closed_properly:
                raise
            time.sleep(0.05)  # the index of the chunks can be met half written, as that of the tensors
            found = self.dataset[rows]
        return found

    def check(self, name: str, start: int, rows: npt.NDArray[Any]) -> None:
        """Whether ``rows``, read from row ``start`` on, are what was written. Raises UnreadableFile naming the first
        that is not."""
        wanted = self.of(name, start, start + len(rows))
        if wanted is None:
            return
        differs = np.flatnonzero(row_sums(rows) != wanted) if len(wanted) == len(rows) else np.zeros(1, np.int64)
        if len(differs):
            raise UnreadableFile(
                f"'{self.trace.path}' is damaged: row {start + int(differs[0])} of /{self.side}/{name} is not what was "
                "written (its checksum differs); copy it again from where it was made, or record the request again."
            )


def stored_sums(trace: TraceFile, side: str, rows: int) -> StoredSums | None:
    """The sums of a side with ``rows`` rows; None in traces of older writers.

    Raises UnreadableFile where they make no sense, or are cut off.
    """
    name = f"{side}/{schema.SUMS}"
    with trace.reading(f"/{name}"):
        if name not in trace.file:
            return None
    dataset = trace.dataset(name)
    with trace.reading(f"/{name}"):
        columns = json.loads(texts.get_text(dataset.attrs[schema.ATTR_SUMMED]))
        if not isinstance(columns, list) or dataset.ndim != 2 or dataset.shape[1] != len(columns):
            raise ValueError(f"{dataset.shape} sums of {str(columns)[:60]}")
        trace.refuse_cut_off(dataset, 8 * len(columns), rows)
    return StoredSums(trace, dataset, side, {str(column): place for place, column in enumerate(columns)})
