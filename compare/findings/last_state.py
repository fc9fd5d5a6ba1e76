"""A: what stands in the place of the last state, and is none."""

from __future__ import annotations

from collections.abc import Iterator

from drafttrace.compare.facts import DECLARED, VALUE, Facts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.result import FAULT, NOTE, Finding
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture


@finder(turn=11)
def find(facts: Facts) -> Iterator[Finding]:
    """A side's last state is a boundary below n: a note where the file says so itself, else a fault. A trace's is what its
    server gives, behind the final norm."""
    layers = facts.layers
    if facts.reference is None:
        return
    if facts.atlas is None:
        yield from _other_slot(facts)
    if layers is None:
        return
    for side, streams, capture in (
        ("left side", facts.left_streams, facts.left),
        ("reference", facts.reference_streams, facts.reference),
    ):
        last = next((s for s in streams if s.index == -1), None)
        if last is None or capture is None or last.boundary is None or last.boundary >= layers:
            continue
        # A normed state is found at the boundary that it is made from, or nowhere: one sweep need not hold both.
        if side == "left side" and capture.format.startswith("drafttrace.trace") and last.explanation is not None:
            continue
        honest = last.declared == last.boundary
        by = "by value" if last.by == VALUE else "by its own declaration"
        yield finding(
            "last-not-last",
            f"The {side}'s last entry is {boundary_name(last.boundary)} ({by}), not the state after the last layer "
            f"({boundary_name(layers)}): training targets made from it are wrong.",
            slots=(),
            confidence=0.97 if last.by == VALUE else 0.7,
            evidence={
                "side": "left" if side == "left side" else "reference",
                "boundary": boundary_name(last.boundary),
                "layers": layers,
                "declared": boundary_name(last.declared),
            },
            remedy=(
                f"If the trainer computes its targets from this entry, dump {boundary_name(layers)} too; if the targets "
                "come from elsewhere, nothing needs to change."
            ),
            severity=NOTE if honest or last.by == DECLARED else FAULT,
        )


def _other_slot(facts: Facts) -> Iterator[Finding]:
    """Without a sweep: of two last states that differ, the one that is a slot of the other side is none."""
    assert facts.reference is not None
    ours, theirs = facts.left.last, facts.reference.last
    if ours is None or theirs is None or ours.norm is not theirs.norm:
        return
    between = facts.cross.get(ours.name, {}).get(theirs.name)
    if between is None or not between.rel_l2 > facts.thresholds.match:
        return
    of_left = {i: facts.cross.get(ours.name, {}).get(slot.name) for i, slot in enumerate(facts.reference.slots)}
    of_reference = {i: facts.cross.get(slot.name, {}).get(theirs.name) for i, slot in enumerate(facts.left.slots)}
    for side, capture, other, line in (
        ("left", facts.left, facts.reference, of_left),
        ("reference", facts.reference, facts.left, of_reference),
    ):
        most = min(facts.thresholds.match, facts.thresholds.located * between.rel_l2)
        known = {i: d.rel_l2 for i, d in line.items() if d is not None and d.rel_l2 <= most}
        if not known:
            continue
        slot = min(known, key=lambda i: known[i])
        yield _is_slot(facts, side, capture, other, slot, known[slot])


def _is_slot(facts: Facts, side: str, capture: Capture, other: Capture, slot: int, distance: float) -> Finding:
    boundary = other.slots[slot].boundary
    named = f" ({boundary_name(boundary)})" if boundary is not None else ""
    beside = "reference" if side == "left" else "left side"
    return finding(
        "last-not-last",
        f"The {'left side' if side == 'left' else 'reference'}'s last entry is the {beside}'s slot {slot}{named}, not the "
        f"{beside}'s last state: relative L2 {distance:.2g} from that slot. Training targets made from it are wrong.",
        confidence=0.9,
        evidence={"side": side, "slot": slot, "boundary": boundary_name(boundary), "rel_l2": distance},
        remedy="Dump the state after the last layer as the last entry; where the other side's last state may be the wrong "
        "one instead, compare with drafttrace reference --target TARGET, which holds every boundary.",
    )
