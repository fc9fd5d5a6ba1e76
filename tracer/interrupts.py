"""Ctrl-C ends a command wherever it arrives, with exit code 130.

Python raises KeyboardInterrupt in whatever runs at that moment, and some of that loses it: finalizers and callbacks of weak
references (it is reported as "ignored"), callbacks of a library in C, whose own error takes its place, and ``except``
clauses that take everything. So the exception that is raised here notices when it is gone: one that nobody took is raised
again, and a command that ends all the same does not end as if nothing had been asked.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

EXIT_CODE = 130
"""128 + SIGINT, as shells say it."""
# Whatever lost the exception is over by then: it is a finalizer, or the clause that took it.
_AGAIN = 0.005


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. One that disappears without having been taken asks for the next."""

    def __del__(self) -> None:
        if not _asked:
            return
        if threading.current_thread() is threading.main_thread():
            _borrow_alarm()
        else:  # whatever loses exceptions here is none of the main thread's
            _thread.interrupt_main()


_asked = False


@dataclass(frozen=True)
class _Alarm:
    """The caller's: its handler, the seconds it had left (0: it was not set), those it repeats after, and when."""

    handler: Any
    left: float
    every: float
    since: float


_borrowed: _Alarm | None = None


def _borrow_alarm() -> None:
    global _borrowed
    if _borrowed is None:
        left, every = signal.setitimer(signal.ITIMER_REAL, 0)
        # None is a handler that C code set before Python began; Python cannot set that again.
        handler = signal.getsignal(signal.SIGALRM) or signal.SIG_DFL
        _borrowed = _Alarm(handler, left, every, time.monotonic())
        signal.signal(signal.SIGALRM, _raise_again)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN)


def _give_alarm_back() -> None:
    global _borrowed
    alarm, _borrowed = _borrowed, None
    if alarm is None:
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, alarm.handler)
    if alarm.left > 0:  # one that was due meanwhile rings at once
        left = max(alarm.left - (time.monotonic() - alarm.since), 1e-4)
        signal.setitimer(signal.ITIMER_REAL, left, alarm.every)


def take() -> None:
    """Tell that Ctrl-C was understood, for a command that goes on to its own end after it."""
    global _asked
    _asked = False


def end() -> NoReturn:
    """End the command for a Ctrl-C that came while :func:`certain` began or ended; none of it comes again after that."""
    take()
    if signal.getsignal(signal.SIGINT) is _raise:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _give_alarm_back()
    sys.exit(EXIT_CODE)


def raise_lost() -> None:
    """Where Ctrl-C came and something else is about to be told in its place, end with it."""
    if _asked:
        raise Interrupted


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    global _asked
    _asked = True
    raise Interrupted


def _raise_again(_number: int, _frame: FrameType | None) -> None:
    _give_alarm_back()
    if _asked:
        raise Interrupted


@contextmanager
def terminated_too() -> Iterator[None]:
    """SIGTERM, with which systemd and docker end a command that runs for days, is Ctrl-C inside, with its exit
    code: what the command has asked for elsewhere is taken back. Where somebody else handles it, nothing changes."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def certain() -> Iterator[None]:
    """What runs inside ends with SystemExit(130) where Ctrl-C came and nothing called :func:`take`.

    Where Ctrl-C is ignored, as in the background, or somebody else handles it, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    report = sys.unraisablehook

    def unraisable(lost: Any) -> None:
        if not isinstance(lost.exc_value, Interrupted):  # which comes again, so nothing was ignored
            report(lost)

    take()  # nothing is asked yet
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
        _give_alarm_back()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = report
        if asked:
            sys.exit(EXIT_CODE)
