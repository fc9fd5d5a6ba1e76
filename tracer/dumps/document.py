"""A file opened by its content: what it holds, whatever it is called, before anyone says what it means."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from drafttrace.tracer.dumps import torch_file
from drafttrace.tracer.dumps.inflate import inflated
from drafttrace.tracer.dumps.inflated_files import once
from drafttrace.tracer.dumps.npz_file import read_npy
from drafttrace.tracer.dumps.safetensors_file import looks_like_safetensors, read_safetensors
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnknownFormat, UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes
from drafttrace.tracer.report_file import where_json_breaks

_T = TypeVar("_T")
_JSON_LIMIT = 512 << 20  # parsed, it takes four times that


@dataclass(frozen=True, eq=False)
class Document:
    """One opened file. container: ``torch``, ``safetensors``, ``npz``, ``json`` or ``hdf5`` (``.gz`` appended where
    it was compressed). value: nested dicts and lists of :class:`Tensor`, numbers, texts and None; for ``hdf5`` an
    empty dict, its reader opens the file again. metadata: texts that a safetensors file carries."""

    path: Path
    container: str
    value: Any
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """The names on the top level; empty where the top level is no dict."""
        return {str(key) for key in self.value} if isinstance(self.value, dict) else set()

    def tensor(self, name: str) -> Tensor | None:
        """The tensor of that name on the top level, or None."""
        value = self.value.get(name) if isinstance(self.value, dict) else None
        return value if isinstance(value, Tensor) else None


def open_document(path: Path) -> Document:
    """Open a file by its first bytes. Raises UnreadableFile or UnknownFormat."""
    return _open(path, FileBytes(path), "")


def is_gzip(path: Path) -> bool:
    """Whether a file is compressed as a whole. Raises UnreadableFile."""
    return FileBytes(path).text(0, 2) == b"\x1f\x8b"


def _open(path: Path, file: FileBytes, suffix: str) -> Document:
    size = file.size
    if size == 0:
        raise UnreadableFile(f"The file '{path}' is empty; write or copy it again.")
    head = file.text(0, 16)
    if head[:2] == b"\x1f\x8b" and not suffix:
        _look_inside(path, file)
        return _open(path, _inflated(path, file), ".gz")
    if head[:4] == b"PK\x03\x04":
        return _open_zip(path, file, suffix)
    if head.startswith(torch_file.LEGACY_MAGIC[:15]):
        return Document(path, f"torch{suffix}", torch_file.read_torch_legacy(path, file))
    if head[:8] == b"\x89HDF\r\n\x1a\n":
        return Document(path, f"hdf5{suffix}", {})
    if _is_pickle(head):
        return Document(path, f"torch{suffix}", torch_file.read_plain_pickle(path, file))
    if not suffix and looks_like_safetensors(head, size):
        stored = read_safetensors(path, file)
        return Document(path, "safetensors", dict(stored.tensors), stored.metadata)
    if head.lstrip()[:1] in {b"{", b"["}:
        return Document(path, f"json{suffix}", _json(path, file))
    if path.suffix == ".safetensors":
        raise UnreadableFile(f"The file '{path}' has no safetensors header; write or copy it again.")
    raise UnknownFormat(
        f"The file '{path}' begins with {head[:8]!r}: it is no torch, safetensors, npz, HDF5 or JSON file; give the "
        "file or the folder that the trainer wrote."
    )


def _open_zip(path: Path, file: FileBytes, suffix: str) -> Document:
    try:
        with zipfile.ZipFile(file.stream()) as archive:
            names = [info.filename for info in archive.infolist() if not info.filename.endswith("/")]
            if names and all(name.endswith(".npy") for name in names):
                value = {name.removesuffix(".npy"): read_npy(path, file, archive, name) for name in names}
                return Document(path, f"npz{suffix}", value)
    except torch_file.ZIP_ERRORS as error:
        raise torch_file.damaged(path, torch_file.reason_of(error)) from None
    return Document(path, f"torch{suffix}", torch_file.read_torch_zip(path, file))


def _json(path: Path, file: FileBytes) -> Any:
    if file.size > _JSON_LIMIT:
        raise UnreadableFile(
            f"The JSON file '{path}' has {file.size:,} bytes, and JSON can only be read whole, up to {_JSON_LIMIT:,} of "
            "them; ask for fewer tokens, or store the states as safetensors."
        )
    try:
        return json.loads(file.text().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(
            f"The file '{path}' begins like JSON and is none: {where_json_breaks(error)}; write or copy it again."
        ) from None


def _is_pickle(head: bytes) -> bool:
    return head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}


def _look_inside(path: Path, file: FileBytes) -> None:
    """Raise UnknownFormat where a gzip file begins like no file that is read: nothing is inflated for its sake."""
    head = _gunzip(path, file, lambda source: source.read(16))
    zipped, json_text = head[:4] == b"PK\x03\x04", head.lstrip()[:1] in {b"{", b"["}
    if not head or zipped or json_text or _is_pickle(head) or head[:8] == b"\x89HDF\r\n\x1a\n":
        return
    raise UnknownFormat(
        f"The gzip file '{path}' holds something that begins with {head[:8]!r}: no torch, npz, HDF5 or JSON file; give the "
        "file or the folder that the trainer wrote."
    )


def _inflated(path: Path, file: FileBytes) -> FileBytes:
    def inflate() -> FileBytes:
        return _gunzip(path, file, lambda source: inflated(path, source, file.size, "gzip file"))

    return once(file, "gzip", inflate)


def _gunzip(path: Path, file: FileBytes, read: Callable[[gzip.GzipFile], _T]) -> _T:
    try:
        with gzip.GzipFile(fileobj=io.BufferedReader(file.stream(), 1 << 20)) as source:
            return read(source)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UnreadableFile(
            f"The gzip file '{path}' is damaged or cut off ({torch_file.reason_of(error)}); copy or write it again."
        ) from None
