"""Does SGLang load the draft's config at all, and with its own sizes? Keys that it never finds, and keys that are null.

Seen with SGLang 0.5.23's ``get_config`` and transformers 5.19: a config without a known ``model_type`` raises ValueError;
keys inside ``transformer_layer_config`` (the layout of speculators) are not read, so that the class's defaults hold (4096
wide, 32 layers); null in a field of the config class is refused. What the draft classes make of null is by their source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.asking_sglang import DRAFT
from drafttrace.compare.audit.model_types import knows
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.draft_config import MLA_CLASS, PLAIN_CLASS, DraftConfig
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.odd_ids import short_value
from drafttrace.compare.result import Finding

_LAYER = "transformer_layer_config"
_NEEDED = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
"""What no draft can be built without; SGLang takes a whole model's defaults for what is not there."""
_READ = (
    *_NEEDED, "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "rope_theta",
    "rope_scaling", "rope_parameters", "partial_rotary_factor", "attention_bias", "mlp_bias", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
NULL_DEFAULTS: dict[str, Any] = {
    "attention_bias": False, "initializer_range": 0.02, "max_position_embeddings": 2048,
    "mlp_bias": False, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-6, "rope_is_neox_style": True,
    "tie_word_embeddings": False, "use_cache": True,
}  # fmt: skip
"""Keys that may be absent and may not be null, and what a server takes where they are absent."""
_AT_NULL = {
    "partial_rotary_factor": "SGLang multiplies it and stops with a TypeError",
    "rope_is_neox_style": "SGLang takes null for false and turns other pairs of channels",
}


def unread(draft: DraftConfig) -> dict[str, Any]:
    """The keys that stand in ``transformer_layer_config`` only and that a server would have to read at the top level."""
    layer = draft.raw.get(_LAYER)
    if not isinstance(layer, Mapping):
        return {}
    return {key: layer[key] for key in _READ if layer.get(key) is not None and draft.raw.get(key) is None}


def loading_findings(subject: Subject) -> Iterator[Finding]:
    """Everything for which the server stops at the config, or builds another model than the file describes."""
    yield from _unread_layout(subject)
    loads = subject.loads is not None and subject.loads.refusals[DRAFT] is None  # by SGLang itself, here
    if not loads:
        yield from _model_type(subject)
    yield from _nulls(subject, loads)
    yield from _no_pruned_size(subject)


def loading_changes(subject: Subject) -> dict[str, Any]:
    """The keys that make the config load as the model that it describes; each is one that the file or the class says."""
    draft = subject.draft
    changes = unread(draft)
    kind = draft.flat.get("model_type")
    if not isinstance(kind, str) or knows(kind) is False:
        changes["model_type"] = usual_type(draft)
    changes |= {key: value for key, value in NULL_DEFAULTS.items() if key in _null_keys(draft)}
    if _null_target_size(draft):
        changes["target_hidden_size"] = draft.slot_width
    if lacks_pruned_size(draft) and matrix_shape(subject.draft_weights, "lm_head.weight") is None:
        # absent is an error there, null means the target's head; a tied draft has a row for each token
        mapped = _mapped(subject)
        changes["draft_vocab_size"] = draft.vocab_size if draft.tied else mapped
    elif _null_pruned_size(draft):
        changes["draft_vocab_size"] = draft.vocab_size
    return changes


def _unread_layout(subject: Subject) -> Iterator[Finding]:
    lost = unread(subject.draft)
    if not lost:
        return
    missing = [key for key in _NEEDED if subject.draft.flat.get(key) is None]
    named = ", ".join([*lost][:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
    effect = (
        "builds a draft with the defaults of its config class in their place (a Llama is 4096 wide with 32 layers)"
    )
    if "model_type" in [*lost, *missing]:
        effect = (
            "stops at the missing model_type, and with one it would build a whole model's defaults (a Llama is 4096 wide "
            "with 32 layers)"
        )
    rest = f"; {' and '.join(missing)} stands nowhere and has to come from the training run" if missing else ""
    yield fault(
        "fc-not-called",
        0.97,
        f"SGLang does not read {_LAYER}, the layout of speculators, where {named} stand: it {effect}.",
        f"Write these keys at the top level of config.json, as drafttrace check --fix OUT does{rest}; vLLM reads the file "
        "as it is.",
        {"unread": list(lost), "missing": missing},
    )


def _model_type(subject: Subject) -> Iterator[Finding]:
    draft = subject.draft
    kind = draft.flat.get("model_type")
    line = f'"model_type": "{usual_type(draft)}"'
    if not isinstance(kind, str):
        stands = (
            "has no model_type" if kind is None else f"has the model_type {short_value(kind)}, which is no text"
        )
        yield fault(
            "fc-not-called",
            0.96,
            f"The draft's config {stands}, so the server stops before it reads anything else ('Unrecognized model').",
            line,
            {"model_type": kind},
        )
        return
    known = knows(kind)
    if known:
        return
    build, tail = (note, "is none that this audit knows") if known is None else (fault, "is none that it knows")
    yield build(
        "fc-not-called",
        0.4 if known is None else 0.93,
        f"The server finds the config's class by its model_type, and '{short_value(kind)[1:-1]}' {tail}"
        + (", with no transformers here to ask." if known is None else ": it stops with a ValueError."),
        f"{line} (the draft's class reads the numbers of the file; model_type only has to be a known one), or a "
        "transformers that knows it.",
        {"model_type": kind},
    )


def usual_type(draft: DraftConfig) -> str:
    """The model_type that drafts of this class are written with."""
    return "kimi_k2" if draft.architecture == MLA_CLASS or draft.mla is not None else "llama"


def _null_keys(draft: DraftConfig) -> tuple[str, ...]:
    """Keys that are null at the top level (or in a nested layer config that would be copied there)."""
    lost = unread(draft)
    return tuple(key for key in NULL_DEFAULTS if key in draft.raw and draft.raw[key] is None and key not in lost)


def _null_target_size(draft: DraftConfig) -> bool:
    """``target_hidden_size`` null: the plain class asks only whether it is there, then multiplies it."""
    raw = draft.raw
    return "target_hidden_size" in raw and raw["target_hidden_size"] is None and draft.architecture != MLA_CLASS


def _nulls(subject: Subject, loads: bool) -> Iterator[Finding]:
    draft = subject.draft
    if _null_target_size(draft):
        yield fault(
            "fc-not-called",
            0.96,
            '"target_hidden_size" is null: the draft class asks only whether the key is there, so the server stops with a '
            "TypeError when it builds fc.",
            f'"target_hidden_size": {draft.slot_width}, or drop the key.',
            {"field": "target_hidden_size"},
        )
    for key in _null_keys(draft):
        if loads and key not in _AT_NULL:
            continue
        effect = _AT_NULL.get(key, "the config class of transformers 5 refuses null there, so the server stops")
        value = NULL_DEFAULTS[key]
        yield fault(
            "rope-mismatch" if key in _AT_NULL else "fc-not-called",
            0.9,
            f'"{key}" is null in the draft\'s config: {effect}.',
            f'Write what training used; without the key a server takes "{key}": {str(value).lower()}.',
            {"field": key},
        )


def lacks_pruned_size(draft: DraftConfig) -> bool:
    """Whether the plain class stops at a config that does not have the key at all; null is another thing to it."""
    return "draft_vocab_size" not in draft.flat and draft.architecture == PLAIN_CLASS


def _mapped(subject: Subject) -> int | None:
    """Entries of the draft's ``d2t``: its head has a row for each, and the target's head has not."""
    shape = subject.draft_weights.shape("d2t")
    return shape[0] if shape is not None and len(shape) == 1 else None


def _null_pruned_size(draft: DraftConfig) -> bool:
    """A tied draft of the plain class takes ``draft_vocab_size`` for the width of its logits, whatever stands there."""
    null = "draft_vocab_size" in draft.flat and draft.flat["draft_vocab_size"] is None
    return null and draft.tied and draft.architecture == PLAIN_CLASS


def _no_pruned_size(subject: Subject) -> Iterator[Finding]:
    """The plain class reads ``draft_vocab_size`` without asking whether it is there; a tied draft needs a number in it."""
    draft = subject.draft
    head = matrix_shape(subject.draft_weights, "lm_head.weight")
    own = f'"draft_vocab_size": {head[0]}, the rows of lm_head.' if head is not None else ""
    tied = f'"draft_vocab_size": {draft.vocab_size}, the rows of the embedding that the draft takes for its head.'
    if lacks_pruned_size(draft):
        shared, mapped = (
            '"draft_vocab_size": null, so that the server takes the target\'s head; the checkpoint has none.',
            _mapped(subject),
        )
        if mapped is not None:
            shared = f'"draft_vocab_size": {mapped}, the entries of d2t, with a head of as many rows.'
        yield fault(
            "fc-not-called",
            0.9,
            f"The draft's config has no draft_vocab_size, which {PLAIN_CLASS} reads without asking whether it is there: "
            "the server stops with an AttributeError.",
            own or (tied if draft.tied else shared),
            {"field": "draft_vocab_size"},
        )
    if _null_pruned_size(draft):
        yield fault(
            "fc-not-called",
            0.9,
            f"tie_word_embeddings is true and draft_vocab_size null: {PLAIN_CLASS} takes the width of a tied draft's "
            "logits from draft_vocab_size, and the server stops with a TypeError.",
            own or tied,
            {"field": "draft_vocab_size"},
        )
