"""I: rows that hold what an earlier row, or an earlier pass, left behind."""

from __future__ import annotations

from collections.abc import Sequence

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finding
from drafttrace.compare.findings.row_words import called, numbers, pass_of
from drafttrace.compare.repeats import Repeat
from drafttrace.compare.result import Finding
from drafttrace.compare.rowblocks import RowMap
from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="stale-rows",
        kind="batching",
        rank=250,
        listed=10,
        what="Rows hold the values of an earlier round, or of an earlier graph replay.",
        signature="A row that differs equals an earlier row bit for bit.",
        remedy="Compare with --disable-cuda-graph; look for a copy into a graph's buffer that is skipped.",
        cases=("sglang#21424",),
    ),
)

_STALE = (
    "A buffer was read before it was written for this pass: compare eager with graphs (--disable-cuda-graph), and look for "
    "a copy that is skipped when a shape differs (EAGLEDraftExtendCudaGraphRunner skips hidden states of another width)."
)
_STALE_DUMP = (
    "The writer of the dump reused a buffer, or wrote a row before it was computed: clone the states where they are "
    "captured, and make the dump again."
)


def stale_rows(repeats: Sequence[Repeat], side: str, more: Sequence[int] = ()) -> Finding:
    """Rows of one side that are copies of its earlier rows. more: slots whose bits cannot tell."""
    copies = [(repeat, row) for repeat in repeats for row in repeat.copies]
    repeat, row = min(copies, key=lambda one: (one[1].position, one[0].slot))
    source = repeat.rows[0]
    total = len({row.position for _, row in copies})
    return finding(
        "stale-rows",
        f"{total} row{'s' if total > 1 else ''} of the {side} side (first: position {row.position}) "
        f"{'are copies' if total > 1 else 'is a copy'} of earlier rows (there: position {source.position}, "
        f"{pass_of(source)}).",
        slots=numbers([*(r.slot for r in repeats), *more]),
        confidence=0.97,
        evidence={
            str(r.slot): {str(c.position): [r.rows[0].position, r.rows[0].round] for c in r.copies[:20]}
            for r in repeats
        },
        remedy=_STALE if side == "left" else _STALE_DUMP,
    )


def odd_at(facts: Facts, repeats: Sequence[Repeat]) -> list[int]:
    """Slots that are odd nowhere but where these copies stand: tokens may share a state, so bits do not tell there."""
    copied = {row.position for repeat in repeats for row in repeat.copies}
    return [rows.slot for rows in facts.rows if rows.outliers and set(rows.outliers) <= copied]


def moved_rows(maps: Sequence[RowMap]) -> Finding:
    """Rows that are the reference's state of another position, without a pattern that ranks leave."""
    first = maps[0]
    position, source = first.pairs[0]
    return finding(
        "stale-rows",
        f"{len(first.pairs)} of {first.looked_at} deviating rows of {called([m.slot for m in maps])} are the state of "
        f"another position (first: position {position} holds the state of position {source}).",
        slots=numbers([m.slot for m in maps]),
        confidence=0.8,
        evidence={
            str(m.slot): {"rel_l2": m.rel_l2, "position_holds_state_of": [list(p) for p in m.pairs[:20]]}
            for m in maps
        },
        remedy=_STALE,
    )
