"""A file read by position, never mapped: a file that becomes shorter meanwhile, or a disk that fails, is an error.

With a memory map both kill the process (a bus error), and nobody learns why. Positional reads are as fast, hold only
what was asked for, and say how much came.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import UnreadableFile

Bytes = npt.NDArray[np.uint8]

# Files that stay open at a time: a folder of ten thousand samples must not need ten thousand descriptors.
_MOST_OPEN = 64
_lock = threading.RLock()
_recent: OrderedDict[int, weakref.ref[FileBytes]] = OrderedDict()


class FileBytes:
    """The bytes of one file. size: how many there were when it was opened. nameless: whether it is a temporary file.

    It is opened again when it is needed after others were; a file that was replaced meanwhile is an error.
    """

    def __init__(self, path: Path, fd: int | None = None) -> None:
        """Open ``path``; or take over the descriptor ``fd`` of a file without a name, ``path`` is what errors call it.

        Raises UnreadableFile.
        """
        self.path = path
        self._fd = fd
        self.nameless = fd is not None
        self._identity: tuple[int, int] | None = None
        with _lock:
            try:
                self.size = os.fstat(self._descriptor()).st_size
            except OSError as error:
                raise self._unreadable(error) from None

    def __del__(self) -> None:
        try:
            with _lock:
                _recent.pop(id(self), None)
                self._close()
        except Exception:  # the interpreter may be going down, and contextlib be gone already
            pass

    def identity(self) -> tuple[int, int, int, int, int]:
        """What changes when the file is another one or is written to: device, inode, size, and its two times in ns."""
        with _lock:
            try:
                about = os.fstat(self._descriptor())
            except OSError as error:
                raise self._unreadable(error) from None
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

    def read(self, begin: int, count: int) -> Bytes:
        """``count`` bytes from ``begin``, read-only. Raises UnreadableFile where the file does not hold them."""
        out = np.empty(count, np.uint8)
        self.gather(out, [begin], count)
        out.flags.writeable = False
        return out

    def gather(self, out: Bytes, places: Iterable[int], run: int) -> None:
        """Fill ``out`` with ``run`` bytes from each of ``places``. Raises UnreadableFile as :meth:`read` does."""
        view, at = out.data, 0
        with _lock:
            try:
                fd = self._descriptor()
                for place in places:
                    done = os.preadv(fd, [view[at : at + run]], place)
                    while done < run:
                        got = os.preadv(fd, [view[at + done : at + run]], place + done)
                        if got == 0:
                            raise self._cut_off(os.fstat(fd).st_size)
                        done += got
                    at += run
            except OSError as error:
                raise self._unreadable(error) from None

    def text(self, begin: int = 0, count: int | None = None) -> bytes:
        """Bytes as bytes, by default all; at the end of the file fewer."""
        stop = self.size if count is None else min(self.size, begin + count)
        return self.read(begin, max(0, stop - begin)).tobytes()

    def stream(self, begin: int = 0, end: int | None = None) -> ByteStream:
        """A stream over ``begin..end``, by default over all."""
        return ByteStream(self, begin, self.size if end is None else end)

    def _descriptor(self) -> int:
        if self._fd is None:
            fd = os.open(self.path, os.O_RDONLY)
            about = os.fstat(fd)
            if self._identity not in {None, (about.st_dev, about.st_ino)}:
                os.close(fd)
                raise UnreadableFile(
                    f"The file '{self.path}' was replaced by another one while it was read; run the command again."
                )
            self._fd, self._identity = fd, (about.st_dev, about.st_ino)
        if not self.nameless:
            _recent[id(self)] = weakref.ref(self)
            _recent.move_to_end(id(self))
            while len(_recent) > _MOST_OPEN:
                _key, oldest = _recent.popitem(last=False)
                if (other := oldest()) is not None:
                    other._close()
        return self._fd

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _cut_off(self, size: int) -> UnreadableFile:
        return UnreadableFile(
            f"The file '{self.path}' was cut off while it was read: it has {size:,} bytes of {self.size:,}; copy it again."
        )

    def _unreadable(self, error: OSError) -> UnreadableFile:
        return UnreadableFile(f"The file '{self.path}' cannot be read ({error.strerror or error}); check it.")


class ByteStream(io.RawIOBase):
    """A readable, seekable stream over a part of a file."""

    def __init__(self, file: FileBytes, begin: int, end: int) -> None:
        super().__init__()
        self._file, self._begin, self._end = file, begin, end
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        base = {0: 0, 1: self._position, 2: self._end - self._begin}[whence]
        if base + offset < 0:
            raise OSError("a position before the start")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        count = max(0, min(len(view), self._end - self._begin - self._position))
        if count:
            self._file.gather(np.frombuffer(view[:count], np.uint8), [self._begin + self._position], count)
        self._position += count
        return count
