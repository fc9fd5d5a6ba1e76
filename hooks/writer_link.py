"""The server's end of the writer process: starts it with the first trace, and stands for the files in it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import socket
import subprocess
import sys
import termios
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drafttrace.hooks.host import Array, Step
from drafttrace.hooks.messages import STEP, receive, send
from drafttrace.hooks.packing import packed
from drafttrace.hooks.trace_file import TraceFile, Written
from drafttrace.tracer.row_hash import Hashes
from drafttrace.tracer.trace import schema
from drafttrace.tracer.trace.layout import TraceLayout
from drafttrace.tracer.trace.texts import pieces_of

logger = logging.getLogger("drafttrace")

_BUFFER = 4 << 20  # bytes that may wait in the socket, as far as the system allows
_MESSAGE = 16 << 10  # bytes of a message beside its arrays, at most
_GOODBYE = 10.0  # seconds that a process may take to close its files


class WriterFailed(RuntimeError):
    """What the writer process could not do, in its own words."""


class WriterLink:
    """The writer process of this process, used by one thread. ``apart`` False: there is none, files are written here.

    It is started with the first file, and again with the next one where it died. Where no process can be started, files
    are written here.
    """

    def __init__(self, apart: bool = True) -> None:
        self._apart = apart
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._keys = itertools.count()

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def open(
        self, path: Path, layout: TraceLayout, request_id: str, about: Mapping[str, Any], prompt: Sequence[int]
    ) -> OpenFile:
        """A new trace file. Raises WriterFailed or an OSError of the same words for a path that cannot be written."""
        if self._apart and self.pid is None:
            self._start()
        if not self._apart:
            return TraceFile(path, layout, request_id, about, prompt)
        key = next(self._keys)
        # As text: what a server's settings are made of is for the process that has SGLang.
        blocks = {name: pieces_of(value) for name, value in about.items()}
        self.ask("open", key, path, layout, request_id, blocks, list(prompt))
        assert self._process is not None
        return FileApart(self, self._process, key)

    def ask(self, verb: str, key: int, *arguments: Any, of: subprocess.Popen[bytes] | None = None) -> Any:
        """Have the process do something, wait for it, and give what it says. of: the process that has the file.

        Raises WriterFailed with its words, also where it is gone.
        """
        link = self._send((verb, key, *arguments), of)
        try:
            answer = receive(link)
        except OSError:
            answer = None
        if answer is None:
            raise self._gone()
        problem, said = answer.said
        if problem is not None:
            raise WriterFailed(problem)
        return said

    def room(self, nbytes: int) -> bool:
        """Whether so many bytes of a step can be sent without waiting for the process to read."""
        if self._link is None:
            return False
        waiting = array("i", [0])
        fcntl.ioctl(self._link, termios.TIOCOUTQ, waiting)
        return waiting[0] + nbytes + nbytes // 4 + _MESSAGE <= self._link.getsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF
        )

    def post(self, key: int, step: Step, of: subprocess.Popen[bytes]) -> None:
        """Send a step and do not wait: every wait takes the interpreter from the scheduler and gives it back.

        Raises WriterFailed where the process is gone. What it cannot write, its ``Written`` tells.
        """
        plain, arrays = packed(step)
        self._send((STEP, key, plain), of, arrays)

    def _send(
        self, said: tuple[Any, ...], of: subprocess.Popen[bytes] | None, arrays: Sequence[Array] = ()
    ) -> socket.socket:
        link = self._link
        if link is None or (of is not None and of is not self._process):
            raise WriterFailed("the writer process is gone")
        try:
            send(link, said, arrays)
        except OSError:
            raise self._gone() from None
        return link

    def _gone(self) -> WriterFailed:
        return WriterFailed(f"the writer process is gone ({self._end()})")

    def close(self) -> None:
        """Let the process close its files and end."""
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        command = [sys.executable, "-m", "drafttrace.hooks.writer_process", str(theirs.fileno()), str(os.getpid())]
        # A session of its own: what is sent to the server's group (Ctrl-C) would end it before its last trace.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **threads},
            )
        except OSError as error:
            self._apart = False
            ours.close()
            logger.warning("drafttrace: no writer process (%s); traces are written by the scheduler itself", error)
        else:
            self._link = ours
        finally:
            theirs.close()

    def _end(self) -> str:
        """Part with the process; how it ended."""
        link, self._link = self._link, None
        process, self._process = self._process, None
        if link is not None:
            link.close()
        if process is None:
            return "it was not there"
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"exit code {process.wait(_GOODBYE)}"
        return "it does not end"


class FileApart:
    """A file in the writer process."""

    def __init__(self, link: WriterLink, process: subprocess.Popen[bytes], key: int) -> None:
        self._link, self._process, self._key = link, process, key

    @property
    def written(self) -> Written:
        """What is in the file once all that was sent is written."""
        written: Written = self._ask("written")
        return written

    def takes_now(self, nbytes: int) -> bool:
        """Whether a step of so many bytes goes without waiting."""
        return self._link.room(nbytes)

    def append(self, step: Step) -> None:
        self._link.post(self._key, step, self._process)

    def append_rank(self, rank: int, rows: schema.Records, hashes: Hashes) -> None:
        self._ask("append_rank", rank, rows, hashes)

    def finish(self, *, request: Mapping[str, Any], **end: Any) -> None:
        self._ask("finish", {**end, "request": pieces_of(request)})

    def close(self) -> None:
        """Close the file as it is, where it was not finished."""
        self._ask("close")

    def _ask(self, verb: str, *arguments: Any) -> Any:
        return self._link.ask(verb, self._key, *arguments, of=self._process)


OpenFile = TraceFile | FileApart
"""A trace file that takes scheduler steps, here or in the writer process."""
