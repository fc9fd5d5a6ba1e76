"""The writer thread: takes batches from a bounded queue to the trace files. Serving never waits for it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from drafttrace.hooks.writer_link import WriterLink


class Job(Protocol):
    """Work for the writer thread. ``fail`` is told of any exception that ``run`` raised."""

    def run(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class WriterThread:
    """One daemon thread per process. ``limit`` bounds the bytes that wait in the queue. apart: files are written by a
    process of their own, which ``files`` leads to. told: hears of every error of a job, from the thread it happened on.

    The lock is held for a few additions only: whoever puts a job is the thread that serves.
    """

    def __init__(
        self,
        limit: int,
        *,
        apart: bool = True,
        told: Callable[[str, BaseException], Any] = lambda where, error: None,
    ) -> None:
        self.limit = limit
        self.told = told
        self.files = WriterLink(apart)
        self._queue: queue.SimpleQueue[tuple[Job, int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._unfinished = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting_bytes(self) -> int:
        return self._waiting

    @property
    def idle(self) -> bool:
        """Whether everything queued is done: what the thread would do next may be done by whoever puts its jobs."""
        return not self._unfinished and not self._closed

    def put(self, job: Job, nbytes: int) -> bool:
        """Queue ``job``; False, and nothing queued, where its bytes do not fit or the thread is gone."""
        with self._lock:
            if self._closed or (nbytes and self._waiting + nbytes > self.limit):
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="drafttrace-writer", daemon=True)
                self._thread.start()
            elif not self._thread.is_alive():
                return False
            self._waiting += nbytes
            self._unfinished += 1
            self._queue.put((job, nbytes))
        return True

    def drain(self, timeout: float) -> bool:
        """Wait until everything queued is done; whether it is."""
        deadline = time.monotonic() + timeout
        while self._unfinished and time.monotonic() < deadline:
            time.sleep(0.002)
        return not self._unfinished

    def close(self, timeout: float | None = 10.0) -> None:
        """Take no more work and wait for what is queued."""
        with self._lock:
            if not self._closed:
                self._queue.put(None)
            self._closed = True
        if self._thread is not None:
            self._thread.join(timeout)
            if not self._thread.is_alive():
                self.files.close()

    def _work(self) -> None:
        while (queued := self._queue.get()) is not None:
            job, nbytes = queued
            del queued
            try:
                _attempt(job)
            except Exception as error:  # of ``fail`` itself: the traces to come are not to be lost for it
                with contextlib.suppress(Exception):
                    self.told("the writer thread", error)
            finally:
                del job
                with self._lock:
                    self._waiting -= nbytes
                    self._unfinished -= 1


def _attempt(job: Job) -> None:
    try:
        job.run()
    except Exception as error:
        job.fail(error)
