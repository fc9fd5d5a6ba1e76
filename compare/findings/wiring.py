"""A: wrong boundary, slot or capture point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drafttrace.compare.facts import VALUE, Facts
from drafttrace.compare.findings.base import boundary_list, finder, finding, name_slots
from drafttrace.compare.findings.positions import placed
from drafttrace.compare.findings.wiring_words import called, held, listed, unpaired
from drafttrace.compare.part_words import levels_of
from drafttrace.compare.plurals import plural
from drafttrace.compare.remedy import already_live, wiring_remedy
from drafttrace.compare.result import NOTE, Finding
from drafttrace.compare.vocabulary import Entry, register
from drafttrace.compare.wiring import Reading
from drafttrace.tracer.boundary import boundary_name

_IDS = "Set the layer ids inside eagle_config of the draft's config.json as the finding prints them, and restart."
register(
    Entry(
        id="slot-shift",
        kind="wiring",
        rank=70,
        listed=10,
        what="The slots are the reference's, moved by k: usually the embedding, which training fed first, is missing.",
        signature="Slot i of the server is slot i+k of the reference: the slot × slot matrix is small on an off-diagonal.",
        remedy=_IDS,
        cases=("EAGLE#239", "BaldEagle#18"),
    ),
    Entry(
        id="slot-permutation",
        kind="wiring",
        rank=80,
        listed=20,
        what="The same boundaries in another order.",
        signature="The slot × slot matrix is a permutation.",
        remedy="Order the slots alike on both sides; SGLang always hands them over in ascending order.",
        cases=("speculators#366",),
    ),
    Entry(
        id="boundary-offset",
        kind="wiring",
        rank=90,
        listed=30,
        what="Slots are one boundary early or late: one side numbers layer inputs, the other layer outputs.",
        signature=(
            "The best boundary of a slot is k±1 with a clear margin, while its plain cosine to the right one is still high."
        ),
        remedy=_IDS,
        cases=("sglang#25454", "vllm#43671", "TorchSpec#87"),
    ),
    Entry(
        id="wrong-boundary",
        kind="wiring",
        rank=100,
        listed=40,
        what="A slot is some other boundary of the target.",
        signature="The layer sweep places the slot at another boundary than the reference's.",
        remedy=_IDS,
        cases=("tokenspeed#526",),
    ),
    Entry(
        id="default-wiring",
        kind="wiring",
        rank=30,
        listed=50,
        what="The server found no layer ids where it looks for them and fell back to its default, B2, B(n/2), B(n-3).",
        signature="The trace says that the ids came from the default, and the slots differ.",
        remedy=(
            "Put the ids where SGLang reads them: inside eagle_config. At the top level they are ignored without a word."
        ),
        cases=("vllm#50170",),
    ),
    Entry(
        id="slot-count",
        kind="wiring",
        rank=40,
        listed=60,
        what="Server and reference have different numbers of slots, or a width that is no multiple of the hidden size.",
        signature="Counts and widths.",
        remedy="Name as many layer ids as fc has slots.",
        cases=("sglang#32334", "vllm#46788"),
    ),
    Entry(
        id="unsaid-wiring",
        kind="wiring",
        rank=45,
        listed=70,
        what="The slots differ from a reference whose wiring nobody gave: which of them training used is not known.",
        signature="drafttrace reference made the file without --wiring, so its slots are the canonical ones.",
        remedy="Make the reference again with --wiring and the boundaries that training used.",
    ),
    Entry(
        id="last-not-last",
        kind="wiring",
        rank=430,
        listed=80,
        what="What stands in the place of the last state is an inner layer, or a boundary early.",
        signature="The layer sweep places it below B(n); its next-token loss is far too high under both norm variants.",
        remedy="Dump the state after the last layer; training targets that were made from the other one are wrong.",
        cases=("speculators#705", "TorchSpec#87"),
    ),
)


@finder(turn=10)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings about which boundary each slot is."""
    if facts.reference is None:
        return
    reading = facts.reading
    if _nobody_said(facts):
        yield _unsaid(facts)
        return
    yield from _slot_count(facts)
    if reading is not None and not reading.same:
        yield from _default(facts)
        yield from _shift(facts, reading)
        yield from _permutation(facts, reading)
        yield from _offset(facts, reading)
        yield from _wrong(facts, reading)
    elif reading is not None:
        yield from _suspected_offset(facts)


