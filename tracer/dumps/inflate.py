"""Compressed content cannot be read in blocks from its middle: it is inflated into a temporary file without a name.

The file goes away by itself. Memory stays small whatever the size; the disk must have the room, and bombs are refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from drafttrace.tracer.dumps.inflated_files import forget
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes

_RATIO = 500  # of bytes out to bytes in; zeros give 1000, and would fill the disk
_BLOCK = 4 << 20
_SPARE = 64 << 20  # left free on the disk


class Readable(Protocol):
    """Whatever gives bytes."""

    def read(self, size: int, /) -> bytes: ...


def inflated(path: Path, source: Readable, packed: int, what: str) -> FileBytes:
    """All that ``source`` gives, as a file. packed: compressed bytes. what: of ``path``, for errors.

    Raises UnreadableFile for a bomb, or where the disk is too small or cannot be written.
    """
    folder = os.environ.get("TMPDIR") or tempfile.gettempdir()
    most = max(1 << 30, _RATIO * packed)
    try:
        target = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - its descriptor is handed on
        room = shutil.disk_usage(folder).free - _SPARE
    except OSError as error:
        raise _no_room(path, folder, error) from None
    with target:
        while block := source.read(_BLOCK):
            room, most = room - len(block), most - len(block)
            if room < 0 and forget():  # what was inflated before may be in the way
                room = shutil.disk_usage(folder).free - _SPARE - len(block)
            if most < 0:
                raise UnreadableFile(
                    f"The {what} '{path}' inflates to more than {_RATIO} times its size, as no hidden states do; give "
                    "the dump itself."
                )
            if room < 0:
                raise UnreadableFile(
                    f"The {what} '{path}' inflates to more than the space left in '{folder}'; set TMPDIR to a larger "
                    "folder."
                )
            try:
                view = memoryview(block)
                while view:
                    view = view[target.write(view) :]
            except OSError as error:
                raise _no_room(path, folder, error) from None
        return FileBytes(path, os.dup(target.fileno()))


def _no_room(path: Path, folder: str, error: OSError) -> UnreadableFile:
    return UnreadableFile(
        f"The file '{path}' cannot be inflated into '{folder}' ({error.strerror or error}); set TMPDIR to a folder with "
        "space."
    )
