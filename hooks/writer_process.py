"""The process that writes a server's trace files, so that its Python never holds the interpreter of the scheduler.

A round of a few rows is a dozen calls into HDF5 and the file system. On a thread of the scheduler each of them takes the
interpreter's lock away from it and gives it back, dozens of times in a round, which costs many times what the work does
(``bench/NOTES.md``). Here the scheduler packs a step into one message and sends it.

It ends when its server does, however that ends: what was sent is written, and the files are closed. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

from drafttrace.hooks.messages import receive, send
from drafttrace.hooks.trace_file import TraceFile

_ORPHAN_SECONDS = 5.0  # between two looks whether the server is still there, while it says nothing
_NICENESS = 5  # serving goes first


class Files:
    """The open files of one server, by a number that the server gives them."""

    def __init__(self) -> None:
        self._open: dict[int, TraceFile] = {}
        self._verbs: dict[str, Callable[..., Any]] = {
            "open": self._start,
            "append": lambda key, step: self._open[key].append(step),
            "append_rank": lambda key, *rows: self._open[key].append_rank(*rows),
            "finish": lambda key, end: self._open.pop(key).finish(**end),
        }

    def answer(self, verb: str, key: int, *arguments: Any) -> tuple[str | None, Any]:
        """Do one thing; the sentence of what went wrong, or None and what is in the file now."""
        try:
            self._verbs[verb](key, *arguments)
        except Exception as error:
            return str(error) or type(error).__name__, None
        file = self._open.get(key)
        return None, file.written if file is not None else None

    def close(self) -> None:
        """Close every file as it is."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()

    def _start(self, key: int, *arguments: Any) -> None:
        self._open[key] = TraceFile(*arguments)


def serve(link: socket.socket, server: int) -> None:
    """Answer what the process ``server`` asks over ``link`` until it has gone."""
    files = Files()
    try:
        while os.getppid() == server:
            if not select.select([link], [], [], _ORPHAN_SECONDS)[0]:
                continue
            message = receive(link)
            if message is None:
                break
            send(link, files.answer(*message))
    except OSError:
        pass  # the server went while it was answered
    finally:
        files.close()


def main() -> None:
    """``python -m drafttrace.hooks.writer_process DESCRIPTOR SERVER``: started by ``writer_link``."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    main()
