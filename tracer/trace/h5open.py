"""Opening a trace in any state: closed, being written, killed, cut off, or not a trace at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import h5py
from h5py import h5d

from drafttrace.tracer.errors import UnknownFormat, UnreadableFile
from drafttrace.tracer.trace import schema, texts
from drafttrace.tracer.trace.growing import uncached
from drafttrace.tracer.trace.superblock import SIGNATURE, CleanView, Superblock, read_superblock

# Without SWMR's own retries a reader can meet metadata that is half written; the next look finds it whole.
_LOOKS = 5

# What h5py raises for damaged files, depending on where the damage is.
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, MemoryError, OverflowError)


Result = TypeVar("Result")


class TraceFile:
    """An open trace. It stays open as long as somebody holds it: the lazy rows do.

    A closed file is opened by HDF5 itself, any other one through a CleanView: SWMR reading would share one state
    (and one stale view) among all readers of a process, and refuses the file that the same process writes.
    ``closed_properly`` is False for a trace whose writer is still at work or died.
    """

    def __init__(self, path: Path, file: h5py.File, closed_properly: bool, descriptor: int) -> None:
        """descriptor: of the open file, whose length is watched."""
        self.path = path
        self.file = file
        self.closed_properly = closed_properly
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    def dataset(self, name: str) -> h5py.Dataset:
        """The dataset at ``name``, opened without a chunk cache. Raises UnreadableFile where there is none."""
        with self.reading(f"/{name}"):
            there = name in self.file
            if there:
                found = h5py.Dataset(h5d.open(self.file.id, name.encode(), uncached()))
                # HDF5 would follow whatever path a stranger's file names.
                if found.external or found.is_virtual or found.file.filename != self.file.filename:
                    raise UnreadableFile(
                        f"'{self.path}' keeps /{name} in another file, and drafttrace follows no path that a file names; "
                        "record the request again."
                    )
                return found
        raise UnreadableFile(f"'{self.path}' is not whole: /{name} is missing; record the request again.")

    def refuse_cut_off(self, dataset: h5py.Dataset, row_bytes: int, count: int) -> None:
        """Raise UnreadableFile where the first ``count`` rows of a dataset are not inside the file.

        HDF5 notices it by itself only in a file that was closed.
        """
        ends = [0]

        def visit(chunk: h5py.h5d.StoreInfo) -> None:
            rows = min(count - chunk.chunk_offset[0], dataset.chunks[0])
            if rows > 0:
                ends.append(chunk.byte_offset + rows * row_bytes)

        if self.closed_properly:
            return
        dataset.id.chunk_iter(visit)
        end, size = max(ends), os.stat(self.path).st_size
        if end > size:
            raise UnreadableFile(
                f"'{self.path}' is cut off: {dataset.name} reaches to byte {end} of {size}; copy it again from where it "
                "was made."
            )

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Turns what h5py raises inside into one sentence that names ``what``.

        What a file has lost reads as zeros, so it is an error, too, that it became shorter.
        """
        try:
            yield
            self._check_size()
        except _DAMAGE as error:
            self._check_size()
            raise UnreadableFile(
                f"'{self.path}' is damaged: {what} cannot be read ({cause_of(error)}); copy it again, or record the "
                "request again."
            ) from error

    def _check_size(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size < self._size:
            raise UnreadableFile(
                f"'{self.path}' was cut off while it was read: it has {size} bytes of {self._size}; copy it again."
            )


def open_trace(path: str | os.PathLike[str]) -> TraceFile:
    """Opens a trace for reading.

    Raises UnreadableFile where the file is not there, cut off or damaged, and UnknownFormat where it is no HDF5
    file, another HDF5 file, or a trace of a newer format version.
    """
    place = Path(path)
    opened = _open_hdf5(place)
    try:
        _check_format(opened)
    except BaseException:
        opened.file.close()
        raise
    return opened


def settled(path: str | os.PathLike[str], read: Callable[[TraceFile], Result]) -> Result:
    """What ``read`` makes of the trace at ``path``; a file that changes meanwhile is looked at again.

    Raises as :func:`open_trace` does.
    """
    for _ in range(_LOOKS - 1):
        before = _state(path)
        try:
            return read(open_trace(path))
        except UnreadableFile:
            time.sleep(0.02)
            if _state(path) == before:
                raise
    return read(open_trace(path))


def _state(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """What changes whenever a file is written."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a drafttrace trace, of any format version and in any state. Never raises."""
    try:
        opened = _open_hdf5(Path(path))
    except (UnreadableFile, UnknownFormat):
        return False
    try:
        return texts.get_text(opened.file.attrs.get(schema.ATTR_FORMAT, "")) == schema.FORMAT
    except _DAMAGE:
        return False
    finally:
        opened.file.close()


def _open_hdf5(path: Path) -> TraceFile:
    block = _superblock(path)
    ways = [_view]
    if not block.flags:
        ways.insert(0, _closed)
    problem: Exception | None = None
    for way in ways:
        try:
            file, descriptor = way(path)
            return TraceFile(path, file, closed_properly=not block.flags, descriptor=descriptor)
        except _DAMAGE as error:
            problem = error
    raise UnreadableFile(
        f"'{path}' is a damaged HDF5 file ({cause_of(problem)}); copy it again, or record the request again."
    ) from problem


def _superblock(path: Path) -> Superblock:
    try:
        block = read_superblock(path)
        size = path.stat().st_size
    except OSError as error:
        raise UnreadableFile(
            f"'{path}' cannot be opened ({os.strerror(error.errno or 0)}); check the path."
        ) from None
    if block is None:
        if size == 0:
            raise UnreadableFile(
                f"'{path}' is empty, as its writer ended before it began; record the request again."
            )
        if size < 96 and _starts_like_hdf5(path):
            raise UnreadableFile(f"'{path}' is cut off after {size} bytes; copy or record it again.")
        raise UnknownFormat(f"'{path}' is no HDF5 file; give a trace that drafttrace recorded.")
    if block.cut_off:
        raise UnreadableFile(
            f"'{path}' is cut off: it has {block.size} bytes where {block.end} were written; copy it again."
        )
    return block


def _starts_like_hdf5(path: Path) -> bool:
    head = path.read_bytes()[: len(SIGNATURE)]
    return SIGNATURE.startswith(head) or head.startswith(SIGNATURE)


def _closed(path: Path) -> tuple[h5py.File, int]:
    file = h5py.File(path, "r")
    return file, int(file.id.get_vfd_handle())


def _view(path: Path) -> tuple[h5py.File, int]:
    view: Any = CleanView(path)
    try:
        return h5py.File(view, "r"), view.fileno()
    except BaseException:
        view.close()
        raise


def _check_format(opened: TraceFile) -> None:
    with opened.reading("its head"):
        name = texts.get_text(opened.file.attrs.get(schema.ATTR_FORMAT, ""))
        version = int(opened.file.attrs.get(schema.ATTR_VERSION, 0))
    if not name and not opened.closed_properly:
        raise UnreadableFile(
            f"'{opened.path}' was not closed by its writer and does not say what it is: it is cut off, or the writer "
            "died at once; record the request again."
        )
    if name != schema.FORMAT:
        raise UnknownFormat(
            f"'{opened.path}' is an HDF5 file but no drafttrace trace (it says format '{name}'); "
            "give a trace or a training dump."
        )
    if version > schema.FORMAT_VERSION:
        raise UnknownFormat(
            f"'{opened.path}' has format version {version}, this drafttrace reads up to {schema.FORMAT_VERSION}; "
            "update drafttrace."
        )
    if version < 1:
        raise UnreadableFile(
            f"'{opened.path}' is damaged: its format version is {version}; record the request again."
        )


def cause_of(error: BaseException | None) -> str:
    """Why HDF5 could not read something, in its own few words; for what Python made of the nonsense that was read, in
    ours: "'NoneType' object is not subscriptable" tells nobody what is wrong with a file."""
    if isinstance(error, json.JSONDecodeError):
        return "its JSON is damaged"
    told = re.search(r"(?:Unable to|Can't|Unspecified error in) .*?\((.*)\)", str(error).partition("\n")[0])
    return told[1] if told else "it does not hold what a trace holds there"
