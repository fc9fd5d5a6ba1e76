"""B and J: norm, residual, scale, number format - the slot is the right state after a transformation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drafttrace.compare.facts import VALUE, Explanation, Facts, StreamFacts
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.findings.gains import (
    gain_remedy,
    gain_text,
    known_weights,
    read_last,
    read_slot,
)
from drafttrace.compare.findings.value_words import text_of
from drafttrace.compare.gains import ONCE, SQUARED, GainReading
from drafttrace.compare.hypotheses import PER_CHANNEL, Fit, describe_gain
from drafttrace.compare.part_words import levels_of
from drafttrace.compare.result import Finding
from drafttrace.compare.vocabulary import Entry, register
from drafttrace.tracer.capture import Norm

register(
    Entry(
        id="norm-missing",
        kind="norm",
        rank=140,
        listed=10,
        what="A norm that training applied is not applied in serving.",
        signature="After a fitted gain per channel the directions agree; the row norms vary where they should be constant.",
        remedy="Use a server that applies it, or set the switch that does: fc_norm, norm_before_fc, norm_output.",
        cases=("vllm#38111", "SpecForge#879"),
    ),
    Entry(
        id="norm-extra",
        kind="norm",
        rank=150,
        listed=20,
        what="A norm is applied that training did not apply.",
        signature="As for norm-missing, the other way round: row norms are constant where they should vary.",
        remedy="Compare the norm switches of the served config with the trainer's.",
        cases=("speculators#313", "vllm#46075"),
    ),
    Entry(
        id="norm-gain",
        kind="norm",
        rank=160,
        listed=30,
        what="The norm's weight is read as w-1 or 1+w, or applied twice.",
        signature=(
            "The fitted gain per channel is w-1, w+1 or w squared of a norm weight w of the target, which the finding "
            "names."
        ),
        remedy="Use the norm class of the target (Gemma's multiplies by 1+w).",
        cases=("speculators#1090",),
    ),
    Entry(
        id="residual-missing",
        kind="norm",
        rank=130,
        listed=40,
        what="A slot holds what a layer added to the residual stream, not the stream itself.",
        signature="Adding the boundary before it gives the reference.",
        remedy="Capture hidden + residual where the model keeps the two apart.",
        cases=("vllm#14464", "vllm#11672"),
    ),
    Entry(
        id="scale",
        kind="norm",
        rank=170,
        listed=50,
        what="A slot is the right one times a number.",
        signature="One scalar fits and takes the difference away.",
        remedy=(
            "Look for a scale of the embedding (the root of the hidden size) or of the residual that one side leaves out."
        ),
    ),
    Entry(
        id="dtype-reinterpretation",
        kind="number-format",
        rank=110,
        listed=20,
        what="Bytes of bf16 are read as fp16, or the reverse.",
        signature="Reinterpreting the stored bytes gives the reference.",
        remedy="State the number format where the bytes are read.",
        cases=("ssd#18",),
    ),
    Entry(
        id="rotation",
        kind="number-format",
        rank=120,
        listed=30,
        what="States are the right ones in another basis.",
        signature="Norms agree, cosine is about 0, and an orthogonal map fitted on some rows fits the others.",
        remedy="Undo the rotation of the quantisation before the states are handed over.",
        cases=("vllm-ascend#7038",),
    ),
)

ID_OF_FIT = {
    "scalar": "scale",
    "gain": "norm-gain",
    "rms": "norm-extra",
    "normed": "norm-extra",
    "un-normed": "norm-missing",
    "rotation": "rotation",
    "bytes": "dtype-reinterpretation",
    "zeroed": "zero-rows",
    "residual-half": "residual-missing",
    "inside-layer": "residual-missing",
}
"""What a fit that explains a state is called."""
_NORMS = frozenset({"norm-missing", "norm-extra", "norm-gain"})


@finder(turn=20)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings about transformed slots."""
    if facts.reference is None:
        return
    yield from _transformed(facts)
    yield from _last_norm(facts)


