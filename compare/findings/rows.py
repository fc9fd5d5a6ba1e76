"""F, G, I, K: rows at the wrong place - moved, copied, constant, or only a span of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drafttrace.compare.facts import Facts, RowFacts
from drafttrace.compare.findings.base import finding, name_slots
from drafttrace.compare.result import NOTE, Finding


def find(facts: Facts) -> Iterator[Finding]:
    """Findings about single rows and about the pairing of rows."""
    if facts.alignment is None:
        return
    yield from _token_shift(facts)
    yield from _mask_shift(facts)
    yield from _prefix_gap(facts)
    yield from _constant(facts)
    yield from _stale(facts)
    yield from _span(facts)


def _token_shift(facts: Facts) -> Iterator[Finding]:
    alignment = facts.alignment
    assert alignment is not None
    total = alignment.shift
    if not total:
        return
    words = "later" if total > 0 else "earlier"
    step = "one token" if abs(total) == 1 else f"{abs(total)} tokens"
    yield finding(
        "token-shift",
        f"The reference's rows stand {step} {words} than its token ids say: the state of token p is in the row of "
        f"token p{total:+d}.",
        slots=range(len(facts.slots)),
        confidence=0.97,
        evidence={"token_shift": total, "id_offset": alignment.offset},
        remedy=(
            "Move the dump's ids (or its states) back by that many rows: on disk every row must hold the state computed "
            "up to and including its own token; the shift by one belongs in the trainer."
        ),
    )


def _mask_shift(facts: Facts) -> Iterator[Finding]:
    """The loss mask starts (and ends) one token off the prompt's end."""
    reference, left = facts.reference, facts.left
    if reference is None or reference.mask is None or reference.prompt_length is None:
        return
    mask = np.asarray(reference.mask) > 0
    if not mask.any() or mask.all():
        return
    start, wanted = int(np.argmax(mask)), reference.prompt_length + reference.mask_offset
    ends = np.flatnonzero(mask[:-1] & ~mask[1:])
    off = start - wanted
    if off == 0 or abs(off) > 2 or mask[start : min(len(mask), start + 2)].sum() < 2:
        return
    yield finding(
        "mask-shift",
        f"The reference's loss mask starts {abs(off)} token{'s' if abs(off) > 1 else ''} "
        f"{'after' if off > 0 else 'before'} "
        "the first token of the answer.",
        confidence=0.7,
        evidence={
            "mask_starts": start,
            "answer_starts": wanted,
            "ends": [int(e) for e in ends[:8]],
            "left": left.path,
        },
        remedy="Shift the mask together with the ids: row t predicts token t+2, so it is weighted by that token's mask.",
    )


def _prefix_gap(facts: Facts) -> Iterator[Finding]:
    assert facts.alignment is not None
    gap = facts.alignment.prefix_gap
    if not gap:
        return
    yield finding(
        "prefix-gap",
        f"The first {gap} prompt tokens have no rows on the left: they came from the prefix cache. That is no fault; they "
        "were not compared.",
        confidence=0.99,
        evidence={"tokens": gap},
        remedy="To compare them too, record with a fresh prefix (drafttrace record gives every request its own extra_key).",
        severity=NOTE,
    )


def _constant(facts: Facts) -> Iterator[Finding]:
    bad = [s for s in facts.slots if s.rows >= 4 and max(s.duplicate_rows, s.constant_rows) > s.rows // 2]
    if not bad:
        return
    yield finding(
        "constant-rows",
        f"{name_slots([s.slot for s in bad]).capitalize()} hold the same row, or one value, for different tokens.",
        slots=[s.slot for s in bad],
        confidence=0.95,
        evidence={
            str(s.slot): {"duplicates": s.duplicate_rows, "flat": s.constant_rows, "rows": s.rows} for s in bad
        },
        remedy="A buffer is read that nobody fills per token: look at what the capture copies from, and when.",
    )


def _stale(facts: Facts) -> Iterator[Finding]:
    found = [r for r in facts.rows if r.copies]
    if not found:
        return
    first = found[0]
    position = min(first.copies)
    source, number = first.copies[position]
    when = "the prompt" if number < 0 else f"round {number}"
    total = len({p for r in found for p in r.copies})
    yield finding(
        "stale-rows",
        f"{total} row{'s' if total > 1 else ''} of the left side (first: position {position}) "
        f"{'are copies' if total > 1 else 'is a copy'} of earlier rows (there: position {source}, {when}).",
        slots=[r.slot for r in found],
        confidence=0.97,
        evidence={str(r.slot): {str(p): list(c) for p, c in sorted(r.copies.items())[:20]} for r in found},
        remedy=(
            "A buffer was read before it was written for this pass: compare eager with graphs, and look for a copy that is "
            "skipped when a shape differs (EAGLEDraftExtendCudaGraphRunner skips hidden states of another width)."
        ),
    )


def _span(facts: Facts) -> Iterator[Finding]:
    """Outliers on one contiguous run of placeholder tokens."""
    for rows in facts.rows:
        span = _placeholder_span(facts, rows)
        if span is None:
            continue
        yield finding(
            "modality-span",
            f"Only positions {span[0]} to {span[1]} deviate, and they all hold the same token: an image or audio span.",
            slots=[r.slot for r in facts.rows if r.outliers],
            confidence=0.8,
            evidence={"first": span[0], "last": span[1], "token_id": span[2]},
            remedy="Check that both sides fed the same picture through the same processor, and merged its embeddings.",
        )
        return


def _placeholder_span(facts: Facts, rows: RowFacts) -> tuple[int, int, int] | None:
    outliers = sorted(rows.outliers)
    if len(outliers) < 4 or outliers[-1] - outliers[0] + 1 != len(outliers) or rows.zero_left or rows.copies:
        return None
    tokens = {int(facts.left.tokens[p]) for p in outliers if p < len(facts.left.tokens)}
    everywhere = int(np.isin(facts.left.tokens, list(tokens)).sum())
    return (outliers[0], outliers[-1], tokens.pop()) if len(tokens) == 1 and everywhere == len(outliers) else None
