"""I: rows that hold what an earlier row, or an earlier pass, left behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finding
from drafttrace.compare.findings.open_rows import STALE_LISTED
from drafttrace.compare.findings.row_words import called, numbers, pass_of
from drafttrace.compare.repeats import Repeat, RowAt
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
_PROMPT = (
    "They are rows of the prompt, which no draft has touched: look at what gathers the prompt's rows (chunks of the "
    "prefill: --chunked-prefill-size -1 confirms it; a cached prefix: --disable-radix-cache; the batch's other requests)."
)
_STALE_DUMP = (
    "The writer of the dump reused a buffer, or wrote a row before it was computed: clone the states where they are "
    "captured, and make the dump again."
)


def stale_rows(repeats: Sequence[Repeat], side: str, facts: Facts) -> Finding:
    """Rows of one side that are copies of others of its rows: by the reference, which of them are right is known."""
    odd = {rows.slot: set(rows.outliers) for rows in facts.rows}
    pairs = [(repeat, *_copies(repeat, odd.get(repeat.slot, set()))) for repeat in repeats]
    source, first, _ = min(
        ((source, row, repeat.slot) for repeat, source, copies in pairs for row in copies),
        key=lambda one: (one[1].position, one[2]),
    )
    positions = {row.position for _, _, copies in pairs for row in copies}
    total, earlier = len(positions), _is_earlier(source, first)
    more = [rows.slot for rows in facts.rows if rows.outliers and set(rows.outliers) <= positions]
    what = "earlier rows" if earlier else "other rows" if total > 1 else "another row"
    return finding(
        "stale-rows",
        f"{total} row{'s' if total > 1 else ''} of the {side} side (first: position {first.position}) "
        f"{'are copies' if total > 1 else 'is a copy'} of {what} (there: position {source.position}, "
        f"{pass_of(source)}).",
        slots=numbers([*(r.slot for r in repeats), *more]),
        confidence=0.97,
        evidence=_listed(pairs),
        remedy=_STALE_DUMP if side != "left" else _PROMPT if _in_prompt(positions, facts) else _STALE,
    )


def _listed(pairs: Sequence[tuple[Repeat, RowAt, tuple[RowAt, ...]]]) -> dict[str, dict[str, list[int]]]:
    """By slot and position of a copy, where the row that it holds stands: (position, round). A run of copied rows is one
    repeat for every row of it."""
    listed: dict[str, dict[str, list[int]]] = {}
    for repeat, source, copies in pairs:
        held = listed.setdefault(str(repeat.slot), {})
        for copy in copies[: STALE_LISTED - len(held)]:
            held[str(copy.position)] = [source.position, source.round]
    return listed


def _in_prompt(positions: Iterable[int], facts: Facts) -> bool:
    """Whether all of them are positions of the prompt."""
    length = facts.left.prompt_length
    return length is not None and all(position < length for position in positions)


def _copies(repeat: Repeat, odd: Collection[int]) -> tuple[RowAt, tuple[RowAt, ...]]:
    """The row that is right, and the rows that hold it as well. odd: positions at which the two sides differ; where that
    tells nothing, the first row is right."""
    right = [row for row in repeat.rows if row.position not in odd]
    wrong = tuple(row for row in repeat.rows if row.position in odd and row.accepted)
    if right and wrong:
        return right[0], wrong
    return repeat.rows[0], repeat.copies


def _is_earlier(source: RowAt, copy: RowAt) -> bool:
    return (source.frame, source.row) < (copy.frame, copy.row)


def moved_rows(maps: Sequence[RowMap], facts: Facts) -> Finding:
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
        remedy=_PROMPT if _in_prompt((p for m in maps for p, _ in m.pairs), facts) else _STALE,
    )
