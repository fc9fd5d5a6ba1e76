"""Rows beyond the noise limit that are too few to make their slot a mismatch: said, so that no match hides them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from drafttrace.compare.describe import MAX_SERIES
from drafttrace.compare.findings.base import finding, name_slots
from drafttrace.compare.findings.noise import ORDINARY, REPEATS
from drafttrace.compare.findings.open_rows import rows_named, told_as_wholes
from drafttrace.compare.judge import FEW_ROWS, MATCH, NOISE, limits_of
from drafttrace.compare.result import NOTE, Finding, SlotResult
from drafttrace.compare.rowparts import few_beyond, of_series
from drafttrace.compare.thresholds import DEFAULT, Thresholds

_SHOWN = 8
_ENOUGH = 4  # rows of a slot


def few_rows(slots: Sequence[SlotResult], thresholds: Thresholds, found: Sequence[Finding]) -> Iterator[Finding]:
    """One note for every slot that has such rows, which none of the findings names."""
    told, wholes = rows_named(found), told_as_wholes(found)
    for slot in slots:
        if slot.verdict not in {MATCH, NOISE} or slot.slot in wholes:
            continue
        limits = limits_of(slot, thresholds)
        rows = of_series(slot.series, slot.rows, MAX_SERIES // 2, _no_looser(thresholds))
        positions = [int(p) for p in few_beyond(rows, limits) if int(p) not in told.get(slot.slot, ())]
        if not positions:
            continue
        one = len(positions) == 1
        shown = ", ".join(map(str, positions[:_SHOWN])) + (", ..." if len(positions) > _SHOWN else "")
        worst = max(float(v) for v in rows.rel_l2[np.isin(rows.position, positions)])
        # The upper end of an even difference is no part, however many rows it is.
        why = f"too few for a mismatch, which begins at {thresholds.part:.0%} of the rows"
        if len(positions) >= thresholds.part * slot.rows:
            why = f"they are the upper end of what most rows differ by (median {slot.rel_l2.p50:.3g})"
        if slot.kinds:
            why = "these are rows of a few tokens that repeat, which two number formats may take that far from each other"
        yield finding(
            "unexplained",
            f"{len(positions)} of {slot.rows} rows of {name_slots([slot.slot])} (position{'' if one else 's'} {shown}) "
            f"{'is' if one else 'are'} beyond noise (relative L2 up to {worst:.3g}, limit {limits.noise:.3g}): {why}.",
            slots=[slot.slot],
            confidence=0.3,
            evidence={FEW_ROWS: positions[:50], "limit": limits.noise, "share_limit": thresholds.part},
            remedy="Look at these rows in the HTML report, and record the prompt once more: noise does not fall on "
            "the same positions twice.",
            severity=NOTE,
        )


def cautious(found: Sequence[Finding], slots: Sequence[SlotResult]) -> tuple[Finding, ...]:
    """The conclusions of a comparison; that nothing is wrong is not said of a few rows as of many, nor of rows that repeat
    each other. States that are equal bit for bit are equal, whatever their rows tell apart."""
    most = max((slot.rows for slot in slots), default=_ENOUGH)
    narrow = [slot for slot in slots if slot.kinds and slot.rel_l2.max != 0]
    if narrow:
        return tuple(_untold(f, narrow) if f.id == "none" or _matched_low(f) else f for f in found)
    if most >= _ENOUGH:
        return tuple(found)
    rows = f"only {most} row{'' if most == 1 else 's'}"
    return tuple(
        replace(
            f,
            summary=f"What was compared matches, but that is {rows} of each slot, which says little of the others.",
            confidence=0.3,
            remedy=f"Compare a longer prompt: drafttrace record --from-dump DUMP records a whole sample. {f.remedy}",
        )
        if f.id == "none"
        else f
        for f in found
    )


def _matched_low(found: Finding) -> bool:
    """Whether a note says of slots that match that their accept length is low."""
    return found.id == "downstream" and found.severity == NOTE and found.summary.startswith("All slots match")


def _untold(none: Finding, narrow: Sequence[SlotResult]) -> Finding:
    """That nothing is wrong, of slots whose rows repeat each other: they cannot be told from other boundaries."""
    if none.id != "none":
        return replace(none, summary=f"{none.summary} And {REPEATS}.", remedy=f"{ORDINARY} {none.remedy}")
    return replace(
        none,
        summary=f"What was compared matches, but {REPEATS}: {name_slots([slot.slot for slot in narrow])} might be another "
        "boundary all the same.",
        confidence=0.3,
        remedy=f"{ORDINARY} {none.remedy}",
    )


def _no_looser(thresholds: Thresholds) -> Thresholds:
    """Limits of odd rows that nobody loosened: who lets such rows pass is not told of them in another way."""
    return replace(
        thresholds,
        row=min(thresholds.row, DEFAULT.row),
        row_far=min(thresholds.row_far, DEFAULT.row_far),
        row_cosine=max(thresholds.row_cosine, DEFAULT.row_cosine),
        row_hidden=max(thresholds.row_hidden, DEFAULT.row_hidden),
    )
