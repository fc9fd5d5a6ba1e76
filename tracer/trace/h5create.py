"""New trace files and their tables."""

from __future__ import annotations

import errno
import os
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
        raise OutputExists(f"{path} is a folder: give the name of a file to write")
    if os.path.lexists(path) and not overwrite:
        raise OutputExists(f"{path} exists already: pass --force to overwrite it, or choose another output")
    if not path.parent.is_dir():
        raise OutputExists(f"{path} cannot be written (the folder {path.parent} does not exist): make it first")
    if not os.access(path.parent, os.W_OK):
        raise OutputExists(f"{path} cannot be written (the folder {path.parent} is not writable): choose another")


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
        raise OutputExists(f"{path} cannot be written ({cause}): choose another output") from None


def problem(error: BaseException) -> str:
    """What the system says of a failed write, in a few words."""
    number = getattr(error, "errno", None)
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
