"""Sizes, switches, positions, vocabulary and number formats: what two configs say about each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drafttrace.compare.audit.format_checks import format_findings
from drafttrace.compare.audit.forward_checks import forward_findings
from drafttrace.compare.audit.loading_checks import loading_findings
from drafttrace.compare.audit.mla_checks import mla_findings
from drafttrace.compare.audit.refusal_checks import refusal_findings, refused_keys
from drafttrace.compare.audit.remedies import flag_remedy
from drafttrace.compare.audit.rope_checks import KNOWN_ROPES, rope_findings
from drafttrace.compare.audit.said_in_vain import odd_flags, odd_layer_types, rope_fields, unused_window
from drafttrace.compare.audit.sglang_rules import honoured
from drafttrace.compare.audit.start_checks import start_findings
from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.audit.switch_checks import switch_findings
from drafttrace.compare.audit.tokenizer_checks import tokenizer_findings
from drafttrace.compare.audit.vocab_sizes import vocabulary_size
from drafttrace.compare.draft_config import MLA_CLASS, NESTED, PLAIN_CLASS, SPECFORGE, DraftConfig
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.odd_ids import short_value
from drafttrace.compare.result import FAULT, Finding

_LARGE_EPS = 1e-2
EAGLE3_CLASSES = (PLAIN_CLASS, MLA_CLASS)


def config_findings(subject: Subject) -> Iterator[Finding]:
    """Every fault and hint that needs no tensor."""
    found = list(_by_the_files(subject))
    yield from found
    yield from refusal_findings(subject, found)


def starting_faults(subject: Subject) -> Iterator[Finding]:
    """What keeps a server from starting with these configs, or makes it build another model than they describe."""
    found = [*_class(subject), *loading_findings(subject), *forward_findings(subject), *mla_findings(subject)]
    told = [*found, *odd_flags(subject.draft, subject.draft_weights)]
    found += [*refusal_findings(subject, told), *start_findings(subject)]
    yield from (one for one in found if one.severity == FAULT)


def _by_the_files(subject: Subject) -> Iterator[Finding]:
    yield from _class(subject)
    yield from loading_findings(subject)
    yield from _fc(subject)
    yield from _flags(subject)
    yield from _eps(subject)
    yield from odd_flags(subject.draft, subject.draft_weights)
    yield from switch_findings(subject)
    yield from forward_findings(subject)
    yield from _positions(subject)
    yield from _vocabulary(subject)
    yield from tokenizer_findings(subject)
    yield from format_findings(subject)


def _class(subject: Subject) -> Iterator[Finding]:
    name, algorithm = subject.draft.architecture, subject.algorithm
    if algorithm is not None and algorithm.upper() != "EAGLE3":
        yield fault(
            "fc-not-called",
            0.95,
            f"The server runs the algorithm {algorithm}, under which the target hands over one state and the draft's "
            "fc never runs.",
            "Start the server with --speculative-algorithm EAGLE3.",
            {"algorithm": algorithm},
        )
    if name not in EAGLE3_CLASSES:
        listed = subject.draft.flat.get("architectures")
        named = f"names the class {name}, which is no EAGLE-3 draft class of SGLang"
        if name is None:
            named = f"names no class (architectures is {short_value(listed)}, where a list with one class belongs)"
        wanted = MLA_CLASS if subject.draft.mla is not None else PLAIN_CLASS
        yield fault(
            "fc-not-called",
            0.85,
            f"The draft's config {named}, so the server refuses it or loads a model without fc.",
            f'"architectures": ["{wanted}"]',
            {"architecture": name, "known": list(EAGLE3_CLASSES)},
        )


def _fc(subject: Subject) -> Iterator[Finding]:
    """Widths: fc against its slots, slots against what is handed over, and the cases in which fc is skipped."""
    draft, shape = subject.draft, subject.draft_weights.shape("fc.weight")
    if shape is None or len(shape) != 2:
        return
    slots, served = subject.fc_slots, subject.served.wiring or ()
    if slots is None:
        yield fault(
            "slot-count",
            0.95,
            f"fc reads {shape[1]} values, which is no multiple of the slot width {draft.slot_width}.",
            "Check target_hidden_size in the draft's config against the target that the draft was trained on.",
            {"fc": list(shape), "slot_width": draft.slot_width},
        )
    elif served and len(served) != slots != len(subject.served.ids or ()) and shape[1] != draft.hidden_size:
        # else lost ids, or the one slot for which fc is skipped, is the cause, and is said
        yield fault(
            "slot-count",
            0.95,
            f"fc reads {slots} slots of {draft.slot_width}, {subject.served.who} hands over {len(served)}.",
            f"List {slots} ids in eagle_config.eagle_aux_hidden_state_layer_ids.",
            {"fc_slots": slots, "served": len(served)},
        )
    if draft.num_aux is not None and slots is not None and draft.num_aux != slots:
        yield fault(
            "slot-count",
            0.9,
            f"num_aux_hidden_states is {draft.num_aux}, fc reads {slots} slots.",
            f'"num_aux_hidden_states": {slots}',
            {"num_aux_hidden_states": draft.num_aux, "fc_slots": slots},
        )
    yield from skipped_fc(subject, shape)
    yield from _graph_buffer(subject)


def _graph_buffer(subject: Subject) -> Iterator[Finding]:
    """Under CUDA graphs the draft reads the slots from a buffer whose width comes from the draft's config alone.

    SGLang's ``get_draft_input_from_target_hidden_dim`` counts ``num_aux_hidden_states``, else the ids (those at the top
    level, too), else 3. Where that is not what the target hands over, the copy into the buffer is skipped in silence.
    """
    draft, target = subject.draft, subject.target
    if subject.reader is not None and subject.reader.stops_at(subject.served.ids, target.layers):
        return
    listed = draft.layer_ids or next(iter(draft.other_ids), None)
    slots = draft.num_aux or (len(listed.ids) if listed is not None else 3)
    served = subject.served.wiring or ()
    buffer, handed = slots * draft.slot_width, len(served) * target.hidden_size
    if draft.use_aux and served and buffer != handed:
        yield note(
            "stale-rows",
            0.7,
            f"Under CUDA graphs the draft would read a buffer of {buffer} columns ({slots} slots of "
            f"{draft.slot_width}), "
            f"the target hands over {handed}: SGLang then skips the copy without a word and the draft runs on old rows.",
            f"{_as_many_slots(subject)} Until then start the server without CUDA graphs (--disable-cuda-graph), which "
            "turns the silence into an error.",
            {"buffer": buffer, "handed": handed, "slots": slots},
        )


def _as_many_slots(subject: Subject) -> str:
    """What makes the draft's config, its fc and the target's hand-over agree on the number of slots."""
    reads, handed = subject.fc_slots, len(subject.served.wiring or ())
    if reads is None:
        return "Export fc.weight again, as wide as a whole number of the target's hidden states."
    lines = []
    if handed != reads:
        lines.append(f"list {reads} different ids in {NESTED}")
    if subject.draft.num_aux not in (None, reads):
        lines.append(f'write "num_aux_hidden_states": {reads}')
    if subject.draft.slot_width != subject.target.hidden_size:
        lines.append("give the draft that was trained on this target")
    said = " and ".join(lines) or f'write "num_aux_hidden_states": {reads}'
    return f"{said[0].upper()}{said[1:]}."


def skipped_fc(subject: Subject, shape: tuple[int, ...]) -> Iterator[Finding]:
    """An fc of this shape that never runs: the width that it reads is the state's, or a switch turns it off."""
    draft = subject.draft
    if shape[1] == draft.hidden_size:
        yield fault(
            "fc-not-called",
            0.95,
            f"fc reads {shape[1]} values, as many as the draft's embedding is wide: SGLang then takes the slots for a "
            "recycled state and skips fc.",
            "Train the draft on two or more slots, or on a target of another width.",
            {"fc": list(shape), "hidden_size": draft.hidden_size},
        )
    elif not draft.use_aux:
        yield fault(
            "fc-not-called",
            0.9,
            f"use_aux_hidden_state is false, so the target hands over one state of {draft.slot_width} values, while "
            f"fc was trained on {shape[1]}.",
            '"use_aux_hidden_state": true in eagle_config, whose other keys stay.',
            {"fc": list(shape)},
        )


