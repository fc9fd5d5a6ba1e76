"""Bytes of files that were read last, and the memory that they are read into.

Fresh memory costs as much as reading does: the system hands it out page by page, zeroed. So memory is used again as soon as
no array looks into it any more. Two pieces take turns where somebody still looks at one block of rows while the next one is
read.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafttrace.tracer.file_bytes import Bytes, FileBytes

# The largest slab: a block of 2,048 rows of four slots of 4,096 channels in bf16. Two of double that, and what a comparison
# holds of both sides, would not fit into the 300 MB that the design allows.
SLAB_BYTES = 64 << 20
# For whoever asks for half of that of one slot alone, and then of the next one: two of these, and nothing of another file.
LARGE_BYTES = 128 << 20
# Bytes of slabs that are kept, over all files; and of all memory here, with what somebody may still look at: two of the
# largest that is asked for, if that is more.
_KEPT_BYTES = 64 << 20
_POOL_BYTES = 128 << 20
# Less than that is had sooner from numpy.
_WORTH_KEEPING = 256 << 10


@dataclass(frozen=True)
class _Slab:
    """Bytes from ``begin`` of a file."""

    source: weakref.ref[Any]
    begin: int
    held: Bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.held)


@dataclass
class _Memory:
    """A piece of memory, and whether an array looks into it: that of the last user, or one made of it."""

    pages: mmap.mmap
    user: Callable[[], object]


_slabs: deque[_Slab] = deque()
_pool: deque[_Memory] = deque()
_lock = threading.RLock()


def has_room_for(source: object, length: int, wanted: int) -> bool:
    """Whether a large slab may be read, of which ``wanted`` bytes are asked for: never two, as of both sides of a
    comparison. The rest after the last large block is one, too: its memory is there."""
    with _lock:
        there = any(length <= len(one.pages) for one in _pool)
        alone = all(slab.source() in {source, None} for slab in _slabs)
    return alone and length <= LARGE_BYTES and (there or 2 * wanted >= SLAB_BYTES)


def slab_bytes(source: object, file: FileBytes, begin: int, length: int) -> Bytes:
    """Bytes of the file, out of what was read last for the same ``source`` where they are there."""
    with _lock:
        for slab in _slabs:
            if slab.begin <= begin and begin + length <= slab.end and slab.source() is source:
                return _read_only(slab.held[begin - slab.begin : begin - slab.begin + length])
        _let_go(source, length)
        slab = _Slab(weakref.ref(source, _forget), begin, _filled(file, begin, length))
        _slabs.append(slab)
        return _read_only(slab.held[:])


def run_bytes(file: FileBytes, begin: int, length: int) -> Bytes:
    """Bytes of the file that nobody asks for again."""
    if not _WORTH_KEEPING <= length <= SLAB_BYTES:
        return file.read(begin, length)
    with _lock:
        return _read_only(_filled(file, begin, length))


def _read_only(view: Bytes) -> Bytes:
    view.flags.writeable = False
    return view


def _filled(file: FileBytes, begin: int, length: int) -> Bytes:
    array = _memory(length) if length >= _WORTH_KEEPING else np.empty(length, np.uint8)
    file.gather(array, [begin], length)
    return array


def _let_go(source: object, length: int) -> None:
    """Forget the source's last slab, and the oldest ones where there is no room for a new one."""
    for slab in [slab for slab in _slabs if slab.source() in {source, None}]:
        _slabs.remove(slab)
    while _slabs and sum(len(slab.held) for slab in _slabs) + length > _KEPT_BYTES:
        _slabs.popleft()


def _forget(_source: object) -> None:
    """A file is done with: memory of that size is not held for the next one."""
    with _lock:
        for slab in [slab for slab in _slabs if slab.source() is None]:
            _slabs.remove(slab)
        if not _slabs:
            _pool.clear()


def _memory(length: int) -> Bytes:
    """An array of that length, in memory that nobody looks into. It goes back when the last array into it is gone."""
    found = next((one for one in _pool if length <= len(one.pages) <= 2 * length and one.user() is None), None)
    if found is None:
        while _pool and sum(len(one.pages) for one in _pool) + length > max(_POOL_BYTES, 2 * length):
            _pool.popleft()
        found = _Memory(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), lambda: None)
        _pool.append(found)
    array = np.frombuffer(found.pages, np.uint8, length)
    found.user = weakref.ref(array)
    return array
