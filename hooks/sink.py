"""The writer thread: takes batches from a bounded queue and writes them to trace files. Serving never waits for it."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from drafttrace.hooks.assemble import Array, padding_of, records_of, tensors_of
from drafttrace.hooks.frames import Batch, FrameRows, as_numpy
from drafttrace.hooks.identity import Verdict
from drafttrace.tracer.trace.layout import TraceLayout
from drafttrace.tracer.trace.writer import TraceWriter


class Job(Protocol):
    """Work for the writer thread. ``fail`` is told of any exception that ``run`` raised."""

    def run(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class WriterThread:
    """One daemon thread per process. ``limit`` bounds the bytes that wait in the queue."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._queue: collections.deque[tuple[Job, int]] = collections.deque()
        self._waiting = 0
        self._ready = threading.Condition()
        self._closed = False
        self._busy = False
        self._thread: threading.Thread | None = None

    @property
    def waiting_bytes(self) -> int:
        return self._waiting

    def put(self, job: Job, nbytes: int) -> bool:
        """Queue ``job``; False, and nothing queued, where its bytes do not fit or the thread is gone."""
        with self._ready:
            if self._closed or (nbytes and self._waiting + nbytes > self.limit):
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="drafttrace-writer", daemon=True)
                self._thread.start()
            elif not self._thread.is_alive():
                return False
            self._queue.append((job, nbytes))
            self._waiting += nbytes
            self._ready.notify_all()
        return True

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until everything queued is done; whether it is."""
        with self._ready:
            return self._ready.wait_for(lambda: not self._queue and not self._busy, timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        """Take no more work and wait for what is queued."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                job, nbytes = self._queue.popleft()
                self._busy = True
            try:
                _attempt(job)
            finally:
                del job
                with self._ready:
                    self._busy = False
                    self._waiting -= nbytes
                    self._ready.notify_all()


def _attempt(job: Job) -> None:
    try:
        job.run()
    except Exception as error:
        job.fail(error)


class TraceFile:
    """One trace on disk. Used by the writer thread only."""

    def __init__(self, open_writer: Callable[[], TraceWriter], layout: TraceLayout) -> None:
        self._writer = open_writer()
        self._specs = {spec.name: spec for spec in (*layout.target, *layout.draft)}
        self._swept: dict[str, int] = {}
        self.dropped: dict[str, int] = {}

    @property
    def bytes_written(self) -> int:
        return self._writer.bytes_written

    @property
    def rows(self) -> int:
        return self._writer.target_rows + self._writer.draft_rows

    @property
    def writer(self) -> TraceWriter:
        return self._writer

    def append(self, batch: Batch) -> None:
        """Write all frames of one scheduler step and flush them. Raises OSError where the disk refuses."""
        batch.wait()
        verdict = None
        if batch.nodes is not None and batch.count is not None:
            verdict = Verdict(as_numpy(batch.nodes).astype(np.int64), int(batch.count))
        for frame in batch.frames:
            if frame.padding:
                self._writer.append_padding(padding_of(frame, self._specs))
            if frame.side == "target":
                rows = records_of(frame, verdict, batch.total)
                tensors, absent = tensors_of([frame], self._specs, verdict)
                self._writer.append_target(rows, tensors | self._boundaries(frame), absent=absent)
        drafts = [frame for frame in batch.frames if frame.side == "draft"]
        if drafts:  # all steps of a round in one go: every call into HDF5 costs more than these few rows
            rows = np.concatenate([records_of(frame, verdict, batch.total) for frame in drafts])
            tensors, absent = tensors_of(drafts, self._specs, verdict)
            self._writer.append_draft(rows, tensors, absent=absent)
        self._writer.flush()

    def _boundaries(self, frame: FrameRows) -> dict[str, Array]:
        """The sweep's rows of a frame, as long as they connect to the rows before."""
        found: dict[str, Array] = {}
        for name, part in frame.parts.items():
            if not self._specs[name].is_boundary:
                continue
            array = as_numpy(part.tensor)
            if self._swept.get(name, 0) == self._writer.target_rows:
                found[name] = array
                self._swept[name] = self._swept.get(name, 0) + len(array)
            else:
                self.dropped[name] = self.dropped.get(name, 0) + len(array)
        return found
