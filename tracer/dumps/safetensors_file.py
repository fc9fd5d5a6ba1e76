"""Reads a safetensors file by its header: no torch, no copy, bf16 and fp8 included.

``safetensors.numpy`` cannot hand out bf16 or fp8, so the header is parsed here, as strictly as the format's own
reader does: sizes, offsets, overlaps and shapes are checked before one byte of a tensor is touched.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from drafttrace.tracer.dumps.tensor import STORAGE, MappedFile, Tensor
from drafttrace.tracer.errors import UnreadableFile

# The limit of the format's own reader.
MAX_HEADER = 100_000_000

_KINDS = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8_e4m3",
    "F8_E5M2": "fp8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
DTYPE_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, eq=False)
class SafetensorsFile:
    """Tensors by name, in file order, and the ``__metadata__`` texts."""

    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def looks_like_safetensors(head: bytes, size: int) -> bool:
    """Whether a file of ``size`` bytes that starts with ``head`` (>= 9 bytes) claims to be safetensors."""
    if len(head) < 9:
        return False
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= length <= MAX_HEADER and (length <= max(size, 1 << 20))


def read_safetensors(path: Path) -> SafetensorsFile:
    """Open a safetensors file. Raises UnreadableFile with what is wrong with it."""
    file = MappedFile(path)
    size = len(file.bytes)
    header, start = _header(path, file, size)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "its __metadata__ holds something other than texts")
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        begin, end, tensor = _tensor(path, file, name, entry, start)
        spans.append((begin, end, name))
        tensors[name] = tensor
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            raise _damaged(path, f"tensor '{name}' starts at byte {begin} of the data where {position} is expected")
        position = end
    return SafetensorsFile(path, tensors, metadata)


def _header(path: Path, file: MappedFile, size: int) -> tuple[dict[str, object], int]:
    if size < 8:
        raise _damaged(path, f"it has only {size} bytes")
    length = int.from_bytes(file.bytes[:8].tobytes(), "little")
    if length > MAX_HEADER or 8 + length > size:
        raise _damaged(path, f"it says that its header has {length} bytes, but the file has {size}")
    try:
        header = json.loads(file.bytes[8 : 8 + length].tobytes().decode("utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(path, "its header is not valid JSON") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    return header, 8 + length


def _tensor(path: Path, file: MappedFile, name: str, entry: object, start: int) -> tuple[int, int, Tensor]:
    if not isinstance(entry, dict):
        raise _damaged(path, f"the header entry of tensor '{name}' is no object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    kind = _KINDS.get(dtype) if isinstance(dtype, str) else None
    if kind is None:
        raise UnreadableFile(
            f"Tensor '{name}' of '{path}' has the number format {dtype!r}, which drafttrace cannot read; "
            f"write it as one of {', '.join(_KINDS)}."
        )
    if not (_whole_numbers(shape) and _whole_numbers(offsets)) or len(offsets) != 2:
        raise _damaged(path, f"the shape or the offsets of tensor '{name}' are no whole numbers")
    begin, end = offsets
    count = math.prod(shape)
    item = STORAGE[kind].itemsize
    available = len(file.bytes) - start
    if end > available:
        raise UnreadableFile(
            f"The file '{path}' is cut off: tensor '{name}' ends at byte {start + end}, the file at "
            f"{len(file.bytes)}; copy or write it again."
        )
    if begin > end or end - begin != count * item:
        raise _damaged(
            path, f"tensor '{name}' has {end - begin} bytes where its shape {shape} needs {count * item}"
        )
    data = file.bytes[start + begin : start + end].view(STORAGE[kind]).reshape(shape)
    return begin, end, Tensor(data, kind, file)


def _whole_numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**60 for item in value)


def _damaged(path: Path, what: str) -> UnreadableFile:
    return UnreadableFile(
        f"The file '{path}' is no whole safetensors file ({what}); it may be truncated: copy or write it again."
    )
