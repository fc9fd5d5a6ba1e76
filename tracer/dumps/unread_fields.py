"""The fields of a sample that no capture holds: logits, probabilities, embeddings of other models, names of chats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.tensor import Tensor

# What readers take for tokens, loss mask, valid length and numbers of the states, whatever the layout.
_READ = frozenset(
    {"input_ids", "token_ids", "loss_mask", "packed_loss_mask", "attention_mask", "hidden_states_scales"}
)
_POSITIONS = frozenset({"position_ids", "positions"})


def unread_of(document: Document, inner: int, capture: Capture) -> dict[str, str]:
    """What the sample ``inner`` of a file of tensors holds besides ``capture``, as :func:`unread` says it.

    Of a file whose fields the user named, and of what SGLang wrote of a server, nothing: more was not asked for.
    """
    value = document.value
    if capture.format == "MAPPED" or capture.format.startswith("SG-") or document.container.startswith("json"):
        return {}
    if isinstance(value, list):
        value = value[inner] if 0 <= inner < len(value) else None
    if not isinstance(value, dict):
        return {}
    batch = value.get("batch")
    if isinstance(batch, dict):
        around = {name: "" for name, item in value.items() if name != "batch" and _is_something(item)}
        return unread(batch, capture) | {str(name): "" for name in around}
    return unread(value, capture)


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
