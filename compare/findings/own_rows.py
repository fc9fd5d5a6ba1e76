"""Slots whose rows are not the boundary that the trace declares, as its own layer sweep holds it: without a reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from drafttrace.compare.facts import VALUE, Facts
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.findings.open_rows import SINGLE
from drafttrace.compare.findings.own_wiring import CAPTURE, OWN_SWEEP
from drafttrace.compare.findings.values import finding_id
from drafttrace.compare.own_parts import ROUNDING, OwnPart, own_parts
from drafttrace.compare.part_words import part_hint, part_name
from drafttrace.compare.plurals import plural
from drafttrace.compare.result import FAULT, Finding, RowPart
from drafttrace.tracer.boundary import boundary_name

_SWEEP = (
    "The sweep recorded what the target computed in the same passes, so no config is at fault: look at what captures the "
    "slots and hands them over"
)
_REMEDIES = {
    "scale": f"{_SWEEP}, and take the multiplication away there.",
    "norm-extra": f"{_SWEEP}: a norm is applied there.",
    "norm-missing": f"{_SWEEP}: the state is taken from before a norm.",
    "norm-gain": f"{_SWEEP}: a norm's weight, or another factor per channel, is applied there.",
    "rotation": f"{_SWEEP}: the rows are rotated, or their channels reordered, there.",
    "dtype-reinterpretation": f"{_SWEEP}: a buffer is viewed as another number format there, not converted.",
    "zero-rows": f"{_SWEEP}: a part of the buffer is never filled (a shard that is not gathered, a copy too narrow).",
    "residual-missing": "Capture hidden_states + residual: SGLang's layers return the two halves apart.",
    "token-shift": f"{_SWEEP}: rows are gathered there by another index than their position.",
    "stale-rows": f"{_SWEEP}: rows are gathered there by another index than their position, or a buffer is read before it "
    "is written (compare eager with graphs: --disable-cuda-graph).",
    "boundary-offset": CAPTURE,
    "wrong-boundary": CAPTURE,
}
_UNKNOWN = (
    f"{_SWEEP}: a buffer that something else writes to, too (compare eager with graphs: --disable-cuda-graph)."
)
_MISPLACED = {"token-shift", "stale-rows", "rows-by-rank", "cross-request", "padding-leak"}
# What names a slot's place among the boundaries says nothing of rows that are none of them.
_WIRING = {"slot-shift", "slot-permutation", "boundary-offset", "wrong-boundary", "default-wiring", "slot-count"}
_UNSURE = 0.6
_LISTED = 64  # positions that evidence lists at most


@finder(turn=13)
def find(facts: Facts) -> Iterator[Finding]:
    """One finding for every cause and set of rows, whatever the number of slots."""
    whole = {one.slot for one in facts.inside.slots} | facts.inside.alike("aux")
    whole |= {r.slot for r in facts.copies.left if r.count > len(r.rows)}
    whole |= set(
        facts.ranks.partial.slots if facts.ranks.partial is not None else ()
    )  # told as one rank's part of a sum
    found = own_parts(facts.left, facts.thresholds, _told(facts), frozenset(whole))
    grouped: dict[tuple[object, ...], list[OwnPart]] = {}
    stale = {repeat.slot for repeat in facts.copies.left}
    for one in found:
        if one.moved and one.slot in stale:  # the rows that it holds twice are told with their copies
            continue
        where = (one.part.kind, one.part.phase, one.part.step, one.positions) if one.part is not None else ()
        grouped.setdefault((_id(one), where), []).append(one)
    for (name, _), members in grouped.items():
        yield _finding(str(name), members)


def without_repeats(found: Sequence[Finding]) -> list[Finding]:
    """The findings without those of the trace's own sweep that the comparison with a dump tells as well: of the same slots,
    the same cause (or another one of rows in the wrong place), or any where the sweep knows none."""
    own = [one for one in found if one.evidence.get("against") == OWN_SWEEP]
    others: dict[int, set[str]] = {}
    for one in found:
        if one.severity == FAULT and one not in own:
            for slot in one.slots:
                others.setdefault(slot, set()).add(one.id)

    def again(one: Finding) -> bool:
        same = _MISPLACED if one.id in _MISPLACED else {one.id}
        named = [others.get(slot, set()) for slot in one.slots]
        return all(same & ids or (one.id == "unexplained" and ids - _WIRING) for ids in named)

    return [one for one in found if one not in own or not again(one)]


def _told(facts: Facts) -> Mapping[int, frozenset[int]]:
    """By slot, the rows that are told to be other rows' (stale, another request's, the padding's)."""
    told: dict[int, set[int]] = {}
    for repeat in facts.copies.left:
        told.setdefault(repeat.slot, set()).update(row.row for row in repeat.rows)
    for borrowed in facts.copies.borrowed:
        told.setdefault(borrowed.slot, set()).add(borrowed.row.row)
    for leak in facts.copies.leaks:
        if leak.slot is not None:
            told.setdefault(leak.slot, set()).update(row.row for row in leak.rows)
    return {slot: frozenset(rows) for slot, rows in told.items()}


def _offset(one: OwnPart) -> int | None:
    """The one distance at which nearly all of the moved rows lie."""
    steps, counts = np.unique([source - position for position, source in one.moved], return_counts=True)
    return int(steps[np.argmax(counts)]) if len(one.moved) >= 4 and counts.max() >= 0.9 * one.rows else None