def _transformed(facts: Facts) -> Iterator[Finding]:
    grouped: dict[tuple[str, str, str | None], list[tuple[int, StreamFacts, Explanation]]] = {}
    partial = facts.ranks.partial.slots if facts.ranks.partial is not None else ()
    side = _deviant_side(facts)
    again = _told_of_the_other(facts, side)
    for index in range(len(facts.slots)):
        if index in partial:  # that the ranks' sum is right says more than what one part resembles
            continue
        stream = _deviant(facts, index, side)
        if stream is not None and (stream.side, stream.index) in again:
            continue
        first = None
        for one in stages(stream) if stream is not None else ():
            assert one.explanation is not None
            members = grouped.setdefault((finding_id(one), one.side, first), [])
            members.append((index, one, one.explanation))
            first = first or finding_id(one)
    for (name, whose, beside), told in grouped.items():
        yield _make(facts, name, whose, told, beside)


def stages(stream: StreamFacts) -> Iterator[StreamFacts]:
    """The slot once for every cause that its explanation names: misread bytes of a scaled state have two."""
    while stream.explanation is not None:
        yield stream
        fit = stream.explanation.fit
        if fit.then is None:
            return
        stream = replace(stream, explanation=replace(stream.explanation, fit=fit.then))


def _explained(facts: Facts, index: int) -> dict[str, tuple[StreamFacts, Explanation]]:
    """By side, the slot where it is explained by a transformation."""
    both = (*facts.left_streams, *facts.reference_streams)
    return {s.side: (s, s.explanation) for s in both if s.index == index and s.explanation is not None}


def _deviant_side(facts: Facts) -> str:
    """The side whose slots are explained better, of the slots that are on both: without a sweep each side explains the
    other, and one cause is not told of one side in this slot and of the other side in the next."""
    both = [found for index in range(len(facts.slots)) if len(found := _explained(facts, index)) == 2]
    scores = {side: sum(np.log(found[side][1].fit.score) for found in both) for side in ("left", "reference")}
    return min(scores, key=lambda side: scores[side])


def finding_id(stream: StreamFacts) -> str:
    """The cause for a transformed slot. A reference that is normed where the server is not: the server lacks the norm."""
    assert stream.explanation is not None
    name = ID_OF_FIT[stream.explanation.fit.name]
    if stream.side == "reference" and name in {"norm-extra", "norm-missing"}:
        return "norm-missing" if name == "norm-extra" else "norm-extra"
    return name


def _told_of_the_other(facts: Facts, side: str) -> frozenset[tuple[str, int]]:
    """The slots that are explained by one of the other side in another place, and explain that one: of two slots that are
    functions of each other, the one of ``side`` is told."""
    names = {(s.side, s.name): s for s in (*facts.left_streams, *facts.reference_streams) if s.index >= 0}
    found = set()
    for stream in names.values():
        if stream.side == side or stream.explanation is None:
            continue
        other = names.get((side, stream.explanation.target))
        if other is None or other.index == stream.index or other.explanation is None:
            continue
        if other.explanation.target == stream.name:
            found.add((stream.side, stream.index))
    return frozenset(found)


def _deviant(facts: Facts, index: int, side: str) -> StreamFacts | None:
    """The side whose slot is explained by a transformation; the better explained one where both are, ``side`` where both
    are by the same."""
    found = _explained(facts, index)
    if len({e.fit.name for _, e in found.values()}) == 1 and side in found:
        return found[side][0]
    return min(found.values(), key=lambda one: one[1].fit.score, default=(None, None))[0]


def _make(
    facts: Facts,
    name: str,
    side: str,
    members: Sequence[tuple[int, StreamFacts, Explanation]],
    beside: str | None = None,
) -> Finding:
    """One cause of some slots. beside: the one that is told of the same slots before it."""
    slots = [index for index, _, _ in members]
    who = "The server's" if side == "left" else "The reference's"
    evidence = {
        str(index): {
            "fit": e.fit.name,
            "of": e.target if e.boundary is None else f"B{e.boundary}",
            "residual": e.fit.residual,
            "without_the_fit": e.identity_residual,
            **_plain(e.fit.fitted),
            **_read(e.fit, facts),
        }
        for index, _, e in members
    }
    told = [(index, e) for index, _, e in members]
    summary, remedy = text_of(name, f"{who} {name_slots(slots)}", told, facts, one=len(slots) == 1)
    return finding(
        name,
        f"{summary.removesuffix('.')}{f', beside its {beside}' if beside else ''} ({_levels(name, told, facts)}).",
        slots=slots,
        confidence=_confidence(members),
        evidence={"side": side, "fits": evidence},
        remedy=remedy,
    )


