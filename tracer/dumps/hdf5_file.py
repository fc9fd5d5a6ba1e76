"""Reads datasets of any HDF5 file in blocks, as tensors; genuine bf16 included (as drafttrace traces store it)."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.dumps.file_tensor import file_tensor
from drafttrace.tracer.dumps.hdf5_chunks import DeflatedChunks, can_stream
from drafttrace.tracer.dumps.tensor import STORAGE, Array, Box, Source, Tensor
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes
from drafttrace.tracer.trace.superblock import read_superblock

# HDF5 can read a compressed chunk only whole, packed and unpacked at once, and again for every block of rows where it
# is not kept. A chunk that is not compressed it reads in parts, if it is not to keep it.
MOST_CHUNK = 64 << 20
_KEPT_CHUNKS = 16 << 20  # per dataset
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def read_hdf5(path: Path) -> dict[str, Any]:
    """Nested dicts of tensors, one per group. Datasets of other types are left out.

    Nothing is read yet: the tensors keep the file open. Raises UnreadableFile for a damaged file.
    """
    import h5py

    try:
        return _group(_Opened(path, h5py.File(path, "r")), None, h5py, {})
    except _DAMAGE as error:
        raise _unreadable(path, error) from None


def field_names(path: Path) -> list[str]:
    """The names of an HDF5 file's fields as a user gives them, ``a/b`` in a group. Raises UnreadableFile as
    :func:`read_hdf5` does."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return [path for name in file for path in _below(file, name)]
    except _DAMAGE as error:
        raise _unreadable(path, error) from None


def _below(group: Any, name: str, depth: int = 3) -> Iterator[str]:
    """The first names below ``name``; itself where it is no group, or an empty one, or too deep."""
    import h5py

    item = group.get(name)
    if not isinstance(item, h5py.Group):
        yield str(name)
        return
    inner = (path for k in item for path in _below(item, k, depth - 1)) if depth else iter(())
    found = list(itertools.islice(inner, 64))
    yield from [f"{name}/{path}" for path in found] or [f"{name}/"]


