"""What a draft's config says of rotary positions, and what SGLang makes of it otherwise than the trainer did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from drafttrace.compare.audit.said_in_vain import garbled_rope
from drafttrace.compare.audit.subject import fault, note
from drafttrace.compare.draft_config import DraftConfig
from drafttrace.compare.odd_ids import short_value
from drafttrace.compare.result import Finding
from drafttrace.compare.rope_tables import INSIDE_COUNTS, LONGS, YARNS, distance, served_table, trained_table
from drafttrace.tracer.errors import UnknownFormat

KNOWN_ROPES = {"default", "linear", "dynamic", "yarn", "deepseek_yarn", "llama3", "longrope", "mrope", "su"}
_ROPE_NEEDS = {
    **dict.fromkeys(("default", "mrope"), ()),
    **dict.fromkeys(("longrope", "su"), ("short_factor", "long_factor")),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
"""Fields without which a rope type cannot be computed; every other type needs its factor."""
_LEAST = 1e-3
"""Share of a vector's length up to which two turns are the same: roundings of bf16 are four times as large."""
_LONGEST = 4096
"""Positions that are looked at, at most."""
_WIDEST = 8192
"""Channels of a head beyond which no model has any: the tables of such a number would fill the memory."""


def rope_findings(draft: DraftConfig) -> Iterator[Finding]:
    """What is wrong with the rope fields by themselves, and where SGLang turns otherwise than the trainer."""
    yield from _by_itself(draft)
    if draft.raw.get("rope_is_neox_style", True) is not None:  # null is said to be none
        yield from rope_differences(draft)


def rope_differences(draft: DraftConfig) -> Iterator[Finding]:
    """SGLang's table against the trainer's, with the number by which they differ; nothing where one cannot be made."""
    apart = rope_distance(draft)
    if apart is not None and apart >= _LEAST:
        why = _why(draft)
        build = fault if why.sure else note
        yield build(
            "rope-mismatch",
            0.75 if why.sure else 0.6,
            f"SGLang turns positions otherwise than the trainer did: {why.words}. Within {_positions(draft)} positions a "
            f"turned vector differs by up to {apart:.2g} of its length.",
            why.remedy,
            {"field": why.field, "apart": apart, "positions": _positions(draft)},
        )
    top, kind = draft.flat.get("partial_rotary_factor"), str(draft.flat.get("model_type"))
    if draft.mla is None and top is not None and draft.rope.partial < 1 and kind not in INSIDE_COUNTS:
        yield note(
            "rope-mismatch",
            0.4,
            f"partial_rotary_factor is {draft.rope.partial:g}, and SGLang turns that share of a head's channels; the "
            f"layer of transformers for the model_type {kind} turns all of them whatever the field says.",
            "Drop partial_rotary_factor if training turned all channels (the trainer's attention class tells).",
            {"field": "partial_rotary_factor", "partial_rotary_factor": draft.rope.partial},
        )

    if draft.mla is None and top is None and draft.rope.partial < 1 and kind not in INSIDE_COUNTS:
        yield note(
            "rope-mismatch",
            0.4,
            f"partial_rotary_factor {draft.rope.partial:g} stands among the fields of the rope, where neither SGLang nor "
            f"transformers' layer for the model_type {kind} reads it: both turn all channels, and so does the replay.",
            f'Drop it, or write "partial_rotary_factor": {draft.rope.partial:g} at the top level if training turned that '
            "share.",
            {"field": "partial_rotary_factor", "partial_rotary_factor": draft.rope.partial},
        )


def rope_distance(draft: DraftConfig) -> float | None:
    """By how much of its length a vector turned by SGLang differs from one turned in training; None if not known."""
    if garbled_rope(draft) is not None:
        return None
    length = _positions(draft)
    width = draft.head_dim if draft.mla is None else draft.mla.qk_rope
    if width > _WIDEST:
        return None
    try:
        return distance(trained_table(draft, length), served_table(draft, length), width, length)
    except (ArithmeticError, TypeError, ValueError, UnknownFormat):  # said by other findings
        return None


class _Why(NamedTuple):
    """field: what makes the difference. sure: every trainer that is known does otherwise."""

    field: str
    words: str
    remedy: str
    sure: bool


