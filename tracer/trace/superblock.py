"""The first bytes of an HDF5 file: is it one, is it whole, and was it closed?

A writer that dies leaves a mark ("open for writing") in the superblock, and HDF5 refuses such a file. ``h5clear``
would change the file; :class:`CleanView` clears the mark only in what the library sees.

Source: HDF5 File Format Specification 3.0, section II.A, superblock versions 0 to 3.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from typing import Any

SIGNATURE = b"\x89HDF\r\n\x1a\n"

_SIZE = 48
_NO_END = 1 << 60
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Superblock:
    """version 0..3; flags: 0 closed, bit 0 open for writing, bit 2 in SWMR mode; end: bytes that a closed file has;
    size: bytes that there are.
    """

    version: int
    flags: int
    end: int
    size: int

    @property
    def cut_off(self) -> bool:
        """Shorter than it says. A file that is open for writing may be: its last chunk is not full yet."""
        return self.flags == 0 and self.size < self.end


def read_superblock(path: str | os.PathLike[str]) -> Superblock | None:
    """The superblock of the HDF5 file at ``path``; None where it is no HDF5 file, breaks off inside the superblock, or
    has one of a version that there is none of.

    Raises OSError where the file cannot be opened.
    """
    with open(path, "rb") as file:
        head = file.read(_SIZE + 48)
        size = os.fstat(file.fileno()).st_size
    if not head.startswith(SIGNATURE) or len(head) < _SIZE:
        return None
    version = head[8]
    if version in (2, 3):
        (end,) = struct.unpack_from("<Q", head, 28)
        return Superblock(version, head[11] if version == 3 else 0, end, size)
    if version > 3:
        return None
    # Versions 0 and 1 (not ours): the end address stands after base and free-space addresses.
    if len(head) < 24 + 4 * version + 24:
        return None
    (end,) = struct.unpack_from("<Q", head, 24 + 4 * version + 16)
    return Superblock(version, 0, end, size)


class CleanView(io.RawIOBase):
    """A file as if it had been closed: write marks cleared, and no end, so that it may grow while it is read.

    Reads only. What lies behind the real end reads as zeros, as HDF5's own drivers do it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        self._head = _clean(self._file.read(_SIZE))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: _NO_END}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start, done = self._at, 0
        while done < len(view):
            count = os.preadv(self._file.fileno(), [view[done:]], start + done)
            if count == 0:
                view[done:] = bytes(len(view) - done)
                break
            done += count
        if start < _SIZE:
            head = self._head[start : start + len(view)]
            view[: len(head)] = head
        self._at = start + len(view)
        return len(view)

    def close(self) -> None:
        self._file.close()
        super().close()


def _clean(head: bytes) -> bytes:
    """The superblock without write marks, with the end of the file far away, and its checksum made right."""
    block = bytearray(head)
    if len(block) == _SIZE and block[8] == 3:
        block[11] = 0
        struct.pack_into("<Q", block, 28, _NO_END)
        struct.pack_into("<I", block, 44, lookup3(bytes(block[:44])))
    return bytes(block)


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def lookup3(data: bytes) -> int:
    """Bob Jenkins's lookup3 hash of ``data``, the checksum of all HDF5 metadata."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    at = 0
    while len(data) - at > 12:
        x, y, z = struct.unpack_from("<III", data, at)
        a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
        for bits in (4, 6, 8, 16, 19, 4):
            a = ((a - c) & _MASK) ^ _rotate(c, bits)
            c = (c + b) & _MASK
            a, b, c = b, c, a
        at += 12
    if at == len(data):
        return c
    x, y, z = struct.unpack("<III", data[at:].ljust(12, b"\0"))
    a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _rotate(b, bits)) & _MASK
        a, b, c = b, c, a
    return int(b)  # the last round left it here
