"""What fc received, where it is not what the target handed over: no reference is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from drafttrace.compare.facts import Facts
from drafttrace.compare.fc_input import FIT, FITS, FcSlot
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.plurals import plural
from drafttrace.compare.result import Finding

_NAMES = {
    "normed": "norm-extra",
    "rms": "norm-extra",
    "un-normed": "norm-missing",
    "scalar": "scale",
    "gain": "norm-gain",
    "rotation": "rotation",
    "bytes": "dtype-reinterpretation",
}
_WHAT = {
    "norm-extra": "it went through a norm that the draft config does not ask for",
    "norm-missing": "it is what stood before a norm that aux went through",
    "norm-gain": "it went through a factor per channel",
    "rotation": "it stands in another basis, by an orthogonal map",
    "dtype-reinterpretation": "its bytes were read in another number format",
}
_NORM = "Compare fc_norm, norm_before_fc and use_aux_norm in the served config with the trainer's."
_REMEDY = {
    "scale": "Look for a multiplication between the target's aux states and fc that training did not have.",
    "rotation": "Undo the rotation of the quantisation before the states are handed over, or fold it into fc's weight.",
    "dtype-reinterpretation": "State the number format where the bytes are handed over: bf16 and fp16 have the same width.",
}
_STALE = "The draft ran on a buffer of an earlier pass: compare with --disable-cuda-graph; look for a skipped copy."
_PROMPT = (
    "They are rows of the prompt: look at what gathers the prompt's rows for the draft's extend (chunks of the prefill: "
    "--chunked-prefill-size -1 confirms it; a cached prefix: --disable-radix-cache; the other requests of the batch)."
)
_HAND_OVER = "Look at what concatenates the aux states between target and draft."


@finder(turn=61, unpaired=True)
def find(facts: Facts) -> Iterator[Finding]:
    """Findings about the draft's fc input."""
    inside = facts.inside
    if inside.fc_state == "raw":
        yield finding(
            "norm-missing",
            "The draft's config asks for a norm before fc, but fc received the target's aux rows unchanged.",
            slots=range(len(inside.fc_in)),
            confidence=0.95,
            evidence={"fc_in": "equal to aux, bit for bit"},
            remedy="This SGLang does not apply the norm (fc_norm / norm_before_fc): use a release that does.",
        )
    bad = [slot for slot in _differing(facts) if slot.rows > slot.equal or slot.fits]
    if inside.fc_state != "differs" and not any(_misread(slot) for slot in bad):
        return
    moved = [s for s in bad if s.same_as is not None or s.made_of is not None]
    if moved:
        yield _moved(moved, len({s.slot for s in inside.fc_in}))
    shifted = [s for s in bad if s.shift is not None]
    if shifted:
        yield _shifted(shifted)
    rest = [s for s in bad if s.shift is None and s.same_as is None and s.made_of is None]
    stale = [s for s in rest if s.stale and s.fit is None]
    if stale:
        yield _stale(stale)
    yield from _transformed([s for s in bad if s not in stale and s.same_as is None and s.fit is not None])
    unknown = [s for s in rest if s not in stale and s.fit is None and s.slot not in _told(facts)]
    if unknown:
        yield _unknown(unknown)


def _differing(facts: Facts) -> list[FcSlot]:
    """The slots to speak of: rows that were read from the padding, and slots that hold one row, are told as such."""
    leaked = max((leak.count for leak in facts.copies.leaks if leak.tap in {"hidden_in", "fc_in"}), default=0)
    flat = facts.inside.alike("aux", "hidden_in", "fc_in")
    return [s for s in facts.inside.fc_in if (s.rows - s.equal > leaked or _misread(s)) and s.slot not in flat]


def _misread(slot: FcSlot) -> bool:
    return slot.fit is not None and slot.fit.name == "bytes"


def _told(facts: Facts) -> set[int]:
    """Slots whose aux rows are told to be others' (copies, another boundary), which fc's input then differs from."""
    return {one.slot for one in facts.copies.left} | {one.slot for one in facts.inside.slots}


def _where(slots: Sequence[FcSlot]) -> str:
    """``, in the draft's extend after verify alone`` where other passes are right."""
    phases = {slot.phases for slot in slots}
    if len(phases) != 1 or not slots[0].phases:
        return ""
    after = {"draft_extend_prefill": "prefill", "draft_extend_verify": "verify"}
    return f", in the draft's extend after {' and '.join(after.get(p, p) for p in slots[0].phases)} alone"


def _evidence(slot: FcSlot, **more: Any) -> dict[str, Any]:
    by_phase = {phase: list(counts) for phase, counts in slot.equal_by_phase.items()}
    return {"rows": slot.rows, "equal": slot.equal, "by_phase": by_phase, **more}


