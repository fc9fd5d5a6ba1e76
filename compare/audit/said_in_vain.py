"""Fields of a draft's config that are there and that nobody can use: a garbled rope, a window that nothing switches on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.subject import note
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.result import Finding

_ROPE_FIELDS = ("rope_scaling", "rope_parameters")
_NO_SCALING = {"rope_theta", "partial_rotary_factor"}
"""Fields of ``rope_parameters`` that stand there without any scaling, too."""
_NUMBERS = (
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
    "attention_factor", "attn_factor", "mscale", "mscale_all_dim",
)  # fmt: skip
_LISTS = ("short_factor", "long_factor")
_SIZES = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}


def garbled_rope(draft: DraftConfig) -> str | None:
    """What of ``rope_scaling`` or ``rope_parameters`` no rope scaling can be read from, in words; None where one can."""
    for name in _ROPE_FIELDS:
        value = draft.flat.get(name)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            return f"{name} {_short(value)}, which is no object"
        per_kind = [(f"{name}.{key}", part) for key, part in value.items() if isinstance(part, Mapping)]
        for where, part in per_kind or [(name, value)]:
            wrong = _wrong(where, part)
            if wrong is not None:
                return wrong
    return None


def _wrong(where: str, part: Mapping[str, Any]) -> str | None:
    """What is wrong with one set of rope fields."""
    kind = part.get("rope_type") or part.get("type")
    if kind is None and set(part) - _NO_SCALING - {"rope_type", "type"}:
        return f"{where} {_short(dict(part))} without a rope_type"
    if kind is not None and not isinstance(kind, str):
        return f"{where} with the rope_type {_short(kind)}, which is no text"
    for key in _NUMBERS:
        number = part.get(key)
        if number is None:
            continue
        plain = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not plain or not math.isfinite(number):
            return f"{where} with '{key}': {_short(number)}, which is no number"
        if key in _SIZES and number <= 0:
            return f"{where} with '{key}': {_short(number)}, which is not above zero"
    for key in _LISTS:
        numbers = part.get(key)
        if numbers is not None and not (
            isinstance(numbers, list) and all(type(k) in (int, float) for k in numbers)
        ):
            return f"{where} with '{key}': {_short(numbers)}, which is no list of numbers"
    return None


def unused_window(draft: DraftConfig) -> Iterator[Finding]:
    """A window's size that nothing in the config switches on or off: readers drop it without a word."""
    size = draft.flat.get("sliding_window")
    decided = isinstance(draft.flat.get("layer_types"), list) or "use_sliding_window" in draft.flat
    if not size or draft.window is not None or decided:
        return
    yield note(
        "window-mismatch",
        0.5,
        f'The config has "sliding_window": {size} and nothing that switches it on (no layer_types, no '
        f"use_sliding_window; the model_type {draft.flat.get('model_type')} has no window of its own): SGLang's draft "
        "class does not read it, and the replay sees all earlier tokens, too.",
        f'If training used the window, write "layer_types": ["sliding_attention"] and start the server with '
        f"--speculative-draft-window-size {max(1, size - 1)} (SGLang counts the tokens before a row); else drop "
        "sliding_window.",
        {"sliding_window": size, "model_type": draft.flat.get("model_type")},
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
