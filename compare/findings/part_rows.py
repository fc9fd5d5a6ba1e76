"""Rows of a slot that differ while the others do not: the causes of whole slots, told of exactly these rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from drafttrace.compare.facts import VALUE, Explanation, Facts, PartFacts, StreamFacts
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.findings.rows import placeholder_span
from drafttrace.compare.findings.value_words import text_of
from drafttrace.compare.findings.values import finding_id
from drafttrace.compare.part_words import part_levels, part_name, part_remedy
from drafttrace.compare.result import Finding
from drafttrace.tracer.boundary import boundary_name

_RIGHT = 0.5  # of the limit: rows that far below it are right
_SIDE = "A sweep over these rows tells which side it is: drafttrace record --boundaries all --boundary-rows N."


@dataclass(frozen=True)
class PartCause:
    """Why the rows of one part differ. side: the one that deviates. text: what they are, behind ``who``. fit: where a
    transformation explains them. unsure: it may as well be the other side that deviates, the other way round."""

    fact: PartFacts
    id: str
    side: str
    text: str
    confidence: float
    evidence: dict[str, Any]
    explanation: Explanation | None = None
    unsure: bool = False


@finder(turn=5)
def find(facts: Facts) -> Iterator[Finding]:
    """One finding for every cause and set of rows, whatever the number of slots."""
    grouped: dict[tuple[object, ...], list[PartCause]] = {}
    for cause in part_causes(facts):
        part = cause.fact.part
        key = (cause.id, cause.side, cause.fact.own, part.kind, part.phase, part.first, part.last, part.rows)
        grouped.setdefault(key, []).append(cause)
    for causes in grouped.values():
        yield _told(facts, causes)


def part_causes(facts: Facts) -> tuple[PartCause, ...]:
    """The parts that are explained. What stands in another row's place, on a picture, or is one rank's part of a sum, is
    told elsewhere."""
    elsewhere = {rows.slot for rows in facts.rows if placeholder_span(facts, rows) is not None}
    elsewhere |= set(facts.ranks.partial.slots if facts.ranks.partial is not None else ())
    found = (_cause(facts, f) for f in facts.parts if f.slot not in elsewhere and not _copied(facts, f))
    return tuple(cause for cause in found if cause is not None and not _of_the_whole(facts, cause))


def _copied(facts: Facts, fact: PartFacts) -> bool:
    """Whether most of the rows are told as copies of other rows."""
    copied = facts.copies.positions(fact.slot)
    return copied is None or 2 * len(copied & set(fact.positions.tolist())) >= len(fact.positions)


def _one_by_one(facts: Facts, fact: PartFacts) -> bool:
    """Whether every row is told by itself: as what it is, or as one that nothing explains."""
    told = {p for one in facts.singles if one.slot == fact.slot and one.own for p in one.rest}
    told |= {row.position for one in facts.singles if one.slot == fact.slot and one.own for row in one.rows}
    return set(fact.positions.tolist()) <= told


def _of_the_whole(facts: Facts, cause: PartCause) -> bool:
    """Whether the rows are only those of a slot in which a cause that holds in every row shows most."""
    streams = facts.left_streams if cause.side == "left" else facts.reference_streams
    whole = _whole(streams, cause.fact.slot)
    if cause.explanation is None or whole is None or whole.explanation is None or cause.fact.part.kind != "spread":
        return False
    mine, all_rows = cause.explanation.fit, whole.explanation.fit
    return mine.name == all_rows.name == "zeroed" and set(mine.fitted["channels"]) == set(
        all_rows.fitted["channels"]
    )


def without_wholes(found: Sequence[Finding]) -> list[Finding]:
    """The findings without those that tell of a whole slot what is told of the larger part of its rows, or of an ordered
    part (a phase, a run, every Nth row) beside which the others match."""
    parts = [
        (f.id, set(f.slots))
        for f in found
        if (part := f.evidence.get("part"))
        and (2 * part["rows"] > part["compared"] or (part["kind"] != "spread" and part["others_match"]))
    ]

    def again(one: Finding) -> bool:
        whole = {"fits", "decided_by"} & set(one.evidence)
        return bool(whole) and any(one.id == name and set(one.slots) <= slots for name, slots in parts)

    return [one for one in found if not again(one)]


def _cause(facts: Facts, fact: PartFacts) -> PartCause | None:
    ours, theirs = fact.left, fact.reference  # of an own part, one is the slot and the other a boundary
    exchanged = _exchanged(facts, fact)
    if exchanged is not None:
        return exchanged
    known = ours.by == theirs.by == VALUE and None not in (ours.boundary, theirs.boundary)
    if known and ours.boundary != theirs.boundary:
        return _elsewhere(facts, fact)
    explained = [s for s in (ours, theirs) if s.explanation is not None]
    if explained:
        return _transformed(fact, explained)
    if fact.own and fact.part.level == "noise" and not _one_by_one(facts, fact):
        side = "left" if ours.index >= 0 else "reference"
        return PartCause(fact, "unexplained", side, "differ, and none of the known causes fits them", 0.5, {})
    if fact.is_left is not None or fact.is_reference is not None:
        side, other = ("left", fact.is_left) if fact.is_left is not None else ("reference", fact.is_reference)
        return _of_another_slot(facts, fact, side, int(other or 0))
    return None


def _of_another_slot(facts: Facts, fact: PartFacts, side: str, other: int) -> PartCause:
    """Rows that the other side has in another slot; the boundaries of its slots say how far away that is."""
    whose, streams = "the reference's", facts.reference_streams
    if side == "reference":
        whose, streams = "the server's", facts.left_streams
    held, home = (_whole(streams, slot) for slot in (other, fact.slot))
    text, evidence = f"hold the rows of {whose} slot {other}", {"holds_slot": other}
    known = held is not None and home is not None and held.by == home.by == VALUE
    if not known or held is None or home is None or held.boundary is None or home.boundary is None:
        return PartCause(fact, "wrong-boundary", side, text, 0.9, evidence)
    name = "boundary-offset" if abs(held.boundary - home.boundary) == 1 else "wrong-boundary"
    text += f", {boundary_name(held.boundary)} where it has {boundary_name(home.boundary)}"
    boundaries = {"rows": boundary_name(held.boundary), "others": boundary_name(home.boundary)}
    return PartCause(fact, name, side, text, 0.9, {**evidence, **boundaries})


def _transformed(fact: PartFacts, explained: Sequence[StreamFacts]) -> PartCause:
    """The transformed side: the one that is unlike the rows beside it, or the only one that a fit explains."""
    best = min(explained, key=lambda s: s.explanation.fit.score if s.explanation else 0.0)
    both = len(explained) == 2
    # The phases are the server's: where one of them is wrong, the server is.
    told = "left" if fact.part.kind == "phase" else fact.odd_side
    if both and told is not None:
        best = next(s for s in explained if s.side == told)
    elif both and explained[0].explanation and explained[1].explanation:
        same = explained[0].explanation.fit.name == explained[1].explanation.fit.name
        best = explained[0] if same else best
    assert best.explanation is not None
    fit = best.explanation.fit
    evidence = {"fit": fit.name, "residual": fit.residual, "without_the_fit": best.explanation.identity_residual}
    unsure = both and told is None
    if unsure:
        evidence["side_known"] = False
    confidence = max(0.4, 0.98 - 2 * fit.residual)
    return PartCause(fact, finding_id(best), best.side, "", confidence, evidence, best.explanation, unsure)


def _exchanged(facts: Facts, fact: PartFacts) -> PartCause | None:
    """Two slots that hold each other's rows."""
    for side, mine in (("left", fact.is_left), ("reference", fact.is_reference)):
        if mine is None:
            continue
        for other in facts.parts:
            back = other.is_left if side == "left" else other.is_reference
            if other.slot == mine and back == fact.slot and _alike(other, fact):
                whose = "the reference's" if side == "left" else "the server's"
                text = f"hold {whose} rows of the other one"
                return PartCause(fact, "slot-permutation", side, text, 0.97, {"holds_slot": mine})
    return None