def _nobody_said(facts: Facts) -> bool:
    """Whether the slots differ only from slots that ``drafttrace reference`` chose itself."""
    if facts.reference is None or not facts.reference.assumed_wiring or not facts.left.slots:
        return False
    other_count = len(facts.left.slots) != len(facts.reference.slots)
    return other_count or (facts.reading is not None and not facts.reading.same)


def _unsaid(facts: Facts) -> Finding:
    return finding(
        "unsaid-wiring",
        f"Which boundaries training used is not known: the reference was made without --wiring and has the canonical "
        f"{listed(facts.reference_wiring) or 'slots'}, the server hands over "
        f"{listed(facts.left_wiring) or 'other slots'}{_how(facts)}. That they differ is no fault of either.",
        slots=range(len(facts.left.slots)),
        confidence=0.95,
        evidence=_evidence(facts),
        remedy="Make the reference again with drafttrace reference --wiring and the boundaries that training used; if "
        "nobody knows them, drafttrace replay --search on the reference finds them by value.",
        severity=NOTE,
    )


def _certainty(facts: Facts) -> float:
    return 0.98 if facts.reading_by == VALUE else 0.6


def _evidence(facts: Facts, **more: Any) -> dict[str, Any]:
    return {
        "left": boundary_list(facts.left_wiring),
        "reference": boundary_list(facts.reference_wiring),
        "reference_last": boundary_name(facts.tail),
        "decided_by": facts.reading_by,
        "located_with": f"the layer sweep of the {facts.atlas} side"
        if facts.atlas
        else "slots and declarations only",
        "left_declared": boundary_list(s.boundary for s in facts.left.slots),
        "reference_declared": boundary_list(s.boundary for s in facts.reference.slots) if facts.reference else [],
    } | more


def _remedy(facts: Facts) -> str:
    served = facts.left.about.get("server_args")
    draft = served.get("speculative_draft_model_path") if isinstance(served, Mapping) else None
    return wiring_remedy(facts.reference_wiring, facts.wiring_block, draft if isinstance(draft, str) else None)


def _levels(facts: Facts, slots: Sequence[int]) -> str:
    """How far the slots are from the reference's in the same place, beside their limits; nothing if none was compared."""
    compared = [s for s in facts.slots if s.slot in slots and s.rows]
    return f" ({levels_of(compared)})" if compared else ""


def _how(facts: Facts) -> str:
    return "" if facts.reading_by == VALUE else " (by the files' declarations; no layer sweep was recorded)"


def _slot_count(facts: Facts) -> Iterator[Finding]:
    assert facts.reference is not None
    ours, theirs = len(facts.left.slots), len(facts.reference.slots)
    if ours == theirs or (not ours and facts.inside.fc_ran is False):  # fc-not-called says why there are none
        return
    if not ours:
        served = facts.left.format.startswith("drafttrace.trace")
        who = "The server hands over no slots" if served else "The left side holds no slots"
        yield finding(
            "slot-count",
            f"{who}, the reference has {theirs}: what fc reads was not compared.",
            slots=range(theirs),
            confidence=0.9,
            evidence={"left_slots": 0, "reference_slots": theirs},
            remedy="Start the server with --speculative-algorithm EAGLE3 and the draft that was trained on this dump, and "
            "record again."
            if served
            else "Give a trace or dump that has slots; in a pass of SGLang name them with --layer-ids.",
        )
        return
    if not theirs:
        yield finding(
            "slot-count",
            f"The server hands over {plural(ours, 'slot')}, the reference holds none: it is a dump for a draft without fc "
            "(EAGLE-1, EAGLE-2, MTP), or its slots were not written.",
            confidence=0.9,
            evidence={"left_slots": ours, "reference_slots": 0},
            remedy="Give the dump that this draft was trained on, or make one from the target: drafttrace reference.",
        )
        return
    yield finding(
        "slot-count",
        f"The server hands over {plural(ours, 'slot')}, the reference has {theirs}.",
        slots=range(min(ours, theirs), max(ours, theirs)),
        confidence=0.99,
        evidence=_evidence(facts, left_slots=ours, reference_slots=theirs),
        remedy=_remedy(facts),
    )


