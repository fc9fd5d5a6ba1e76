"""The fields of a sample that no capture holds: logits, probabilities, embeddings of other models, names of chats."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.mask_notes import mask_notes
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.dumps.tensor import Tensor

# What readers take for tokens, loss mask, valid length and numbers of the states, whatever the layout.
_READ = frozenset(
    {"input_ids", "token_ids", "loss_mask", "packed_loss_mask", "attention_mask", "hidden_states_scales"}
)
# ``name[i]``, as a user names one entry of a field.
ENTRY = re.compile(r"(.*)\[(-?\d{1,6})\]$")
_MOST_FIELDS = 4096  # groups may be linked into each other
_POSITIONS = frozenset({"position_ids", "positions"})


def with_unread(capture: Capture, document: Document, inner: int, request: Request) -> Capture:
    """The capture of sample ``inner`` of a file of tensors with the names of what it does not hold of it (:func:`unread`),
    and with what it leaves out of the masks.

    Of what SGLang wrote of a server nothing: more was not asked for. Of a file whose fields the user named its reader says
    it (:func:`unnamed`).
    """
    value = document.value
    if capture.format == "MAPPED" or capture.format.startswith("SG-") or document.container.startswith("json"):
        return capture
    if isinstance(value, list):
        value = value[inner] if 0 <= inner < len(value) else None
    if not isinstance(value, dict):
        return capture
    batch = value.get("batch")
    if isinstance(batch, dict):  # its reader, which takes it apart, says what is to be said of the masks
        around = {str(name): "" for name, item in value.items() if name != "batch" and _is_something(item)}
        return replace(capture, unread={**capture.unread, **unread(batch, capture), **around})
    notes = () if request.tokens_only and not request.with_mask else mask_notes(value, capture)
    return replace(capture, unread={**capture.unread, **unread(value, capture)}, notes=(*capture.notes, *notes))


def unread(fields: Mapping[str, Any], capture: Capture, known: Collection[str] = ()) -> dict[str, str]:
    """The fields that are no part of ``capture``, with number format and shape of tensors, and "" for anything else.

    known: further names that its reader takes. Positions that only count the rows say nothing, and count as no tensor.
    """
    states = [slot.name for slot in capture.slots]
    states += [state.name for state in (capture.last, capture.embed) if state is not None]
    used = {name.split("[", 1)[0] for name in states} | _READ | set(known)
    return {
        str(name): "" if name in _POSITIONS and _counts(item) else _told(item)
        for name, item in fields.items()
        if name not in used and _is_something(item)
    }


def unnamed(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """The fields of nested dicts besides ``names``, by their paths ``a/b``, as :func:`unread` says it.

    names: as a user gives them: ``a/b`` or ``a.b``, and ``a[i]`` of a field with several entries, of which the others are
    told, too.
    """
    entries: dict[str, set[int]] = {}
    whole = {path_of(name) for name in names}
    for name in names:
        if (entry := ENTRY.match(name)) is not None and name not in fields:
            entries.setdefault(path_of(entry[1]), set()).add(int(entry[2]))
    found: dict[str, str] = {}
    for path, value in itertools.islice(_leaves(fields), _MOST_FIELDS):
        known = path_of(path)
        if known in entries and known not in whole:
            size = _entries_of(value)
            used = {index % size for index in entries[known]} if size else set()
            left = [k for k in range(size) if k not in used]
            found |= {f"{path}[{k}]": _told(_entry_of(value, k)) for k in left[:_MOST_FIELDS]}
        elif known not in whole and _is_something(value):
            found[path] = "" if path in _POSITIONS and _counts(value) else _told(value)
    return found


def path_of(name: str) -> str:
    """One spelling of ``a/b`` and ``a.b``."""
    return name.replace(".", "/")


def _leaves(fields: Mapping[str, Any], depth: int = 8) -> Iterator[tuple[str, Any]]:
    """Paths and values of everything that is no dict; groups may be linked into each other, so not endlessly deep."""
    for name, value in fields.items():
        if isinstance(value, Mapping) and value and depth:
            yield from ((f"{name}/{path}", item) for path, item in _leaves(value, depth - 1))
        else:
            yield str(name), value


def _entries_of(value: Any) -> int:
    """How many entries ``a[i]`` counts in: of a list, or of the second axis after one batch axis."""
    if isinstance(value, list):
        return len(value)
    if not isinstance(value, Tensor) or value.ndim < 3:
        return 0
    return value.shape[2] if value.ndim == 4 and value.shape[0] == 1 else value.shape[1]


def _entry_of(value: Any, index: int) -> Any:
    if isinstance(value, list):
        return value[index]
    return (value.pick(0, 0) if value.ndim == 4 and value.shape[0] == 1 else value).pick(1, index)


def _is_something(value: Any) -> bool:
    return value is not None and not (isinstance(value, str | list | dict | tuple) and not value)


def _told(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.kind} {list(value.shape)}"
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return f"{len(tensors)} tensors" if tensors else ""


def _counts(value: Any) -> bool:
    """Whether positions are 0, 1, 2 and so on."""
    if not isinstance(value, Tensor) or not value.shape or value.ndim > 2 or value.shape[-1] > 1 << 22:
        return False
    try:
        return bool((value.ints() == np.arange(value.shape[-1])).all())
    except ValueError:
        return False