def _flags(subject: Subject) -> Iterator[Finding]:
    """Switches that the serving class does not read, or reads in another sense than the trainer."""
    draft, version, name = subject.draft, subject.version, subject.draft.architecture or ""
    effects = {
        "norm_before_residual": (
            draft.norm_before_residual,
            "the residual is then the raw fc output, not the normed one",
        ),
        "norm_before_fc": (draft.norm_before_fc, "fc then reads states that were not normalised"),
        "fc_norm": (draft.fc_norm, "fc then reads slots that were not normalised"),
        "norm_output": (draft.norm_output is True, "the recycled state is then the pre-norm one from step 2 on"),
    }
    for flag, (used, effect) in effects.items():
        if used and not honoured(flag, name, version):
            yield fault(
                "norm-missing",
                0.9,
                f"The draft was trained with {flag}: true, which {name} in SGLang {version} does not implement; {effect}.",
                flag_remedy(flag, subject.draft),
                {"flag": flag, "version": version, "class": name},
            )
    if draft.project == SPECFORGE and draft.norm_output:
        yield note(
            "norm-extra",
            0.4,
            "norm_output is true: SpecForge before its PR 879 trained with the pre-norm state recycled all the same, "
            "SGLang recycles the post-norm one; acceptance then falls from draft step 2 on.",
            '"norm_output": false, if the draft was trained before that change (drafttrace replay tells).',
            {"flag": "norm_output"},
        )
    if subject.target.embed_scale != 1.0:
        yield note(
            "scale",
            0.4,
            f"The target multiplies its embeddings by {subject.target.embed_scale:.4g}; the draft class of SGLang "
            "reads the shared embedding table unscaled.",
            "Check that the draft was trained on the unscaled table.",
            {"embed_scale": subject.target.embed_scale, "model_type": subject.target.model_type},
        )


