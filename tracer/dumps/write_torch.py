"""Writes a torch file of plain tensors without torch, block by block: a sample need not fit into memory.

The form is that of ``torch.save``: a zip that stores a pickle and the flat content of every tensor as they are.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.dumps.tensor import STORAGE, Array
from drafttrace.tracer.errors import OutputExists

_ALIGN = 64  # torch maps files whose tensors lie so
_STORAGES = {
    "fp64": "DoubleStorage",
    "fp32": "FloatStorage",
    "fp16": "HalfStorage",
    "bf16": "BFloat16Storage",
    "int64": "LongStorage",
}
# Number formats without a storage class of their own: bytes, and the format beside them.
_NEWER = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


@dataclass(frozen=True)
class Planned:
    """A tensor to be written. blocks: its content in storage form, in order, C-contiguous once put together."""

    kind: str
    shape: tuple[int, ...]
    blocks: Callable[[], Iterable[Array]]


Value = Mapping[str, Planned | Sequence[Planned]]


def write_torch(path: Path, value: Value) -> None:
    """Write a dict of tensors and lists of tensors. The file appears under its name only when it is whole.

    Raises OutputExists where it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    pickled = _Pickle()
    pickled.value(value)
    try:
        with zipfile.ZipFile(part, "w") as archive:
            for name, data in (("data.pkl", pickled.done()), ("byteorder", b"little"), ("version", b"3\n")):
                archive.writestr(_entry(archive, name), data)
            for number, tensor in enumerate(pickled.tensors):
                with archive.open(_entry(archive, f"data/{number}"), "w", force_zip64=True) as stream:
                    for block in tensor.blocks():
                        stream.write(np.ascontiguousarray(block).view(np.uint8).data.cast("B"))
        part.replace(path)
    except OSError as error:
        raise OutputExists(
            f"The output '{path}' cannot be written ({error.strerror or error}); choose a folder with space."
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _entry(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """A stored member whose content begins at a multiple of 64 bytes."""
    info = zipfile.ZipInfo(f"archive/{name}")
    # local header, name, and the zip64 field (20 bytes) that zipfile puts before ours
    start = getattr(archive, "start_dir", 0) + 30 + len(info.filename) + (20 if name.startswith("data/") else 0)
    padding = -(start + 4) % _ALIGN
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    return info


class _Pickle:
    """The few instructions of a pickle that describe tensors; their content follows in the zip."""

    def __init__(self) -> None:
        self._code = bytearray(b"\x80\x02")
        self.tensors: list[Planned] = []

    def done(self) -> bytes:
        return bytes(self._code + b".")

    def value(self, item: Any) -> None:
        if isinstance(item, Planned):
            self._tensor(item)
        elif isinstance(item, Mapping):
            self._code += b"}("
            for name, inner in item.items():
                self._text(name)
                self.value(inner)
            self._code += b"u"
        else:
            self._code += b"]("
            for inner in item:
                self.value(inner)
            self._code += b"e"

    def _tensor(self, tensor: Planned) -> None:
        count = math.prod(tensor.shape)
        newer = _NEWER.get(tensor.kind)
        self._global("torch._utils", "_rebuild_tensor_v2" if newer is None else "_rebuild_tensor_v3")
        self._code += b"(("
        self._text("storage")
        if newer is None:
            self._global("torch", _STORAGES[tensor.kind])
        else:
            self._global("torch.storage", "UntypedStorage")
            count *= STORAGE[tensor.kind].itemsize
        self._text(str(len(self.tensors)))
        self._text("cpu")
        self._number(count)
        self._code += b"tQ"
        self._number(0)
        self._numbers(tensor.shape)
        self._numbers([math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))])
        self._code += b"\x89"
        self._global("collections", "OrderedDict")
        self._code += b")R"
        if newer is not None:
            self._global("torch", newer)
        self._code += b"tR"
        self.tensors.append(tensor)

    def _numbers(self, values: Sequence[int]) -> None:
        self._code += b"("
        for value in values:
            self._number(value)
        self._code += b"t"

    def _number(self, value: int) -> None:
        self._code += b"\x8a\x08" + struct.pack("<q", value)

    def _text(self, text: str) -> None:
        data = text.encode()
        self._code += b"X" + struct.pack("<I", len(data)) + data

    def _global(self, module: str, name: str) -> None:
        self._code += f"c{module}\n{name}\n".encode()