def _alike(one: PartFacts, two: PartFacts) -> bool:
    return one.part.kind == two.part.kind and abs(one.part.rows - two.part.rows) <= 0.2 * two.part.rows


def _elsewhere(facts: Facts, fact: PartFacts) -> PartCause:
    """Rows at another boundary than their slot's others."""
    ours, theirs = fact.left.boundary, fact.reference.boundary
    assert ours is not None and theirs is not None
    if fact.own:
        left = fact.left.index >= 0
        held, home = (ours, theirs) if left else (theirs, ours)
        name = "boundary-offset" if abs(held - home) == 1 else "wrong-boundary"
        text = f"hold {boundary_name(held)} where its other rows hold {boundary_name(home)}"
        return PartCause(
            fact,
            name,
            "left" if left else "reference",
            text,
            0.9,
            {"rows": boundary_name(held), "others": boundary_name(home)},
        )
    usual = _whole(facts.reference_streams, fact.slot)
    moved = usual is not None and usual.by == VALUE and usual.boundary != theirs
    side = "reference" if moved else "left"
    step = (theirs - ours) if moved else (ours - theirs)
    name = "boundary-offset" if abs(step) == 1 else "wrong-boundary"
    when = f", {'one boundary' if abs(step) == 1 else f'{abs(step)} boundaries'} {'late' if step > 0 else 'early'}"
    if moved:
        text = f"hold {boundary_name(theirs)} where the server has {boundary_name(ours)}{when}"
    else:
        text = f"hold {boundary_name(ours)} where training had {boundary_name(theirs)}{when}"
    return PartCause(
        fact, name, side, text, 0.95, {"left": boundary_name(ours), "reference": boundary_name(theirs)}
    )


