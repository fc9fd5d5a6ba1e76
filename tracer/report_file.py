"""Reports as files: whole or not at all, in the place of an older report at most. And the JSON that they are written in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafttrace.tracer.errors import OutputExists
from drafttrace.tracer.printable import utf8

_START = 1 << 16
_MOST_JSON = 256 << 20
_MOST_PICTURE = 16 << 20
_PICTURES = (b"\x89PNG", b"%PDF-")
_OURS = b"drafttrace"


def write_text(path: Path, text: str) -> None:
    """Write a report, whole or not at all. Reports may be replaced: they can be made again."""
    write_bytes(path, utf8(text))


def write_bytes(path: Path, data: bytes) -> None:
    """:func:`write_text` for what is no text."""
    if path.is_dir():
        raise OutputExists(f"The output '{path}' is a folder; give a file name.")
    try:
        if is_stream(path):
            path.write_bytes(data)
            return
        _keep_others(path, data)
        path = Path(os.path.realpath(path))  # a link stays one: its file is replaced
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)  # half of it, where the disk is full
    except OSError as error:
        raise OutputExists(
            f"The output '{path}' cannot be written ({error.strerror}); choose a folder that exists and is writable."
        ) from None


def is_stream(path: Path) -> bool:
    """Whether a path is a device or pipe such as /dev/stdout: written as it is, never replaced by a file."""
    parts = path.absolute().parts
    special = parts[1:2] in {("dev",), ("proc",)} and parts[1:3] != ("dev", "shm")  # that is a folder as any other
    return path.exists() and (not path.is_file() or special)


def _keep_others(path: Path, data: bytes) -> None:
    """Raise OutputExists where a file is there that no report of ours can be: it could not be made again."""
    if not path.exists() or path.stat().st_size == 0:
        return
    start, new_start = b"", data[:_START]
    with path.open("rb") as stream:
        start = stream.read(_START)
        picture = start.startswith(_PICTURES)
        if picture and new_start[:4] == start[:4] and _OURS in start + stream.read(_MOST_PICTURE):
            return  # a PNG says at its beginning whose it is, a PDF at its end
        if b"\0" in start or picture:
            raise OutputExists(
                f"The output '{path}' is a trace, a dump or another binary file, which no report replaces; give another "
                "name."
            )
        old = start + stream.read(_MOST_JSON)
    if _OURS not in start and not _same_kind(old, data):
        raise OutputExists(
            f"The output '{path}' is there already and no report of drafttrace; give another name, or delete it first."
        )


def _same_kind(old: bytes, new: bytes) -> bool:
    """Whether both are JSON objects, or lines of them, and most of the new one's keys stand in the old one."""
    try:
        keys = [set(json.loads(text)) for text in (old.splitlines()[0], new.splitlines()[0])]
    except (ValueError, TypeError, IndexError):
        try:
            keys = [set(json.loads(text)) for text in (old, new)]
        except (ValueError, TypeError):
            return False
    return 2 * len(keys[0] & keys[1]) > len(keys[1])


def dump_json(value: Mapping[str, Any]) -> str:
    """Strict JSON (no NaN or Infinity), indented; a list of numbers or texts stands on one line."""
    return _json(value, "\n") + "\n"


def where_json_breaks(error: Exception) -> str:
    """Where text stops being JSON: ``expecting value in line 1, column 1``. error: what ``json.loads`` raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg[0].lower()}{error.msg[1:]} in line {error.lineno}, column {error.colno}"
    if isinstance(error, RecursionError):
        return "its lists are too deep"
    return "it is not UTF-8 text" if isinstance(error, UnicodeError) else "a number in it has too many digits"


_NESTED = frozenset({dict, list, tuple})


def _json(value: Any, line: str) -> str:
    """``line`` begins a new line at the value's own depth."""
    inner = line + "  "
    if isinstance(value, dict) and value:
        parts = [f"{_scalar(str(key))}: {_json(item, inner)}" for key, item in value.items()]
        return "{" + inner + f",{inner}".join(parts) + line + "}"
    if isinstance(value, (list, tuple)) and not _NESTED.isdisjoint(map(type, value)):
        return "[" + inner + f",{inner}".join(_json(item, inner) for item in value) + line + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
