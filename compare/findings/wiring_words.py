"""What slots hold, in the words of the findings about wirings: never a question mark, and nothing that was not seen."""

from __future__ import annotations

from collections.abc import Sequence

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import name_slots
from drafttrace.compare.locate import Distance
from drafttrace.compare.wiring import Reading
from drafttrace.tracer.boundary import boundary_name, wiring_name


def called(boundaries: list[int | None], unknown: str) -> str:
    """The boundaries by name where all are known, else ``unknown``."""
    names = ["the embedding (B0)" if b == 0 else boundary_name(b) for b in boundaries if b is not None]
    return " and ".join(names) if names and len(names) == len(boundaries) else unknown


def listed(wiring: Sequence[int | None], before: str = "") -> str:
    """The wiring where all of it is known, else nothing."""
    return f"{before}{wiring_name(wiring)}" if wiring and None not in wiring else ""


def unpaired(facts: Facts, reading: Reading) -> str:
    """What the left slots hold that have no counterpart, or one in an entry behind the reference's slots."""
    slots = len(facts.reference_wiring)
    alone = [i for i, entry in enumerate(reading.order) if entry is None or entry >= slots]
    strange = [i for i in alone if facts.left_wiring[i] is None and _is_none_of_them(facts, i)]
    known = [i for i in alone if reading.order[i] is None and facts.left_wiring[i] is not None]
    told = ""
    for here, again in ((True, ", which training fed in another slot"), (False, ", which training did not feed")):
        some = [i for i in known if (facts.left_wiring[i] in facts.reference_wiring) is here]
        if some:
            holds = called([facts.left_wiring[i] for i in some], "a state")
            told += f", and its {name_slots(some)} {_verb(some)} {holds}{again}"
    if strange:
        told += f", and its {name_slots(strange)} {_verb(strange)} none of the reference's slots"
    return told


def _verb(slots: Sequence[int]) -> str:
    return "holds" if len(slots) == 1 else "hold"


def _is_none_of_them(facts: Facts, slot: int) -> bool:
    """Whether a left slot is, by its rows, further than noise from every slot of the reference."""
    assert facts.reference is not None
    line = facts.cross.get(facts.left.slots[slot].name, {})
    distances = [line[other.name].rel_l2 for other in facts.reference.slots if other.name in line]
    return bool(distances) and all(d > facts.thresholds.blind_noise for d in distances)


def held(facts: Facts, slot: int) -> str:
    """What a left slot holds: a boundary, else the reference's slot that it equals."""
    known = facts.left_wiring[slot]
    if known is not None:
        return boundary_name(known)
    assert facts.reference is not None
    line = facts.cross.get(facts.left.slots[slot].name, {})
    near = [s for s, other in enumerate(facts.reference.slots) if _is_near(facts, line.get(other.name))]
    if near:
        return f"what training had in slot {near[0]}"
    last = facts.reference.last
    if last is not None and _is_near(facts, line.get(last.name)):
        return "the reference's last state"
    return "a state that is none of the reference's slots"


def _is_near(facts: Facts, distance: Distance | None) -> bool:
    return distance is not None and distance.rel_l2 <= facts.thresholds.match