def _positions(draft: DraftConfig) -> int:
    return max(2, min(draft.max_positions or 2048, _LONGEST))


def _why(draft: DraftConfig) -> _Why:
    """What of the config the two read otherwise."""
    fields, kind = draft.rope.fields, draft.rope.kind
    inside = "rope_scaling" if draft.flat.get("rope_scaling") else "rope_parameters"
    if draft.mla is None and not draft.flat.get("rope_is_neox_style", True):
        return _Why(
            "rope_is_neox_style",
            f"rope_is_neox_style is {short_value(draft.flat['rope_is_neox_style']).lower()}, so it pairs neighbouring "
            "channels (2i, 2i+1) of a head, and no trainer reads the key: they pair the two halves (i, i + half)",
            'Drop "rope_is_neox_style", or write true.',
            True,
        )
    if draft.mla is not None and kind not in YARNS:
        return _Why(
            kind,
            f"it takes the scaling of a multi-latent draft for DeepSeek's YaRN, and the config says '{kind}'",
            "Train the draft with rope_type yarn, or without a scaling.",
            False,
        )
    if kind == "dynamic":
        return _Why(
            "dynamic",
            "it stretches a rope of type dynamic for every text, and trainers only for one longer than "
            "max_position_embeddings",
            f"Drop {inside} where no served text is longer than the {draft.max_positions} positions of training; else "
            "train with yarn or llama3, which do not depend on the text.",
            True,
        )
    if draft.mla is None and "partial_rotary_factor" in fields and draft.flat.get("partial_rotary_factor") is None:
        return _Why(
            "partial_rotary_factor",
            "it reads partial_rotary_factor at the top level only and turns all channels",
            f'"partial_rotary_factor": {draft.rope.partial:g} at the top level of config.json.',
            False,
        )
    ignored = [key for key in ("attention_factor", "factor") if fields.get(key) is not None]
    if kind in YARNS and fields.get("attention_factor") is None:
        ignored = [key for key in ("mscale", "mscale_all_dim", "attn_factor", "truncate") if key in fields]
        words = f"of {kind} it reads {' and '.join(ignored) or 'the fields'} in another sense"
    else:
        ignored = ignored if kind in LONGS else ["attention_factor"]
        words = f"of {kind} it ignores {' and '.join(ignored)}, which transformers multiplies cos and sin with"
    where = "the YaRN of the trainer's code" if kind in YARNS else "the trainer's code"
    return _Why(
        ignored[0] if ignored else kind,
        words,
        f"Look whether {where} reads it (transformers' does); if so, export the draft for an engine that does, or train "
        "without it.",
        False,
    )


def _by_itself(draft: DraftConfig) -> Iterator[Finding]:
    """What the config says of rotary positions, by itself."""
    rope = draft.rope
    garbled = garbled_rope(draft)
    if garbled is not None:
        yield fault(
            "rope-mismatch",
            0.9,
            f"The draft's config has {garbled}: no rope scaling can be read from it, so a server refuses it or turns "
            "positions without any.",
            "Copy the whole rope_scaling of the training config (an object with a rope_type), or drop it if training used "
            "none.",
            {"garbled": garbled},
        )
    if rope.conflict is not None:
        yield fault(
            "rope-mismatch",
            0.7,
            f"The draft's config contradicts itself: {rope.conflict}; which one holds depends on the transformers version.",
            "Keep one of the two fields, the one that training used.",
            {"conflict": rope.conflict},
        )
    if rope.kind not in KNOWN_ROPES:
        yield fault(
            "rope-mismatch",
            0.6,
            f"The draft's rope type '{rope.kind}' is none that SGLang knows.",
            f"Use one of {', '.join(sorted(KNOWN_ROPES))}.",
            {"rope_type": rope.kind},
        )
    else:
        needs = _ROPE_NEEDS.get(rope.kind, ("factor",))
        lost = [name for name in needs if rope.fields.get(name) is None]
        if lost:
            yield fault(
                "rope-mismatch",
                0.7,
                f"The draft's rope type '{rope.kind}' has no {' and no '.join(lost)}.",
                "Copy the whole rope_scaling of the training config.",
                {"rope_type": rope.kind, "fields": sorted(rope.fields), "missing": lost},
            )
