"""What is left of a slot when the rows that findings speak of are taken away: a fault of a few rows hides no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drafttrace.compare.describe import MAX_SERIES
from drafttrace.compare.judge import limits_of
from drafttrace.compare.result import Finding, RowPart, SlotResult
from drafttrace.compare.rowparts import find_parts, of_series, sure
from drafttrace.compare.thresholds import Limits, Thresholds

SINGLE = "single_rows"
"""The key of a finding's evidence that lists, by slot, the positions of the rows that it speaks of."""
_BROKEN = frozenset({"zero-rows", "nan-inf"})
_WHOLE = frozenset({"fits", "decided_by"})
_TIMES_COARSE = 4.0  # of the median: a format's error is even, and the largest of 129 rows stays below 1.2 times it
_FLOWS_ON = frozenset({"window-mismatch", "rope-mismatch"})  # from the first layer to the last state
_LISTED = 20  # rows that evidence lists at most: of a longer list the others are not known
OTHER_ROWS = "other_rows"
"""The key of a finding's evidence about a slot that lists the positions of the rows that it does not explain."""
STALE_LISTED = 64
"""As many copied rows of a slot does evidence list at most."""


@dataclass(frozen=True)
class OpenRows:
    """Rows of a slot that no finding speaks of. whole: most of them differ. parts: beyond the noise limit. odd: positions
    of rows that hold something else."""

    whole: bool
    parts: tuple[RowPart, ...]
    odd: tuple[int, ...]


def open_rows(
    slot: SlotResult, faults: Sequence[Finding], thresholds: Thresholds, coarse: bool = False
) -> OpenRows | None:
    """What is left of a slot, of which ``faults`` speak; None where one of them speaks of all of its rows.

    coarse: a coarse number format tells all rows but those that are far beyond what it costs the others.
    """
    told = [_told(finding, slot) for finding in faults]
    if any(one is None for one in told):
        return None
    rows = of_series(slot.series, slot.rows, MAX_SERIES // 2, thresholds)
    positions = np.array(sorted({p for one in told if one is not None for p in one.positions}), np.int64)
    known = [one.part for one in told if one is not None and one.part is not None]
    limits = limits_of(slot, thresholds)
    limits = _of_coarse(limits, slot) if coarse else limits
    plain = rows.plain & ~np.isin(rows.position, positions)
    found = find_parts(rows, limits, thresholds)
    for one in found:
        if _is_told(one.part, known):
            plain &= ~one.rows
    odd = rows.odd & plain
    if (
        coarse and limits.noise > thresholds.row
    ):  # a format of few bits takes its own rows beyond the rule for odd ones
        odd &= rows.rel_l2 > limits.noise
    left = [
        one for one in found if not _is_told(one.part, known) and 2 * (one.rows & plain).sum() >= one.rows.sum()
    ]
    for one in left:
        if sure([one.part]):  # of the others nobody else speaks
            odd &= ~one.rows
    median = float(np.median(rows.rel_l2[plain])) if plain.any() else 0.0
    enough = 2 * plain.sum() > len(plain)
    return OpenRows(
        bool(enough and median > limits.noise),
        sure([one.part for one in left]),
        tuple(int(p) for p in np.sort(rows.position[odd])),
    )


def _of_coarse(limits: Limits, slot: SlotResult) -> Limits:
    """Limits that the rows of a coarse format keep."""
    most = max(limits.noise, _TIMES_COARSE * slot.rel_l2.p50)
    return replace(limits, match=most, noise=most)


@dataclass(frozen=True)
class _Told:
    """Which rows a finding speaks of. Rows that can be no state are none of a part, and need not be listed."""

    positions: tuple[int, ...] = ()
    part: Mapping[str, Any] | None = None


def _told(finding: Finding, result: SlotResult) -> _Told | None:
    """The rows of a slot that a finding speaks of; None for all of them."""
    evidence, slot = finding.evidence, result.slot
    if finding.id == "scale" and "fits" in evidence and result.rel_l2.p50 <= result.judged.noise_limit:
        return _Told()  # a few percent, which take no row beyond the limit
    if "token_shift" in evidence:
        return _Told()  # the rows were compared where they belong
    if _WHOLE & set(evidence):
        return None
    if finding.id in _BROKEN and SINGLE not in evidence:
        return _Told(part=evidence.get("part"))
    if "part" in evidence:
        return _Told(part=evidence["part"])
    if SINGLE in evidence:
        return _Told(tuple(int(p) for p in evidence[SINGLE].get(str(slot), ())))
    own = evidence.get(str(slot))
    if isinstance(own, Mapping) and OTHER_ROWS in own:
        others = {int(p) for p in own[OTHER_ROWS]}
        return _Told(tuple(int(p) for p in result.series.position if int(p) not in others))
    if finding.id == "stale-rows" and isinstance(own, Mapping) and own and all(str(k).isdigit() for k in own):
        sources = [int(source[0]) for source in own.values()]
        return _Told((*map(int, own), *sources)) if len(own) < STALE_LISTED else None
    listed = evidence.get("rows")
    if finding.id == "cross-request" and isinstance(listed, Sequence) and len(listed) < _LISTED:
        return _Told(tuple(int(row["position"]) for row in listed if row["slot"] == slot))
    return None


def _is_told(part: RowPart, known: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a part is one of these, but for a row at its ends."""
    ends = [(one["kind"], one["phase"], one["first"] // 8, one["last"] // 8) for one in known]
    return (part.kind, part.phase, part.first // 8, part.last // 8) in ends


def flows_on(fault: Finding) -> bool:
    """Whether a fault may be why the last state differs."""
    without_slots = not fault.slots and fault.evidence.get("of") != "embed"
    return without_slots or fault.id in _FLOWS_ON


def told_as_wholes(found: Sequence[Finding]) -> frozenset[int]:
    """The slots that are explained by a fit of all their rows: what else differs in one was looked for beside that."""
    return frozenset(slot for finding in found if "fits" in finding.evidence for slot in finding.slots)


def rows_named(found: Sequence[Finding]) -> dict[int, set[int]]:
    """By slot, the positions of the rows that findings name one by one."""
    told: dict[int, set[int]] = {}
    for finding in found:
        for slot, positions in finding.evidence.get(SINGLE, {}).items():
            told.setdefault(int(slot), set()).update(int(p) for p in positions)
        for number in finding.slots if finding.id == "stale-rows" else ():
            own = finding.evidence.get(str(number))
            if isinstance(own, Mapping):
                told.setdefault(number, set()).update(int(p) for p in own if str(p).isdigit())
    return told
