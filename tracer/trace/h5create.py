"""New trace files and their tables."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from drafttrace.tracer.errors import OutputExists
from drafttrace.tracer.trace import schema

TABLE_CHUNK = 256
"""Records of one chunk."""


def check_output(path: Path, overwrite: bool) -> None:
    """Raises OutputExists where ``path`` is taken and ``overwrite`` is not given, or where it cannot be written."""
    if path.is_dir():
        raise OutputExists(f"'{path}' is a folder; give the name of a file to write.")
    if path.exists() and not path.is_file():
        raise OutputExists(
            f"'{path}' is a device or pipe, which no trace replaces; give the name of a file to write."
        )
    if os.path.lexists(path) and not overwrite:
        raise OutputExists(f"'{path}' exists already; pass --force to overwrite it, or choose another output.")
    if not path.parent.is_dir():
        raise OutputExists(f"'{path}' cannot be written (the folder {path.parent} does not exist); make it first.")
    if not os.access(path.parent, os.W_OK):
        raise OutputExists(
            f"'{path}' cannot be written (the folder {path.parent} is not writable); choose another."
        )


def create_file(path: Path, overwrite: bool) -> h5py.File:
    """A new file at ``path``. Never truncates one that somebody may be reading: it is unlinked instead.

    Raises OutputExists as :func:`check_output` does.
    """
    check_output(path, overwrite)
    try:
        if overwrite:
            path.unlink(missing_ok=True)
        return h5py.File(path, "x", libver=schema.LIBVER)
    except OSError as error:
        taken = isinstance(error, FileExistsError) or error.errno == errno.EEXIST
        cause = "another program made it at the same moment" if taken else problem(error)
        raise OutputExists(f"'{path}' cannot be written ({cause}); choose another output.") from None


class Room:
    """Disk space that is taken before HDF5 writes.

    HDF5 (2.0 and older) crashes the process when it meets a full disk, and that process may be somebody's server.
    So space is reserved first, with a margin for what HDF5 keeps in memory; where there is none, HDF5 is never
    asked. Files stay as long as they are: the reservation lies behind their end, and closing gives it back.
    """

    MARGIN = 1 << 20
    _STEP = 8 << 20

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._number: int = file.id.get_vfd_handle()
        self._end = 0

    def take(self, size: int, last: bool = False) -> None:
        """Makes sure that the file can grow by ``size`` bytes. Raises OSError where it cannot.

        last: nothing but closing comes after this, which may use up most of the margin.
        """
        have: int = self._file.id.get_filesize()
        wanted = have + size + (self.MARGIN // 8 if last else self.MARGIN)
        if wanted <= self._end:
            return
        step = min(self._STEP, have)  # small traces do not hold much
        try:
            self._reserve(wanted + step)
        except OSError:
            self._reserve(wanted)

    def _reserve(self, end: int) -> None:
        if _LIBC.fallocate(self._number, _KEEP_SIZE, _Offset(self._end), _Offset(end - self._end)) == 0:
            self._end = end
            return
        number = ctypes.get_errno()
        if number not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR):
            raise OSError(number, os.strerror(number))
        disk = os.fstatvfs(self._number)  # this file system cannot reserve: look at least
        if disk.f_bavail * disk.f_frsize < end - self._file.id.get_filesize():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_Offset = ctypes.c_int64


def close_file(file: h5py.File) -> None:
    """Closes a healthy file and gives back the space that was reserved behind its end."""
    file.flush()
    number = os.dup(file.id.get_vfd_handle())  # by now another file may have its name
    try:
        file.close()
        with contextlib.suppress(OSError):
            os.ftruncate(number, os.fstat(number).st_size)
    finally:
        os.close(number)


def abandon(file: h5py.File) -> None:
    """Closes a file whose disk refuses writes, without writing to it: what was flushed stays as it is.

    The last flush goes into memory, which is dropped: closing such a file the plain way crashes HDF5.
    """
    try:
        number = file.id.get_vfd_handle()
        spare = os.memfd_create("drafttrace")
        os.dup2(spare, number, inheritable=False)
        os.close(spare)
        file.close()
    except (OSError, RuntimeError, ValueError):
        _KEPT.append(file)  # still better than to close it


_KEPT: list[h5py.File] = []


def problem(error: BaseException) -> str:
    """What the system says of a failed write, in a few words."""
    number = getattr(error, "errno", None)
    if number is None and (found := re.search(r"errno = (\d+)", str(error))):
        number = int(found[1])  # HDF5 tells it in words
    return os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0]


def make_table(group: h5py.Group, name: str, record: np.dtype[np.void]) -> h5py.Dataset:
    """An empty table of ``record`` that grows."""
    return group.create_dataset(name, (0,), record, maxshape=(None,), chunks=(TABLE_CHUNK,))


def append_table(dataset: h5py.Dataset, rows: npt.NDArray[Any]) -> None:
    """Appends records and makes them visible to readers."""
    start = dataset.shape[0]
    dataset.resize(start + len(rows), axis=0)
    dataset[start:] = rows
    dataset.flush()
