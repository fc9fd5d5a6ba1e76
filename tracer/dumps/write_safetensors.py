"""Writes a safetensors file whose tensors are filled in pieces: the file is made at its full size and mapped.

It appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
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
        start = 8 + len(text)
        try:
            with self._part.open("w+b") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                file.truncate(start + offset)
                file.flush()
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

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)
