"""Reads what ``torch.save`` writes, without torch: the zip form, and the older form without a zip.

Tensor bytes are memory-mapped where the zip stores them uncompressed, which is what torch does.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.dumps.pickle_machine import PickleMachine
from drafttrace.tracer.dumps.pickle_values import BadPickle, RefusedPickle, StorageKind
from drafttrace.tracer.dumps.tensor import STORAGE, MappedFile, Tensor
from drafttrace.tracer.errors import UnreadableFile

LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_MAX_PICKLE = 256 << 20
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError, ValueError,
               RuntimeError, KeyError)  # fmt: skip


def read_torch_zip(path: Path, file: MappedFile) -> Any:
    """The value in a zip-form torch file: dicts, lists, numbers, texts and :class:`Tensor`.

    Raises UnreadableFile for a damaged file, and for a pickle that asks for code.
    """
    try:
        with zipfile.ZipFile(ByteStream(file.bytes)) as archive:
            members = {info.filename: info for info in archive.infolist()}
            pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise damaged(path, f"it holds {len(pickles)} files named data.pkl where torch writes one")
            prefix = pickles[0].removesuffix("data.pkl")
            if f"{prefix}byteorder" in members and archive.read(f"{prefix}byteorder") != b"little":
                raise damaged(path, "it was written on a big-endian machine")
            if members[pickles[0]].file_size > _MAX_PICKLE:
                raise damaged(path, f"its pickle alone has {members[pickles[0]].file_size} bytes")
            storages = _ZipStorages(path, file, archive, members, prefix)
            return _run(path, io.BytesIO(archive.read(pickles[0])), storages)
    except ZIP_ERRORS as error:
        raise damaged(path, reason_of(error)) from None


class _ZipStorages:
    """Finds the flat tensor of a persistent id ``("storage", class, key, location, count)``; each one once."""

    def __init__(
        self,
        path: Path,
        file: MappedFile,
        archive: zipfile.ZipFile,
        members: dict[str, zipfile.ZipInfo],
        prefix: str,
    ) -> None:
        self._path, self._file, self._archive = path, file, archive
        self._members, self._prefix = members, prefix
        self._flat: dict[str, Any] = {}

    def __call__(self, key: Sequence[Any]) -> Tensor:
        kind, name, count = _storage_key(key)
        if name not in self._flat:
            info = self._members.get(f"{self._prefix}data/{name}")
            if info is None:
                raise BadPickle(f"its data/{name} is missing")
            self._flat[name] = member_bytes(self._file, self._archive, info)
        data = self._flat[name]
        if len(data) < count * kind.item:
            raise BadPickle(f"its data/{name} has {len(data)} bytes where {count * kind.item} are needed")
        return _flat_tensor(data[: count * kind.item], kind, self._file)


def member_bytes(file: MappedFile, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    """The bytes of a zip member: a view of the map where it is stored as it is, else inflated into memory."""
    if info.compress_type != zipfile.ZIP_STORED:
        if info.file_size > max(1 << 28, 1100 * info.compress_size):
            raise BadPickle(f"its member {info.filename} would inflate to {info.file_size} bytes")
        return np.frombuffer(archive.read(info), np.uint8)
    start = info.header_offset
    local = file.bytes[start : start + 30].tobytes()
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise BadPickle(f"its member {info.filename} is not where the directory says")
    name_length, extra_length = struct.unpack("<HH", local[26:30])
    begin = start + 30 + name_length + extra_length
    if info.file_size != info.compress_size or begin + info.file_size > len(file.bytes):
        raise BadPickle(f"its member {info.filename} reaches past the end of the file")
    return file.bytes[begin : begin + info.file_size]


def read_torch_legacy(path: Path, file: MappedFile) -> Any:
    """The value in a torch file of the older form: pickles one after the other, then the storages' bytes."""
    stream = ByteStream(file.bytes)
    wanted: dict[str, tuple[StorageKind, int, Tensor]] = {}

    def storage(key: Sequence[Any]) -> Tensor:
        kind, name, count = _storage_key(key)
        if name not in wanted:
            if count * kind.item > len(file.bytes):
                raise BadPickle(f"its storage {name} is larger than the file")
            blank = np.empty(count * kind.item, np.uint8)  # filled below: the bytes come after the pickle
            wanted[name] = kind, count, _flat_tensor(blank, kind, None)
        return wanted[name][2]

    for _part in ("magic number", "protocol", "system"):
        _run(path, stream, None)
    value = _run(path, stream, storage)
    keys = _run(path, stream, None)
    if not isinstance(keys, list) or not all(isinstance(key, str | int) for key in keys):
        raise damaged(path, "the list of its storages is missing")
    for key in keys:
        if str(key) not in wanted:
            raise damaged(path, f"it holds a storage {str(key)[:40]!r} that nothing uses")
        kind, count, flat = wanted.pop(str(key))
        header = stream.read(8)
        if len(header) < 8 or int.from_bytes(header, "little") != count:
            raise damaged(path, f"its storage {str(key)[:40]} is cut off")
        data = stream.read(count * kind.item)
        if len(data) < count * kind.item:
            raise damaged(path, f"its storage {str(key)[:40]} is cut off")
        flat.array.view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    if wanted:
        raise damaged(path, f"{len(wanted)} of its storages are missing")
    return value


