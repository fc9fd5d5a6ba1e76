"""I: live rows that hold a padding row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finding
from drafttrace.compare.findings.row_words import called, numbers, pass_of, row_place
from drafttrace.compare.padding import Leak
from drafttrace.compare.repeats import Repeat
from drafttrace.compare.result import Finding
from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="padding-leak",
        kind="batching",
        rank=240,
        listed=30,
        what="A live row equals a padded one.",
        signature="A row equals, bit for bit, the first padding row of its own pass, whose hash the trace keeps.",
        remedy="Cut the batch to its live rows before the states are handed over.",
        cases=("vllm#43810",),
    ),
)

_PADDING = (
    "A padding row was read in the place of a live one: look at what indexes the padded batch (last-token gathers, accept "
    "indices that count padding rows). --disable-cuda-graph, or --disable-cuda-graph-padding, confirms it."
)


def leaked_rows(leaks: Sequence[Leak]) -> Finding:
    """Rows whose bits are those of a padding row that stood beside them: nothing is left to infer."""
    rows = [row for leak in leaks for row in leak.rows]
    first = min(rows, key=lambda row: (row.position, row.frame))
    slots = [leak.slot for leak in leaks if leak.slot is not None]
    names = [leak.tap for leak in leaks if leak.slot is None]
    where = " and ".join(
        [*([called(slots)] if slots else []), *([f"the draft's {', '.join(names)}"] if names else [])]
    )
    most = max(leak.count for leak in leaks)
    return finding(
        "padding-leak",
        f"{most} row{'s' if most > 1 else ''} of {where} (first: position {first.position}, {pass_of(first)}) "
        f"{'are' if most > 1 else 'is'}, bit for bit, the padding row of {'their' if most > 1 else 'its'} own pass.",
        slots=numbers(slots),
        confidence=0.99,
        evidence={
            leak.tap: {
                "equal_to_padding": leak.count,
                "rows_of_padded_passes": leak.of,
                "rows": [row_place(row) for row in leak.rows[:20]],
            }
            for leak in leaks
        },
        remedy=_PADDING,
    )


def is_padding(facts: Facts, repeat: Repeat) -> bool:
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


def padding_rows(facts: Facts, repeats: Sequence[Repeat]) -> Finding:
    """One state for different tokens, in padded batches only."""
    rows = [row for repeat in repeats for row in repeat.rows]
    first = min(rows, key=lambda r: r.position)
    return finding(
        "padding-leak",
        f"{len({r.position for r in rows})} rows (first: position {first.position}) hold one and the same state for "
        "different tokens, all of them in batches with padding: live rows hold a padding row.",
        slots=numbers([r.slot for r in repeats]),
        confidence=0.85 if facts.reference is not None else 0.7,
        evidence={str(r.slot): [row_place(row) for row in r.rows[:20]] for r in repeats},
        remedy=_PADDING,
    )


def padded_batches(facts: Facts, told: set[int]) -> Iterator[Finding]:
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
            f"All {len(odd)} odd rows of {called([rows.slot])} were computed in batches with padding, and no row of a "
            "batch without it is odd: live rows may hold padding rows.",
            slots=numbers([rows.slot]),
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
