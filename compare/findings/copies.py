"""H, I: rows that hold another row's bytes - constant, stale, another request's, a padding row's, another rank's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from drafttrace.compare.copies import rank_count
from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding, quoted
from drafttrace.compare.findings.misplaced_rows import (
    and_alike,
    mixed_by_rank,
    one_offset,
    repeated_by_rank,
    shifts_of,
)
from drafttrace.compare.findings.padded_rows import is_padding, leaked_rows, padded_batches, padding_rows
from drafttrace.compare.findings.row_words import called, numbers, pass_of, row_place
from drafttrace.compare.findings.rows import misread_nan
from drafttrace.compare.findings.stale_rows import moved_rows, stale_rows
from drafttrace.compare.repeats import Borrowed, Repeat
from drafttrace.compare.result import NOTE, Finding
from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="cross-request",
        kind="batching",
        rank=230,
        listed=20,
        what="Rows belong to another request.",
        signature="A row that differs equals a row of another request's trace.",
        remedy="Compare at batch size 1; look at how the batch's rows are indexed (by stride and accept count).",
        cases=("sglang#26163",),
    ),
    Entry(
        id="constant-rows",
        kind="batching",
        rank=190,
        listed=50,
        what="The same row stands everywhere.",
        signature="Rows of different tokens are equal bit for bit.",
        remedy="A host copy during graph replay shows only the last tensor: read a device buffer after the replay.",
    ),
)

_OTHER_REQUEST = (
    "Rows of a batch went to the wrong request: look at what gathers the accepted rows per request (strides, accept "
    "lengths, requests that left the batch). --max-running-requests 1 confirms it."
)


@finder(turn=40, unpaired=True)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings about copied rows, inside the left side, inside the reference, and between requests."""
    constant = _constant_slots(facts)
    if constant:
        yield _constant(facts, constant)
    mapped = [m for m in facts.copies.maps if m.slot not in constant]
    shifts = {m.slot: one_offset(m) for m in mapped if not facts.moved}
    shifted = and_alike([m for m in mapped if shifts.get(m.slot)], mapped)
    # Blocks of two rows in another order would explain two tokens' offset, too.
    unshifted = [m for m in mapped if m not in shifted]
    blocks = and_alike([m for m in unshifted if m.blocks is not None], unshifted)
    yield from shifts_of(shifted, shifts, facts)
    placed = {m.slot for m in (*blocks, *shifted)}
    leaks = [leak for leak in facts.copies.leaks if leak.slot not in constant]
    if leaks:
        yield leaked_rows(leaks)
    leaked = {(leak.slot, row.row) for leak in leaks for row in leak.rows}
    broken = misread_nan(facts, "left")
    rest = [r for r in facts.copies.left if r.slot not in constant | placed and not _of_one_value(facts, r, broken)]
    # Rows that were all read from the padding are equal to one another, too.
    rest = [r for r in rest if not all((r.slot, row.row) in leaked for row in r.rows)]
    by_rank = repeated_by_rank(facts.left, rest, rank_count(facts.left)) if rest else None
    if blocks or by_rank is not None:
        yield mixed_by_rank(facts, blocks, by_rank, rest)
        rest = [] if by_rank is not None else rest
    padded = [r for r in rest if not leaks and is_padding(facts, r)]
    if padded:
        yield padding_rows(facts, padded)
    stale = [r for r in rest if r not in padded]
    if stale:
        yield stale_rows(stale, "left", facts)
    yield from _stale_reference(facts, constant)
    borrowed = [b for b in facts.copies.borrowed if b.slot not in constant]
    if borrowed:
        yield _borrowed(facts, borrowed)
    told = {r.slot for r in (*stale, *padded)} | {b.slot for b in borrowed} | constant | placed
    told |= {leak.slot for leak in leaks if leak.slot is not None}
    moved = [m for m in mapped if m.slot not in told]
    if moved and not facts.moved:
        yield moved_rows(moved, facts)
    if not padded and not leaks:
        yield from padded_batches(facts, told | {m.slot for m in mapped})


