"""Fields of a draft's config that are there and say nothing, or the reverse: a garbled rope, a window that nothing
switches on, a switch that is no true or false."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.class_defaults import HEAD_DIM, implied_sizes
from drafttrace.compare.audit.subject import fault, note
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.draft_weights import DraftWeights, slots_of_fc
from drafttrace.compare.odd_ids import short_value
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
    return garbled_fields(draft.flat)


def rope_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of both spellings, the newer one's last."""
    parts = [config.get(name) for name in _ROPE_FIELDS]
    return {key: value for part in parts if isinstance(part, Mapping) for key, value in part.items()}


def rope_pairs(config: Mapping[str, Any], rope: Mapping[str, Any]) -> int | None:
    """How many pairs of channels of a head turn; None where the config does not say."""
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    width = config.get("head_dim")
    if width is None and type(heads) is int and type(hidden) is int and heads > 0:
        width = implied_sizes(config, heads, hidden)[HEAD_DIM]
    latent = config.get("qk_rope_head_dim") if config.get("kv_lora_rank") is not None else None
    if latent is not None:
        return latent // 2 if type(latent) is int else None
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    plain = type(width) is int and type(share) in (int, float)
    return int(width * share) // 2 if plain and width is not None else None


def garbled_fields(config: Mapping[str, Any]) -> str | None:
    """:func:`garbled_rope` of any config."""
    for name in _ROPE_FIELDS:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            return f"{name} {short_value(value)}, which is no object"
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
        return f"{where} {short_value(dict(part))} without a rope_type"
    if kind is not None and not isinstance(kind, str):
        return f"{where} with the rope_type {short_value(kind)}, which is no text"
    for key in _NUMBERS:
        number = part.get(key)
        if number is None:
            continue
        plain = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not plain or not math.isfinite(number):
            return f"{where} with '{key}': {short_value(number)}, which is no number"
        if key in _SIZES and number <= 0:
            return f"{where} with '{key}': {short_value(number)}, which is not above zero"
    for key in _LISTS:
        numbers = part.get(key)
        if numbers is not None and not (
            isinstance(numbers, list) and all(type(k) in (int, float) for k in numbers)
        ):
            return f"{where} with '{key}': {short_value(numbers)}, which is no list of numbers"
    return None


_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
"""Kinds of attention that ``layer_types`` may name for a layer."""


def unused_window(draft: DraftConfig) -> Iterator[Finding]:
    """A window's size that nothing in the config switches on or off: readers drop it without a word."""
    size, kinds = draft.flat.get("sliding_window"), draft.flat.get("layer_types")
    decided = isinstance(kinds, list) or "use_sliding_window" in draft.flat
    if not size or draft.window is not None or decided:
        return
    yield note(
        "window-mismatch",
        0.5,
        f'The config has "sliding_window": {size} and nothing that switches it on (no list of layer_types, no '
        f"use_sliding_window; the model_type {draft.flat.get('model_type')} has no window of its own): SGLang's draft "
        "class does not read it, and the replay sees all earlier tokens, too.",
        f'If training used the window, write "layer_types": ["sliding_attention"] and start the server with '
        f"--speculative-draft-window-size {max(1, size - 1)} (SGLang counts the tokens before a row); else drop "
        "sliding_window.",
        {"sliding_window": size, "model_type": draft.flat.get("model_type")},
    )


def odd_layer_types(draft: DraftConfig) -> Iterator[Finding]:
    """A ``layer_types`` that does not name a kind of attention for each layer: what it leaves open is read as full."""
    kinds = draft.flat.get("layer_types")
    if kinds is None:
        return
    odd = [kind for kind in kinds if kind not in _KINDS] if isinstance(kinds, list) else [kinds]
    if not odd and isinstance(kinds, list) and len(kinds) == draft.layers:
        return
    what = (
        f"and {short_value(odd[0])} is no kind of attention" if odd else f"and num_hidden_layers is {draft.layers}"
    )
    yield note(
        "window-mismatch",
        0.5,
        f"layer_types is {short_value(kinds)}, {what}: what is not named is read as full attention.",
        f'Write "full_attention" or "sliding_attention" for each layer, {draft.layers} in all, as training had them.',
        {"layer_types": short_value(kinds), "layers": draft.layers},
    )


