"""What was inflated in this process, so that a command that opens a file several times inflates it once.

A command opens a compressed dump to recognise it, to find a sample, and to read it. The inflated bytes lie in temporary
files without a name, which are gone when the process ends, however it ends; memory holds none of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from drafttrace.tracer.file_bytes import FileBytes

# What is kept: so many bytes on the disk, in so many open files. Two are kept whatever their size: those of a diff.
MOST_BYTES = 8 << 30
MOST_FILES = 128
_ALWAYS = 2
# Of no use to a command any more; a notebook lives on.
_FORGOTTEN = 300.0
# File systems tell the time in steps of some milliseconds: a file that was written just now may be written again without
# looking any different.
_SETTLED = 0.02

Key = tuple[tuple[int, ...], str]


@dataclass
class _Kept:
    file: FileBytes
    used: float


_kept: dict[Key, _Kept] = {}
_latest: Key | None = None  # beyond the bounds, the last one stays until the next one comes
_lock = threading.RLock()


def once(packed: FileBytes, place: str, inflate: Callable[[], FileBytes]) -> FileBytes:
    """What ``inflate`` gives, or gave before for the same content. place: what of the file is inflated."""
    global _latest
    stamp = packed.identity()
    key = (stamp, place)
    with _lock:
        known = _kept.get(key)
        if known is not None:
            known.used = time.monotonic()
            return known.file
        made = inflate()
        unsettled = not packed.nameless and time.time() - max(stamp[-2:]) / 1e9 < _SETTLED
        if unsettled or packed.identity() != stamp:
            return made
        for old in [old for old, kept in _kept.items() if time.monotonic() - kept.used > _FORGOTTEN]:
            del _kept[old]
        beyond = not keeps_more(made.size)
        if beyond and _latest is not None:
            _kept.pop(_latest, None)
        _latest = key if beyond else _latest
        _kept[key] = _Kept(made, time.monotonic())
        return made


def keeps_more(size: int = 0) -> bool:
    """Whether one more inflated file of that size is kept to the end of the command, and not only until the next one."""
    with _lock:
        held = [kept.file.size for key, kept in _kept.items() if key != _latest]
        return len(held) < _ALWAYS or (len(held) < MOST_FILES and sum(held) + size <= MOST_BYTES)


def forget() -> bool:
    """Let go of everything, as where the disk is full. Whether there was anything."""
    with _lock:
        held = bool(_kept)
        _kept.clear()
        return held
