"""Files of no known layout, with the names of their fields given by the user: npz, safetensors, torch, HDF5, JSON.

``--slots a,b,c --tokens ids``: each slot is a name; ``a/b`` goes into a nested dict or HDF5 group; ``name[i]`` is
entry i of a list, or of the second axis of a ``[L, K, H]`` tensor. One slot wider than the hidden size is cut.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture, LastState, Norm, Slot
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.hdf5_file import field_names, read_hdf5
from drafttrace.tracer.dumps.mask_notes import mask_notes
from drafttrace.tracer.dumps.registry import FieldMap, Layout, Request, register
from drafttrace.tracer.dumps.tensor import Tensor, Unreadable, of_numbers
from drafttrace.tracer.dumps.unread_fields import ENTRY, path_of, unnamed
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.rows import Rows

_MOST_PATHS = 4096  # groups may be linked into each other


def parse_fields(
    slots: str,
    tokens: str | None = None,
    last: str | None = None,
    *,
    last_norm: str = "unknown",
    mask: str | None = None,
    boundaries: str | None = None,
) -> FieldMap:
    """A FieldMap from command-line texts: comma-separated slot names, and boundaries such as ``B2,B30,B58``.

    Raises DrafttraceError for a boundary that is none, or a norm that is not pre, post or unknown.
    """
    from drafttrace.tracer.boundary import parse_wiring

    names = tuple(name.strip() for name in slots.split(",") if name.strip())
    if not names and last is None:
        raise DrafttraceError(
            f"--slots '{slots}' names no field; give the names of the slots, as --slots low,mid,high."
        )
    try:
        wiring = parse_wiring(boundaries) if boundaries else None
    except ValueError as error:
        raise DrafttraceError(f"{error}.") from None
    return checked_fields(FieldMap(names, tokens, last, last_norm, mask, wiring))


def checked_fields(fields: FieldMap) -> FieldMap:
    """The same fields. Raises DrafttraceError for a norm that is not pre, post or unknown."""
    if fields.last_norm not in set(Norm):
        raise DrafttraceError(f"The last state's norm is '{fields.last_norm}'; give pre, post or unknown.")
    return fields


def _detect(_document: Document, request: Request) -> str | None:
    return "fields named by the user" if request.fields.slots or request.fields.last else None


def _read(document: Document, _inner: int, request: Request) -> Capture:
    path, fields = document.path, request.fields
    if not fields.slots and fields.last is None:
        raise DrafttraceError(f"'{path}' has no layout of its own; name its fields with --slots and --tokens.")
    if document.container == "hdf5":
        document = Document(path, "hdf5", read_hdf5(path))
    found = [part for name in fields.slots for part in _slots(document, name, request)]
    parts = [rows for _name, rows in found]
    last: LastState | None = None
    if fields.last is not None:
        state = _single(document, fields.last)
        last = build.last_state(fields.last, state, Norm(fields.last_norm), "given by the user")
    if fields.tokens is None:
        count = len(parts[0]) if parts else len(last.rows) if last is not None else 0
        tokens = np.full(count, -1, np.int64)
    else:
        tokens = build.token_ids(_tensor(document, fields.tokens), fields.tokens, path)
        _refuse_slots_first(document, fields.slots, len(tokens))
    ids = _boundaries(path, request)
    if ids is not None and len(ids) != len(parts):
        raise DrafttraceError(
            f"{len(ids)} boundaries are given for the {len(parts)} slots of '{path}'; give one each."
        )
    source = "given by the user" if ids is not None else "unknown: the user named fields, but no boundaries"
    mask = None if fields.mask is None else _tensor(document, fields.mask)
    made = build.capture(
        path,
        "MAPPED",
        "fields named by the user",
        tokens,
        _named(build.slots_of(parts, "slot", ids, source), [name for name, _rows in found], fields),
        last=last,
        mask=None if fields.mask is None else build.mask_of(mask, path, fields.mask),
        valid_length=len(tokens),
        notes=() if fields.tokens is not None else ("no tokens: their field was not named",),
        unread=_unread(document, fields, request),
    )
    return replace(made, notes=(*made.notes, *mask_notes({"loss_mask": mask}, made)))


def _unread(document: Document, fields: FieldMap, request: Request) -> dict[str, str]:
    """What the file holds besides the fields that were named; of HDF5 also what is no array of numbers, by name."""
    if request.tokens_only or not isinstance(document.value, dict):
        return {}
    named = [name for name in (*fields.slots, fields.tokens, fields.last, fields.mask) if name is not None]
    found = unnamed(document.value, named)
    if document.container == "hdf5":
        known = {path_of(name) for name in (*named, *found)}
        known |= {entry[1] for name in known if (entry := ENTRY.match(name)) is not None}
        found |= {name: "" for name in field_names(document.path) if name not in known and not name.endswith("/")}
    return found


def _boundaries(path: Path, request: Request) -> tuple[int, ...] | None:
    """What the user says of the slots: as boundaries, or as layer ids with the letter of their numbering."""
    said, named = request.layer_ids, request.fields.boundaries
    if said is None:
        return named
    listed = ", ".join(f"{request.numbering}{k}" for k in said)
    if named is not None:
        raise DrafttraceError(
            f"--layer-ids {listed} and --boundaries both name the slots of '{path}'; give one of the two."
        )
    if not request.numbering:
        raise DrafttraceError(
            f"'{path}' is of no known project, in whose numbering the layer ids {listed} could be; write them as B(id) or "
            "O(id), like B3,B31,B59."
        )
    return tuple(k + (request.numbering == "O") for k in said)


def _named(slots: tuple[Slot, ...], names: list[str], fields: FieldMap) -> tuple[Slot, ...]:
    """The slots under the names that the user gave. One that other states have, too, gets its place beside it: what is
    found out is told by name."""
    taken = {"last", "embed", fields.last} | {name for name, count in Counter(names).items() if count > 1}
    return tuple(
        replace(slot, name=f"{name} (slot {k})" if name in taken else name)
        for k, (slot, name) in enumerate(zip(slots, names, strict=True))
    )


def _slots(document: Document, name: str, request: Request) -> list[tuple[str, Rows]]:
    """One named field as one slot, or as several: a list, a ``[L, K, H]`` tensor, or a ``[L, K * H]`` one. Each with the
    name that ``find`` knows it by, or its place in that."""
    path = document.path
    value = find(document, name)
    if isinstance(value, list) and any(isinstance(item, Tensor) for item in value):
        return [
            (inner, build.rows(_checked(document, inner, item), inner, path))
            for inner, item in ((f"{name}[{k}]", item) for k, item in enumerate(value))
        ]
    tensor = _checked(document, name, value)
    if (tensor.ndim == 3 and tensor.shape[0] != 1) or (tensor.ndim == 4 and tensor.shape[0] == 1):
        return _counted(name, build.axis_slots(tensor, name, path, 1))
    single = build.rows(tensor, name, path)
    width = request.hidden_size
    odd = width is not None and single.width % width != 0
    if width is None or single.width == width or (odd and (request.lenient or request.tokens_only)):
        return [(name, single)]
    return _counted(name, build.side_by_side(tensor, name, path, request, None))


def _counted(name: str, parts: Sequence[Rows]) -> list[tuple[str, Rows]]:
    return [(name if len(parts) == 1 else f"{name}[{k}]", part) for k, part in enumerate(parts)]


def _single(document: Document, name: str) -> Rows:
    return build.rows(_tensor(document, name), name, document.path)


def _tensor(document: Document, name: str) -> Tensor:
    return _checked(document, name, find(document, name))


def _checked(document: Document, name: str, value: Any) -> Tensor:
    if isinstance(value, Unreadable):
        raise UnreadableFile(value.why)
    if isinstance(value, list):
        value = of_numbers(value)
    if not isinstance(value, Tensor):
        raise UnreadableFile(
            f"The field '{name}' of '{document.path}' is no tensor but {type(value).__name__}; name another."
        )
    return value


def _base(document: Document, name: str) -> str | None:
    """``x`` for ``x[3]``; None for a field that is called so, and for every other name."""
    entry = ENTRY.match(name)
    named_so = isinstance(document.value, dict) and name in document.value
    return entry[1] if entry is not None and not named_so else None


def find(document: Document, name: str) -> Any:
    """The value that a user's name means. Raises UnreadableFile naming what there is."""
    base = _base(document, name)
    if base is not None:
        return _pick(document, base, int(name[len(base) + 1 : -1]))
    value = document.value
    if isinstance(value, dict) and name in value:
        return value[name]
    for part in re.split(r"[/.]", name):
        if not isinstance(value, dict) or part not in value:
            raise UnreadableFile(
                f"There is no field '{name}' in '{document.path}', which holds {_names(document.value)}; name a field "
                "of it."
            )
        value = value[part]
    return value