def _default(facts: Facts) -> Iterator[Finding]:
    source = str(facts.wiring_block.get("source", ""))
    if not source.lower().startswith("default") and not source.lower().endswith("default"):
        return
    if already_live(facts.reference_wiring, facts.wiring_block):
        return  # the default is right, and the server captures something else
    yield finding(
        "default-wiring",
        f"The server found no layer ids in the draft's config and fell back to its default wiring"
        f"{listed(facts.left_wiring, ' ')}, while training used {listed(facts.reference_wiring) or 'another one'}.",
        slots=range(len(facts.left_wiring)),
        confidence=_certainty(facts),
        evidence=_evidence(facts, source=source),
        remedy=_remedy(facts)
        + ' The ids are read only from the nested "eagle_config"; at the top level they are ignored.',
    )


def _shift(facts: Facts, reading: Reading) -> Iterator[Finding]:
    if not reading.shift:
        return
    if reading.permuted:
        yield _shift_of_the_set(facts, reading)
        return
    entries = [*facts.reference_wiring, facts.tail] if facts.tail is not None else list(facts.reference_wiring)
    k = reading.shift
    lost = [entries[i] for i in range(min(k, len(facts.reference_wiring)))] if k > 0 else []
    extra = [facts.left_wiring[i] for i, entry in enumerate(reading.order) if entry is None] if k < 0 else []
    step = "one" if abs(k) == 1 else str(abs(k))
    if k > 0:
        first = called(lost, "the slot" if k == 1 else f"the {k} slots")
        verb = "is" if k == 1 else "are"
        what = (
            f"its slot i holds what training had in slot i+{k}, so {first} that training fed first {verb} missing"
        )
        what += unpaired(facts, reading)
    else:
        first = called(extra, "a slot" if k == -1 else f"{-k} slots")
        verb = "stands" if k == -1 else "stand"
        what = f"its slot i holds what training had in slot i-{-k}, so {first} that training did not feed {verb} in front"
    yield finding(
        "slot-shift",
        f"The server's slots are the reference's moved by {step}: {what}{_how(facts)}.",
        slots=range(len(facts.left_wiring)),
        confidence=_certainty(facts),
        evidence=_evidence(facts, shift=k, missing=boundary_list(lost), extra=boundary_list(extra)),
        remedy=_remedy(facts),
    )


def _shift_of_the_set(facts: Facts, reading: Reading) -> Finding:
    """A shift of slots that stand in another order as well: told by the boundaries, and not by their places."""
    k, ours, theirs = reading.shift, facts.left_wiring, facts.reference_wiring
    lost = sorted(b for b in theirs if b is not None and b not in ours)
    extra = sorted(b for b in ours if b is not None and b not in theirs)
    step = "one" if abs(k) == 1 else str(abs(k))
    verb = "is" if abs(k) == 1 else "are"
    return finding(
        "slot-shift",
        f"Put in ascending order, the server's slots are the reference's moved by {step}: "
        f"{called([*lost], 'the slot')} that training fed {verb} missing, and {called([*extra], 'a state')} that training "
        f"did not feed {'stands' if abs(k) == 1 else 'stand'} in instead{_how(facts)}.",
        slots=range(len(ours)),
        confidence=_certainty(facts),
        evidence=_evidence(facts, shift=k, missing=boundary_list(lost), extra=boundary_list(extra)),
        remedy=_remedy(facts),
    )


def _permutation(facts: Facts, reading: Reading) -> Iterator[Finding]:
    if not reading.permuted:
        return
    order = list(reading.order)
    slots = [i for i, j in enumerate(order) if j is not None and i != j]
    remedy = _reorder(facts, order)
    if (
        None not in order
        and None not in facts.reference_wiring
        and list(facts.reference_wiring) == sorted(k for k in facts.reference_wiring if k is not None)
    ):
        remedy = _remedy(facts)
        if facts.wiring_block.get("source") != "override" and not already_live(
            facts.reference_wiring, facts.wiring_block
        ):
            remedy += " Check what reorders the slots on the serving side."
    yield finding(
        "slot-permutation",
        f"The server hands over the reference's slots in another order: its {name_slots(slots)} "
        f"{'holds' if len(slots) == 1 else 'hold'} the reference's "
        f"{name_slots([j for i in slots if (j := order[i]) is not None])}{unpaired(facts, reading)}{_how(facts)}.",
        slots=slots,
        confidence=_certainty(facts),
        evidence=_evidence(facts, order=order),
        remedy=remedy,
    )