def _moved(slots: Sequence[FcSlot], count: int) -> Finding:
    order = {s.slot: s.same_as if s.same_as is not None else s.made_of for s in slots}
    whole = [order.get(i, i) for i in range(count)]
    if sorted(k for k in whole if k is not None) == list(range(count)):
        text = f"fc received the target's aux slots in another order: {order}"
    else:
        pairs = " and ".join(f"slot {i} of fc's input holds the target's slot {j}" for i, j in order.items())
        text = f"fc received a slot of the target's in another's place: {pairs}"
    return finding(
        "slot-permutation",
        f"{text}{_where(slots)}.",
        slots=[s.slot for s in slots],
        confidence=0.97,
        evidence={
            "fc_in_holds_aux": {str(k): v for k, v in order.items()},
            **{str(s.slot): _evidence(s, phases=list(s.phases)) for s in slots},
        },
        remedy=_HAND_OVER,
    )


def _shifted(slots: Sequence[FcSlot]) -> Finding:
    offset = slots[0].shift or 0
    when = "before" if offset < 0 else "after"
    step = "one token" if abs(offset) == 1 else f"{abs(offset)} tokens"
    rows = slots[0].rows - slots[0].equal
    return finding(
        "token-shift",
        f"fc's input pairs every token with the state of {step} {when} it: {rows} of {slots[0].rows} rows hold the "
        f"target's aux row of position p{offset:+d}{_where(slots)}.",
        slots=[s.slot for s in slots],
        confidence=0.95,
        evidence={str(s.slot): _evidence(s, shift=s.shift) for s in slots},
        remedy="Look at what hands the target's states to the draft's extend: its rows are not those of its positions.",
    )


def _stale(stale: Sequence[FcSlot]) -> Finding:
    first = stale[0]
    copies = (
        "is a copy of another position's aux row"
        if len(first.stale) == 1
        else "are copies of aux rows of other positions"
    )
    return finding(
        "stale-rows",
        f"{plural(len(first.stale), 'row')} of fc's input {copies} (position {first.stale[0][0]} holds the row of position "
        f"{first.stale[0][1]}).",
        slots=[s.slot for s in stale],
        confidence=0.95,
        evidence={str(s.slot): [list(pair) for pair in s.stale] for s in stale},
        remedy=_PROMPT if _in_prompt_alone(stale) else _STALE,
    )


def _in_prompt_alone(slots: Sequence[FcSlot]) -> bool:
    touched = {phase for slot in slots for phase, (same, rows) in slot.equal_by_phase.items() if same < rows}
    return touched == {"draft_extend_prefill"}


def _transformed(slots: Sequence[FcSlot]) -> Iterator[Finding]:
    for name in sorted(set(_NAMES.values())):
        found = [(s, s.fit) for s in slots if s.fit is not None and _NAMES.get(s.fit.name) == name]
        if not found:
            continue
        what = _WHAT.get(name, "")
        if name == "scale":
            factors = sorted({f"{fit.fitted['factor']:.4g}" for _, fit in found})
            what = f"it went through a factor of {' and '.join(factors)}"
        told = [s for s, _ in found]
        yield finding(
            name,
            f"fc's input is not the target's aux in {name_slots([s.slot for s in told])}: {what}{_where(told)} "
            f"({_left_over(told)}).",
            slots=[s.slot for s in told],
            confidence=0.9,
            evidence={
                str(s.slot): _evidence(s, fit=fit.name, residual=fit.residual, factor=fit.fitted.get("factor"))
                for s, fit in found
            },
            remedy=_REMEDY.get(name, _NORM),
        )


def _left_over(slots: Sequence[FcSlot]) -> str:
    """How far the rows are off, and what the best fit leaves of that, beside what it may leave."""
    told = []
    for slot in slots:
        plain = next((fit.residual for fit in slot.fits if fit.name == "identity"), None)
        best = next((fit for fit in slot.fits if fit.name != "identity"), None)
        text = f"{slot.rows - slot.equal} of {slot.rows} rows differ"
        text += f" by a median relative L2 of {plain:.3g}" if plain is not None else ""
        if best is not None:
            text += f"; the best fit leaves {best.residual:.2g}, limit {FITS.get(best.name, FIT):g}"
        told.append(text)
    if len(set(told)) == 1:
        return told[0]
    return "; ".join(f"slot {slot.slot}: {text}" for slot, text in zip(slots, told, strict=True))


def _unknown(slots: Sequence[FcSlot]) -> Finding:
    rows, of = max((s.rows - s.equal, s.rows) for s in slots)
    return finding(
        "unexplained",
        f"fc's input differs from the target's aux in {name_slots([s.slot for s in slots])} ({rows} of {of} "
        f"rows){_where(slots)}; no known cause fits ({_left_over(slots)}).",
        slots=[s.slot for s in slots],
        confidence=0.5,
        evidence={str(s.slot): _evidence(s) for s in slots},
        remedy="Compare eager with graphs, and TP 1 with TP 2, to find where the hand-over changes the rows.",
    )
