"""Keys of a draft's config that say how the forward goes and that SGLang's draft classes do not read, by name and value.

The trainer may not have read them either (a layer's config copied from a target has many), so they are notes; the rope
style, of which it is known who reads it, is in ``rope_checks``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drafttrace.compare.audit.mistyped_keys import mistyped_findings, mistyped_keys
from drafttrace.compare.audit.subject import Subject, note
from drafttrace.compare.config_switches import ORDINARY, TOP_LEVEL_ONLY, strange_switches, unlike_plain
from drafttrace.compare.document import join
from drafttrace.compare.draft_config import MODELOPT, DraftConfig
from drafttrace.compare.odd_ids import short_value
from drafttrace.compare.result import Finding

_NESTED = "eagle_config."
_KINDS = {
    "rope": "rope-mismatch", "rotary": "rope-mismatch", "norm": "norm-missing", "bias": "weights-missing",
    "mult": "scale", "scal": "scale", "softcapping": "scale", "temperature": "scale", "logit": "scale",
}  # fmt: skip
_FORWARD = {**_KINDS, "residual": "residual-missing", "gate": "weights-unused", "attn": "weights-unused"}
"""Parts of keys, and what is wrong where training did what they say and a server does not; first match counts."""
_MODELOPT = {
    "use_last_layernorm": (
        "norm-extra",
        "training left out the norm before the head, and SGLang always applies it",
    ),
    "use_mtp_layernorm": ("norm-missing", "training normed what enters fc, and SGLang does not"),
    "use_input_layernorm_in_first_layer": (
        "norm-extra",
        "training left the embedding half of the attention input as it is, and SGLang always norms it",
    ),
    "next_layer_regular": (
        "slot-count",
        "the layers after the first read embedding and state, too, and SGLang's read the state only",
    ),
    "parallel_draft_step": (
        "weights-unused",
        "the draft proposes several tokens at once, and SGLang's proposes one",
    ),
    "parallel_draft_heads_num_layers": (
        "weights-unused",
        "the draft has heads for several tokens at once, and SGLang has no place for them",
    ),
}


def switch_findings(subject: Subject) -> Iterator[Finding]:
    """Switches with another value than that of a plain EAGLE-3 draft, and switches where SGLang does not look."""
    draft = subject.draft
    for key, value in unlike_plain(draft).items():
        leaf = key.removeprefix(_NESTED)
        if leaf in TOP_LEVEL_ONLY:
            yield from _nested(subject, leaf, value)
        elif leaf in _MODELOPT:
            name, effect = _MODELOPT[leaf]
            yield note(
                name,
                0.6,
                f"{key} is {_said(value)}: as Model-Optimizer means it, {effect}.",
                f"Serve the draft with the engine that it was exported for, or train it with the default of {leaf}.",
                {"field": key, "value": short_value(value)},
            )
        else:
            yield note(
                next((kind for part, kind in _KINDS.items() if part in leaf), "norm-missing"),
                0.5,
                f"{key} is {_said(value)}, which makes another forward than a plain Llama layer's, and SGLang's "
                "draft classes do not read it: right only if training did not read it either.",
                f"Drop {key} if training did not read it (drafttrace replay --ignore {key} shows whether the draft works "
                "without), else train without it.",
                {"field": key, "value": short_value(value)},
            )
    yield from _first_norm(draft)
    yield from _strange(draft)
    yield from mistyped_findings(subject)


def _strange(draft: DraftConfig) -> Iterator[Finding]:
    """Switches of no known name whose words are those of a forward: norms, scales, biases, positions."""
    for key, value in strange_switches(draft):
        kind = _forward_kind(key)
        if kind is None or key in mistyped_keys(draft):
            continue
        yield note(
            kind,
            0.4,
            f"{key} is {_said(value)} in the draft's config, and nothing is known of such a switch here: SGLang's draft "
            "classes do not read it, so training must not have, either.",
            f"Drop {key} if training did not read it (drafttrace replay --ignore {key} shows whether the draft works "
            "without); else serve with the engine that has it.",
            {"field": key, "value": short_value(value)},
        )


def _forward_kind(key: str) -> str | None:
    """What is wrong where training did what a key of no table says; None where its words say nothing of a forward."""
    if key in ORDINARY:
        return None
    return next((kind for part, kind in _FORWARD.items() if part in key.lower()), None)


def switch_remarks(draft: DraftConfig) -> list[str]:
    """Keys that no table has and no finding tells: nobody here can say what they do."""
    told = mistyped_keys(draft)
    strange = [(key, value) for key, value in strange_switches(draft) if key not in told and not _forward_kind(key)]
    said = []
    if strange:
        named = join([f"{key} ({_said(value)})" for key, value in strange], 4)
        said.append(
            f"Of {named} in the draft's config nothing is known here; SGLang's draft classes do not read "
            f"{'it' if len(strange) == 1 else 'them'}, so training must not have, either."
        )
    nested = draft.raw.get("eagle_config")
    if isinstance(nested, dict) and nested.get("next_layer_regular") is False and draft.layers == 1:
        said.append(
            "eagle_config.next_layer_regular is about the layers after the first, and the draft has one layer."
        )
    return said


def _said(value: Any) -> str:
    """As a config writes it."""
    return str(value).lower() if isinstance(value, bool) else short_value(value)


def _nested(subject: Subject, leaf: str, value: Any) -> Iterator[Finding]:
    """A switch that SGLang reads at the top level, in ``eagle_config``; those with weights are said by their weights."""
    draft = subject.draft
    if draft.flat.get(leaf) or (
        leaf in ("fc_norm", "use_aux_norm") and "fc_norm.0.weight" in subject.draft_weights
    ):
        return
    yield note(
        "weights-missing" if leaf == "bias" else "norm-missing",
        0.6,
        f"{_NESTED}{leaf} is {_said(value)}, and SGLang reads {leaf} at the top level of config.json only: it serves "
        "the draft without.",
        f'Write "{leaf}": true at the top level if training used it (drafttrace replay --ignore {_NESTED}{leaf} compares '
        "both), else drop the key.",
        {"field": f"{_NESTED}{leaf}", "value": short_value(value)},
    )


def _first_norm(draft: DraftConfig) -> Iterator[Finding]:
    nested = draft.raw.get("eagle_config")
    if draft.project == MODELOPT and isinstance(nested, dict) and nested.get("use_input_layernorm_in_first_layer"):
        yield note(
            "norm-extra",
            0.3,
            "use_input_layernorm_in_first_layer is true: Model-Optimizer's own layer may also norm the hidden half of "
            "the attention input, SGLang norms the embedding half with it only.",
            "Compare both with drafttrace replay; export again where they differ.",
            {"flag": "use_input_layernorm_in_first_layer"},
        )
