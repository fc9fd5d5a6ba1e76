"""What the audit says of that part of a draft's config and weights that a replay rests on: by its code, with its ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from drafttrace.compare.audit.config_checks import skipped_fc, starting_faults, tied_head
from drafttrace.compare.audit.head_rows import head_row_findings
from drafttrace.compare.audit.layer_checks import layer_findings
from drafttrace.compare.audit.mla_checks import class_findings
from drafttrace.compare.audit.name_checks import name_findings
from drafttrace.compare.audit.odd_id_checks import odd_id_findings
from drafttrace.compare.audit.quantized import quantization_findings
from drafttrace.compare.audit.rope_checks import rope_differences
from drafttrace.compare.audit.said_in_vain import odd_flags, odd_layer_types, unused_window
from drafttrace.compare.audit.subject import Subject
from drafttrace.compare.audit.unused_checks import unused_findings
from drafttrace.compare.audit.vocab_checks import vocabulary_findings, vocabulary_map
from drafttrace.compare.audit.vocab_sizes import vocabulary_size
from drafttrace.compare.audit.weight_checks import NOT_FINITE, TensorReport, tensor_reports, weight_findings
from drafttrace.compare.audit.wiring_checks import release_findings
from drafttrace.compare.draft_weights import split_fused
from drafttrace.compare.replay.loading import Replayer
from drafttrace.compare.replay.ranking import significant
from drafttrace.compare.replay.result import VariantRow
from drafttrace.compare.result import FAULT, NOTE, Finding

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
_WEIGHTS = ("nan-inf", "weights-replaced")
"""Of the weights, besides tensors that are zero; those that are missing keep a replay from starting."""
_MAPS = ("vocab-map-missing", "vocab-map-range")
"""Of the vocabulary map; whether it holds offsets or ids a replay tells by its numbers."""


def audited_findings(
    subject: Subject, replayer: Replayer, rope: VariantRow | None, *, running: bool
) -> Iterator[Finding]:
    """Faults and hints about config and weights. rope: what the server's rope gives in the trainer's place, if tried.
    running: a server was seen to run this draft, so that nothing kept it from starting."""
    draft = subject.draft
    yield from release_findings(subject)
    if not running:
        yield from starting_faults(subject)
    yield from quantization_findings(subject)
    yield from _unread(subject, replayer)
    yield from unused_window(draft)
    yield from odd_layer_types(draft)
    yield from odd_flags(draft, subject.draft_weights)
    yield from class_findings(subject)
    yield from layer_findings(subject)
    yield from odd_id_findings(subject)
    yield from vocabulary_size(subject)
    yield from name_findings(subject)
    for found in rope_differences(draft):
        yield _measured(found, rope) if rope is not None and "apart" in found.evidence else found
    yield from _of_the_weights(subject, replayer)


def _unread(subject: Subject, replayer: Replayer) -> Iterator[Finding]:
    """Tensors that the server drops, and what this replay does with them. What a norm before fc is worth it measures."""
    for found in unused_findings(subject):
        if "flag" in found.evidence:
            continue
        names = {
            subject.draft_weights.names[name] for name in replayer.unserved if name in subject.draft_weights.names
        }
        added = names & set(found.evidence.get("tensors", ()))
        said = (
            "The replay adds them as training did, and leaves them out where it runs the draft as served."
            if added
            else "The replay leaves them out, too, so where training used them its numbers are another model's."
        )
        yield replace(found, summary=f"{found.summary} {said}")


def _measured(found: Finding, rope: VariantRow) -> Finding:
    """A difference of ropes whose price the replay knows: that makes it a fault elsewhere, and says here who is right."""
    at = rope.score.steps[rope.step]
    after = at.token_top1 if at.target_top1 is None else at.target_top1
    before = after - rope.gain
    better = significant(after, before, at.rows)
    said = f"{found.summary} With SGLang's the replay goes from {before:.1%} to {after:.1%}"
    tail = ": training turned as SGLang does." if better else f" at step {rope.step + 1}."
    remedy = (
        "Nothing, as long as SGLang serves it; drop the field so that no other engine reads it." if better else ""
    )
    return replace(found, severity=NOTE, summary=said + tail, remedy=remedy or found.remedy)


def _of_the_weights(subject: Subject, replayer: Replayer) -> Iterator[Finding]:
    """Weights that are no numbers, a head that a server replaces, a map that is none, an fc that it leaves out.

    What the target's embedding in the place of the draft's own costs, a replay tells by its numbers.
    """
    shape = subject.draft_weights.shape("fc.weight")
    if shape is not None and len(shape) == 2:
        yield from skipped_fc(subject, shape)
    yield from tied_head(subject)
    reports = [_looked_over(report, subject, replayer) for report in tensor_reports(subject, hash_weights=False)]
    for found in weight_findings(subject, tuple(reports)):
        of = found.evidence.get("tensor")
        told = found.id in _WEIGHTS or "zero" in found.evidence
        if found.severity == FAULT and ((told and of != EMBEDDING) or of == HEAD):
            yield found
    vocabulary = vocabulary_map(subject)
    yield from (f for f in vocabulary_findings(subject, vocabulary) if f.id in _MAPS)
    yield from head_row_findings(subject, vocabulary)


def _looked_over(report: TensorReport, subject: Subject, replayer: Replayer) -> TensorReport:
    """The report of a sample, corrected where the replay, which reads every value, has one that is no number."""
    held = [replayer.model.weights[part] for part in split_fused(report.name) if part in replayer.model.weights]
    if report.state == NOT_FINITE or all(bool(torch.isfinite(tensor).all()) for tensor in held):
        return report
    values = subject.draft_weights.checkpoint.floats(report.stored_as)
    bad = np.argwhere(~np.isfinite(values))
    if not len(bad):  # it came from elsewhere, as a head that the target shares
        return report
    return replace(report, state=NOT_FINITE, broken=len(bad), first_broken=tuple(int(k) for k in bad[0]))