def _of_one_value(facts: Facts, repeat: Repeat, broken: Mapping[int, frozenset[int]]) -> bool:
    """Whether equal rows hold one value in all channels, and are told as such. broken: by slot, rows that are NaN behind
    misread bytes."""
    flat = {(s.slot, row.position) for s in facts.singles for row in s.rows if row.kind == "constant"}
    flat |= {(slot, position) for slot, positions in broken.items() for position in positions}
    return all((repeat.slot, row.position) in flat for row in repeat.rows)


def _constant_slots(facts: Facts) -> set[int]:
    """Slots in which one row stands for most tokens, on either side."""
    flat = {s.slot for s in facts.slots if s.rows >= 4 and max(s.duplicate_rows, s.constant_rows) > s.rows // 2}
    return flat | {
        r.slot for r in (*facts.copies.left, *facts.copies.reference) if r.of >= 4 and r.count > r.of // 2
    }


def _constant(facts: Facts, slots: set[int]) -> Finding:
    sides = {
        side
        for side, repeats in (("left", facts.copies.left), ("reference", facts.copies.reference))
        for r in repeats
        if r.slot in slots and r.count > r.of // 2
    }
    counts = {
        str(s.slot): {"duplicates": s.duplicate_rows, "flat": s.constant_rows, "rows": s.rows}
        for s in facts.slots
        if s.slot in slots
    }
    where = " of the reference" if sides == {"reference"} else ""
    one = len(slots) == 1
    return finding(
        "constant-rows",
        f"{called(sorted(slots)).capitalize()}{where} {'holds' if one else 'hold'} the same row, or one value, for "
        "different tokens.",
        slots=numbers(sorted(slots)),
        confidence=0.95,
        evidence=counts | {"sides": sorted(sides)},
        remedy="A buffer is read that nobody fills per token: look at what the capture copies from, and when.",
    )


def _stale_reference(facts: Facts, constant: set[int]) -> Iterator[Finding]:
    broken = misread_nan(facts, "reference")
    repeats = [r for r in facts.copies.reference if r.slot not in constant and not _of_one_value(facts, r, broken)]
    if not repeats or facts.reference is None:
        return
    blocks = repeated_by_rank(facts.reference, repeats, 0)
    if blocks is None:
        yield stale_rows(repeats, "reference", facts)
        return
    # An embedding repeats wherever its token does, so that its bits do not tell; the other slots speak for it.
    embeddings = {s.index for s in (*facts.left_streams, *facts.reference_streams) if s.boundary == 0}
    wrong = [s.slot for s in facts.slots if s.slot in embeddings and s.verdict == "mismatch"]
    yield mixed_by_rank(facts, (), blocks, repeats, "reference", wrong)


def _borrowed(facts: Facts, borrowed: Sequence[Borrowed]) -> Finding:
    """Rows that another request has too. Where the reference says that ours are right, the other trace has the copy."""
    good = {rows.slot: rows.good_rows for rows in facts.rows}
    ours = [b for b in borrowed if b.slot not in good or b.row.row not in good[b.slot]]
    told = ours or list(borrowed)
    first = min(told, key=lambda b: (b.row.position, b.slot))
    total = len({b.row.position for b in told})
    rows = "row" if total == 1 else "rows"
    same = "bit for bit" if first.rel_l2 == 0 else f"to a relative L2 of {first.rel_l2:.2g}"
    there = f"{quoted(first.path, 120)} (there: position {first.theirs.position}, {pass_of(first.theirs)})"
    if ours:
        text = (
            f"{total} {rows} of {called([b.slot for b in told])} (first: position {first.row.position}) "
            f"{'belong' if total > 1 else 'belongs'} to another request: equal to {'rows' if total > 1 else 'a row'} of "
            f"{there}, {same}."
        )
    else:
        text = (
            f"{total} {rows} of another request's trace {there} {'hold' if total > 1 else 'holds'} this request's state of "
            f"position {first.row.position}."
        )
    return finding(
        "cross-request",
        text,
        slots=numbers([b.slot for b in told]),
        confidence=0.97 if first.rel_l2 == 0 else 0.85,
        evidence={
            "rows": [
                {
                    "slot": b.slot,
                    **row_place(b.row),
                    "trace": b.path,
                    "their_position": b.theirs.position,
                    "rel_l2": b.rel_l2,
                }
                for b in told[:20]
            ]
        },
        remedy=_OTHER_REQUEST,
        severity="fault" if ours else NOTE,
    )
