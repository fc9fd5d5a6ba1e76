"""Writes a safetensors file whose tensors are filled in pieces: the file is made at its full size and mapped.

Its blocks are taken from the disk first: where a mapped file has holes and the disk is full, the process is killed. It
appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from drafttrace.tracer.dumps.safetensors_file import DTYPE_NAMES
from drafttrace.tracer.dumps.tensor import STORAGE
from drafttrace.tracer.errors import OutputExists

_ALIGN = 64
_RESIDENT = 64 << 20


class SafetensorsWriter:
    """``with SafetensorsWriter(path, {"name": (kind, shape)}, metadata) as tensors: tensors["name"][...] = ...``

    kind: see :data:`drafttrace.tracer.dumps.tensor.STORAGE`. Arrays are in storage form (bf16 as uint16). An
    exception inside the block leaves no file. Raises OutputExists where the file cannot be written.
    """

    def __init__(
        self, path: Path, specs: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
    ) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")
        self._specs = dict(specs)
        self._metadata = dict(metadata)
        self._map: mmap.mmap | None = None
        self._written = 0
        self._start = 0

    def __enter__(self) -> dict[str, npt.NDArray[Any]]:
        header: dict[str, Any] = {"__metadata__": self._metadata} if self._metadata else {}
        offset = 0
        # Wide elements first, as the format's own writer does: every tensor then lies on a multiple of its element.
        order = sorted(self._specs.items(), key=lambda item: (-STORAGE[item[1][0]].itemsize, item[0]))
        spans: dict[str, int] = {}
        for name, (kind, shape) in order:
            size = math.prod(shape) * STORAGE[kind].itemsize
            header[name] = {
                "dtype": DTYPE_NAMES[kind],
                "shape": list(shape),
                "data_offsets": [offset, offset + size],
            }
            spans[name] = offset
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % _ALIGN)
        start = self._start = 8 + len(text)
        try:
            with self._part.open("w+b") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                file.flush()
                self._take(file.fileno(), start + offset)
                self._map = mmap.mmap(file.fileno(), start + offset)
        except OSError as error:
            self._discard()
            raise OutputExists(
                f"The output '{self.path}' cannot be written ({error.strerror}); choose a folder with enough space."
            ) from None
        flat = np.frombuffer(self._map, np.uint8)
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, (kind, shape) in self._specs.items():
            begin = start + spans[name]
            size = math.prod(shape) * STORAGE[kind].itemsize
            arrays[name] = flat[begin : begin + size].view(STORAGE[kind]).reshape(shape)
        return arrays

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        assert self._map is not None
        self._map.flush()
        os.replace(self._part, self.path)

    def wrote(self, count: int) -> None:
        """Tell that ``count`` bytes were written, so that memory stays small: now and then pages are given back to
        the system, which writes them out."""
        self._written += count
        if self._written > _RESIDENT and self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._written = 0
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTNEED)  # of a shared file: nothing that was written is lost

    def content_hash(self) -> str:
        """The hash of everything behind the header, as it stands: 32 hexadecimal digits."""
        assert self._map is not None
        found = hashlib.blake2b(digest_size=16)
        for begin in range(self._start, len(self._map), _RESIDENT):
            block = self._map[begin : begin + _RESIDENT]
            found.update(block)
            self.wrote(len(block) + 1)
        return found.hexdigest()

    def fill_in(self, name: str, value: str) -> None:
        """Put another text of the same length in the metadata, for what is known only at the end."""
        assert self._map is not None
        old, new = (json.dumps({name: text})[1:-1].encode() for text in (self._metadata[name], value))
        place = self._map.find(old, 8, self._start)
        if place < 0 or len(old) != len(new):
            raise ValueError(f"the metadata '{name}' cannot become '{value}': its place holds {len(old)} bytes")
        self._map[place : place + len(new)] = new

    def _take(self, fd: int, size: int) -> None:
        os.truncate(fd, size)
        try:
            os.posix_fallocate(fd, 0, size)
        except (AttributeError, OSError) as error:  # a system or a file system that cannot
            if getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)
