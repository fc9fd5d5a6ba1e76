"""Reads what ``torch.save`` writes, without torch: the zip form, and the older form without a zip.

Tensors are read in blocks. What a zip holds compressed (torch does not compress) is inflated into a temporary file.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafttrace.tracer.dumps.inflate import inflated
from drafttrace.tracer.dumps.inflated_files import once
from drafttrace.tracer.dumps.pickle_machine import PickleMachine
from drafttrace.tracer.dumps.pickle_values import BadPickle, FlatStorage, OtherNumbers, RefusedPickle, StorageKind
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes

LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_MAX_PICKLE = 256 << 20
_MOST_HELD = 1 << 30
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, NotImplementedError, ValueError,
               RuntimeError, KeyError)  # fmt: skip


def read_torch_zip(path: Path, file: FileBytes) -> Any:
    """The value in a zip-form torch file: dicts, lists, numbers, texts and :class:`Tensor`.

    Raises UnreadableFile for a damaged file, and for a pickle that asks for code.
    """
    try:
        with zipfile.ZipFile(file.stream()) as archive:
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
        file: FileBytes,
        archive: zipfile.ZipFile,
        members: dict[str, zipfile.ZipInfo],
        prefix: str,
    ) -> None:
        self._path, self._file, self._archive = path, file, archive
        self._members, self._prefix = members, prefix
        self._members_read: dict[str, Member] = {}

    def __call__(self, key: Sequence[Any]) -> FlatStorage:
        kind, name, count = _storage_key(key)
        if name not in self._members_read:
            info = self._members.get(f"{self._prefix}data/{name}")
            if info is None:
                raise BadPickle(f"its data/{name} is missing")
            self._members_read[name] = member_of(self._path, self._file, self._archive, info)
        member = self._members_read[name]
        if member.size < count * kind.item:
            raise BadPickle(f"its data/{name} has {member.size} bytes where {count * kind.item} are needed")
        return FlatStorage(member.file, member.begin, count, kind.kind or "uint8")


@dataclass(frozen=True)
class Member:
    """Where the content of a zip member lies, uncompressed."""

    file: FileBytes
    begin: int
    size: int


def member_of(path: Path, file: FileBytes, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    """A zip member: in its file where it is stored as it is, else inflated into a temporary one.

    Raises BadPickle where the zip is damaged there, UnreadableFile where there is no room to inflate.
    """
    if info.compress_type != zipfile.ZIP_STORED:

        def inflate() -> FileBytes:
            with archive.open(info) as source:
                return inflated(path, source, info.compress_size, f"member {info.filename[:80]} of")

        spilled = once(file, f"{info.header_offset}:{info.filename}", inflate)
        return Member(spilled, 0, spilled.size)
    local = file.text(info.header_offset, 30)
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise BadPickle(f"its member {info.filename} is not where the directory says")
    name_length, extra_length = struct.unpack("<HH", local[26:30])
    begin = info.header_offset + 30 + name_length + extra_length
    if info.file_size != info.compress_size or begin + info.file_size > file.size:
        raise BadPickle(f"its member {info.filename} reaches past the end of the file")
    return Member(file, begin, info.file_size)


def read_torch_legacy(path: Path, file: FileBytes) -> Any:
    """The value in a torch file of the older form: pickles one after the other, then the storages' bytes.

    Where the bytes lie follows from the list behind the pickle, so the pickle is run twice.
    """
    stream = io.BufferedReader(file.stream(), 1 << 16)
    for _part in ("magic number", "protocol", "system"):
        _run(path, stream, None)
    begin = stream.tell()
    sizes: dict[str, tuple[StorageKind, int]] = {}

    def note(key: Sequence[Any]) -> FlatStorage:
        kind, name, count = _storage_key(key)
        if count * kind.item > file.size:
            raise BadPickle(f"its storage {name} is larger than the file")
        kind, count = sizes.setdefault(name, (kind, count))
        return FlatStorage(file, 0, count, kind.kind or "uint8")

    _run(path, stream, note)
    keys = _run(path, stream, None)
    if not isinstance(keys, list) or not all(isinstance(key, str | int) for key in keys):
        raise damaged(path, "the list of its storages is missing")
    places = _legacy_places(path, file, [str(key) for key in keys], sizes, stream.tell())
    if len(places) < len(sizes):
        raise damaged(path, f"{len(sizes) - len(places)} of its storages are missing")
    stream.seek(begin)

    def place(key: Sequence[Any]) -> FlatStorage:
        name = _storage_key(key)[1]
        kind, count = sizes[name]
        return FlatStorage(file, places[name], count, kind.kind or "uint8")

    return _run(path, stream, place)


def _legacy_places(
    path: Path, file: FileBytes, keys: Sequence[str], sizes: dict[str, tuple[StorageKind, int]], at: int
) -> dict[str, int]:
    """Where every storage begins: a count of eight bytes, then the content, in the order of ``keys``."""
    places: dict[str, int] = {}
    for key in keys:
        if key not in sizes or key in places:
            raise damaged(path, f"it holds a storage {key[:40]!r} that nothing uses")
        kind, count = sizes[key]
        header = file.text(at, 8)
        end = at + 8 + count * kind.item
        if len(header) < 8 or int.from_bytes(header, "little") != count or end > file.size:
            raise damaged(path, f"its storage {key[:40]} is cut off")
        places[key] = at + 8
        at = end
    return places


def read_plain_pickle(path: Path, file: FileBytes) -> Any:
    """The value of a pickle that is no torch file, if it holds nothing but data and numpy arrays.

    The arrays lie inside the pickle, which can only be read whole. Raises UnreadableFile for one that is too large.
    """
    if file.size > _MOST_HELD:
        raise UnreadableFile(
            f"The file '{path}' is a pickle of {file.size:,} bytes, and a pickle that holds its arrays can only be read "
            f"whole, up to {_MOST_HELD:,} bytes; load it where you trust it and save a dict of plain tensors with "
            "torch.save."
        )
    return _run(path, io.BufferedReader(file.stream(), 1 << 16), None)


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
    except OtherNumbers as other:
        raise UnreadableFile(
            f"The file '{path}' holds {other.what} ({other.name}), and those are no hidden states; save the states as "
            "dense bfloat16, float16 or float32 tensors."
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


def reason_of(error: BaseException) -> str:
    """The error's own words, short, ready to stand in brackets."""
    text = str(error).strip().strip("'\"") or type(error).__name__
    acronym = text[1:2].isupper()  # CRC stays CRC
    return (text[0] if acronym else text[0].lower()) + text[1:200].rstrip(".")
