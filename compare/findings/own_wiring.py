"""A: what one trace, or two that agree, show of a wrong wiring without a training dump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.accept_lengths import ONLY_A_DUMP
from drafttrace.compare.findings.base import boundary_list, finder, finding, name_slots
from drafttrace.compare.own_slots import NEARLY_ALL, OwnSlot, twin_boundaries
from drafttrace.compare.remedy import FIELD
from drafttrace.compare.result import FAULT, NOTE, Finding
from drafttrace.tracer.boundary import boundary_name, wiring_name

_SHOWN = 3
OWN_SWEEP = "the trace's own layer sweep"
"""What such a finding was judged against, as evidence."""
CAPTURE = (
    "The config is not at fault: the server names other boundaries than it captures. Look at what captures the slots: a "
    "layer that hands over another one's output, or a buffer that two of them share (compare eager with graphs: "
    "--disable-cuda-graph)."
)


@finder(turn=12)
def find(facts: Facts) -> Iterator[Finding]:
    """What the trace's own sweep shows, and what a training dump, where there is one, tells by itself."""
    yield from _other_boundaries(facts.inside.slots)
    for side, capture in (("left side", facts.left), ("reference", facts.reference)):
        twins = twin_boundaries(capture) if capture is not None else ()
        if twins:
            yield _same_boundaries(side, twins)
    if facts.reference is not None and not facts.acceptance.between_traces:
        return
    if facts.reading is not None and not facts.reading.same:
        return
    yield from _twins([one for one in facts.inside.slots if one.holds is None])
    yield from _fallback(facts)


def _other_boundaries(slots: Sequence[OwnSlot]) -> Iterator[Finding]:
    """Slots that the layer sweep of the same passes shows to be another boundary than the server says."""
    placed = [one for one in slots if one.holds is not None and one.said is not None]
    for name, near in (("boundary-offset", True), ("wrong-boundary", False)):
        found = [one for one in placed if (abs((one.holds or 0) - (one.said or 0)) == 1) == near]
        if not found:
            continue
        pairs = [
            f"slot {o.slot} holds {boundary_name(o.holds)} where the server says {boundary_name(o.said)}"
            for o in found
        ]
        twins = [f"the same as its slot {one.twin}" for one in found if one.twin is not None]
        yield finding(
            name,
            f"The server captures other boundaries than it says: {'; '.join(pairs)}, bit for bit in at least "
            f"{NEARLY_ALL:.0%} of the {min(one.rows for one in found)} rows that were looked at"
            f"{f' ({twins[0]})' if twins else ''}.",
            slots=[one.slot for one in found],
            confidence=0.97,
            evidence={"against": OWN_SWEEP, **_evidence(found)},
            remedy=CAPTURE,
        )


def _twins(slots: Sequence[OwnSlot]) -> Iterator[Finding]:
    """Equal slots of which no sweep says which one is right."""
    found = [one for one in slots if one.twin is not None]
    if not found:
        return
    numbers = sorted({n for one in found for n in (one.slot, one.twin) if n is not None})
    said = [one.said for one in found]
    meant = f" (slot {found[0].slot} is meant to be {boundary_name(said[0])})" if said[0] is not None else ""
    yield finding(
        "wrong-boundary",
        f"{name_slots(numbers).capitalize()} hold one and the same state, bit for bit{meant}: one boundary was captured "
        "twice, and another one not at all.",
        slots=numbers,
        confidence=0.9,
        evidence=_evidence(found),
        remedy=f"{CAPTURE} Record a layer sweep (drafttrace record --boundaries all) to see which slot is wrong.",
    )


def _same_boundaries(side: str, twins: Sequence[tuple[int, int]]) -> Finding:
    """Boundaries that are one tensor: a layer between them does nothing, or one was recorded in the other's place."""
    pairs = "; ".join(f"{boundary_name(one)} and {boundary_name(two)}" for one, two in twins[:_SHOWN])
    more = f" and {len(twins) - _SHOWN} more pairs" if len(twins) > _SHOWN else ""
    return finding(
        "stale-rows",
        f"Boundaries of the {side}'s layer sweep are equal, bit for bit: {pairs}{more}. The layers between them add "
        "nothing, or one tensor was recorded in the place of two: which of the two a slot is, cannot be told.",
        confidence=0.5,
        evidence={
            "side": side.split()[0],
            "pairs": [[boundary_name(one), boundary_name(two)] for one, two in twins],
        },
        remedy="Look whether the target has layers that do nothing (all weights of their output projections are 0). Else "
        "record once more with --disable-cuda-graph: copies that are read during a replay can all show the last tensor.",
        severity=NOTE,
    )


def _evidence(slots: Sequence[OwnSlot]) -> dict[str, object]:
    return {
        str(one.slot): {
            "declared": boundary_name(one.said),
            "holds": boundary_name(one.holds),
            "equal_to_slot": one.twin,
            "rows": one.rows,
        }
        for one in slots
    }


def _fallback(facts: Facts) -> Iterator[Finding]:
    """The server took its default ids: a fault where the draft's config names others, else a question for the dump."""
    source = str(facts.wiring_block.get("source", "")).lower()
    if not (source.startswith("default") or source.endswith("default")):
        return
    ignored = _ids_at_the_top(facts)
    declared = [slot.boundary for slot in facts.left.slots]
    wiring = wiring_name(declared)
    text = f"The server found no layer ids where it looks for them and fell back to its default wiring {wiring}"
    if ignored:
        text += f', while the draft\'s config names {ignored} in "{FIELD}" at its top level, which is not read'
    else:
        text += "; whether the draft was trained on that, only a training dump can tell"
    yield finding(
        "default-wiring",
        f"{text}.",
        slots=range(len(declared)),
        confidence=0.9 if ignored else 0.5,
        evidence={"left": boundary_list(declared), "source": source, "ids_at_the_top": list(ignored)},
        remedy=(
            f'Move the ids into "eagle_config" of the draft\'s config.json: "{FIELD}": {ignored}. '
            if ignored
            else ""
        )
        + ONLY_A_DUMP,
        severity=FAULT if ignored else NOTE,
    )


def _ids_at_the_top(facts: Facts) -> list[int]:
    config = facts.left.about.get("draft_config")
    ids = config.get(FIELD) if isinstance(config, Mapping) else None
    return list(ids) if isinstance(ids, list) and all(isinstance(k, int) for k in ids) else []