def _whole(streams: Sequence[StreamFacts], slot: int) -> StreamFacts | None:
    return next((s for s in streams if s.index == slot), None)


def _told(facts: Facts, causes: Sequence[PartCause]) -> Finding:
    first, part = causes[0], causes[0].fact.part
    slots = [cause.fact.slot for cause in causes]
    whose = "the server's" if first.side == "left" else "the reference's"
    who = f"{part_name(part)} of {whose} {name_slots(slots)}"
    who, remedy = who[0].upper() + who[1:], ""
    if first.explanation is not None:
        members = [(c.fact.slot, c.explanation) for c in causes if c.explanation is not None]
        text, _ = text_of(first.id, who, members, facts, one=False)
        text = text.removesuffix(".")
        if any(cause.unsure for cause in causes):
            text += ", or the other side's the other way round: the rows do not show which of the sides is wrong"
            remedy = _SIDE
    else:
        texts = [cause.text for cause in causes]
        each = "; ".join(f"in slot {c.fact.slot} they {c.text}" for c in causes)
        text = f"{who} {texts[0]}" if len(set(texts)) == 1 else f"{who} differ: {each}"
    swept = min(cause.fact.swept for cause in causes)
    if 0 < swept < part.rows:
        text += f", by the {swept} of them that the sweep holds"
    level = part_levels([cause.fact.part for cause in causes])
    return finding(
        first.id,
        f"{text}, {_beside(first.fact)} ({level}).",
        slots=slots,
        confidence=min(cause.confidence for cause in causes),
        evidence={
            "side": first.side,
            "part": part_evidence(first.fact),
            "slots": {str(cause.fact.slot): cause.evidence for cause in causes},
        },
        remedy=f"{part_remedy(first.id, part)} {remedy}".strip(),
    )


def _beside(fact: PartFacts) -> str:
    """What the rows are told apart from."""
    if fact.beyond is not None:
        return "beside what all rows of the slot went through"
    return "unlike the other rows there" if fact.own else "while the others match"


def part_evidence(fact: PartFacts) -> dict[str, Any]:
    """Which rows a finding is about."""
    part = fact.part
    return {
        "kind": part.kind,
        "phase": part.phase,
        "rows": part.rows,
        "of": part.of,
        "compared": part.compared,
        "first": part.first,
        "last": part.last,
        "step": part.step,
        "positions": [int(p) for p in fact.positions[:64]],
        "others_match": not fact.own and part.others_rel_l2 <= _RIGHT * part.limit,
    }
