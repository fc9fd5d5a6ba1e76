"""A dataset of a trace that only grows: rows go straight to their place in the file.

A call into HDF5 through h5py costs ten times what a few rows cost to write, and a round has a dozen tensors. So HDF5
is asked where a chunk begins: it makes the room, and says where in the file the chunk lies. The rows that follow in
that chunk are written there. No chunk is held in memory, and a frame of six rows does not rewrite one.
"""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt
from h5py import h5d, h5g, h5p, h5s, h5t


def create(
    parent: h5g.GroupID, name: str, kind: h5t.TypeID, chunk_rows: int, width: tuple[int, ...] = ()
) -> h5d.DatasetID:
    """An empty dataset ``[0, *width]`` of the HDF5 type ``kind`` without a chunk cache, its groups made as needed.

    HDF5 would fill a new chunk with zeros in memory and write it whole; what no row was written to is a hole in the
    file, which reads as zeros.
    """
    layout = h5p.create(h5p.DATASET_CREATE)
    layout.set_chunk((chunk_rows, *width))
    layout.set_fill_time(h5d.FILL_TIME_NEVER)
    layout.set_obj_track_times(False)
    space = h5s.create_simple((0, *width), (h5s.UNLIMITED, *width))
    return h5d.create(parent, name.encode(), kind, space, layout, lcpl=_links(), dapl=uncached())


@functools.cache
def _links() -> h5p.PropLCID:
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    return links


@functools.cache
def uncached() -> h5p.PropDAID:
    """Dataset access without a chunk cache."""
    access = h5p.create(h5p.DATASET_ACCESS)
    access.set_chunk_cache(1, 0, 1.0)
    return access


def make_rows(parent: h5g.GroupID, name: str, record: np.dtype[np.void], chunk_rows: int) -> h5d.DatasetID:
    """An empty table of ``record``, whose length tells readers how many rows there are.

    It has an index of chunks from the start. HDF5 writes an index before the length, but where the index stands may be
    written after the length: a writer that is killed in between would leave rows that are nowhere.
    """
    kind = h5t.py_create(record, logical=True)
    made = create(parent, name, kind, chunk_rows)
    made.set_extent((1,))
    made.write(h5s.ALL, h5s.ALL, np.zeros(1, record), kind)
    made.set_extent((0,))
    return made


class Growing:
    """The rows of a dataset that :func:`create` made with these chunk rows and width. number: the file's descriptor.

    exact: the dataset is never longer than its rows, because its length says how many there are. The others grow by
    whole chunks, so that HDF5 has their length to write once in a chunk, until :meth:`trim`.
    """

    def __init__(
        self, dataset: h5d.DatasetID, number: int, chunk_rows: int, width: tuple[int, ...] = (), *, exact: bool
    ) -> None:
        self._dataset = dataset
        self._number = number
        self._exact = exact
        self._kind = dataset.get_type()
        self._width = width
        self._chunk_rows = chunk_rows
        self._row_bytes = int(self._kind.get_size()) * math.prod(width)
        self._length = 0
        self._open = range(0)
        self._place = 0
        self._changed = False

    @property
    def dataset(self) -> h5d.DatasetID:
        return self._dataset

    def write(self, start: int, rows: npt.NDArray[Any]) -> None:
        """Rows ``start..`` from an array in storage form, without conversion. Readers see them after :meth:`flush`."""
        count = len(rows)
        if count == 0:
            return
        if start in self._open and start + count <= self._open.stop:
            self._put(start, rows)
            if self._exact:
                self.extend(start + count)
            return
        self.extend(start + count)
        shape = (count, *self._width)
        space = self._dataset.get_space()
        space.select_hyperslab((start, *(0 for _ in self._width)), shape)
        self._dataset.write(h5s.create_simple(shape), space, np.ascontiguousarray(rows), self._kind)
        self._changed = True  # the index of the chunks
        self._look_up(start + count)

    def extend(self, rows: int) -> None:
        """Make the dataset hold at least ``rows`` rows; those that are not written are zero."""
        if rows <= self._length:
            return
        if not self._exact:
            rows = -(-rows // self._chunk_rows) * self._chunk_rows
        self._resize(rows)

    def flush(self) -> None:
        """Make what was written visible to readers. Nothing to do where only rows of a known chunk came."""
        if self._changed:
            self._dataset.flush()
            self._changed = False

    def trim(self, rows: int) -> None:
        """Cut the dataset to its ``rows`` rows. Nothing is written to it after that."""
        self._open = range(0)
        if self._length > rows:
            self._resize(rows)

    def _resize(self, rows: int) -> None:
        self._dataset.set_extent((rows, *self._width))
        self._length = rows
        self._changed = True

    def _look_up(self, stop: int) -> None:
        """Find where the chunk lies that row ``stop`` comes into, where it has rows already."""
        first = stop // self._chunk_rows * self._chunk_rows
        self._open = range(0)
        if first == stop:
            return
        found = self._dataset.get_chunk_info_by_coord((first, *(0 for _ in self._width)))
        if found.byte_offset is not None:
            self._open, self._place = range(first, first + self._chunk_rows), found.byte_offset

    def _put(self, start: int, rows: npt.NDArray[Any]) -> None:
        left = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        at = self._place + (start - self._open.start) * self._row_bytes
        while left:
            done = os.pwrite(self._number, left, at)
            left, at = left[done:], at + done