def _id(one: OwnPart) -> str:
    if one.moved:
        return "token-shift" if _offset(one) is not None else "stale-rows"
    if one.found.explanation is not None:
        return finding_id(one.found)
    if one.found.by == VALUE and one.found.boundary not in {None, one.said}:
        return "boundary-offset" if abs((one.found.boundary or 0) - one.said) == 1 else "wrong-boundary"
    return "unexplained"


def _finding(name: str, members: Sequence[OwnPart]) -> Finding:
    first, slots = members[0], [one.slot for one in members]
    who = f"the server's {name_slots(slots)}"
    some = first.part is not None
    if first.part is not None:
        who = f"{_rows_of(first.part)} of {who}"
    several = len(members) > 1 or (some and first.rows > 1)
    whats = [_what(one, several=several) for one in members]
    what = whats[0]
    if len(set(whats)) > 1:
        what = "; ".join(f"slot {one.slot} {w}" for one, w in zip(members, whats, strict=True))
    held = {str(one.slot): list(one.positions) for one in members}
    hint = f"{part_hint(first.part)} " if first.part is not None and first.rows > 1 else ""
    return finding(
        name,
        f"{who[0].upper() + who[1:]} {'are' if several else 'is'} not {'those of ' if some and several else ''}the "
        f"{_listed([boundary_name(one.said) for one in members])} that the trace's own layer sweep holds"
        f"{', beside what all rows of the slot went through' if first.limit > ROUNDING else ''}: {what} "
        f"({_level(members)}).",
        slots=slots,
        confidence=_UNSURE if name == "unexplained" else min(max(0.4, 0.98 - 2 * _left(one)) for one in members),
        evidence={
            "side": "left",
            "against": OWN_SWEEP,
            **({SINGLE: held} if max(map(len, held.values())) < _LISTED else {}),
            **{str(one.slot): _evidence(one) for one in members},
        },
        remedy=f"{hint}{_REMEDIES.get(name, _UNKNOWN)}",
    )


def _rows_of(part: RowPart) -> str:
    """As for a part of a comparison; rows that have nothing in common by their number and ends."""
    if part.kind != "spread":
        return part_name(part)
    if part.rows == 1:
        return f"1 of {part.of} rows (position {part.first})"
    return f"{part.rows} of {part.of} rows (positions {part.first} to {part.last})"


def _listed(names: Sequence[str]) -> str:
    """``B0``, ``B0, B3 and B31``."""
    return names[0] if len(set(names)) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _left(one: OwnPart) -> float:
    return one.found.explanation.fit.residual if one.found.explanation is not None else 0.0


def _level(members: Sequence[OwnPart]) -> str:
    levels = []
    for one in members:
        level = f"median relative L2 {one.rel_l2:.3g}, limit {one.limit:g}; "
        level += f"{one.rows} of {one.of} rows" if one.part is None else f"the other rows {one.others:.3g}"
        levels.append(level)
    if len(set(levels)) == 1:
        return levels[0]
    return "; ".join(f"slot {one.slot}: {level}" for one, level in zip(members, levels, strict=True))


def _what(one: OwnPart, *, several: bool) -> str:
    """What the rows are instead."""
    it = "they" if several else "it"
    explained = one.found.explanation
    if one.moved:
        offset, (here, there) = _offset(one), one.moved[0]
        if offset is not None:
            return f"{it} {'hold' if several else 'holds'} those of position p{offset:+d}"
        return f"rows of it stand at other positions (position {here} holds the row of position {there})"
    if explained is None:
        if _id(one) == "unexplained":
            return "none of the known causes fits"
        return f"{it} {'hold' if several else 'holds'} {boundary_name(one.found.boundary)}"
    own = explained.boundary in {None, one.said}
    of = ("those" if several else "that") if own else boundary_name(explained.boundary)
    fit, is_ = explained.fit, f"{it} {'are' if several else 'is'}"
    words = {
        "gain": "times one factor per channel",
        "rms": "after an RMS norm",
        "normed": "after an RMS norm with a weight per channel",
        "un-normed": "before an RMS norm",
    }
    if fit.name == "scalar":
        return f"{is_} {of} times {fit.fitted['factor']:.4g}"
    if fit.name == "rotation":
        how = (
            "with its channels in another order"
            if fit.fitted.get("channels_permuted")
            else "under an orthogonal map"
        )
        return f"{is_} {of} {how}"
    if fit.name == "bytes":
        return f"{is_} {of} with its {fit.fitted['stored_as']} bytes read as {fit.fitted['read_as']}"
    if fit.name == "zeroed":
        channels = plural(len(fit.fitted["channels"]), "channel")
        return f"{is_} {of} with {channels} of zeros"
    if fit.name in words:
        return f"{is_} {of} {words[fit.name]}"
    return f"{is_} only a part of {of}: " + (
        "the residual was not added" if fit.name == "residual-half" else "a state inside the layer below it"
    )


def _evidence(one: OwnPart) -> dict[str, Any]:
    explained = one.found.explanation
    return {
        "declared": boundary_name(one.said),
        "holds": boundary_name(one.found.boundary) if one.found.by == VALUE else None,
        "rows": one.rows,
        "of": one.of,
        "rel_l2": one.rel_l2,
        "limit": one.limit,
        "kind": one.part.kind if one.part is not None else "all",
        "fit": explained.fit.name if explained is not None else None,
        "residual": explained.fit.residual if explained is not None else None,
        "factor": explained.fit.fitted.get("factor") if explained is not None else None,
        "position_holds_row_of": [list(pair) for pair in one.moved[:20]],
        "positions": list(one.positions[:64]),
    }
