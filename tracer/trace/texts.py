"""Texts in HDF5 without the global heap: fixed-length UTF-8, safe under SWMR and readable by every viewer."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from h5py import h5a, h5s, h5t

PIECE_BYTES = 128
_CHUNK = 32
Pieces = npt.NDArray[np.bytes_]
_PIECE = h5py.string_dtype("utf-8", PIECE_BYTES)


def set_attribute(target: h5py.HLObject, name: str, text: str, length: int = 0) -> None:
    """A fixed-length text attribute; ``length`` bytes are kept for it where it will be replaced later."""
    data = text.encode("utf-8", "replace")
    size = max(1, length, len(data))
    key = name.encode()
    if h5a.exists(target.id, key):
        h5a.delete(target.id, key)
    # Past h5py's attributes, which take five times as long: a trace has some fifty of them.
    kind = _fixed(size)
    h5a.create(target.id, key, kind, h5s.create(h5s.SCALAR)).write(np.array(data, f"S{size}"), mtype=kind)


@functools.cache
def _fixed(size: int) -> h5t.TypeID:
    return h5t.py_create(h5py.string_dtype("utf-8", size), logical=True)


def replace_attribute(target: h5py.HLObject, name: str, text: str) -> None:
    """Another text for an attribute that is there, cut to the length that was kept for it."""
    kind = target.attrs.get_id(name).dtype
    data = text.encode("utf-8", "replace")[: kind.itemsize].decode("utf-8", "ignore").encode()
    target.attrs.modify(name, np.array(data, dtype=h5py.string_dtype("utf-8", kind.itemsize)))


def get_text(value: Any) -> str:
    """The text of an attribute or a dataset: fixed or variable length, whole or in pieces."""
    if isinstance(value, np.ndarray):
        return b"".join(bytes(piece) for piece in value.ravel()).decode("utf-8", "replace")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def write_text(group: h5py.Group, name: str, text: str) -> None:
    """A scalar text dataset that never changes."""
    data = text.encode("utf-8", "replace")
    group.create_dataset(name, data=np.bytes_(data), dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def declare_blocks(file: h5py.File, about: Mapping[str, Any | Pieces], late: tuple[str, ...]) -> None:
    """One dataset ``/about/{name}`` per JSON block: those of ``about``, and empty ones that come later.

    A block is stored by its lines, so that it can be replaced in SWMR mode, where a text cannot change its length.
    Raises ValueError for a name that cannot be one.
    """
    group = file.require_group("about")
    for name in dict.fromkeys((*about, *late)):
        if not name or "/" in name or name in (".", "layout"):
            raise ValueError(f"'{name}' cannot name an about block")
        pieces = pieces_of(about[name]) if name in about else np.empty(0, _PIECE)
        group.create_dataset(name, data=pieces, dtype=_PIECE, maxshape=(None,), chunks=(_CHUNK,))


def replace_block(file: h5py.File, name: str, value: Any) -> None:
    """Another content for a declared block. Never makes the dataset shorter: that is not safe under SWMR."""
    dataset = file["about"][name]
    pieces = pieces_of(value)
    if len(pieces) > len(dataset):
        dataset.resize(len(pieces), axis=0)
    padded = np.zeros(len(dataset), _PIECE)
    padded[: len(pieces)] = pieces
    dataset[...] = padded


def stored_bytes(value: Any) -> int:
    """Bytes that ``value`` takes in a file as a block."""
    return (len(pieces_of(value)) + _CHUNK) * PIECE_BYTES


def pieces_of(value: Any) -> Pieces:
    """A block's content as it is stored; what is already in that form stays as it is."""
    return value if isinstance(value, np.ndarray) and value.dtype == _PIECE else _pieces(value)


def _pieces(value: Any) -> Pieces:
    """``value`` as JSON, a piece per line; a line that is too long continues in the next piece.

    The pieces joined are the JSON text. What JSON does not know becomes its ``str``.
    """
    pieces: list[bytes] = []
    for line in json.dumps(value, ensure_ascii=False, indent=1, default=str).split("\n"):
        data = line.encode("utf-8", "replace")
        while len(data) > PIECE_BYTES:
            cut = PIECE_BYTES
            while data[cut] & 0xC0 == 0x80:  # not inside a character
                cut -= 1
            pieces.append(data[:cut])
            data = data[cut:]
        pieces.append(data)
    return np.array(pieces, _PIECE)
