"""H, I: rows that hold another row's bytes - constant, stale, another request's, a padding row's, another rank's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from drafttrace.compare.copies import rank_count
from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finding, name_slots, quoted
from drafttrace.compare.padding import Leak
from drafttrace.compare.repeats import LAST, Borrowed, Repeat, RowAt
from drafttrace.compare.result import NOTE, Finding
from drafttrace.compare.rowblocks import Blocks, RowMap, fit_repeated
from drafttrace.tracer.capture import Capture

_STALE = (
    "A buffer was read before it was written for this pass: compare eager with graphs (--disable-cuda-graph), and look for "
    "a copy that is skipped when a shape differs (EAGLEDraftExtendCudaGraphRunner skips hidden states of another width)."
)
_BY_RANK = (
    "Look at what gathers or scatters rows between the ranks (attention data parallelism, sequence parallelism, an "
    "all-gather): its order is not the order of the tokens. --tp-size 1 without --enable-dp-attention confirms it."
)
_BY_RANK_DUMP = (
    "The dump was put together from several ranks' rows in a wrong way: look at what its writer gathers, and whether every "
    "rank writes its own part once."
)
_PADDING = (
    "A padding row was read in the place of a live one: look at what indexes the padded batch (last-token gathers, accept "
    "indices that count padding rows). --disable-cuda-graph, or --disable-cuda-graph-padding, confirms it."
)
_OTHER_REQUEST = (
    "Rows of a batch went to the wrong request: look at what gathers the accepted rows per request (strides, accept "
    "lengths, requests that left the batch). --max-running-requests 1 confirms it."
)

_MOST_SHIFT = 2


def find(facts: Facts) -> Iterator[Finding]:
    """Findings about copied rows, inside the left side, inside the reference, and between requests."""
    constant = _constant_slots(facts)
    if constant:
        yield _constant(facts, constant)
    mapped = [m for m in facts.copies.maps if m.slot not in constant]
    shifts = {m.slot: _one_offset(m) for m in mapped if not facts.moved}
    shifted = _and_alike([m for m in mapped if shifts.get(m.slot)], mapped)
    # Blocks of two rows in another order would explain two tokens' offset, too.
    unshifted = [m for m in mapped if m not in shifted]
    blocks = _and_alike([m for m in unshifted if m.blocks is not None], unshifted)
    if shifted:
        yield _shifted(shifted, shifts[shifted[0].slot])
    placed = {m.slot for m in (*blocks, *shifted)}
    leaks = [leak for leak in facts.copies.leaks if leak.slot not in constant]
    if leaks:
        yield _leaked(leaks)
    leaked = {(leak.slot, row.row) for leak in leaks for row in leak.rows}
    rest = [r for r in facts.copies.left if r.slot not in constant | placed]
    # Rows that were all read from the padding are equal to one another, too.
    rest = [r for r in rest if not all((r.slot, row.row) in leaked for row in r.rows)]
    by_rank = _repeated_by_rank(facts.left, rest, rank_count(facts.left)) if rest else None
    if blocks or by_rank is not None:
        yield _by_rank(facts, blocks, by_rank, rest)
        rest = [] if by_rank is not None else rest
    padded = [r for r in rest if not leaks and _is_padding(facts, r)]
    if padded:
        yield _padding(facts, padded)
    stale = [r for r in rest if r not in padded]
    if stale:
        yield _stale(stale, "left", _odd_at(facts, stale))
    yield from _stale_reference(facts, constant)
    borrowed = [b for b in facts.copies.borrowed if b.slot not in constant]
    if borrowed:
        yield _borrowed(facts, borrowed)
    told = {r.slot for r in (*stale, *padded)} | {b.slot for b in borrowed} | constant | placed
    told |= {leak.slot for leak in leaks if leak.slot is not None}
    moved = [m for m in mapped if m.slot not in told]
    if moved and not facts.moved:
        yield _moved(moved)
    if not padded and not leaks:
        yield from _padding_by_batch(facts, told | {m.slot for m in mapped})


def _called(slots: Sequence[int]) -> str:
    """``slot 1 and the last state``."""
    numbers = sorted({s for s in slots if s != LAST})
    names = [name_slots(numbers)] if numbers else []
    return " and ".join([*names, "the last state"] if LAST in slots else names)


def _numbers(slots: Sequence[int]) -> list[int]:
    return sorted({s for s in slots if s >= 0})


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
        f"{_called(sorted(slots)).capitalize()}{where} {'holds' if one else 'hold'} the same row, or one value, for "
        "different tokens.",
        slots=_numbers(sorted(slots)),
        confidence=0.95,
        evidence=counts | {"sides": sorted(sides)},
        remedy="A buffer is read that nobody fills per token: look at what the capture copies from, and when.",
    )


def _repeated_by_rank(capture: Capture, repeats: Sequence[Repeat], ranks: int) -> Blocks | None:
    """Whether the equal rows of one pass stand a rank's block apart, or side by side once per rank."""
    frames: dict[int, list[tuple[int, int]]] = {}
    for repeat in repeats:
        for first, copy in ((repeat.rows[0], row) for row in repeat.rows[1:]):
            if first.frame == copy.frame:
                frames.setdefault(first.frame, []).append((copy.place, first.place))
    if not frames:
        return None
    frame, pairs = max(frames.items(), key=lambda one: len(one[1]))
    count = int((capture.table.frame == frame).sum())
    if len(set(pairs)) < max(3, count // 4):
        return None
    place, source = np.array(sorted(set(pairs)), np.int64).T
    return fit_repeated(place, source, count, ranks)


def _by_rank(
    facts: Facts,
    maps: Sequence[RowMap],
    repeated: Blocks | None,
    repeats: Sequence[Repeat],
    side: str = "left",
    more: Sequence[int] = (),
) -> Finding:
    blocks = maps[0].blocks if maps else repeated
    assert blocks is not None
    slots = [*([m.slot for m in maps] or [r.slot for r in repeats]), *more]
    known = rank_count(facts.left) if side == "left" else 0
    tail = f"; the server has {known} ranks" if known else ""
    where = "" if side == "left" else " of the reference"
    return finding(
        "rows-by-rank",
        f"The rows of {_called(slots)}{where} are mixed up by rank: {blocks.kind} ({blocks.ranks} ranks explain "
        f"{100 * blocks.share:.0f} % of the rows{tail}).",
        slots=_numbers(slots),
        confidence=0.95 if blocks.ranks == known else 0.85,
        evidence={
            "side": side,
            "ranks": blocks.ranks,
            "server_ranks": known or None,
            "explained": blocks.share,
            "position_holds_state_of": {str(m.slot): [list(p) for p in m.pairs[:16]] for m in maps},
        },
        remedy=_BY_RANK if side == "left" else _BY_RANK_DUMP,
    )


def _leaked(leaks: Sequence[Leak]) -> Finding:
    """Rows whose bits are those of a padding row that stood beside them: nothing is left to infer."""
    rows = [row for leak in leaks for row in leak.rows]
    first = min(rows, key=lambda row: (row.position, row.frame))
    numbers = [leak.slot for leak in leaks if leak.slot is not None]
    names = [leak.tap for leak in leaks if leak.slot is None]
    where = " and ".join(
        [*([_called(numbers)] if numbers else []), *([f"the draft's {', '.join(names)}"] if names else [])]
    )
    most = max(leak.count for leak in leaks)
    return finding(
        "padding-leak",
        f"{most} row{'s' if most > 1 else ''} of {where} (first: position {first.position}, {_when(first)}) "
        f"{'are' if most > 1 else 'is'}, bit for bit, the padding row of {'their' if most > 1 else 'its'} own pass.",
        slots=_numbers(numbers),
        confidence=0.99,
        evidence={
            leak.tap: {
                "equal_to_padding": leak.count,
                "rows_of_padded_passes": leak.of,
                "rows": [_where(row) for row in leak.rows[:20]],
            }
            for leak in leaks
        },
        remedy=_PADDING,
    )


def _is_padding(facts: Facts, repeat: Repeat) -> bool:
    """Equal rows that all come out of padded batches. A padding row is computed from the same nothing every time.

    Where a reference says that the first of them is right, the others are copies of it instead.
    """
    if len(repeat.rows) < 2 or not all(row.padded for row in repeat.rows):
        return False
    rows = next((r for r in facts.rows if r.slot == repeat.slot), None)
    if rows is not None and repeat.rows[0].row in rows.good_rows:
        return False
    judged = rows is not None and repeat.rows[0].row in rows.odd_rows
    return judged or len({row.frame for row in repeat.rows}) > 2


def _padding(facts: Facts, repeats: Sequence[Repeat]) -> Finding:
    rows = [row for repeat in repeats for row in repeat.rows]
    first = min(rows, key=lambda r: r.position)
    return finding(
        "padding-leak",
        f"{len({r.position for r in rows})} rows (first: position {first.position}) hold one and the same state for "
        "different tokens, all of them in batches with padding: live rows hold a padding row.",
        slots=_numbers([r.slot for r in repeats]),
        confidence=0.85 if facts.reference is not None else 0.7,
        evidence={str(r.slot): [_where(row) for row in r.rows[:20]] for r in repeats},
        remedy=_PADDING,
    )


def _padding_by_batch(facts: Facts, told: set[int]) -> Iterator[Finding]:
    """Odd rows in every padded batch they could be in, and in none without padding."""
    padded = facts.left.padded
    if padded is None or not padded.any():
        return
    for rows in facts.rows:
        odd, good = np.array(rows.odd_rows, np.int64), rows.good_rows
        if rows.slot in told or len(odd) < 2 or not padded[odd].all() or (~padded[good]).sum() < 5:
            continue
        yield finding(
            "padding-leak",
            f"All {len(odd)} odd rows of {_called([rows.slot])} were computed in batches with padding, and no row of a "
            "batch without it is odd: live rows may hold padding rows.",
            slots=_numbers([rows.slot]),
            confidence=0.6,
            evidence={
                "positions": list(rows.outliers[:20]),
                "odd_in_padded_batches": len(odd),
                "good_in_padded_batches": int(padded[good].sum()),
                "good_without_padding": int((~padded[good]).sum()),
            },
            remedy=_PADDING,
        )
        return


def _odd_at(facts: Facts, repeats: Sequence[Repeat]) -> list[int]:
    """Slots that are odd nowhere but where these copies stand: tokens may share a state, so bits do not tell there."""
    copied = {row.position for repeat in repeats for row in repeat.copies}
    return [rows.slot for rows in facts.rows if rows.outliers and set(rows.outliers) <= copied]


def _stale(repeats: Sequence[Repeat], side: str, more: Sequence[int] = ()) -> Finding:
    copies = [(repeat, row) for repeat in repeats for row in repeat.copies]
    repeat, row = min(copies, key=lambda one: (one[1].position, one[0].slot))
    source = repeat.rows[0]
    total = len({row.position for _, row in copies})
    return finding(
        "stale-rows",
        f"{total} row{'s' if total > 1 else ''} of the {side} side (first: position {row.position}) "
        f"{'are copies' if total > 1 else 'is a copy'} of earlier rows (there: position {source.position}, "
        f"{_when(source)}).",
        slots=_numbers([*(r.slot for r in repeats), *more]),
        confidence=0.97,
        evidence={
            str(r.slot): {str(c.position): [r.rows[0].position, r.rows[0].round] for c in r.copies[:20]}
            for r in repeats
        },
        remedy=_STALE if side == "left" else _STALE_DUMP,
    )


_STALE_DUMP = (
    "The writer of the dump reused a buffer, or wrote a row before it was computed: clone the states where they are "
    "captured, and make the dump again."
)


def _stale_reference(facts: Facts, constant: set[int]) -> Iterator[Finding]:
    repeats = [r for r in facts.copies.reference if r.slot not in constant]
    if not repeats or facts.reference is None:
        return
    blocks = _repeated_by_rank(facts.reference, repeats, 0)
    if blocks is None:
        yield _stale(repeats, "reference", _odd_at(facts, repeats))
        return
    # An embedding repeats wherever its token does, so that its bits do not tell; the other slots speak for it.
    embeddings = {s.index for s in (*facts.left_streams, *facts.reference_streams) if s.boundary == 0}
    wrong = [s.slot for s in facts.slots if s.slot in embeddings and s.verdict == "mismatch"]
    yield _by_rank(facts, (), blocks, repeats, "reference", wrong)


def _when(row: RowAt) -> str:
    return "the prompt" if row.round < 0 else f"round {row.round}"


def _where(row: RowAt) -> dict[str, int]:
    return {"position": row.position, "round": row.round, "frame": row.frame, "token_id": row.token_id}


def _borrowed(facts: Facts, borrowed: Sequence[Borrowed]) -> Finding:
    """Rows that another request has too. Where the reference says that ours are right, the other trace has the copy."""
    good = {rows.slot: rows.good_rows for rows in facts.rows}
    ours = [b for b in borrowed if b.slot not in good or b.row.row not in good[b.slot]]
    told = ours or list(borrowed)
    first = min(told, key=lambda b: (b.row.position, b.slot))
    total = len({b.row.position for b in told})
    rows = "row" if total == 1 else "rows"
    same = "bit for bit" if first.rel_l2 == 0 else f"to a relative L2 of {first.rel_l2:.2g}"
    there = f"{quoted(first.path, 120)} (there: position {first.theirs.position}, {_when(first.theirs)})"
    if ours:
        text = (
            f"{total} {rows} of {_called([b.slot for b in told])} (first: position {first.row.position}) "
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
        slots=_numbers([b.slot for b in told]),
        confidence=0.97 if first.rel_l2 == 0 else 0.85,
        evidence={
            "rows": [
                {
                    "slot": b.slot,
                    **_where(b.row),
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


def _and_alike(certain: Sequence[RowMap], every: Sequence[RowMap]) -> list[RowMap]:
    """These maps, and those that mostly agree with the first: where tokens share a state, a slot's map is ambiguous."""
    if not certain:
        return []
    known = set(certain[0].pairs)
    alike = [m for m in every if m not in certain and sum(p in known for p in m.pairs) >= 0.5 * len(m.pairs)]
    return [*certain, *alike]


def _one_offset(rows: RowMap) -> int:
    """The d of at most two tokens for which nearly all of the rows hold the state of position p + d; 0 without one."""
    offsets = [source - position for position, source in rows.pairs]
    d = max(set(offsets), key=offsets.count)
    return d if abs(d) <= _MOST_SHIFT and offsets.count(d) >= 0.8 * rows.looked_at else 0


def _shifted(maps: Sequence[RowMap], d: int) -> Finding:
    when = "before" if d < 0 else "after"
    step = "one token" if abs(d) == 1 else f"{abs(d)} tokens"
    slots = [m.slot for m in maps]
    return finding(
        "token-shift",
        f"The server's rows of {_called(slots)} hold the state of {step} {when} their own: position p holds what belongs "
        f"to position p{d:+d}.",
        slots=_numbers(slots),
        confidence=0.95,
        evidence={
            str(m.slot): {"rel_l2": m.rel_l2, "position_holds_state_of": [list(p) for p in m.pairs[:20]]}
            for m in maps
        },
        remedy="Look at what the capture point indexes its rows by: they are not those of the tokens that the pass ran on.",
    )


def _moved(maps: Sequence[RowMap]) -> Finding:
    """Rows that are the reference's state of another position, without a pattern that ranks leave."""
    first = maps[0]
    position, source = first.pairs[0]
    return finding(
        "stale-rows",
        f"{len(first.pairs)} of {first.looked_at} deviating rows of {_called([m.slot for m in maps])} are the state of "
        f"another position (first: position {position} holds the state of position {source}).",
        slots=_numbers([m.slot for m in maps]),
        confidence=0.8,
        evidence={
            str(m.slot): {"rel_l2": m.rel_l2, "position_holds_state_of": [list(p) for p in m.pairs[:20]]}
            for m in maps
        },
        remedy=_STALE,
    )
