"""F, G, K: rows at the wrong place: moved, missing, or only a span of them that deviates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drafttrace.compare.facts import Facts, RowFacts
from drafttrace.compare.findings.base import finding, quoted
from drafttrace.compare.result import NOTE, Finding


def find(facts: Facts) -> Iterator[Finding]:
    """Findings about single rows and about the pairing of rows."""
    yield from _mask_shift(facts)
    if facts.alignment is None:
        return
    yield from _token_shift(facts)
    yield from _prefix_gap(facts)
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
    """The loss mask starts (and ends) a token or two off the answers."""
    for mask in facts.masks:
        side = mask.side
        off = "one token" if abs(mask.shift) == 1 else f"{abs(mask.shift)} tokens"
        starts, wanted = (f"token {at}{_quoted(facts, side, at)}" for at in (mask.starts, mask.wanted))
        many = f" ({mask.agreeing} of {mask.answers} answers)" if mask.answers > 1 else ""
        yield finding(
            "mask-shift",
            f"The {side}'s loss mask stands {off} {'late' if mask.shift > 0 else 'early'} by {mask.by}: it starts at "
            f"{starts} where the answer starts at {wanted}{many}.",
            confidence=0.9 if mask.both_ends else 0.6,
            evidence={
                "shift": mask.shift,
                "by": mask.by,
                "mask_starts": mask.starts,
                "answer_starts": mask.wanted,
                "answers": mask.answers,
                "agreeing": mask.agreeing,
                "both_ends": mask.both_ends,
            },
            remedy=(
                "On disk the mask belongs to the tokens as they stand, shifted by nothing; a shift for the predicted token "
                "is the trainer's own. Make the mask again, or move it back by that many tokens."
            ),
        )


def _quoted(facts: Facts, side: str, index: int) -> str:
    """`` (“Hello”)`` where the token can be shown."""
    capture = facts.left if side == "left" else facts.reference
    if facts.decode is None or capture is None or not 0 <= index < len(capture.tokens) or capture.tokens[index] < 0:
        return ""
    return f" ({quoted(facts.decode(int(capture.tokens[index])))})"


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


def _span(facts: Facts) -> Iterator[Finding]:
    """Outliers on one contiguous run of placeholder tokens."""
    for rows in facts.rows:
        span = placeholder_span(facts, rows)
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


def placeholder_span(facts: Facts, rows: RowFacts) -> tuple[int, int, int] | None:
    """First and last position and token of a run of equal tokens that holds all outliers of a slot; None without one."""
    outliers = sorted(rows.outliers)
    if (
        len(outliers) < 4
        or outliers[-1] - outliers[0] + 1 != len(outliers)
        or rows.zero_left
        or rows.slot in facts.copies.slots
    ):
        return None
    tokens = {int(facts.left.tokens[p]) for p in outliers if p < len(facts.left.tokens)}
    everywhere = int(np.isin(facts.left.tokens, list(tokens)).sum())
    return (outliers[0], outliers[-1], tokens.pop()) if len(tokens) == 1 and everywhere == len(outliers) else None
