"""The writer thread: takes batches from a bounded queue and writes them to trace files. Serving never waits for it."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from drafttrace.hooks.frames import Batch, FrameRows, as_numpy
from drafttrace.hooks.identity import Verdict, accepted_rows, outside_output
from drafttrace.tracer.capture import Accepted
from drafttrace.tracer.trace import schema
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
        self._storage = {spec.name: spec for spec in (*layout.target, *layout.draft)}
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
            self._append_frame(frame, verdict, batch.total)
        self._writer.flush()

    def _append_frame(self, frame: FrameRows, verdict: Verdict | None, total: int | None) -> None:
        position = as_numpy(frame.position).astype(np.int64)
        accepted = accepted_rows(frame.group, frame.rows, verdict)
        if total is not None:
            accepted[outside_output(position, total) & (accepted == Accepted.ACCEPTED)] = Accepted.REJECTED
        fields = {
            "position": position,
            "token_id": as_numpy(frame.token_id).astype(np.int64),
            "phase": int(frame.group.phase),
            "round": frame.round,
            "accepted": accepted,
            "frame": frame.frame,
            "graph": schema.GRAPH_REPLAY if frame.graph else schema.EAGER,
            "source": max((part.source for part in frame.parts.values()), default=schema.SOURCE_HOOK),
            "live_rows": frame.live_rows,
            "padded_rows": frame.padded_rows or frame.live_rows,
            "cached_prefix": frame.cached_prefix,
            "rank": frame.rank,
        }
        tensors, absent = self._tensors(frame, verdict)
        if frame.side == "target":
            rows = schema.records(schema.TARGET_ROW, frame.rows, **fields)
            self._writer.append_target(rows, tensors, absent=absent)
        else:
            rows = schema.records(schema.DRAFT_ROW, frame.rows, step=frame.group.step, **fields)
            self._writer.append_draft(rows, tensors, absent=absent)

    def _tensors(
        self, frame: FrameRows, verdict: Verdict | None
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Arrays in storage form, brought to the declared width, and which rows of each are not there."""
        tensors: dict[str, np.ndarray] = {}
        absent: dict[str, np.ndarray] = {}
        for name, part in frame.parts.items():
            spec = self._storage[name]
            array = as_numpy(part.tensor)
            if spec.is_boundary:
                if self._swept.get(name, 0) == self._writer.target_rows:
                    tensors[name] = array
                    self._swept[name] = self._swept.get(name, 0) + len(array)
                else:
                    self.dropped[name] = self.dropped.get(name, 0) + len(array)
                continue
            offset = part.offset
            if offset is None:
                offset = verdict.count - 1 if verdict is not None else 0
            if array.shape == (frame.rows, spec.width):
                tensors[name] = array
                continue
            # Narrower rows (a recycled state where fc's wide input is declared) stand at the front of the row.
            whole = np.zeros((frame.rows, spec.width), spec.storage)
            whole[offset : offset + len(array), : array.shape[1]] = array
            tensors[name] = whole
            if len(array) != frame.rows:
                missing = np.ones(frame.rows, bool)
                missing[offset : offset + len(array)] = False
                absent[name] = missing
        return tensors, absent