def read_plain_pickle(path: Path, file: MappedFile) -> Any:
    """The value of a pickle that is no torch file, if it holds nothing but data and numpy arrays."""
    return _run(path, ByteStream(file.bytes), None)


def damaged(path: Path, what: str) -> UnreadableFile:
    """The error of a torch file that is not whole; ``what`` completes "it is no whole torch file (...)"."""
    return UnreadableFile(f"The file '{path}' is no whole torch file ({what}); copy or write it again.")


def _run(path: Path, stream: Any, storage: Any) -> Any:
    try:
        return PickleMachine(stream, storage).load()
    except RefusedPickle as refused:
        raise UnreadableFile(
            f"The file '{path}' wants to run '{refused.name}' when it is opened, and drafttrace runs no code from "
            "files; load it where you trust it and save a dict of plain tensors with torch.save."
        ) from None
    except BadPickle as bad:
        raise damaged(path, str(bad)) from None


def _storage_key(key: Sequence[Any]) -> tuple[StorageKind, str, int]:
    if (
        len(key) < 5
        or key[0] != "storage"
        or not isinstance(key[1], StorageKind)
        or not isinstance(key[2], str | int)
    ):
        raise BadPickle("it refers to data in an unknown way")
    if type(key[4]) is not int or not 0 <= key[4] < 2**48:
        raise BadPickle("a storage has no proper size")
    return key[1], str(key[2]), key[4]


def _flat_tensor(data: Any, kind: StorageKind, file: MappedFile | None) -> Tensor:
    name = kind.kind or "uint8"
    return Tensor(data.view(STORAGE[name]), name, file)


class ByteStream(io.RawIOBase):
    """A readable, seekable stream over mapped bytes; ``zipfile`` and the pickle machine read small parts of it."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        super().__init__()
        self._bytes = data
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        base = {0: 0, 1: self._position, 2: len(self._bytes)}[whence]
        if base + offset < 0:
            raise OSError("a position before the start")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        stop = len(self._bytes) if size is None or size < 0 else self._position + size
        part = self._bytes[self._position : stop].tobytes()
        self._position += len(part)
        return part

    def readline(self, size: int | None = -1, /) -> bytes:
        limit = len(self._bytes) if size is None or size < 0 else self._position + size
        limit = min(limit, self._position + 65536)
        part = self._bytes[self._position : limit].tobytes()
        end = part.find(b"\n")
        part = part if end < 0 else part[: end + 1]
        self._position += len(part)
        return part


def reason_of(error: BaseException) -> str:
    """The error's own words, short, ready to stand in brackets."""
    text = str(error).strip().strip("'\"") or type(error).__name__
    return text[0].lower() + text[1:200].rstrip(".")
