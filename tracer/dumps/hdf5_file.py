"""Reads datasets of any HDF5 file as tensors, genuine bf16 included (as drafttrace traces store it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.dumps.tensor import STORAGE, MappedFile, Tensor
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.trace.superblock import read_superblock

_LARGEST = 8 << 30
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def read_hdf5(path: Path) -> dict[str, Any]:
    """Nested dicts of tensors, one per group. Datasets of other types are left out.

    Raises UnreadableFile for a damaged file, or one too large to hold in memory.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return _group(path, file, h5py, [0])
    except _DAMAGE as error:
        raise _unreadable(path, error) from None


def field_names(path: Path) -> list[str]:
    """The names on the top level of an HDF5 file, groups with a ``/``. Raises UnreadableFile as :func:`read_hdf5`."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return [f"{name}/" if isinstance(file.get(name), h5py.Group) else str(name) for name in file]
    except _DAMAGE as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UnreadableFile:
    block = read_superblock(path)
    if block is not None and block.cut_off:
        why = f"is cut off: it has {block.size:,} bytes where {block.end:,} were written"
    else:
        why = f"cannot be read ({str(error)[:120]})"
    return UnreadableFile(f"The HDF5 file '{path}' {why}; copy or write it again.")


def _group(path: Path, group: Any, h5py: Any, total: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in group:
        if group.get(name, getclass=True, getlink=True) is not h5py.HardLink:
            continue  # a soft or external link: another file, or a loop
        item = group[name]
        if isinstance(item, h5py.Group):
            if item.name.count("/") < 32:
                found[name] = _group(path, item, h5py, total)
        elif isinstance(item, h5py.Dataset) and item.shape is not None:
            tensor = _dataset(path, item, h5py, total)
            if tensor is not None:
                found[name] = tensor
    return found


def _dataset(path: Path, dataset: Any, h5py: Any, total: list[int]) -> Tensor | None:
    kind = _kind(dataset, h5py)
    if kind is None:
        return None
    mapped = _mapped(path, dataset, kind)
    if mapped is not None:
        return mapped
    total[0] += int(np.prod(dataset.shape, dtype=np.int64)) * STORAGE[kind].itemsize
    if total[0] > _LARGEST:
        raise UnreadableFile(
            f"The HDF5 file '{path}' holds more than 8 GiB of chunked tensors; convert it to safetensors."
        )
    if kind == "bf16":
        out = np.empty(dataset.shape, np.uint16)
        if out.size:
            dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, mtype=dataset.id.get_type())
        return Tensor(out, "bf16")
    if not dataset.shape:
        return None
    values = dataset[()]
    return Tensor(values.astype(STORAGE[kind], copy=False), kind)


def _mapped(path: Path, dataset: Any, kind: str) -> Tensor | None:
    """The dataset memory-mapped, where the file stores it as one plain little-endian run of bytes."""
    offset = dataset.id.get_offset()
    if offset is None or dataset.external or dataset.is_virtual or not dataset.shape:
        return None
    if kind != "bool" and kind != "bf16" and np.dtype(dataset.dtype) != STORAGE[kind]:
        return None
    file = MappedFile(path)
    size = int(np.prod(dataset.shape, dtype=np.int64)) * STORAGE[kind].itemsize
    if offset + size > len(file.bytes):
        raise UnreadableFile(f"The HDF5 file '{path}' is cut off inside '{dataset.name}'; copy or write it again.")
    data = file.bytes[offset : offset + size]
    return Tensor(data.view(STORAGE[kind]).reshape(dataset.shape), kind, file)


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
