"""Rows from files into the compiled kernel: blocks are read by one thread while others work on the ones before."""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from drafttrace.compare.kernels import native
from drafttrace.compare.kernels.hashes import Hashes, plain_hashes
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Rows

_MOST_THREADS = 8  # the memory is the limit long before
_WORTH_A_THREAD = 1 << 19  # bytes
_NOTHING = np.empty(0, np.int64)
_SPREAD = 4  # a span of rows may be this many times as long as the rows that are wanted of it


@dataclass(frozen=True)
class Slot:
    """The same rows of two sides, and the channels that trimmed sums leave out."""

    left: Rows
    right: Rows
    massive: Ints

    @property
    def pair_bytes(self) -> int:
        """Stored bytes of one row of both sides."""
        return self.left.width * (self.left.dtype.storage.itemsize + self.right.dtype.storage.itemsize)


_limit: list[int] = []


def use_threads(count: int) -> None:
    """Use at most ``count`` threads in this process from now on."""
    _limit[:] = [max(1, count)]


def threads() -> int:
    """How many threads the kernel uses: one for each processor that this process may use, up to 8."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_THREADS, usable, *_limit))


@functools.cache
def beside(count: int) -> ThreadPoolExecutor:
    """``count`` threads to work beside the caller's for a millisecond or so, the same at every call: to make them takes up
    to two on a busy machine. A process that was forked off has none of its parent's threads, and gets its own. Work
    given to them must not wait for other such work."""
    return ThreadPoolExecutor(count, "drafttrace-kernel")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=beside.cache_clear)


def measure(
    slots: Sequence[Slot], left_index: Ints, right_index: Ints, block_bytes: int, workers: int | None = None
) -> list[native.Output]:
    """The kernel's output for every slot. block_bytes: about what is read of both sides of a slot at a time."""
    outputs = [native.Output.empty(len(left_index)) for _ in slots]
    row_bytes = max((slot.pair_bytes for slot in slots), default=1)
    step = max(16, block_bytes // max(1, row_bytes))
    workers = threads() if workers is None else workers
    with _Team(workers) as team:
        for start, stop in spans(left_index, right_index, step):
            ours, theirs = left_index[start:stop], right_index[start:stop]
            parts = 1 if row_bytes * (stop - start) < 2 * _WORTH_A_THREAD else workers
            cuts = np.linspace(0, stop - start, parts + 1).round().astype(int)
            for slot, output in zip(slots, outputs, strict=True):
                left, first = block(slot.left, ours)
                right, second = block(slot.right, theirs)
                for a, b in itertools.pairwise(cuts):
                    out = output.part(start + a, start + b)
                    team.give(left, first[a:b], right, second[a:b], slot.massive, out)
    for slot, output in zip(slots, outputs, strict=True):
        _remember(slot.left, left_index, output.hashes[:, 0])
        _remember(slot.right, right_index, output.hashes[:, 1])
    return outputs


def sums_of(rows: Rows, start: int, stop: int) -> native.Output | None:
    """The kernel's output for rows ``start..stop`` (at least one) of one matrix against themselves, without the
    median; None without a compiled kernel."""
    if not native.available() or rows.width == 0:
        return None
    held, index = block(rows, np.arange(start, stop))
    out = native.Output.empty(stop - start)
    native.measure(held, index, held, index, _NOTHING, out, ulp=False)
    return out


def block(rows: Rows, index: Ints) -> tuple[native.Block, Ints]:
    """The rows ``index`` (at least one) as one stored block, and where they stand in it."""
    low, high = int(index.min()), int(index.max()) + 1
    raw, scale = rows.raw(low, high), rows.scale(low, high)
    if raw.shape[1] > 1 and raw.strides[1] != raw.itemsize:
        raw = np.ascontiguousarray(raw)
    return native.Block(raw, rows.dtype, None if scale is None else np.ascontiguousarray(scale)), index - low


def spans(left_index: Ints, right_index: Ints, step: int) -> Iterator[tuple[int, int]]:
    """Cuts of the pairs into parts of at most ``step``, fewer where their rows lie far apart on a side."""
    waiting = deque((a, min(a + step, len(left_index))) for a in range(0, len(left_index), step))
    while waiting:
        start, stop = waiting.popleft()
        reach = max(int(np.ptp(index[start:stop])) + 1 for index in (left_index, right_index))
        if reach <= _SPREAD * max(16, stop - start) or stop - start == 1:
            yield start, stop
            continue
        middle = (start + stop) // 2
        waiting.extendleft([(middle, stop), (start, middle)])


def hash_rows(rows: Rows, index: Ints, block_bytes: int, *, factors: bool = True) -> Hashes:
    """Hashes of the rows ``index``, with or without the compiled kernel; without ``factors`` of their bytes alone.

    Rows that were measured are not read again.
    """
    scaled = len(rows) > 0 and rows.scale(0, 1) is not None
    known = _known.get(rows) if factors or not scaled else None
    found = np.zeros(len(index), np.uint64)
    missing = np.arange(len(index))
    if known is not None:
        found, there = known[0][index], known[1][index]
        missing = np.flatnonzero(~there)
    found[missing] = _hashes_read(rows, index[missing], block_bytes, factors)
    return found


def _hashes_read(rows: Rows, index: Ints, block_bytes: int, factors: bool) -> Hashes:
    step = max(16, block_bytes // max(1, rows.width * rows.dtype.storage.itemsize))
    parts = []
    for start, stop in spans(index, index, step):
        found, where = block(rows, index[start:stop])
        if not factors:
            found = native.Block(found.raw, found.dtype)
        if native.available():
            parts.append(native.hash_rows(found, where))
        else:
            scale = None if found.scale is None else found.scale[where]
            parts.append(plain_hashes(found.raw[where], scale))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


# Per matrix of rows that was measured: its rows' hashes ``[n]`` and which of them are known.
_known: WeakKeyDictionary[Rows, tuple[Hashes, npt.NDArray[np.bool_]]] = WeakKeyDictionary()


def _remember(rows: Rows, index: Ints, hashes: Hashes) -> None:
    values, there = _known.setdefault(rows, (np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.bool_)))
    values[index], there[index] = hashes, True


class _Team:
    """Threads that run the kernel. No more than two blocks per thread wait, so that memory stays small."""

    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self._most = 2 * workers
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> _Team:
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            while self._waiting:
                self._waiting.popleft().result()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def give(
        self,
        left: native.Block,
        left_index: Ints,
        right: native.Block,
        right_index: Ints,
        massive: Ints,
        out: native.Output,
    ) -> None:
        """Run the kernel on a part, now or soon."""
        if self._pool is None:
            native.measure(left, left_index, right, right_index, massive, out)
            return
        while len(self._waiting) >= self._most:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(native.measure, left, left_index, right, right_index, massive, out))
