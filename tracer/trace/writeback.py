"""Has the kernel begin to write a growing file to the disk, long before anybody waits for it.

Left alone, a trace of gigabytes lies in the page cache until the kernel finds it too much; it then holds up whoever
writes next. Asked early, the disk works while the next rows are summed (``bench/NOTES.md``).
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

_STEP = 8 << 20  # bytes between two requests; a small trace makes none
_BEGIN = 2  # SYNC_FILE_RANGE_WRITE: start, do not wait


class Writeback:
    """Of the file with the descriptor ``number``, which stays open longer than this is used."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._asked = 0

    def reached(self, size: int) -> None:
        """``size`` bytes were handed to the file by now. Never raises: a kernel or file system without it is no loss."""
        if size - self._asked < _STEP:
            return
        self._asked = size
        begin = _sync_file_range()
        if begin is not None:
            begin(self._number, 0, 0, _BEGIN)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's ``sync_file_range(2)``; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        found = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    found.restype = ctypes.c_int
    return found
