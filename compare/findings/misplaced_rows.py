"""F, H: rows that are the right states at the wrong places: a token or two off, or mixed up by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from drafttrace.compare.copies import rank_count
from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finding
from drafttrace.compare.findings.open_rows import OTHER_ROWS
from drafttrace.compare.findings.row_words import called, numbers
from drafttrace.compare.moved_sides import moved_side, unmoved
from drafttrace.compare.repeats import Repeat
from drafttrace.compare.result import Finding
from drafttrace.compare.rowblocks import Blocks, RowMap, fit_repeated
from drafttrace.compare.vocabulary import Entry, register
from drafttrace.tracer.capture import Capture

register(
    Entry(
        id="rows-by-rank",
        kind="ranks",
        rank=210,
        listed=30,
        what="Blocks of rows are permuted, or multiplied, by rank.",
        signature="Rows match the reference block by block in another order.",
        remedy="Look at what gathers the rows of the ranks.",
        cases=("sglang#20492",),
    ),
)

_BY_RANK = (
    "Look at what gathers or scatters rows between the ranks (attention data parallelism, sequence parallelism, an "
    "all-gather): its order is not the order of the tokens. --tp-size 1 without --enable-dp-attention confirms it."
)
_BY_RANK_DUMP = (
    "The dump was put together from several ranks' rows in a wrong way: look at what its writer gathers, and whether every "
    "rank writes its own part once."
)
_INDEX = (
    "Look at what the server's capture point indexes its rows by: they are not the tokens that the pass ran on."
)
_INDEX_DUMP = (
    "Look at what the writer of the dump indexes the rows of this slot by: they are not those of the dump's tokens; make "
    "the dump again."
)
_EITHER = "A layer sweep tells which side it is: drafttrace record --boundaries all."
_MOST_SHIFT = 2
_OTHERS = 512  # rows that evidence lists at most


def and_alike(certain: Sequence[RowMap], every: Sequence[RowMap]) -> list[RowMap]:
    """These maps, and those that mostly agree with the first: where tokens share a state, a slot's map is ambiguous."""
    if not certain:
        return []
    known = set(certain[0].pairs)
    alike = [m for m in every if m not in certain and sum(p in known for p in m.pairs) >= 0.5 * len(m.pairs)]
    return [*certain, *alike]


def one_offset(rows: RowMap) -> int:
    """The d of at most two tokens for which nearly all of the rows hold the state of position p + d; 0 without one."""
    offsets = [source - position for position, source in rows.pairs]
    d = max(set(offsets), key=offsets.count)
    return d if abs(d) <= _MOST_SHIFT and offsets.count(d) >= 0.8 * rows.looked_at else 0


def shifts_of(shifted: Sequence[RowMap], shifts: Mapping[int, int], facts: Facts) -> Iterator[Finding]:
    """One finding for every offset and side. shifts: the offset of a slot, where it is certain."""
    alignment, reference = facts.alignment, facts.reference
    if not shifted or alignment is None or reference is None:
        return
    grouped: dict[int, list[tuple[RowMap, str | None]]] = {}
    for rows in shifted:
        side = moved_side(rows, facts.left, reference, alignment)
        grouped.setdefault(shifts.get(rows.slot) or shifts[shifted[0].slot], []).append((rows, side))
    for d, members in grouped.items():
        known = {side for _, side in members if side is not None}
        # What is known of one slot goes for those that nobody knows of.
        only = known.pop() if len(known) == 1 else None
        for side in dict.fromkeys(side or only for _, side in members):
            maps = [rows for rows, own in members if (own or only) == side]
            rest = {m.slot: unmoved(m, d, side, facts.left, reference, alignment) for m in maps}
            yield _shifted_rows(maps, d, side, rest)


def _shifted_rows(maps: Sequence[RowMap], d: int, side: str | None, rest: Mapping[int, Sequence[int]]) -> Finding:
    """Rows whose states the reference has ``d`` tokens away. side: whose they are, None where no sweep tells. rest: by
    slot, the rows that are something else."""
    step = "one token" if abs(d) == 1 else f"{abs(d)} tokens"
    slots = [m.slot for m in maps]
    text = (
        f"The rows of {called(slots)} stand {step} apart on the two sides: the server's position p holds what the "
        f"reference has at position p{d:+d}, and no layer sweep tells which side is wrong."
    )
    if side is not None:
        own = d if side == "left" else -d
        text = (
            f"The {'server' if side == 'left' else 'reference'}'s rows of {called(slots)} hold the state of {step} "
            f"{'before' if own < 0 else 'after'} their own: position p holds what belongs to position p{own:+d}."
        )
    return finding(
        "token-shift",
        text,
        slots=numbers(slots),
        confidence=0.95 if side is not None else 0.8,
        evidence={
            "side": side,
            **{
                str(m.slot): {
                    "rel_l2": m.rel_l2,
                    "position_holds_state_of": [list(p) for p in m.pairs[:20]],
                    OTHER_ROWS: list(rest[m.slot])[:_OTHERS],
                }
                for m in maps
            },
        },
        remedy={"left": _INDEX, "reference": _INDEX_DUMP}.get(side or "", f"{_EITHER} {_INDEX} {_INDEX_DUMP}"),
    )


def repeated_by_rank(capture: Capture, repeats: Sequence[Repeat], ranks: int) -> Blocks | None:
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


def mixed_by_rank(
    facts: Facts,
    maps: Sequence[RowMap],
    repeated: Blocks | None,
    repeats: Sequence[Repeat],
    side: str = "left",
    more: Sequence[int] = (),
) -> Finding:
    """Rows whose places follow a rank's blocks. more: further slots that the blocks speak for."""
    blocks = maps[0].blocks if maps else repeated
    assert blocks is not None
    slots = [*([m.slot for m in maps] or [r.slot for r in repeats]), *more]
    known = rank_count(facts.left) if side == "left" else 0
    tail = f"; the server has {known} rank{'' if known == 1 else 's'}" if known else ""
    where = "" if side == "left" else " of the reference"
    return finding(
        "rows-by-rank",
        f"The rows of {called(slots)}{where} are mixed up by rank: {blocks.kind} ({blocks.ranks} ranks explain "
        f"{100 * blocks.share:.0f} % of the rows{tail}).",
        slots=numbers(slots),
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
