"""The writer thread: takes batches from a bounded queue to the trace files. Serving never waits for it."""

from __future__ import annotations

import collections
import threading
from typing import Protocol

from drafttrace.hooks.writer_link import WriterLink


class Job(Protocol):
    """Work for the writer thread. ``fail`` is told of any exception that ``run`` raised."""

    def run(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class WriterThread:
    """One daemon thread per process. ``limit`` bounds the bytes that wait in the queue. apart: files are written by a
    process of their own, which ``files`` leads to."""

    def __init__(self, limit: int, *, apart: bool = True) -> None:
        self.limit = limit
        self.files = WriterLink(apart)
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
            if not self._thread.is_alive():
                self.files.close()

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
