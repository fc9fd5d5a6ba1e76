"""Large compressed chunks of an HDF5 file, inflated piece by piece into temporary files.

HDF5 itself holds a chunk twice in memory, packed and unpacked, before the first number can be had. Deflate (gzip) can
be unpacked as a stream, with or without the byte shuffle before it; other filters cannot.

Source: HDF5 file format specification, "Filter pipeline": identifiers 1 (deflate) and 2 (shuffle).
"""

from __future__ import annotations

import itertools
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.dumps.file_tensor import FileSource
from drafttrace.tracer.dumps.inflate import inflated
from drafttrace.tracer.dumps.tensor import STORAGE, Array, Box, Source
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.file_bytes import ByteStream, FileBytes

_DEFLATE, _SHUFFLE = 1, 2
_PACKED = 1 << 20
_MOST_KEPT = 16  # inflated chunks that stay on the disk


def can_stream(dataset: Any) -> bool:
    """Whether the chunks of a dataset are deflated, perhaps shuffled before, and nothing else."""
    plan = dataset.id.get_create_plist()
    filters = [plan.get_filter(k)[0] for k in range(plan.get_nfilters())]
    return filters in ([_DEFLATE], [_SHUFFLE, _DEFLATE]) and dataset.file.userblock_size == 0


class DeflatedChunks(Source):
    """A dataset of large deflated chunks in the storage form ``kind``; each is inflated when it is needed first."""

    def __init__(self, path: Path, file: FileBytes, dataset: Any, kind: str) -> None:
        self.shape = tuple(int(size) for size in dataset.shape)
        self._path, self._file, self._dataset = path, file, dataset.id
        self._name, self._chunk, self._storage = dataset.name, dataset.chunks, STORAGE[kind]
        self._shuffled = dataset.id.get_create_plist().get_nfilters() == 2
        self._kept: OrderedDict[tuple[int, ...], FileSource] = OrderedDict()

    def read(self, box: Box) -> Array:
        out: Array = np.empty([count for _start, count in box], self._storage)
        spans = [
            range(start - start % size, start + count, size)
            for (start, count), size in zip(box, self._chunk, strict=True)
        ]
        for corner in itertools.product(*spans):
            inner: list[tuple[int, int]] = []
            place: list[slice] = []
            for (start, count), size, first in zip(box, self._chunk, corner, strict=True):
                low, high = max(start, first), min(start + count, first + size)
                inner.append((low - first, high - low))
                place.append(slice(low - start, high - start))
            out[tuple(place)] = self._source(corner).read(tuple(inner))
        return out

    def _source(self, corner: tuple[int, ...]) -> FileSource:
        if corner not in self._kept:
            while len(self._kept) >= _MOST_KEPT:
                self._kept.popitem(last=False)
            self._kept[corner] = FileSource(self._inflated(corner), 0, self._chunk, self._storage)
        self._kept.move_to_end(corner)
        return self._kept[corner]

    def _inflated(self, corner: tuple[int, ...]) -> FileBytes:
        about = self._dataset.get_chunk_info_by_coord(corner)
        begin, packed = about.byte_offset, int(about.size)
        wanted = int(np.prod(self._chunk, dtype=object)) * self._storage.itemsize
        if begin is None or about.filter_mask or begin + packed > self._file.size:
            raise self._damaged(corner, "it is cut off, or not packed as the others are")
        what = f"chunk {list(corner)} of"
        try:
            stream = _Inflating(self._file.stream(begin, begin + packed), wanted)
            done = inflated(self._path, stream, packed, what)
        except zlib.error:
            raise self._damaged(corner, "it cannot be inflated") from None
        if done.size != wanted:
            raise self._damaged(corner, f"it holds {done.size:,} bytes of {wanted:,}")
        if not self._shuffled:
            return done
        return inflated(self._path, _Unshuffling(done, self._storage.itemsize), packed, what)

    def _damaged(self, corner: Sequence[int], why: str) -> UnreadableFile:
        return UnreadableFile(
            f"The chunk at {list(corner)} of '{self._name}' in '{self._path}' cannot be read ({why}); "
            "copy or write it again."
        )


class _Inflating:
    """What a zlib stream unpacks to, at most one byte more than ``wanted``."""

    def __init__(self, packed: ByteStream, wanted: int) -> None:
        self._packed, self._left = packed, wanted + 1
        self._machine = zlib.decompressobj()
        self._waiting = b""

    def read(self, size: int, /) -> bytes:
        while self._left > 0 and not self._machine.eof:
            waiting = self._waiting or self._packed.read(_PACKED) or b""
            out = self._machine.decompress(waiting, min(size, self._left))
            self._waiting = self._machine.unconsumed_tail
            if out:
                self._left -= len(out)
                return out
            if not waiting:
                return b""
        return b""


class _Unshuffling:
    """The numbers of a chunk whose first bytes stand together, then the second ones, and so on."""

    def __init__(self, planes: FileBytes, item: int) -> None:
        self._planes, self._item, self._at = planes, item, 0
        self._count = planes.size // item

    def read(self, size: int, /) -> bytes:
        count = min(size // self._item, self._count - self._at)
        if count <= 0:
            return b""
        parts = [self._planes.read(plane * self._count + self._at, count) for plane in range(self._item)]
        self._at += count
        return np.stack(parts, 1).tobytes()