def _reorder(facts: Facts, order: Sequence[int | None]) -> str:
    """How to put the order right. A boundary or a slot that is not known is asked for, never guessed."""
    wanted = listed(facts.reference_wiring)
    if None in order:
        return (
            _remedy(facts)
            if wanted
            else f"{_remedy(facts)} Until then no order of fc's blocks is known to be right."
        )
    how = f"in the order {wanted}" if wanted else "in the reference's order"
    return (
        f"Hand the slots over {how}. SGLang emits them in ascending order whatever the ids say, so either write the "
        f"training dump in ascending order, or permute the column blocks of fc.weight: new block i = old block {order}[i]."
        + ("" if wanted else " A full layer sweep (drafttrace record --boundaries all) names the boundaries.")
    )


def _offset(facts: Facts, reading: Reading) -> Iterator[Finding]:
    whole = reading.offset
    slots = [i for i, d in enumerate(reading.offsets) if d is not None] if whole else list(reading.moved)
    slots = [i for i in slots if i not in reading.wrong]
    if not slots:
        return
    entries = [*facts.reference_wiring, facts.tail]
    pairs = []
    for i in slots:
        entry = reading.order[i]
        theirs = entries[entry] if entry is not None and entry < len(entries) else None
        pairs.append(f"{boundary_name(facts.left_wiring[i])} where training had {boundary_name(theirs)}")
    if whole:
        when = "early" if whole < 0 else "late"
        step = "one boundary" if abs(whole) == 1 else f"{abs(whole)} boundaries"
        head = f"Each slot is {step} {when}"
    else:
        sides = {("early" if (reading.offsets[i] or 0) < 0 else "late") for i in slots}
        when = sides.pop() if len(sides) == 1 else "early or late"
        head = f"{name_slots(slots).capitalize()} {'is' if len(slots) == 1 else 'are'} one boundary {when}"
    yield finding(
        "boundary-offset",
        f"{head}: {', '.join(pairs)}{_how(facts)}{_levels(facts, slots)}.",
        slots=slots,
        confidence=_certainty(facts),
        evidence=_evidence(facts, offsets=list(reading.offsets)),
        remedy=_remedy(facts),
    )


def _wrong(facts: Facts, reading: Reading) -> Iterator[Finding]:
    if not reading.wrong:
        return
    entries = [*facts.reference_wiring, facts.tail]
    pairs = []
    for i in reading.wrong:
        entry = reading.order[i]
        theirs = entries[entry] if entry is not None and entry < len(entries) else None
        verb = "is" if facts.left_wiring[i] is not None else "holds"
        had = boundary_name(theirs) if theirs is not None else "another state"
        pairs.append(f"slot {i} {verb} {held(facts, i)}, training had {had}")
    yield finding(
        "wrong-boundary",
        f"The server captures other boundaries than training: {'; '.join(pairs)}{_how(facts)}"
        f"{_levels(facts, reading.wrong)}.",
        slots=reading.wrong,
        confidence=_certainty(facts),
        evidence=_evidence(facts, offsets=list(reading.offsets)),
        remedy=_remedy(facts),
    )


def _suspected_offset(facts: Facts) -> Iterator[Finding]:
    """Without a sweep: a slot that is close to the reference's but clearly not it looks like a neighbour of it."""
    if facts.atlas is not None:
        return
    by_position = placed(facts)
    known = {p.slot for p in facts.parts if p.left.explanation is not None or p.reference.explanation is not None}
    slots = [
        s.slot
        for s in facts.slots
        if s.verdict == "mismatch"
        and s.rel_l2.p50 > s.judged.noise_limit  # a part of the rows alone is no other boundary of the slot
        and s.slot not in by_position
        and s.slot not in known
        and s.rel_l2.p50 < 0.45
        and s.cosine_trimmed.p50 > 0.85
        and s.outlier_rows <= s.rows // 2
        and not any(f.explanation for f in facts.left_streams + facts.reference_streams if f.index == s.slot)
    ]
    if slots:
        levels = levels_of([s for s in facts.slots if s.slot in slots])
        yield finding(
            "boundary-offset",
            f"{name_slots(slots).capitalize()} {'looks' if len(slots) == 1 else 'look'} like a neighbouring boundary "
            f"of the reference's: the rows are alike, but further apart than noise ({levels}).",
            slots=slots,
            confidence=0.4,
            evidence=_evidence(facts, rel_l2={str(s.slot): s.rel_l2.p50 for s in facts.slots}),
            remedy="Record a layer sweep (drafttrace record --boundaries all): it names the boundary of every slot.",
            by_level=True,
        )
