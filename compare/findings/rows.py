"""F, G, J, K: rows at the wrong place or with nothing in them: moved, missing, zero, not finite, a span that deviates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from drafttrace.compare.facts import Facts, RowFacts, StreamFacts
from drafttrace.compare.findings.base import finder, finding, name_slots, quoted
from drafttrace.compare.hypotheses import restored
from drafttrace.compare.measured import EMBED, LAST
from drafttrace.compare.result import NOTE, Finding, SlotResult
from drafttrace.compare.vocabulary import Entry, register

_LOOKED_AT = 512  # rows at once

register(
    Entry(
        id="token-shift",
        kind="token",
        rank=60,
        listed=10,
        what="States are paired with the tokens of another position.",
        signature="Rows agree when the reference is moved by -2 to +2.",
        remedy="Shift ids and states together in the trainer's loader.",
        cases=("SpecForge#448", "SpecForge#473"),
    ),
    Entry(
        id="mask-shift",
        kind="token",
        rank=420,
        listed=20,
        what="The loss mask is off by one against the tokens.",
        signature="The mask's edges against the answer's first and last token.",
        remedy="Row t predicts token t+2: shift the mask with the ids.",
        cases=("SpecForge#885",),
    ),
    Entry(
        id="prefix-gap",
        kind="cache",
        rank=480,
        listed=10,
        what="The first rows are missing because the prefix cache supplied them. Nothing is wrong with the model.",
        signature="The left side starts at a position above 0.",
        remedy="drafttrace record gives every request its own part of the cache; use it to compare all rows.",
        cases=("vllm#44485",),
    ),
    Entry(
        id="modality-span",
        kind="multimodal",
        rank=300,
        listed=10,
        what="Only the rows of image (or audio) tokens differ.",
        signature="All rows that differ lie in such spans.",
        remedy="Feed the same picture through the same processor on both sides.",
        cases=("speculators#606",),
    ),
    Entry(
        id="nan-inf",
        kind="number-format",
        rank=180,
        listed=10,
        what="Rows hold NaN or infinity.",
        signature="Not every channel of the row is finite.",
        remedy="Look at the first position that is not finite: overflow in fp16, or a read of memory that nobody wrote.",
        cases=("EAGLE#69", "sglang#27883"),
    ),
    Entry(
        id="zero-rows",
        kind="batching",
        rank=290,
        listed=40,
        what="Rows are all zero.",
        signature="Every channel of the row is 0.",
        remedy="Look for a buffer that was allocated and never filled.",
    ),
)


@finder(turn=30)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings about single rows and about the pairing of rows."""
    yield from _mask_shift(facts)
    if facts.reference is not None:
        yield from _broken(facts)
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
        f"{'The first prompt token has' if gap == 1 else f'The first {gap} prompt tokens have'} no rows on the left: "
        f"{'it' if gap == 1 else 'they'} came from the prefix cache. That is no fault; {_not_compared(gap)}.",
        confidence=0.99,
        evidence={"tokens": gap},
        remedy="To compare them too, record with a fresh prefix (drafttrace record gives every request its own extra_key).",
        severity=NOTE,
    )


def _not_compared(count: int) -> str:
    return f"{'it was' if count == 1 else 'they were'} not compared"


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


def _broken(facts: Facts) -> Iterator[Finding]:
    misread = {f.index for f in (*facts.left_streams, *facts.reference_streams) if _is_bytes(f)}
    for name, text, remedy in (
        (
            "nan-inf",
            "not finite",
            "Find the first layer that overflows: record a layer sweep and look where NaN starts.",
        ),
        (
            "zero-rows",
            "zero on one side only",
            "A buffer was handed over before it was filled, or the rows were never computed: compare eager with graphs.",
        ),
    ):
        counts = {
            s.slot: _beyond_misread(name, s, facts) if s.slot in misread else _count(name, s, facts)
            for s in (*facts.slots, *facts.others)
        }
        bad = {slot: found for slot, found in counts.items() if sum(found)}
        if not bad:
            continue
        sides = [
            side for side, place in (("left", 0), ("reference", 1)) if any(found[place] for found in bad.values())
        ]
        yield finding(
            name,
            _rows_that_are(text, bad, sides),
            slots=tuple(slot for slot in bad if slot >= 0),
            confidence=0.99,
            evidence={
                "last" if slot == LAST else "embed" if slot == EMBED else str(slot): {
                    "left": found[0],
                    "reference": found[1],
                }
                for slot, found in bad.items()
            },
            remedy=remedy,
        )