_FLAGS = {
    "fc_norm": "norm-extra", "use_aux_norm": "norm-extra", "norm_output": "norm-extra", "norm_before_fc": "norm-extra",
    "norm_before_residual": "norm-extra", "bias": "weights-missing", "attention_bias": "weights-missing",
    "mlp_bias": "weights-missing", "tie_word_embeddings": "weights-replaced",
    "eagle_config.use_aux_hidden_state": "fc-not-called", "eagle_config.norm_before_fc": "norm-extra",
    "eagle_config.norm_before_residual": "norm-extra", "use_sliding_window": "window-mismatch",
}  # fmt: skip
"""Switches of a config, and what is wrong where one is read as the reverse of what was meant."""
_WORDS = {"false": False, "no": False, "off": False, "0": False, "true": True, "yes": True, "on": True, "1": True}


_SHOWN_BY = {
    "fc_norm": r"^fc_norm\.", "use_aux_norm": r"^fc_norm\.", "norm_before_fc": r"^input_norm\.",
    "eagle_config.norm_before_fc": r"^input_norm\.", "bias": r"^fc\.bias$", "attention_bias": r"\.self_attn\..*\.bias$",
    "mlp_bias": r"\.mlp\..*\.bias$",
}  # fmt: skip
"""Tensors that only a training run with the switch on leaves behind."""


def odd_flags(draft: DraftConfig, weights: DraftWeights | None = None) -> Iterator[Finding]:
    """Switches that are no true or false: readers ask only whether something stands there, so "false" is read as true.

    weights: what training stored tells more surely than a word what was meant.
    """
    for key, (value, meant) in _odd(draft, weights).items():
        leaf = key.rsplit(".", 1)[-1]
        line = f'"{leaf}": {str(meant).lower()}' if meant is not None else f'"{leaf}": true or "{leaf}": false'
        build = note if meant == bool(value) else fault
        yield build(
            _FLAGS[key],
            0.5 if build is note else 0.85,
            f"{key} is {short_value(value)}, which is neither true nor false: the server and the replay read it as "
            f"{str(bool(value)).lower()}, and a config class that checks its fields refuses it.",
            f"Write {line}, as training had it"
            + (" by its weights." if shown_by_weights(key, draft, weights) is not None else "."),
            {"field": key, "value": short_value(value)},
        )


def flag_changes(draft: DraftConfig, weights: DraftWeights) -> dict[str, Any]:
    """What was surely meant by switches that are no true or false, by dotted key."""
    return {key: meant for key, (_, meant) in _odd(draft, weights).items() if meant is not None}


def _odd(draft: DraftConfig, weights: DraftWeights | None) -> dict[str, tuple[Any, bool | None]]:
    """By key the value of every such switch, and what was meant by it (None: nobody can tell)."""
    nested = draft.raw.get("eagle_config")
    found: dict[str, tuple[Any, bool | None]] = {}
    for key in _FLAGS:
        *inside, leaf = key.split(".")
        place = nested if inside else draft.flat
        value = place.get(leaf) if isinstance(place, Mapping) else None
        if value is None or isinstance(value, (bool, int)):
            continue
        word = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
        shown = shown_by_weights(key, draft, weights)
        found[key] = (value, word if shown is None else shown)
    return found


def shown_by_weights(key: str, draft: DraftConfig, weights: DraftWeights | None) -> bool | None:
    """What the tensors of the draft say of a switch; None where they do not."""
    if weights is None:
        return None
    if key == "eagle_config.use_aux_hidden_state":
        return True if (slots_of_fc(weights, draft) or 0) > 1 else None
    if key == "tie_word_embeddings":
        return False if "lm_head.weight" in weights else None
    pattern = _SHOWN_BY.get(key)
    return True if pattern is not None and any(re.search(pattern, name) for name in weights.names) else None