class _Opened:
    """An HDF5 file that is open as long as one of its tensors lives. What lies in it as it is, is read without HDF5."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self.file = path, file
        self.bytes = FileBytes(path)

    def check(self) -> None:
        """HDF5 reads what a file has lost as zeros. Raises UnreadableFile where it became shorter."""
        size = os.fstat(self.file.id.get_vfd_handle()).st_size
        if size < self.bytes.size:
            raise UnreadableFile(
                f"The HDF5 file '{self.path}' was cut off while it was read: it has {size:,} bytes of "
                f"{self.bytes.size:,}; copy or write it again."
            )


class _Chunked(Source):
    """A dataset that only HDF5 can read: in chunks, compressed, or in another byte order."""

    def __init__(self, opened: _Opened, dataset: Any, kind: str, h5py: Any) -> None:
        self.shape = tuple(int(size) for size in dataset.shape)
        self._opened, self._storage = opened, STORAGE[kind]
        # With the same type in memory and on disk nothing is converted, so bf16 comes bit for bit.
        self._type = dataset.id.get_type() if kind == "bf16" else h5py.h5t.py_create(STORAGE[kind])
        self._name = dataset.name
        self._dataset = h5py.h5d.open(dataset.file.id, dataset.name.encode(), _keeping(dataset, h5py))

    def read(self, box: Box) -> Array:
        from h5py import h5s

        out: Array = np.empty([count for _start, count in box], self._storage)
        if not out.size:
            return out
        try:
            space = self._dataset.get_space()
            space.select_hyperslab(tuple(start for start, _count in box), out.shape)
            self._dataset.read(h5s.create_simple(out.shape), space, out, self._type)
        except _DAMAGE as error:
            self._opened.check()
            raise UnreadableFile(
                f"The dataset '{self._name}' of '{self._opened.path}' cannot be read ({str(error)[:120]}); copy or "
                "write it again."
            ) from None
        self._opened.check()
        return out


def _keeping(dataset: Any, h5py: Any) -> Any:
    """Dataset access that keeps a band of chunks, so that the next rows and slots do not unpack them again."""
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    if dataset.chunks is not None:
        item = _item_bytes(dataset)
        chunk = math.prod(dataset.chunks) * item
        band = dataset.chunks[0] * math.prod(dataset.shape[1:]) * item
        kept = max(chunk, min(2 * band, _KEPT_CHUNKS)) if chunk <= _KEPT_CHUNKS else 0
        access.set_chunk_cache(10007, kept, 1.0)
    return access


def _unreadable(path: Path, error: Exception) -> UnreadableFile:
    block = read_superblock(path)
    if block is not None and block.cut_off:
        why = f"is cut off: it has {block.size:,} bytes where {block.end:,} were written"
    else:
        why = f"cannot be read ({str(error)[:120]})"
    return UnreadableFile(f"The HDF5 file '{path}' {why}; copy or write it again.")


def _group(opened: _Opened, inner: Any, h5py: Any, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """known: the groups by their places in the file. One that is linked under several names is read once; one inside itself
    holds nothing more than it does."""
    group = opened.file if inner is None else inner
    place = int(h5py.h5o.get_info(group.id).addr)
    if place in known:
        return known[place]
    found: dict[str, Any] = known.setdefault(place, {})
    for name in group:
        if group.get(name, getclass=True, getlink=True) is not h5py.HardLink:
            continue  # a soft or external link: another file, or a loop
        item = group[name]
        if isinstance(item, h5py.Group):
            if item.name.count("/") < 32:
                found[name] = _group(opened, item, h5py, known)
        elif isinstance(item, h5py.Dataset) and item.shape:
            tensor = _dataset(opened, item, h5py)
            if tensor is not None:
                found[name] = tensor
    return found


def _dataset(opened: _Opened, dataset: Any, h5py: Any) -> Tensor | None:
    kind = _kind(dataset, h5py)
    if kind is None:
        return None
    _check_held(opened, dataset)
    plain = _plain(opened, dataset, kind)
    if plain is not None:
        return plain
    chunk = 0 if dataset.chunks is None else math.prod(dataset.chunks) * _item_bytes(dataset)
    if chunk > _KEPT_CHUNKS and _as_stored(dataset, kind) and can_stream(dataset):
        return Tensor.of(DeflatedChunks(opened.path, opened.bytes, dataset, kind), kind)
    if chunk > MOST_CHUNK and dataset.id.get_create_plist().get_nfilters():
        raise UnreadableFile(
            f"The dataset '{dataset.name}' of '{opened.path}' is compressed in chunks of {chunk:,} bytes, and a chunk can "
            f"only be read whole, up to {MOST_CHUNK:,} bytes; write it again with smaller chunks (h5repack -l), "
            "with gzip, or as safetensors."
        )
    return Tensor.of(_Chunked(opened, dataset, kind, h5py), kind)


def _check_held(opened: _Opened, dataset: Any) -> None:
    """Refuse a dataset whose content lies in another file, or that claims more than was ever written.

    HDF5 would follow any path that the file names, and hand out zeros for what is not there.
    """
    if dataset.external or dataset.is_virtual:
        raise UnreadableFile(
            f"The dataset '{dataset.name}' of '{opened.path}' names another file for its content, and drafttrace follows "
            "no path that a file names; write it again with its content inside (h5repack)."
        )
    shape, item = dataset.shape, _item_bytes(dataset)
    if dataset.chunks is None:
        held, wanted, unit = int(dataset.id.get_storage_size()), math.prod(shape) * item, "bytes"
    else:
        parts = (-(-size // chunk) for size, chunk in zip(shape, dataset.chunks, strict=True))
        held, wanted, unit = int(dataset.id.get_num_chunks()), math.prod(parts), "chunks"
    if held < wanted:
        raise UnreadableFile(
            f"The dataset '{dataset.name}' of '{opened.path}' claims the shape {list(shape)}, and {held:,} of its "
            f"{wanted:,} {unit} were written, as whoever wrote it stopped early; write it again."
        )


def _item_bytes(dataset: Any) -> int:
    """Bytes of one number in the file. h5py shows bf16 as float32, which is twice as long."""
    return int(dataset.id.get_type().get_size())


def _plain(opened: _Opened, dataset: Any, kind: str) -> Tensor | None:
    """The dataset as bytes of the file, where that stores it as one little-endian run."""
    offset = dataset.id.get_offset()
    if offset is None or dataset.external or dataset.is_virtual:
        return None
    if not _as_stored(dataset, kind):
        return None
    size = math.prod(dataset.shape) * STORAGE[kind].itemsize
    if offset + size > opened.bytes.size:
        raise UnreadableFile(
            f"The HDF5 file '{opened.path}' is cut off inside '{dataset.name}'; copy or write it again."
        )
    return file_tensor(opened.bytes, offset, dataset.shape, kind)


def _as_stored(dataset: Any, kind: str) -> bool:
    """Whether the bytes of the file are the storage form of ``kind``: neither big-endian nor another size."""
    return kind in {"bool", "bf16"} or bool(np.dtype(dataset.dtype) == STORAGE[kind])


def _kind(dataset: Any, h5py: Any) -> str | None:
    stored = dataset.id.get_type()
    if isinstance(stored, h5py.h5t.TypeFloatID):
        _sign, _position, exponent, _mantissa_at, mantissa = stored.get_fields()
        form = stored.get_size(), exponent, mantissa
        little = stored.get_order() == h5py.h5t.ORDER_LE
        if form[:2] == (2, 7) or (stored.get_size() == 2 and mantissa == 7):
            return "bf16" if little else None
        return {2: "fp16", 4: "fp32", 8: "fp64"}.get(stored.get_size())
    name = np.dtype(dataset.dtype).name
    return name if name in STORAGE else None
