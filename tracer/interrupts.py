"""Ctrl-C ends a command wherever it arrives, with exit code 130.

Python raises KeyboardInterrupt in whatever runs at that moment, and some of that loses it: finalizers and callbacks of weak
references (it is reported as "ignored"), callbacks of a library in C, whose own error takes its place, and ``except``
clauses that take everything. So the exception that is raised here notices when it is gone: one that nobody took is raised
again, and a command that ends all the same does not end as if nothing had been asked.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

EXIT_CODE = 130
"""128 + SIGINT, as shells say it."""
# Whatever lost the exception is over by then: it is a finalizer, or the clause that took it.
_AGAIN = 0.005


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. One that disappears without having been taken asks for the next."""

    def __del__(self) -> None:
        if _asked:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)


_asked = False


def take() -> None:
    """Tell that Ctrl-C was understood, for a command that goes on to its own end after it."""
    global _asked
    _asked = False


def raise_lost() -> None:
    """Where Ctrl-C came and something else is about to be told in its place, end with it."""
    if _asked:
        raise Interrupted


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    global _asked
    _asked = True
    raise Interrupted


def _raise_again(_number: int, _frame: FrameType | None) -> None:
    if _asked:
        raise Interrupted


@contextmanager
def certain() -> Iterator[None]:
    """What runs inside ends with SystemExit(130) where Ctrl-C came and nothing called :func:`take`.

    Where Ctrl-C is ignored, as in the background, or somebody else handles it, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    alarm, report = signal.getsignal(signal.SIGALRM), sys.unraisablehook

    def unraisable(lost: Any) -> None:
        if not isinstance(lost.exc_value, Interrupted):  # which comes again, so nothing was ignored
            report(lost)

    take()  # nothing is asked yet
    signal.signal(signal.SIGALRM, _raise_again)
    signal.signal(signal.SIGINT, _raise)
    sys.unraisablehook = unraisable
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_CODE)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is over
        asked = _asked
        take()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)
        sys.unraisablehook = report
        if asked:
            sys.exit(EXIT_CODE)
