"""Tensors of a draft that its class builds no parameter for: SGLang drops them without a word, and what they did is lost.

By SGLang 0.5.23's ``models/llama_eagle3.py`` and ``kimi_k25_eagle3.py``: no projection of queries, keys and values and none
of the MLP has a bias, whatever the config says; ``fc`` has one with ``bias``, and the plain class's ``o_proj`` with
``attention_bias`` or ``bias``; queries and keys are never normed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from drafttrace.compare.audit.class_tensors import HEAD, draft_class, parameters
from drafttrace.compare.audit.layer_checks import layer_of, layers_that_differ
from drafttrace.compare.audit.mla_checks import ATTENTION, other_attention, refused
from drafttrace.compare.audit.plain_parts import plain_modules
from drafttrace.compare.audit.quantized import is_part, is_quantized
from drafttrace.compare.audit.remedies import flag_remedy
from drafttrace.compare.audit.sglang_rules import honoured
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.draft_config import PLAIN_CLASS, DraftConfig
from drafttrace.compare.draft_weights import VOCABULARY_MAPS, split_fused
from drafttrace.compare.result import Finding

_LAYER_NORM = re.compile(r"^layers\.\d+\..*norm.*\.weight$")
_SECOND_NORM = re.compile(r"^layers\.\d+\.input_layernorm\.weight$")
"""Built for every layer, and used in the first one only."""
_QUERY_KEY_NORM = re.compile(r"\.self_attn\.[qk]_norm\.weight$")
_SCALE = re.compile(r"_proj\.weight_scale(_inv|_2)?$")
_SINKS = re.compile(r"\.self_attn\.sinks$")
NORM_FLAGS = (("fc_norm", "fc_norm."), ("norm_before_fc", "input_norm."))
"""Switches, and the tensors that are there for them."""


def unused_findings(subject: Subject) -> Iterator[Finding]:
    """Every stored tensor that nothing reads: as a fault where training must have used it, else as a hint."""
    left = _left(subject)
    for flag, prefix in NORM_FLAGS:
        mine = [name for name in left if name.startswith(prefix)]
        if mine:
            left = [name for name in left if name not in mine]
            yield _norm_of_a_flag(subject, flag, mine)
    left = [name for name in left if not name.endswith(("rotary_emb.inv_freq", "mask_hidden"))]
    if other_attention(subject) is not None:
        left = [name for name in left if ATTENTION not in name]
    plain = plain_modules(subject) if any(is_part(name) for name in left) else ()  # told by ``plain_parts``
    left = [
        name
        for name in left
        if not (is_part(name) and (is_quantized(subject.draft) or name.split(".", 1)[0] in plain))
    ]
    differ = layers_that_differ(subject)
    left = [name for name in left if layer_of(name) not in differ]
    if not left or refused(subject):
        return
    lost = list(_lost(subject, left))
    yield from (finding for _, finding in lost)
    told = {name for names, _ in lost for name in names}
    left = [name for name in left if name not in told]
    if left:
        yield _read_by_nothing(subject, left)


def bias_changes(subject: Subject) -> dict[str, Any]:
    """The switches without which SGLang drops a bias that the checkpoint has."""
    names = _lost_biases(subject, _left(subject))
    return {switch: True for name in names if (switch := _switch_of(subject, name)) is not None}


def _left(subject: Subject) -> list[str]:
    """Canonical names of what fills no parameter."""
    used = parameters(subject.draft, subject.fc_slots or 3) | {HEAD, *VOCABULARY_MAPS}
    return [name for name in subject.draft_weights.names if not set(split_fused(name)) <= used]


def _norm_of_a_flag(subject: Subject, flag: str, names: Sequence[str]) -> Finding:
    """A norm that no switch turns on. That it was never trained, where others were, is a sign that training left it out."""
    reads = honoured(flag, subject.draft.architecture or "", subject.version)
    place = key_of(subject.draft, flag)
    said, line = f"the config does not set {flag}", f'"{flag}": true'
    if place != flag:
        said, line = (
            f"{place} is set to false, which counts more than {flag}",
            f'"{flag}": true inside "eagle_config"',
        )
    idle = all(_all_one(subject, name) for name in names) and _norms_were_trained(subject)
    build = note if idle else fault
    return build(
        "norm-missing",
        0.5 if idle else 0.85,
        f"The checkpoint has {', '.join(names)}, but {said}, so the server skips the norm"
        + (
            ": every value of it is one and the draft's other norms have moved, as if training skipped it, too."
            * idle
        )
        + "." * (not idle),
        f"{line}, where training used it; drafttrace replay on a training dump measures that, and --fix does not write it"
        if reads
        else f"Where training used the norm: {flag_remedy(flag, subject.draft)} drafttrace replay on a training dump "
        "measures that.",
        {"tensors": list(names), "flag": flag},
    )


def _all_one(subject: Subject, name: str) -> bool:
    weights = subject.draft_weights
    return weights.info(name).float_dtype is not None and bool(
        (weights.checkpoint.floats(weights.names[name]) == 1.0).all()
    )


def _norms_were_trained(subject: Subject) -> bool:
    """Whether the norms that every draft reads have moved from where training starts them."""
    names = [name for name in subject.draft_weights.names if name == "norm.weight" or _LAYER_NORM.search(name)]
    return bool(names) and not any(_all_one(subject, name) for name in names)


def key_of(draft: DraftConfig, flag: str) -> str:
    """The dotted key of a switch as SGLang reads it: for ``norm_before_fc`` the one inside ``eagle_config`` counts more."""
    nested = draft.raw.get("eagle_config")
    inside = flag == "norm_before_fc" and isinstance(nested, dict) and flag in nested
    return f"eagle_config.{flag}" if inside else flag


def _lost(subject: Subject, left: Sequence[str]) -> Iterator[tuple[Sequence[str], Finding]]:
    """What of these training surely used, with the finding about it."""
    biases = _lost_biases(subject, left)
    by_switch: dict[str | None, list[str]] = {}
    for name in biases:
        by_switch.setdefault(_switch_of(subject, name), []).append(name)
    for switch, names in by_switch.items():
        yield names, _biases(subject, names, switch)
    normed = [name for name in left if _QUERY_KEY_NORM.search(name)]
    if normed:
        yield normed, _norms(subject, normed, "queries and keys are then not normed")
    others = [
        name
        for name in left
        if _LAYER_NORM.search(name) and ATTENTION not in name and not _SECOND_NORM.search(name)
    ]
    if others:
        yield others, _norms(subject, others, "what they normed is then not normed")
    scales = [name for name in left if _SCALE.search(name)]
    if scales:
        yield scales, _scales(subject, scales)
    sinks = [name for name in left if _SINKS.search(name)]
    if sinks:
        yield (
            sinks,
            _told(subject, sinks, "weights-unused", "has no sinks", "attention then sums up to one without them"),
        )


def _biases(subject: Subject, names: Sequence[str], switch: str | None) -> Finding:
    said = [subject.draft_weights.names[name] for name in names]
    if switch is None:
        return _told(
            subject,
            names,
            "weights-unused",
            "builds these projections without a bias, whatever the config says",
            "what training added is left out",
        )
    return fault(
        "weights-unused",
        0.9,
        f'The checkpoint has {_listed(said)}, and without "{switch}": true SGLang\'s {draft_class(subject.draft)} builds '
        "no such bias and drops what is stored.",
        f'"{switch}": true',
        {"tensors": said[:20], "count": len(said), "switch": switch},
    )


def _scales(subject: Subject, names: Sequence[str]) -> Finding:
    said = [subject.draft_weights.names[name] for name in names]
    return fault(
        "weights-unused",
        0.85,
        f"The checkpoint has {_listed(said)}, scales of quantized tensors, and its config has no quantization_config: "
        "SGLang drops them without a word and reads the tensors unscaled.",
        "Copy quantization_config from the config that the quantization wrote.",
        {"tensors": said[:20], "count": len(said)},
    )


def _norms(subject: Subject, names: Sequence[str], effect: str) -> Finding:
    return _told(subject, names, "norm-missing", "has no such norm", effect)


def _told(subject: Subject, names: Sequence[str], name: str, why: str, effect: str) -> Finding:
    said = [subject.draft_weights.names[one] for one in names]
    return fault(
        name,
        0.9,
        f"The checkpoint has {_listed(said)}, and SGLang's {draft_class(subject.draft)} {why}: it drops what is stored "
        f"without a word, and {effect}.",
        "No line of the config helps: serve this draft with an engine whose draft class has them, or train it without.",
        {"tensors": said[:20], "count": len(said)},
    )


def _read_by_nothing(subject: Subject, left: Sequence[str]) -> Finding:
    said = [subject.draft_weights.names[name] for name in left]
    counted = (
        f"1 tensor of the checkpoint is read by nothing: '{said[0]}'."
        if len(said) == 1
        else f"{len(said)} tensors of the checkpoint are read by nothing, such as '{said[0]}'."
    )
    it = "it" if len(said) == 1 else "them"
    return note(
        "weights-unused",
        0.6,
        counted,
        f"If training used {it}, the serving class is the wrong one; otherwise drop {it} from the export.",
        {"tensors": said[:20], "count": len(said)},
    )


def _lost_biases(subject: Subject, left: Sequence[str]) -> list[str]:
    """Biases of what the class builds that are not zero everywhere."""
    weights, built = subject.draft_weights, parameters(subject.draft, subject.fc_slots or 3) | {HEAD}
    of = {name: split_fused(f"{name.removesuffix('bias')}weight") for name in left if name.endswith(".bias")}
    return [
        name
        for name, parts in of.items()
        if set(parts) <= built
        and weights.info(name).float_dtype is not None
        and weights.checkpoint.floats(weights.names[name]).any()
    ]


def _switch_of(subject: Subject, name: str) -> str | None:
    """The switch of the config with which the class builds this bias."""
    if name == "fc.bias":
        return "bias"
    plain = draft_class(subject.draft) == PLAIN_CLASS
    return "attention_bias" if plain and name.endswith(f"{ATTENTION}o_proj.bias") else None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