def _refuse_slots_first(document: Document, names: Sequence[str], count: int) -> None:
    """Raise UnreadableFile for a field with the ``count`` tokens on its second axis: its slots would be taken for rows."""
    for name in names:
        base = _base(document, name)
        whole, tensor = base is None, find(document, base or name)
        if not isinstance(tensor, Tensor) or tensor.ndim != 3 or tensor.shape[1] != count:
            continue
        if tensor.shape[0] not in ({1, count} if whole else {count}):
            raise UnreadableFile(
                f"The field '{name}' of '{document.path}' has the shape {list(tensor.shape)}, and there are {count} "
                "tokens: rows are read from the first axis and slots from the second; write it as rows, slots, width."
            )


def _pick(document: Document, name: str, index: int) -> Any:
    value = find(document, name)
    if isinstance(value, Tensor) and value.ndim == 4 and value.shape[0] == 1:
        value = value.pick(0, 0)
    size = (
        len(value)
        if isinstance(value, list)
        else value.shape[1]
        if isinstance(value, Tensor) and value.ndim >= 3
        else 0
    )
    if not -size <= index < size:
        raise UnreadableFile(
            f"The field '{name}' of '{document.path}' has no entry {index}: it has {size}; count from 0."
        )
    return value[index] if isinstance(value, list) else value.pick(1, index % size)


def _paths(value: dict[Any, Any], depth: int = 3) -> Iterator[str]:
    """The names of fields as a user gives them, also of those in groups."""
    for key, item in value.items():
        if isinstance(item, dict) and item and depth:
            yield from (f"{str(key)[:40]}/{name}" for name in _paths(item, depth - 1))
        else:
            yield str(key)[:40]


def _names(value: Any) -> str:
    if not isinstance(value, dict):
        return f"a {type(value).__name__}"
    names = sorted(itertools.islice(_paths(value), _MOST_PATHS))
    return ", ".join(repr(name) for name in names[:12]) + (", ..." if len(names) > 12 else "")


register(
    Layout(
        "MAPPED",
        "any file, with the names of its fields",
        "any file, with --slots and --tokens",
        _detect,
        _read,
        ids="with a letter",
    )
)
