"""What a terminal can show. One that knows ASCII only gets ASCII, and never an encoding error."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Mapping
from typing import Any

_PLAIN = {
    "→": "->",
    "←": "<-",
    "×": "x",
    "±": "+/-",
    "·": "-",
    "•": "*",
    "…": "...",
    "–": "-",
    "—": "-",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "√": "sqrt ",
    "─": "-",
    "━": "-",
    "│": "|",
    "█": "#",
}


def wants_ascii(environment: Mapping[str, str]) -> bool:
    """Whether the locale is the C one, which promises ASCII and nothing more.

    Python sets LC_CTYPE to C.UTF-8 by itself where LANG is C (PEP 538), so that value does not speak against it.
    """
    plain = {"C", "POSIX"}
    if environment.get("LC_ALL"):
        return environment["LC_ALL"] in plain
    return environment.get("LANG") in plain and environment.get("LC_CTYPE", "C.UTF-8") in {*plain, "", "C.UTF-8"}


class OutputLost(OSError):
    """Standard output takes nothing more: its disk is full, or its terminal gone."""


class _Lasting(io.FileIO):
    """Standard output that outlives its reader: once `head` has gone, the rest goes nowhere.

    The exit code tells what was found, so it must not depend on whether somebody read to the end. A full disk is another
    thing: what was to be kept is lost, and is said once. Of standard error nothing can be said any more.
    """

    left = False
    lost: OutputLost | None = None

    def write(self, data: Any) -> int:
        if not data:  # click asks so whether a stream takes bytes, and passes over the answer
            return 0
        try:
            return super().write(data)
        except BrokenPipeError:
            self.left = True
            self._go_nowhere()
            return len(data)
        except OSError as error:
            self._go_nowhere()
            if self.fileno() == 2:
                return len(data)
            self.lost = OutputLost(error.errno, error.strerror)
            raise self.lost from None

    def _go_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def reader_left() -> bool:
    """Whether the reader of standard output went away: what runs until it is stopped should end then."""
    raw = _raw(sys.stdout)
    return isinstance(raw, _Lasting) and raw.left


def check_output() -> None:
    """Raise OutputLost where standard output was, also where a library passed over that."""
    sys.stdout.flush()
    raw = _raw(sys.stdout)
    if isinstance(raw, _Lasting) and raw.lost is not None:
        raise raw.lost


def _raw(stream: Any) -> Any:
    """What a text stream writes to in the end; where Python does not buffer (-u), nothing stands between."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _lasting(stream: Any) -> Any:
    """The stream over :class:`_Lasting`; as it is where it is no file (a test runner's, a notebook's)."""
    if type(_raw(stream)) is not io.FileIO:
        return stream
    stream.flush()
    raw = _Lasting(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if hasattr(stream.buffer, "raw") else raw,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def prepare_streams() -> None:
    """Let standard output and error replace what they cannot show, and outlive their readers; closed ones go nowhere."""
    codecs.register_error("drafttrace-plain", _replace)
    _forget_no_width()
    ascii_only = wants_ascii(os.environ)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        setattr(sys, name, open(os.devnull, "w") if stream is None else _lasting(stream))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:  # replaced by a test runner or a notebook
            continue
        if ascii_only:
            reconfigure(encoding="ascii", errors="drafttrace-plain")
        else:
            reconfigure(errors="drafttrace-plain")


def _forget_no_width() -> None:
    """A width of 0 is what some terminals and job runners say for "not known"; rich would print nothing at all."""
    for name in ("COLUMNS", "TERMINAL_WIDTH"):
        if os.environ.get(name, "").strip().strip("0") == "" and name in os.environ:
            del os.environ[name]


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    shown = (_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text)
    return "".join(shown), error.end
