"""The process that writes a server's trace files, so that its Python never holds the interpreter of the scheduler.

A round of a few rows is a dozen calls into HDF5 and the file system. On a thread of the scheduler each of them takes the
interpreter's lock away from it and gives it back, dozens of times in a round, which costs many times what the work does
(``bench/NOTES.md``). Here the scheduler packs a step into one message and sends it.

It ends when its server does, however that ends: what was sent is written, and the files are closed. Imports no torch.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from drafttrace.hooks.host import Step
from drafttrace.hooks.messages import STEP, Message, receive, send
from drafttrace.hooks.packing import unpacked
from drafttrace.hooks.trace_file import TraceFile, Written

_ORPHAN_SECONDS = 5.0  # between two looks whether the server is still there, while it says nothing
_TOGETHER = 0.1  # seconds from the first step that waits until all that wait are written
_LARGE = 4 << 20  # bytes of one file's waiting steps that are written at once
_NICENESS = 10  # serving goes first: a tenth of the processor where all of it is taken
_SESSION = Path("/proc/self/autogroup")


class Files:
    """The open files of one server, by a number that the server gives them.

    Steps that come within ``_TOGETHER`` seconds are written together, unless they are large: the server may die, this
    process outlives it.
    """

    def __init__(self) -> None:
        self._open: dict[int, TraceFile] = {}
        self._problems: dict[int, str] = {}
        self._lost: dict[int, collections.Counter[str]] = {}
        self._due: float | None = None
        self._verbs: dict[str, Callable[..., Any]] = {
            "open": self._start,
            "written": self._written,
            "append_rank": lambda key, *rows: self._open[key].append_rank(*rows),
            "finish": self._finish,
            "close": self._close,
        }

    def answer(self, message: Message) -> tuple[str | None, Any] | None:
        """Do one thing; the sentence of what went wrong, or None and what there is to say. A step gets no answer."""
        verb, key, *arguments = message.said
        if verb == STEP:
            self._take(key, unpacked(arguments[0], message.data))
            return None
        try:
            return None, self._verbs[verb](key, *arguments)
        except Exception as error:
            return _words(error), None

    @property
    def patience(self) -> float:
        """Seconds until steps that wait are to be written."""
        return _ORPHAN_SECONDS if self._due is None else max(0.0, self._due - time.monotonic())

    def write_due(self) -> None:
        """Write what has waited long enough."""
        if self._due is not None and time.monotonic() >= self._due:
            self._due = None
            for key in self._open:
                self._write(key)

    def close(self) -> None:
        """Close every file as it is."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()

    def _start(self, key: int, *arguments: Any) -> None:
        self._open[key] = TraceFile(*arguments)

    def _take(self, key: int, step: Step) -> None:
        file = self._open.get(key)
        if file is None:
            return
        file.take(step)
        if file.waiting_bytes > _LARGE:
            self._write(key)
        elif self._due is None:
            self._due = time.monotonic() + _TOGETHER

    def _write(self, key: int) -> None:
        file = self._open[key]
        waiting = file.waiting
        try:
            file.write()
        except Exception as error:
            self._problems.setdefault(key, _words(error))
            lost = self._lost.setdefault(key, collections.Counter())
            for frame in (frame for step in waiting for frame in step.frames):
                lost.update({name: len(part.array) for name, part in frame.parts.items()})

    def _written(self, key: int) -> Written:
        self._write(key)
        return replace(self._open[key].written, lost=self._lost.get(key, {}), problem=self._problems.get(key))

    def _finish(self, key: int, end: dict[str, Any]) -> None:
        self._write(key)
        self._problems.pop(key, None)
        self._lost.pop(key, None)
        self._open.pop(key).finish(**end)

    def _close(self, key: int) -> None:
        file = self._open.pop(key, None)
        if file is not None:
            file.close()


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def serve(link: socket.socket, server: int) -> None:
    """Answer what the process ``server`` asks over ``link`` until it has gone."""
    files = Files()
    try:
        while True:
            there = os.getppid() == server
            if select.select([link], [], [], files.patience if there else 0)[0]:
                message = receive(link)
                if message is None:
                    break
                answer = files.answer(message)
                if answer is not None:
                    send(link, answer)
            elif not there:  # and all that it sent is read
                break
            files.write_due()
    except OSError:
        pass  # the server went while it was answered
    finally:
        files.close()


def _step_back() -> None:
    """Let serving go first. Where Linux shares the processor among sessions (autogroup), this process, which has a
    session of its own, would get as much as the whole server: there the niceness that counts is the session's."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        _SESSION.write_text(str(_NICENESS))


def main() -> None:
    """``python -m drafttrace.hooks.writer_process DESCRIPTOR SERVER``: started by ``writer_link``."""
    _step_back()
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    main()