def _levels(name: str, members: Sequence[tuple[int, Explanation]], facts: Facts) -> str:
    """What the slots were judged by. A factor or a norm counts by itself: a few percent stay below every limit of the
    distance."""
    left_over = {index: e.fit.residual for index, e in members}
    slots = [s for s in facts.slots if s.slot in left_over]
    told = levels_of(slots)
    if name == "scale":
        return f"{told}; a factor counts from {facts.thresholds.scale:g} off 1 on"
    if name in _NORMS and all(s.rel_l2.p50 <= s.judged.noise_limit for s in slots):
        most = max(left_over.values())
        return f"{told}; {most:.3g} with it, which counts where it is less than half"
    return told


def _confidence(members: Sequence[tuple[int, StreamFacts, Explanation]]) -> float:
    left_over = [e.fit.residual for _, _, e in members]
    if all(e.fit.name == "residual-half" for _, _, e in members):  # an angle, and the clearest slot proves it
        return max(0.4, 0.98 - min(left_over))
    return max(0.4, 0.98 - 2 * max(left_over))


def _plain(fitted: Any) -> dict[str, Any]:
    return {k: _shown(v) if isinstance(v, np.ndarray) else v for k, v in fitted.items()}


def _shown(values: np.ndarray) -> dict[str, float] | list[int]:
    """A gain by its spread, channels by their numbers."""
    return values[:64].tolist() if values.dtype.kind == "i" else describe_gain(values)


def _read(fit: Fit, facts: Facts) -> dict[str, Any]:
    """The known norm weight that a gain is, as evidence."""
    if fit.name not in PER_CHANNEL:
        return {}
    reading = read_slot(facts, fit)
    tried = len(known_weights(facts))
    return {"weight": reading.evidence if reading is not None else {"weights_tried": tried}}


def _last_norm(facts: Facts) -> Iterator[Finding]:
    """Final norm twice, missing, or with another gain in the reference's last state."""
    assert facts.reference is not None
    ours, theirs = facts.left.last, facts.reference.last
    mine = next((s for s in facts.reference_streams if s.index == -1), None)
    if ours is None or theirs is None or mine is None or ours.norm is not Norm.POST:
        return
    cross = facts.cross.get(ours.name, {}).get(theirs.name)
    fit = mine.explanation.fit if mine.explanation is not None and mine.explanation.target == ours.name else None
    name, text = "", ""
    reading = read_last(facts, fit)
    remedy = (
        "Put the norm right in the writer of the dump, or tell the trainer on which side of it the state stands."
    )
    if theirs.norm is Norm.POST and mine.by == VALUE and mine.boundary == facts.layers and mine.explanation is None:
        name, text = "norm-missing", "stands before the final norm, though its format says after"
    elif theirs.norm is Norm.PRE and cross is not None and cross.rel_l2 < facts.thresholds.match:
        name = "norm-extra"
        text = "has the final norm in it already, though its format says that it stands before it: trainers norm it again"
    elif theirs.norm is Norm.POST and fit is not None and fit.name == "un-normed":
        name, text = "norm-missing", "stands before the final norm, though its format says after"
    elif theirs.norm is Norm.POST and fit is not None and _is_second_norm(fit, reading):
        name, text = "norm-extra", "went through the final norm twice"
    elif theirs.norm is Norm.POST and fit is not None and fit.name in {"gain", "normed"}:
        name, text = "norm-gain", f"is the server's times {gain_text(reading, len(known_weights(facts)))}"
        remedy = gain_remedy(reading)
    elif theirs.norm is Norm.POST and fit is not None and fit.name == "scalar":
        name, text = "scale", f"is the server's times {fit.fitted['factor']:.4g}"
    if not name:
        return
    yield finding(
        name,
        f"The reference's last state {text}.",
        slots=(),
        confidence=0.9,
        evidence={
            "declared_norm": theirs.norm.value,
            "proven_by": theirs.proven_by,
            "rel_l2_to_the_server": cross.rel_l2 if cross is not None else None,
            "fit": fit.name if fit is not None else "identity",
            "residual": fit.residual if fit is not None else None,
            **(_plain(fit.fitted) if fit is not None else {}),
            **({"weight": reading.evidence} if reading is not None else {}),
        },
        remedy=remedy,
    )


def _is_second_norm(fit: Fit, reading: GainReading | None) -> bool:
    """Whether a last state passed the whole norm once more: its rows are divided by their size again."""
    if fit.name == "rms":
        return True
    return fit.name == "normed" and (reading is None or reading.kind in {ONCE, SQUARED})