def _eps(subject: Subject) -> Iterator[Finding]:
    """A number so large that norms shrink what they are given: one that was mistyped, or another field's."""
    said, theirs = subject.draft.eps, subject.target.eps
    if said >= _LARGE_EPS > theirs:
        yield note(
            "norm-gain",
            0.5,
            f"rms_norm_eps is {said:g} in the draft's config and {theirs:g} in the target's: every norm of the draft then "
            "shrinks states that are not far above it, right only if training had that number.",
            f'"rms_norm_eps": {theirs:g}, if the training config says so.',
            {"field": "rms_norm_eps", "draft": said, "target": theirs},
        )


def _positions(subject: Subject) -> Iterator[Finding]:
    draft, target = subject.draft, subject.target
    yield from rope_findings(subject.draft)
    if target.rope_theta is not None and draft.rope.theta != target.rope_theta:
        yield note(
            "rope-mismatch",
            0.3,
            f"The draft turns positions with rope_theta {draft.rope.theta:g}, the target with {target.rope_theta:g}: "
            "right if it was trained so (a config without the field means 10000), a lost field if not.",
            f'"rope_theta": {target.rope_theta:g}, if the training config says so.',
            {"draft": draft.rope.theta, "target": target.rope_theta},
        )
    yield from _other_scaling(subject)
    if draft.window is not None:
        yield fault(
            "window-mismatch",
            0.6,
            f"{_windowed(draft)} trained with a sliding window of {draft.window}; SGLang's draft class reads it from the "
            "server's arguments only and attends to everything otherwise.",
            f"Start the server with --speculative-draft-window-size {max(1, draft.window - 1)} (SGLang counts the tokens "
            "before a row, the config the row as well).",
            {"window": draft.window},
        )
    yield from unused_window(draft)
    if "layer_types" not in refused_keys(subject):
        yield from odd_layer_types(draft)


