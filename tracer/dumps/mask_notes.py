"""What is to be said of the masks of a sample that a capture cannot hold: weights, gaps, and masks that are none.

Readers take what they can of a mask; what that leaves out changes which tokens train, so it is told of every layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture
from drafttrace.tracer.dumps import build, mask_entries
from drafttrace.tracer.dumps.tensor import Tensor, Unreadable


def mask_notes(fields: Mapping[str, Any], capture: Capture) -> tuple[str, ...]:
    """The notes on the ``loss_mask`` and the ``attention_mask`` of one sample, whose fields are ``fields``."""
    notes: list[str] = []
    if fields.get("packed_loss_mask") is None:
        notes += _loss(fields.get("loss_mask"), capture)
    return (*notes, *_attention(fields.get("attention_mask"), capture))


def _loss(value: Any, capture: Capture) -> list[str]:
    if value is None:
        return []
    mask = _flat(value)
    if capture.mask is not None:
        return [] if mask is None else mask_entries.weights_told(mask)
    if mask is None:
        return [f"no loss mask: the field loss_mask is {_kind(value)}"]
    return [f"no loss mask: a field loss_mask is no part of {capture.format}, and is not read"]


def _attention(value: Any, capture: Capture) -> list[str]:
    """Zeros before the last token that is kept. Those after it are the padding that is left out."""
    if value is None:
        return []
    mask = _flat(value)
    if mask is None:
        return [f"attention_mask is not used: it is {_kind(value)}"]
    hidden = np.flatnonzero(mask[: capture.valid_length] == 0)
    if not len(hidden):
        return []
    first = int(hidden[0])
    kept = (
        f"token {first:,}, which is" if len(hidden) == 1 else f"{len(hidden):,} tokens from {first:,} on, which are"
    )
    return [f"attention_mask is 0 for {kept} kept all the same"]


def _flat(value: Any) -> np.ndarray[Any, np.dtype[Any]] | None:
    """The entries of a mask of one sample ``[L]``, in whatever shape; None for what is no such mask."""
    tensor = build.listed(value) if isinstance(value, list) else value
    if not isinstance(tensor, Tensor) or not tensor.shape:
        return None
    count = math.prod(tensor.shape)
    if count != max(tensor.shape) or not 0 < count <= build.MOST_ROWS:
        return None
    return Tensor.held(tensor.read().reshape(-1), tensor.kind).floats()


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of the shape {list(value.shape)}, not one number for each token"
    if isinstance(value, Unreadable):
        return "no array of numbers"
    if isinstance(value, list):
        return "a list that holds no number for each token" if value else "an empty list"
    return f"a {type(value).__name__}, no numbers"
