"""F, H: rows that are the right states at the wrong places: a token or two off, or mixed up by rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drafttrace.compare.copies import rank_count
from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finding
from drafttrace.compare.findings.row_words import called, numbers
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
_MOST_SHIFT = 2


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


def shifted_rows(maps: Sequence[RowMap], d: int) -> Finding:
    """Rows of the server that hold the state ``d`` tokens away."""
    when = "before" if d < 0 else "after"
    step = "one token" if abs(d) == 1 else f"{abs(d)} tokens"
    slots = [m.slot for m in maps]
    return finding(
        "token-shift",
        f"The server's rows of {called(slots)} hold the state of {step} {when} their own: position p holds what belongs "
        f"to position p{d:+d}.",
        slots=numbers(slots),
        confidence=0.95,
        evidence={
            str(m.slot): {"rel_l2": m.rel_l2, "position_holds_state_of": [list(p) for p in m.pairs[:20]]}
            for m in maps
        },
        remedy="Look at what the capture point indexes its rows by: they are not those of the tokens that the pass ran on.",
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