def _other_scaling(subject: Subject) -> Iterator[Finding]:
    """Positions that the draft stretches otherwise than the target. It is no fault: drafts of stretched targets are
    trained without a scaling, too."""
    draft, fields = subject.draft, rope_fields(subject.target.text)
    if draft.mla is not None or any(isinstance(part, Mapping) for part in fields.values()):
        return  # another kind of attention's turns, or one set for each kind
    ours, theirs = _scaling(draft.rope.kind, draft.rope.fields), _scaling(None, fields)
    if ours == theirs or draft.rope.kind not in KNOWN_ROPES:
        return
    yield note(
        "rope-mismatch",
        0.3,
        f"The draft stretches positions otherwise than the target: its rope has {_stretch(ours)}, the target's "
        f"{_stretch(theirs)}. Right if it was trained so, a lost or changed field if not.",
        "Copy rope_scaling of the training config; leave it as it is if that has the same.",
        {"field": "rope_scaling", "draft": ours, "target": theirs},
    )


_STRETCHING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _scaling(kind: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and numbers of a rope scaling; empty without one. ``mrope`` turns text as no scaling does, and so does what
    stretches by 1."""
    kind = str(kind or fields.get("rope_type") or fields.get("type") or "default").removeprefix("deepseek_")
    if kind in ("default", "mrope") or (kind in ("linear", "yarn", "llama3") and fields.get("factor") == 1):
        return {}
    return {"rope_type": kind} | {key: fields[key] for key in _STRETCHING if fields.get(key) is not None}


def _stretch(scaling: Mapping[str, Any]) -> str:
    named = [f"{key} {short_value(value)}" for key, value in scaling.items() if key != "rope_type"]
    return f"{scaling['rope_type']} ({', '.join(named)})" if scaling else "no scaling"


def _windowed(draft: DraftConfig) -> str:
    """Which layers have the window, where the draft has several."""
    seen = [f"layers.{k}" for k, window in enumerate(draft.windows) if window is not None]
    if draft.layers == 1:
        return "The draft was"
    rest = "" if len(seen) == draft.layers else f" of the draft's {draft.layers} layers"
    return f"{' and '.join(seen)}{rest} {'was' if len(seen) == 1 else 'were'}"


def _vocabulary(subject: Subject) -> Iterator[Finding]:
    draft, target = subject.draft, subject.target
    other = list(vocabulary_size(subject))
    yield from other
    pruned, head = draft.draft_vocab_size, matrix_shape(subject.draft_weights, "lm_head.weight")
    fits = head[0] if head is not None and head[0] <= draft.vocab_size else draft.vocab_size
    told = any(one.severity == FAULT for one in other) and pruned is not None and pruned <= target.vocab_size
    if pruned is not None and pruned > draft.vocab_size and not told:
        yield fault(
            "vocab-map-range",
            0.95,
            f"draft_vocab_size {pruned} is larger than vocab_size {draft.vocab_size}.",
            f'"draft_vocab_size": {fits}' + ("" if head is not None and fits == head[0] else ", or less."),
            {"draft_vocab_size": pruned, "vocab_size": draft.vocab_size},
        )
    yield from tied_head(subject)
    for field in ("bos_token_id", "eos_token_id"):
        mine, theirs = draft.raw.get(field), target.text.get(field, target.raw.get(field))
        if mine is not None and theirs is not None and _ids(mine) and not _ids(mine) <= _ids(theirs):
            yield note(
                "template-divergence",
                0.3,
                f"{field} is {mine} in the draft's config and {theirs} in the target's.",
                "Check that the draft was trained with the target's tokenizer and chat template.",
                {"field": field, "draft": mine, "target": theirs},
            )


def tied_head(subject: Subject) -> Iterator[Finding]:
    """A head of the draft's own that a server replaces by the embedding."""
    head = matrix_shape(subject.draft_weights, "lm_head.weight")
    if subject.draft.tied and head is not None:
        yield fault(
            "weights-replaced",
            0.9,
            "tie_word_embeddings is true, so SGLang uses the target's embedding as the draft's head and ignores the "
            f"lm_head of {head[0]} rows in the checkpoint.",
            '"tie_word_embeddings": false',
            {"lm_head": list(head)},
        )


def _ids(value: Any) -> set[int]:
    return {k for k in (value if isinstance(value, list) else [value]) if type(k) is int}
