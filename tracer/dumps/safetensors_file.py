"""Opens a safetensors file as tensors that are read in blocks: no torch, bf16 and fp8 included.

``safetensors.numpy`` cannot hand out bf16 or fp8. The header is checked by the checkpoint reader.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from drafttrace.tracer.checkpoint import HEADER_LIMIT, read_header
from drafttrace.tracer.dumps.file_tensor import file_tensor
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.file_bytes import FileBytes

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
# How a header spells each number format of :class:`Tensor`.
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
    return head[8:9] == b"{" and 2 <= length <= HEADER_LIMIT and length <= max(size, 1 << 20)


def read_safetensors(path: Path, opened: FileBytes | None = None) -> SafetensorsFile:
    """Open a safetensors file, or read on in an opened one. Raises UnreadableFile with what is wrong with it."""
    header = read_header(path)
    file = FileBytes(path) if opened is None else opened
    tensors: dict[str, Tensor] = {}
    for name, info in header.items():
        if info.end > file.size:  # the file became shorter since its header was read
            raise UnreadableFile(f"The file '{path}' is cut off inside tensor '{name}'; copy or write it again.")
        tensors[name] = file_tensor(file, info.begin, info.shape, _KINDS[info.dtype])
    return SafetensorsFile(path, tensors, _metadata(path, file))


def _metadata(path: Path, file: FileBytes) -> dict[str, str]:
    length = int.from_bytes(file.text(0, 8), "little")
    try:
        found = json.loads(file.text(8, length)).get("__metadata__", {})
    except (ValueError, RecursionError, AttributeError):
        raise UnreadableFile(f"The file '{path}' changed while it was read; read it again.") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UnreadableFile(
            f"The __metadata__ of '{path}' holds something other than texts; write the file again."
        )
    return found
