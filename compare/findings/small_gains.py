"""B: slots that are found at their boundary, and differ from the other side's by a norm or a gain per channel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from drafttrace.compare.facts import VALUE, Facts, StreamFacts
from drafttrace.compare.findings.base import finder, finding
from drafttrace.compare.findings.value_words import text_of
from drafttrace.compare.findings.values import finding_id
from drafttrace.compare.result import Finding, SlotResult
from drafttrace.compare.sample import MAX_ROWS, MAX_VALUES, Sample, Stream, slot_streams, spread, sweep_streams
from drafttrace.compare.small_fits import small_fit


@finder(turn=21)
def find(facts: Facts) -> Iterator[Finding]:
    """``norm-gain``, ``norm-extra`` or ``norm-missing``, one for each slot; what moves a slot further is told elsewhere."""
    if facts.reference is None or facts.alignment is None or facts.moved or facts.atlas is None:
        return
    for slot in facts.slots:
        found = _deviant(facts, slot)
        if found is None or found.explanation is None:
            continue
        name, e = finding_id(found), found.explanation
        who = f"{'The server' if found.side == 'left' else 'The reference'}'s slot {slot.slot}"
        text, remedy = text_of(name, who, [(slot.slot, e)], facts, one=True)
        yield finding(
            name,
            f"{text.removesuffix('.')} (median relative L2 {slot.rel_l2.p50:.3g}, limit {slot.judged.match_limit:.3g}; "
            f"{e.fit.residual:.3g} with it).",
            slots=(slot.slot,),
            confidence=max(0.4, 0.95 - 2 * e.fit.residual),
            evidence={
                "side": found.side,
                "fit": e.fit.name,
                "of": e.target,
                "residual": e.fit.residual,
                "without_the_fit": e.identity_residual,
            },
            remedy=remedy,
        )


def _deviant(facts: Facts, slot: SlotResult) -> StreamFacts | None:
    """The side's slot that is a gain away from the boundary at which both sides' slots are found."""
    ours, theirs = (_of(streams, slot.slot) for streams in (facts.left_streams, facts.reference_streams))
    if ours is None or theirs is None or slot.slot in facts.copies.slots:
        return None
    if any(s.by != VALUE or s.explanation is not None or s.broken for s in (ours, theirs)):
        return None
    if ours.boundary != theirs.boundary or not slot.rel_l2.p50 > slot.judged.match_limit or slot.parts:
        return None
    assert facts.reference is not None
    atlas = facts.left if facts.atlas == "left" else facts.reference
    home = next((s for s in sweep_streams(str(facts.atlas), atlas) if s.boundary == ours.boundary), None)
    for fact, capture in ((ours, facts.left), (theirs, facts.reference)):
        stream = next(s for s in slot_streams(fact.side, capture) if s.slot == slot.slot)
        if home is None or home.rows.width != stream.rows.width:
            continue
        sample = _sample(facts, stream, home)
        fit = small_fit(sample.read(stream), sample.read(home), home.name, ours.boundary, slot.judged.match_limit)
        if fit is not None:
            return replace(fact, explanation=fit)
    return None


def _of(streams: tuple[StreamFacts, ...], index: int) -> StreamFacts | None:
    return next((s for s in streams if s.index == index), None)


def _sample(facts: Facts, stream: Stream, home: Stream) -> Sample:
    """Compared rows that the slot and the boundary both have."""
    pairs = facts.alignment
    assert pairs is not None
    index = {"left": pairs.left_rows, "reference": pairs.reference_rows}
    rows = np.flatnonzero(stream.has(index[stream.side]) & home.has(index[home.side]))
    rows = spread(rows, min(MAX_ROWS, max(32, MAX_VALUES // max(1, stream.rows.width))))
    return Sample(pairs.left_rows[rows], pairs.reference_rows[rows], pairs.positions[rows])
