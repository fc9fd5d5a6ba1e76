"""Rows that are named one by one: too few to show a rule, and each of them known by what it leaves over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drafttrace.compare.facts import Facts, SingleFacts, SingleRow
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.findings.open_rows import SINGLE
from drafttrace.compare.part_words import ONLY_HERE
from drafttrace.compare.plurals import plural
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import boundary_name

_IDS = {
    "scale": "scale",
    "position": "stale-rows",
    "slot": "wrong-boundary",
    "boundary": "wrong-boundary",
    "bytes": "dtype-reinterpretation",
    "zeroed": "zero-rows",
    "constant": "constant-rows",
}
_LOOK = "Look at what handled these rows and not their neighbours: the same round or batch, the end of a chunk, a buffer."
_FEW = 4  # rows from which on a rule can be fitted
_SHOWN = 6
_SAME_FACTOR = 0.02

Member = tuple[SingleFacts, SingleRow]


@finder(turn=25)
def find(facts: Facts) -> Iterator[Finding]:
    """One finding for every cause, whatever the slots."""
    groups: list[tuple[str, list[Member]]] = []
    copied = {row.position for one in (*facts.copies.left, *facts.copies.reference) for row in one.rows}
    for slot in _singles(facts):
        told = facts.copies.positions(slot.slot)
        for row in slot.rows:
            if row.kind != "constant" and (told is None or row.position in told):
                continue
            if row.kind == "position" and row.position in copied:  # told of the other slots, whose bits show it
                continue
            name = _id(slot, row, facts)
            alike = [members for other, members in groups if other == name and _alike(row, members[0][1])]
            if alike:
                alike[0].append((slot, row))
            else:
                groups.append((name, [(slot, row)]))
    for name, members in groups:
        yield _finding(name, members)
    yield from _rest(facts)


def _singles(facts: Facts) -> Iterator[SingleFacts]:
    """The slots that are no part of a sum: what one rank's part resembles says nothing."""
    partial = facts.ranks.partial.slots if facts.ranks.partial is not None else ()
    yield from (slot for slot in facts.singles if slot.slot not in partial)


def _id(slot: SingleFacts, row: SingleRow, facts: Facts) -> str:
    if row.kind == "boundary":
        streams = facts.left_streams if row.side == "left" else facts.reference_streams
        usual = next((s.boundary for s in streams if s.index == slot.slot), None)
        if usual is not None and row.value is not None and abs(int(row.value) - usual) == 1:
            return "boundary-offset"
    return _IDS[row.kind]


def _alike(one: SingleRow, two: SingleRow) -> bool:
    """Whether two rows are told together."""
    if (one.kind, one.side) != (two.kind, two.side):
        return False
    if one.kind == "scale":
        return abs(float(one.value or 0) - float(two.value or 0)) <= _SAME_FACTOR * abs(float(two.value or 0))
    return one.value == two.value if one.kind in {"slot", "boundary"} else one.more == two.more


def _finding(name: str, members: Sequence[Member]) -> Finding:
    rows = {row.position: row for _, row in members}
    slots = sorted({slot.slot for slot, _ in members})
    first, count = members[0][1], len(rows)
    whose = {"left": "the server's ", "reference": "the reference's "}.get(first.side or "", "")
    many = count > 1
    shown = ", ".join(map(str, sorted(rows)[:_SHOWN])) + (", ..." if count > _SHOWN else "")
    unsure = "" if first.side else "; the rows do not show which side is wrong"
    away = max(slot.rel_l2[row.position] for slot, row in members)
    left = max(row.left_over for _, row in members)
    beside = " beside what all rows of the slot went through" if members[0][0].own else ""
    few = f"; {plural(count, 'row')} cannot show more than that" if count < _FEW else ""
    limit = min(slot.limit for slot, _ in members)
    return finding(
        name,
        f"{plural(count, 'row')} of {max(slot.compared for slot, _ in members)} of {whose}{name_slots(slots)} "
        f"(position{'s' if many else ''} {shown}) {_what(members, many)}{beside} (relative L2 {away:.3g}, limit "
        f"{limit:.3g}; that leaves {left:.2g}){unsure}{few}.",
        slots=slots,
        confidence=0.8 if first.side else 0.7,
        evidence={
            SINGLE: {str(s): sorted({row.position for slot, row in members if slot.slot == s}) for s in slots},
            "side": first.side,
            "kind": first.kind,
            "value": first.value,
            "leaves": left,
            "rel_l2": away,
            "limit": limit,
        },
        remedy=f"{_LOOK} {ONLY_HERE.get(name, '')}".strip(),
    )


def _what(members: Sequence[Member], many: bool) -> str:
    """What the rows are."""
    row = members[0][1]
    is_, holds = ("are", "hold") if many else ("is", "holds")
    other = "the other side's"
    if row.kind == "scale":
        factor = float(row.value or 0)
        if row.side == "reference":
            return f"{is_} {other} times {1 / factor:.4g}"
        origin = other if row.side else "on the server's side the reference's"
        return f"{is_} {origin} times {factor:.4g}"
    if row.kind == "position":
        if many:
            return (
                f"{holds} {other} states of other positions (position {row.position} that of position {row.value})"
            )
        return f"{holds} {other} state of position {row.value}"
    if row.kind == "slot":
        return f"{holds} {other} slot {row.value}"
    if row.kind == "boundary":
        return f"{holds} {boundary_name(int(row.value or 0))}"
    if row.kind == "bytes":
        return f"{is_} {other} with {'their' if many else 'its'} {row.more}"
    if row.kind == "zeroed":
        return f"{is_} {other} with {plural(int(row.value or 0), 'channel')} of zeros"
    return f"{holds} one value in all channels"


def _rest(facts: Facts) -> Iterator[Finding]:
    """Rows that differ beside what a whole slot went through, and that nothing explains."""
    before: set[tuple[int, int]] = set()  # a slot may be wrong as a whole on both sides
    for slot in _singles(facts):
        told = facts.copies.positions(slot.slot)
        positions = [p for p in slot.rest if told is not None and p not in told and (slot.slot, p) not in before]
        if not positions:
            continue
        before |= {(slot.slot, p) for p in positions}
        many = len(positions) > 1
        worst = max(slot.rel_l2[p] for p in positions)
        yield finding(
            "unexplained",
            f"{plural(len(positions), 'row')} of {slot.compared} of {name_slots([slot.slot])} "
            f"(position{'s' if many else ''} {', '.join(map(str, positions[:_SHOWN]))}) {'differ' if many else 'differs'} "
            f"beside what all rows of the slot went through (relative L2 up to {worst:.3g}, limit {slot.limit:.3g}), and "
            "none of the known causes fits.",
            slots=[slot.slot],
            confidence=0.5,
            evidence={SINGLE: {str(slot.slot): positions}, "limit": slot.limit, "rel_l2": worst},
            remedy="Look at these rows in the HTML report: same round, same batch, or tokens of one kind?",
        )
