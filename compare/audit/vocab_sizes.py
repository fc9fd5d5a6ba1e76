"""A ``vocab_size`` in the draft's config that is not the target's, and what the draft's own tensors say of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drafttrace.compare.audit.subject import Subject, fault, note
from drafttrace.compare.draft_weights import matrix_shape
from drafttrace.compare.result import Finding

_KEY = "vocab_size"
_PADDED, _LARGE = 1024, 8192
"""Vocabularies of so many tokens may differ by so much padding."""


def vocabulary_size(subject: Subject) -> Iterator[Finding]:
    """That the two sizes differ, with the line to write where the draft's tensors leave no choice."""
    said, right = subject.draft.vocab_size, subject.target.vocab_size
    if said == right:
        return
    stored = _stored(subject)
    padded = abs(said - right) <= _PADDED and min(said, right) > _LARGE
    by = f", and the draft's {stored[0]} has {stored[1]} entries" if stored is not None else ""
    remedy = f'"{_KEY}": {right}, if both use the same tokenizer; draft_vocab_size is the pruned one.'
    if stored is not None and stored[1] == right:
        remedy = f'"{_KEY}": {right}'
    elif stored is not None and not padded:
        remedy = "Give the target that the draft was trained on, whose tokenizer has as many tokens."
    build = note if padded else fault
    yield build(
        "vocab-map-range",
        0.5 if padded else 0.9,
        f"vocab_size is {said} in the draft's config and {right} in the target's{by}.",
        remedy,
        {"draft": said, "target": right, **({stored[0]: stored[1]} if stored is not None else {})},
    )


def vocabulary_changes(subject: Subject) -> dict[str, Any]:
    """The target's size, where the draft's tensors are of it and its config says another one."""
    right, stored = subject.target.vocab_size, _stored(subject)
    wrong = subject.draft.vocab_size != right and stored is not None and stored[1] == right
    return {_KEY: right} if wrong else {}


def _stored(subject: Subject) -> tuple[str, int] | None:
    """What of the draft has an entry for each token of the whole vocabulary, and how many."""
    weights = subject.draft_weights
    mask, own = weights.shape("t2d"), matrix_shape(weights, "embed_tokens.weight")
    if mask is not None and len(mask) == 1 and mask[0]:
        return "t2d", mask[0]
    return ("embed_tokens", own[0]) if own is not None and own[0] else None