def _rows_that_are(text: str, bad: Mapping[int, tuple[int, int]], sides: Sequence[str]) -> str:
    """``58 rows each in slot 2 and the last state are not finite (left).``: states with other numbers have their own."""
    counts = {slot: max(found) for slot, found in bad.items()}
    told = []
    for count in dict.fromkeys(counts.values()):
        here = [slot for slot in counts if counts[slot] == count]
        slots = [slot for slot in here if slot >= 0]
        beside = [name for slot, name in ((EMBED, "the embedding"), (LAST, "the last state")) if slot in here]
        where = " and ".join([*([name_slots(slots)] if slots else []), *beside])
        each = " each" if len(here) > 1 else ""
        told.append(f"{count} {'row' if count == 1 else 'rows'}{each} in {where}")
    one = len(told) == 1 and set(counts.values()) == {1} and len(counts) == 1
    return f"{', '.join(told)} {'is' if one else 'are'} {text} ({' and '.join(sides)})."


def _is_bytes(stream: StreamFacts) -> bool:
    return stream.explanation is not None and stream.explanation.fit.name == "bytes"


def _beyond_misread(name: str, slot: SlotResult, facts: Facts) -> tuple[int, int]:
    """As :func:`_count` for a slot whose bytes are misread: that makes single channels NaN, in many rows. Rows that hold no
    numbers all the same are something else."""
    if name != "nan-inf":
        return 0, 0
    left, reference = (len(misread_nan(facts, side).get(slot.slot, ())) for side in ("left", "reference"))
    return left, reference


def misread_nan(facts: Facts, side: str) -> Mapping[int, frozenset[int]]:
    """By slot of a side whose bytes are misread, the positions of the compared rows that are not finite once they are read
    aright, or that have no finite channel as they are; none where most rows are such."""
    streams, capture = (
        (facts.left_streams, facts.left) if side == "left" else (facts.reference_streams, facts.reference)
    )
    misread = {f.index: f.explanation.fit for f in streams if f.explanation is not None and _is_bytes(f)}
    alignment = facts.alignment
    found: dict[int, frozenset[int]] = {}
    if capture is None or alignment is None:
        return found
    index = alignment.left_rows if side == "left" else alignment.reference_rows
    for slot, fit in misread.items():
        if not 0 <= slot < len(capture.slots):
            continue
        rows, bad = capture.slots[slot].rows, np.zeros(len(index), np.bool_)
        inside = np.flatnonzero(index < len(rows))
        for start in range(0, len(inside), _LOOKED_AT):
            here = inside[start : start + _LOOKED_AT]
            values = rows.take(index[here])
            bad[here] = ~np.isfinite(values).any(1)
            if fit.fitted["stored_as"] == "fp16":  # every NaN of fp16 is a number, or NaN, in bf16
                bad[here] |= ~np.isfinite(restored(values.astype(np.float64), fit.fitted["read_as"])).all(1)
        if bad.any() and 2 * bad.sum() < len(bad):
            found[slot] = frozenset(int(p) for p in alignment.positions[bad])
    return found


def _count(name: str, slot: SlotResult, facts: Facts) -> tuple[int, int]:
    rows = next((r for r in (*facts.rows, *facts.other_rows) if r.slot == slot.slot), None)
    if rows is None:
        return 0, 0
    if name == "nan-inf":
        return len(rows.nan_left), len(rows.nan_reference)
    left, right = set(rows.zero_left), set(rows.zero_reference)
    return len(left - right), len(right - left)
