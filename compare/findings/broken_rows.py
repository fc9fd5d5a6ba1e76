"""I, J: rows that can be no state, in any tap of either side, and the tap in which they begin.

The findings about compared slots name such rows, too; :func:`told_once` makes one finding of what both say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drafttrace.compare.broken import CONSTANT, KINDS, NOT_FINITE, ZERO, BrokenTap, RowPlace, first_causes
from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.result import Finding
from drafttrace.compare.taps import EMBED, LAST, TARGET, Tap
from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Phase

_ARE = {NOT_FINITE: "not finite", ZERO: "zero", CONSTANT: "one and the same for different tokens"}
_LIMIT = {NOT_FINITE: "none may be", ZERO: "none may be", CONSTANT: "at most half of a pass's may be"}
_PHASES = {
    Phase.PREFILL: "prefill",
    Phase.VERIFY: "verify",
    Phase.DRAFT_EXTEND_PREFILL: "the draft's extend after prefill",
    Phase.DRAFT_EXTEND_VERIFY: "the draft's extend after verify",
    Phase.DECODE: "decode",
}
_DRAFT = {
    "embed_in": "the draft's embedding (embed_in)",
    "fc_out": "what fc gives (fc_out)",
    "hidden_out": "what the draft's layers give (hidden_out)",
    "topk_logits": "the draft's logits (topk_logits)",
}
_LOOK = {
    "embed": "Look at the target's embedding: its weight, and the token ids that it is given.",
    "embed_in": "Look at the draft's embedding: its weight (drafttrace check reads it), and the ids that it is given.",
    "hidden_in": "Look at what hands the states over between target and draft, and from draft step to draft step.",
    "fc_in": "Look at what stands between the target's aux states and fc: the concatenation, and a norm before fc.",
    "fc_out": "fc's input is sound, so look at fc: its weight in the checkpoint (drafttrace check reads it).",
    "hidden_out": "What went into the draft's layers is sound, so look at them: their weights (drafttrace check reads "
    "them), overflow in fp16, and the draft's KV cache.",
    "topk_logits": "The draft's states are sound, so look at its lm_head and its vocabulary map (drafttrace check reads "
    "them).",
}
_OF_TARGET = {
    NOT_FINITE: "Find the first layer that overflows: look where NaN starts in the layer sweep (drafttrace record "
    "--boundaries all).",
    ZERO: "A buffer was handed over before it was filled, or the rows were never computed: compare eager with graphs.",
    CONSTANT: "A buffer is read that nobody fills per token: look at what the capture copies from, and when.",
}
_CONFIDENCE = {NOT_FINITE: 0.99, ZERO: 0.99, CONSTANT: 0.95}
_ONE_PASS = (
    "Only one kind of pass is wrong, so no weight is: a buffer of that pass is not filled anew, or read before it is. "
    "Compare with --disable-cuda-graph, and look for a copy into a graph's buffer that is skipped."
)
_MOST_OF = 0.9
_MOST_TOLD, _MOST_NAMES = 3, 6


@finder(turn=35, unpaired=True)
def find(facts: Facts) -> Iterator[Finding]:
    """``nan-inf``, ``zero-rows`` and ``constant-rows``, one finding for each kind."""
    sides = {"left": facts.inside.broken, "reference": facts.broken_reference}
    for kind in KINDS:
        causes, follow = [], []
        for side, broken in sides.items():
            first = first_causes(broken, kind)
            silent = _misread(facts, side) if kind == NOT_FINITE else set()  # told as dtype-reinterpretation
            causes += [(side, one) for one in first if one.slot not in silent]
            if causes:
                follow += [(side, one) for one in broken if one.kind == kind and one not in first]
        if causes:
            yield _finding(kind, causes, follow, beside=facts.reference is not None)


def _misread(facts: Facts, side: str) -> set[int]:
    """Slots whose bytes are read in the wrong format, which makes some of them NaN."""
    streams = facts.left_streams if side == "left" else facts.reference_streams
    slots = {s.index for s in streams if s.explanation is not None and s.explanation.fit.name == "bytes"}
    if side == "left":
        slots |= {s.slot for s in facts.inside.fc_in if s.fit is not None and s.fit.name == "bytes"}
    return slots


def _finding(
    kind: str, causes: Sequence[tuple[str, BrokenTap]], follow: Sequence[tuple[str, BrokenTap]], beside: bool
) -> Finding:
    groups = list(_grouped(causes))
    told = [_told(kind, group, beside) for group in groups[:_MOST_TOLD]]
    if len(groups) > _MOST_TOLD:
        told.append(f"{len(groups) - _MOST_TOLD} more taps have such rows")
    text = "; ".join(told) + _followers(follow)
    everything = [*causes, *follow]
    slots = sorted({one.slot for _, one in everything if one.slot is not None and one.slot >= 0})
    return finding(
        kind,
        f"{text[0].upper()}{text[1:]}.",
        slots=slots,
        confidence=_CONFIDENCE[kind],
        evidence={
            **{_key(side, one, beside): _evidence(one) for side, one in everything},
            "begins": [
                {"side": side, "tap": _path(one.tap), **_place(one.begins), "told": _begins(side, one, beside)}
                for side, one in causes
            ],
            "follows": [_key(side, one, beside) for side, one in follow],
        },
        remedy=_remedy(kind, causes[0][1]),
    )


def _followers(follow: Sequence[tuple[str, BrokenTap]]) -> str:
    names = list(dict.fromkeys(_name(one.tap) for _, one in follow))
    more = ", …" if len(names) > _MOST_NAMES else ""
    return f"; what is computed from them follows ({', '.join(names[:_MOST_NAMES])}{more})" if names else ""


def _grouped(causes: Sequence[tuple[str, BrokenTap]]) -> Iterator[list[tuple[str, BrokenTap]]]:
    """Slots of one kind of tap that are broken in the same rows are told together."""
    groups: dict[object, list[tuple[str, BrokenTap]]] = {}
    for side, one in causes:
        alike = one.slot is not None and one.slot >= 0
        kind = "aux" if one.tap.model == TARGET else one.tap.name
        groups.setdefault((side, kind if alike else _path(one.tap), one.count, one.at), []).append((side, one))
    yield from groups.values()


def _told(kind: str, group: Sequence[tuple[str, BrokenTap]], beside: bool) -> str:
    side, first = group[0]
    where = _name(first.tap) if len(group) == 1 else _names([one.tap for _, one in group])
    side = f" of the {side} side" if beside else ""
    one = first.count == 1
    begins = f"first at position {first.begins.position}{_pass(first.begins)}; {_LIMIT[kind]}"
    return f"{first.count} of {first.rows} rows in {where}{side} {'is' if one else 'are'} {_ARE[kind]} ({begins})"


def _names(taps: Sequence[Tap]) -> str:
    slots = name_slots(sorted(tap.slot for tap in taps if tap.slot is not None))
    return slots if taps[0].model == TARGET else f"{taps[0].name} ({slots})"


def _name(tap: Tap) -> str:
    """``slot 1``, ``B3``, ``fc_in (slot 1)``."""
    if tap.model == TARGET:
        if tap.slot is None:
            return boundary_name(int(tap.level))
        return {EMBED: "the target's embedding", LAST: "the last state"}.get(tap.slot, f"slot {tap.slot}")
    if tap.slot is not None:
        return f"{tap.name} (slot {tap.slot})"
    if tap.name == "hidden_in":
        return (
            "the state that the draft recycles (hidden_in)"
            if tap.recycled
            else "what the draft takes up (hidden_in)"
        )
    return _DRAFT.get(tap.name, f"the draft's {tap.name}")


def _begins(side: str, one: BrokenTap, beside: bool) -> str:
    side = f" of the {side} side" if beside else ""
    return f"{_name(one.tap)}{side} at position {one.begins.position}{_pass(one.begins)}"


def _pass(place: RowPlace) -> str:
    """``, verify of round 2``, ``, draft step 1 of round 0``."""
    words = f"draft step {place.step + 1}" if place.phase is Phase.DRAFT_DECODE else _PHASES[place.phase]
    return f", {words}" + (f" of round {place.round}" if place.round >= 0 else "")


def _place(place: RowPlace) -> dict[str, Any]:
    return {
        "position": place.position,
        "phase": place.phase.name.lower(),
        "round": place.round if place.round >= 0 else None,
        "step": place.step if place.step >= 0 else None,
        "frame": place.frame,
    }


def _path(tap: Tap) -> str:
    """The tap as evidence names it: ``aux/1``, ``fc_in/1``, ``hidden_in (recycled)``."""
    if tap.recycled:
        return f"{tap.name} (recycled)"
    return f"{tap.name}/{tap.slot}" if tap.model != TARGET and tap.slot is not None else tap.name


def _key(side: str, one: BrokenTap, beside: bool) -> str:
    slot = one.slot
    name = str(slot) if one.tap.model == TARGET and slot is not None and slot >= 0 else _path(one.tap)
    return f"{side}: {name}" if beside else name


def _evidence(one: BrokenTap) -> dict[str, Any]:
    return {"rows": one.count, "positions": list(one.at)}


def _remedy(kind: str, one: BrokenTap) -> str:
    tap = one.tap
    if kind == CONSTANT and tap.name in _LOOK and one.count < _MOST_OF * one.rows:
        return _ONE_PASS
    return _LOOK[tap.name] if tap.name in _LOOK else _OF_TARGET[kind]


def told_once(found: Sequence[Finding]) -> list[Finding]:
    """The findings, with one for each kind of broken rows: what is said of the compared slots, then where it begins."""
    kept: list[Finding] = []
    for one in found:
        place = next((i for i, other in enumerate(kept) if other.id == one.id and _same(other, one)), None)
        if place is None:
            kept.append(one)
            continue
        ours, theirs = (one, kept[place]) if "begins" in one.evidence else (kept[place], one)
        kept[place] = _joined(theirs, ours)
    return kept


def _same(one: Finding, other: Finding) -> bool:
    return one.id in KINDS and ("begins" in one.evidence) != ("begins" in other.evidence)


def _joined(compared: Finding, begins: Finding) -> Finding:
    """What is said of the compared slots, and then in which tap it begins."""
    first = [one["told"] for one in begins.evidence["begins"]]
    more = f" and {len(first) - _MOST_TOLD} more" if len(first) > _MOST_TOLD else ""
    evidence: Mapping[str, Any] = {**begins.evidence, **compared.evidence}
    return replace(
        compared,
        summary=f"{compared.summary} First: {'; '.join(first[:_MOST_TOLD])}{more}.",
        slots=tuple(sorted({*compared.slots, *begins.slots})),
        evidence=dict(evidence),
        remedy=begins.remedy,
    )
