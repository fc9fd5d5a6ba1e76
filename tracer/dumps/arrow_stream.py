"""Record batches of an Arrow file, one at a time: found by walking over the messages' heads, which are small.

Mapping the file, as Arrow does, would kill the process where it is cut off meanwhile; reading it whole would hold the
tokens of the whole training set.

Source: Apache Arrow columnar format, "Encapsulated message format"; ``Message.fbs`` (Message: header_type is field 1,
header field 2, bodyLength field 3; RecordBatch: length is field 0).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drafttrace.tracer.file_bytes import FileBytes

_FILE_MAGIC = b"ARROW1\0\0"
_MARK = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3
_MOST_HEAD = 64 << 20
# Every row of a list has an offset of 4 bytes; no compression makes more than so many rows of one byte.
_MOST_PACKED = 256


@dataclass(frozen=True, eq=False)
class Batch:
    """``rows`` rows of an Arrow file. prefix: where the schema and the dictionaries lie that it needs."""

    file: FileBytes
    prefix: tuple[tuple[int, int], ...]
    begin: int
    end: int
    rows: int

    def read(self) -> Any:
        """The record batch, in memory. Raises pyarrow's errors for a damaged one."""
        import pyarrow as pa

        parts = [self.file.text(begin, end - begin) for begin, end in (*self.prefix, (self.begin, self.end))]
        return pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).read_next_batch()

    def schema(self) -> Any:
        """Names and types of the columns. Raises pyarrow's errors for a damaged one."""
        import pyarrow as pa

        parts = [self.file.text(begin, end - begin) for begin, end in self.prefix[:1]]
        return pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).schema


def batches_of(path: Path) -> list[Batch]:
    """The batches of a file in the streaming or the file format. Raises ValueError for a damaged one, UnreadableFile
    for one that cannot be read."""
    file = FileBytes(path)
    at = len(_FILE_MAGIC) if file.text(0, 8) == _FILE_MAGIC else 0
    prefix: list[tuple[int, int]] = []
    found: list[Batch] = []
    while at + 8 <= file.size:
        mark, length = file.text(at, 4), int.from_bytes(file.text(at + 4, 4), "little", signed=True)
        if mark != _MARK:
            raise ValueError("a message does not begin where it should")
        if length == 0:  # the end of the stream
            break
        if not 0 < length <= min(_MOST_HEAD, file.size):
            raise ValueError("a message has no proper length")
        kind, body, rows = _head(file.text(at + 8, length))
        end = at + 8 + length + body
        if body < 0 or rows < 0 or end > file.size:
            raise ValueError("a message reaches past the end of the file")
        if rows > _MOST_PACKED * body:
            raise ValueError(f"a record batch claims {rows:,} rows in {body:,} bytes")
        if kind in {_SCHEMA, _DICTIONARY}:
            prefix.append((at, end))
        elif kind == _RECORDS:
            found.append(Batch(file, tuple(prefix), at, end, rows))
        at = end
    return found


def _head(data: bytes) -> tuple[int, int, int]:
    """Kind of a message, bytes of its body, and rows where it is a record batch."""
    try:
        (message,) = struct.unpack_from("<I", data, 0)
        kind_at, header_at, body_at = (_field(data, message, number) for number in (1, 2, 3))
        kind = data[kind_at] if kind_at else 0
        body = struct.unpack_from("<q", data, body_at)[0] if body_at else 0
        rows_at = 0
        if kind == _RECORDS and header_at:
            rows_at = _field(data, header_at + struct.unpack_from("<I", data, header_at)[0], 0)
        rows = struct.unpack_from("<q", data, rows_at)[0] if rows_at else 0
    except (struct.error, IndexError):
        raise ValueError("a message has a damaged head") from None
    return int(kind), int(body), int(rows)


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer table lies; 0 where it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    listing = table - back
    if listing < 0 or 4 + 2 * number >= struct.unpack_from("<H", data, listing)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", data, listing + 4 + 2 * number)
    return table + offset if offset else 0
