"""What is left when every cause was tried: unexplained, downstream of fc, or nothing wrong.

Everything here follows from numbers that a result keeps, so that a saved one can be judged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from drafttrace.compare.acceptance import judged_low, low_limit
from drafttrace.compare.findings.accept_lengths import (
    DRAFTS_APART,
    LOOK_NEXT,
    OFTEN_WIRING,
    ONLY_A_DUMP,
    accept_notes,
    acceptance_hint,
    both_agree,
)
from drafttrace.compare.findings.base import finding, name_slots
from drafttrace.compare.findings.noise import blurred, unstructured
from drafttrace.compare.findings.open_rows import flows_on, open_rows
from drafttrace.compare.outliers import outlier_positions
from drafttrace.compare.part_words import levels_of, part_hint, part_level, part_name
from drafttrace.compare.result import FAULT, NOTE, Acceptance, Finding, RowPart, SlotResult
from drafttrace.compare.rowparts import sure
from drafttrace.compare.thresholds import Thresholds
from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="none",
        kind="downstream",
        rank=10,
        listed=20,
        what="Everything that was compared matches.",
        signature="All slots equal, nothing odd inside the trace.",
        remedy="Compare the expected accept length with the observed one: 1 + a1 + a1·a2 + ... from the step accuracies.",
        cases=("SpecForge#128", "EAGLE#276"),
    ),
    Entry(
        id="unexplained",
        kind="unknown",
        rank=450,
        listed=10,
        what="The states differ, and no known cause fits.",
        signature="A mismatch that no other finding explains.",
        remedy="Look at the worst rows in the HTML report, and open an issue with report.md: it may be a new kind.",
    ),
    Entry(
        id="downstream",
        kind="downstream",
        rank=460,
        listed=10,
        what="The hidden states are right; the fault is downstream of fc.",
        signature="Slots and fc_in match, and the accept length is low all the same.",
        remedy="Look at weights, vocabulary map, positions and recycled norm: drafttrace check, drafttrace replay.",
        cases=("sglang#27829",),
    ),
    Entry(
        id="vocab-coverage",
        kind="vocabulary",
        rank=370,
        listed=40,
        what="Tokens that the target says often are not in the draft's vocabulary: it can never propose them.",
        signature="The share of the text that the draft's vocabulary does not hold.",
        remedy="Choose the draft vocabulary by counting tokens of the served traffic.",
        cases=("verl-SpeCo#66",),
    ),
)

_UNEXPLAINED = (
    "Record a layer sweep (drafttrace record --boundaries all), and look at the worst rows in the HTML report. Where the "
    "served tokenizer makes no language of the prompt (drafttrace inspect TRACE --tokenizer TARGET), the dump was made "
    "with another one."
)
_UNCOVERED = 0.05  # a smaller share of tokens outside the draft's vocabulary is not worth a word
_NAMES = {-1: "The last state", -2: "The embedding"}


@dataclass(frozen=True)
class Ending:
    """What a conclusion is drawn from. slots: how many were compared. others: what was compared besides, as slot numbers.
    alone: there was no reference. states: the slots, judged."""

    acceptance: Acceptance
    slots: int
    others: tuple[int, ...]
    alone: bool
    thresholds: Thresholds
    states: Sequence[SlotResult] = ()


def unexplained_of(slots: Sequence[SlotResult]) -> Finding:
    """Slots, or another state, that differ beyond every limit without a known cause."""
    named = [_NAMES.get(slot.slot, f"Slot {slot.slot}") for slot in slots]
    numbers = [slot.slot for slot in slots if slot.slot >= 0]
    who = name_slots(numbers).capitalize() if len(slots) > 1 else named[0]
    evidence = {
        name.lower(): {
            "state": name.lower(),
            "rel_l2_p50": slot.rel_l2.p50,
            "limit": slot.judged.noise_limit,
            "against": slot.judged.against,
        }
        for name, slot in zip(named, slots, strict=True)
    }
    return finding(
        "unexplained",
        f"{who} {'differs' if len(slots) == 1 else 'differ'} ({levels_of(slots)}), and none of the known causes fits.",
        slots=numbers,
        confidence=0.5,
        evidence=evidence[named[0].lower()] if len(slots) == 1 else evidence,
        remedy=_UNEXPLAINED,
        by_level=True,
    )


def unexplained_parts(slots: Sequence[SlotResult]) -> Iterator[Finding]:
    """Rows that differ beyond every limit, without a known cause, while the other rows of their slots do not: one finding
    for all slots in which they are the same rows."""
    grouped: dict[tuple[object, ...], list[tuple[SlotResult, RowPart]]] = {}
    for slot in slots:
        for part in sure(slot.parts):
            key = (part.kind, part.phase, part.step, *_about(part))
            grouped.setdefault(key, []).append((slot, part))
    for members in grouped.values():
        part = members[0][1]
        numbers = [slot.slot for slot, _ in members if slot.slot >= 0]
        where = name_slots(numbers) if numbers else _NAMES[members[0][0].slot].lower()
        levels = [part_level(one) for _, one in members]
        level = (
            levels[0]
            if len(levels) == 1
            else "; ".join(f"slot {slot.slot}: {text}" for (slot, _), text in zip(members, levels, strict=True))
        )
        name = part_name(part)
        yield finding(
            "unexplained",
            f"{name[0].upper() + name[1:]} of {where} differ ({level}), and none of the known causes fits them.",
            slots=numbers,
            confidence=0.5,
            evidence={"state": where, "parts": {str(slot.slot): asdict(one) for slot, one in members}},
            remedy=f"{part_hint(part)} {_UNEXPLAINED}",
            by_level=True,
        )


def _about(part: RowPart) -> tuple[int, ...]:
    """Where the part lies, so that the same rows of several slots agree though one row more or less is beyond a limit."""
    return () if part.kind in {"phase", "spread", "every"} else (part.first // 8, part.last // 8)


def odd_rows_of(
    rows: Mapping[int, Sequence[int]], thresholds: Thresholds, told: frozenset[int] = frozenset()
) -> Finding | None:
    """Rows that hold something else in slots that match otherwise, by slot; None where there are none. told: slots whose
    others do not match, of which other findings speak."""
    odd = {number: positions for number, positions in rows.items() if positions}
    if not odd:
        return None
    counts = {number: len(positions) for number, positions in odd.items()}
    many = f"{min(counts.values())}" if len(set(counts.values())) == 1 else ""
    if not many:
        many = " and ".join(f"{count} (slot {number})" for number, count in counts.items())
    return finding(
        "unexplained",
        f"{many} row{' holds' if many == '1' else 's hold'} something else than the reference "
        f"(first: position {min(min(positions) for positions in odd.values())}) in {name_slots(odd)}, "
        f"{'beside what is told of the others' if told & set(odd) else 'while the others match'}.",
        slots=tuple(odd),
        confidence=0.5,
        evidence={
            **{str(number): sorted(positions)[:50] for number, positions in odd.items()},
            "limits": {"rel_l2": thresholds.row, "cosine": thresholds.row_cosine, "trimmed": thresholds.row_hidden},
        },
        remedy="Look at these rows in the HTML report: same round, same batch, or tokens of one kind?",
        by_level=True,
    )


def find_unexplained(
    slots: Sequence[SlotResult], others: Sequence[SlotResult], found: Sequence[Finding], thresholds: Thresholds
) -> Iterator[Finding]:
    """Mismatching states and odd rows that no other finding speaks about."""
    faults = [f for f in found if f.severity == FAULT]
    if any(f.id == "no-overlap" for f in faults):
        return
    named = {slot for f in faults for slot in f.slots}
    coarse = {s for f in found if f.id in {"quantization-noise", "unsaid-wiring"} for s in f.slots}
    rest = [slot for slot in slots if slot.slot not in named | coarse]
    wrong = [slot for slot in rest if slot.verdict == "mismatch"]
    whole = [slot for slot in wrong if not (slot.rel_l2.p50 <= slot.judged.noise_limit)]
    parts = [slot for slot in wrong if slot not in whole]
    # Of rows that repeat each other, single ones are further off by rounding alone: see findings/few_rows.py.
    few = [s for s in rest if s.verdict != "mismatch" and 0 < s.outlier_rows <= s.rows // 2 and not s.kinds]
    odd = {slot.slot: outlier_positions(slot.series, thresholds) for slot in few}
    for slot in slots:
        left = None
        if slot.slot in named | coarse:
            ours = [f for f in faults if slot.slot in f.slots]
            left = open_rows(slot, ours, thresholds, slot.slot in coarse)
        if left is not None:
            whole += [slot] if left.whole else []
            parts += [replace(slot, parts=left.parts)] if left.parts and not left.whole else []
            odd[slot.slot] = list(left.odd) if not left.whole else []
    if whole:
        yield unexplained_of(whole)
    yield from unexplained_parts(parts)
    apart = frozenset(s.slot for s in slots if not (s.rel_l2.p50 <= s.judged.noise_limit))
    single = odd_rows_of(odd, thresholds, apart)
    if single is not None:
        yield single
    # The training targets come from the last state; a fault that has no slot may be its cause.
    flows = [f for f in faults if flows_on(f)]
    if not flows and not any(f.id == "last-not-last" for f in faults):
        alone = not slots  # then nothing else speaks of the embedding
        for other in others:
            if (other.slot == -1 or alone) and other.verdict == "mismatch":
                part_alone = other.rel_l2.p50 <= other.judged.noise_limit
                yield from unexplained_parts([other]) if part_alone else (unexplained_of([other]),)


def conclusion(ending: Ending, found: Sequence[Finding], verdict_without: str) -> tuple[Finding, ...]:
    """``downstream`` or ``none`` where no fault was found and something was compared."""
    if verdict_without not in {"match", "noise"}:
        return ()
    coarse = any(f.id == "quantization-noise" for f in found)
    noisy = coarse or verdict_without == "noise"
    acceptance = ending.acceptance
    consumed = {
        "equal": "fc received the target's states bit for bit",
        "normed": "fc received the target's states through the norm that its config asks for",
    }.get(
        acceptance.fc_in, "what fc received was held against nothing (it was not recorded, or there are no slots)"
    )
    low, shown = judged_low(acceptance, ending.thresholds)
    notes = () if low else tuple(accept_notes(acceptance))
    if ending.alone:
        return (_alone(acceptance, consumed, low), *notes, *_uncovered(acceptance))
    if not ending.slots:
        return (_without_slots(ending, verdict_without), *_uncovered(acceptance))
    if low and acceptance.fc_in in {"equal", "normed", "unknown"}:
        told = _downstream(ending, consumed, noisy) if shown else _hardly_shown(ending, consumed, noisy)
        differs = any(state.verdict == "noise" for state in ending.states)
        unclear = (unstructured(ending.states, consumed),) if differs and blurred(ending.states) else ()
        return (told, *unclear, *_uncovered(acceptance))
    if noisy:  # what differs by noise is no match, and is not told as one
        more = () if coarse else (unstructured(ending.states, f"{consumed}{_observed(acceptance)}"),)
        return (*notes, *more, *_uncovered(acceptance))
    head = "No fault is shown" if notes else "Nothing is wrong"
    head = "Both sides agree" if acceptance.between_traces else head
    undone = f" ({DRAFTS_APART})" if acceptance.between_traces else ""
    return (
        *notes,
        finding(
            "none",
            f"{head}: all slots match, and {consumed}{undone}{_observed(acceptance)}.",
            slots=range(ending.slots),
            confidence=0.95,
            evidence=_evidence(acceptance),
            remedy=(f"{ONLY_A_DUMP} " if acceptance.between_traces else "")
            + _expect(acceptance)
            + "If the accept length is too low all the same, the fault is downstream of fc. "
            + LOOK_NEXT,
            severity=NOTE,
        ),
        *_uncovered(acceptance),
    )


def _without_slots(ending: Ending, verdict: str) -> Finding:
    """What was compared where there are no slots to compare; of them it says nothing."""
    names = [_NAMES[state] for state in sorted(ending.others, reverse=True)]
    what = " and ".join([*names[:1], *(name[0].lower() + name[1:] for name in names[1:])])
    one = len(names) == 1
    does = (
        ("matches" if one else "match")
        if verdict == "match"
        else f"{'differs' if one else 'differ'} by noise alone"
    )
    return finding(
        "none",
        f"{what} {does}, and no slots were compared: neither side has any{_observed(ending.acceptance)}.",
        confidence=0.5,
        evidence={**_evidence(ending.acceptance), "compared": [name.lower() for name in names]},
        remedy="What fc reads is not looked at here. Give sides that hold slots: the trace of a server whose draft has fc, "
        "and a dump with aux states; in a pass of SGLang name them with --layer-ids, in a file of no known layout with "
        "--slots.",
        severity=NOTE,
    )


def _expect(acceptance: Acceptance) -> str:
    if acceptance.expected is not None or acceptance.observed is None:
        return ""
    return (
        "To see what the draft should reach, give the accuracies that training logged: --expected 0.75,0.71,0.68 "
        "(1 + a1 + a1·a2 + …), or the result of drafttrace replay. "
    )


def _evidence(acceptance: Acceptance) -> dict[str, object]:
    return {
        "fc_in": acceptance.fc_in,
        "accept_length": acceptance.observed,
        "rounds": acceptance.rounds,
        "counted_rounds": acceptance.counted_rounds,
        "at_most": acceptance.at_most,
        "outside_draft_vocabulary": acceptance.outside,
        "expected": acceptance.expected,
        "expected_source": acceptance.expected_source,
        "accepted_by_position": list(acceptance.curve),
    }


def _downstream(ending: Ending, consumed: str, noisy: bool) -> Finding:
    acceptance = ending.acceptance
    limit = low_limit(acceptance, ending.thresholds)
    if acceptance.between_traces:
        return both_agree(acceptance, consumed, limit, _evidence(acceptance))
    expected = f" where {acceptance.expected:.2f} is expected" if acceptance.expected is not None else ""
    return finding(
        "downstream",
        f"The hidden states {'differ by noise alone' if noisy else 'are right'}; the fault is downstream of fc: "
        f"{consumed}, yet the accept length is "
        f"{acceptance.observed:.2f}{expected} (too low below {limit:.2f}).",
        confidence=0.8 if acceptance.fc_in != "unknown" else 0.5,
        evidence={**_evidence(acceptance), "too_low_below": limit},
        remedy=f"{acceptance_hint(acceptance)} {LOOK_NEXT}",
        by_level=True,
    )


def _hardly_shown(ending: Ending, consumed: str, noisy: bool) -> Finding:
    """A low accept length over rounds that a healthy draft may lose as well: no fault, and no all-clear either."""
    acceptance = ending.acceptance
    limit = low_limit(acceptance, ending.thresholds)
    few = f"{acceptance.counted_rounds} round{'' if acceptance.counted_rounds == 1 else 's'}"
    if acceptance.outside is not None and acceptance.counted_rounds < acceptance.rounds:
        few = f"only {acceptance.counted_rounds} of {acceptance.rounds} rounds had a next token that the draft can say"
    else:
        few = f"{few} cannot tell that from chance"
    return finding(
        "downstream",
        f"{'No slot differs by more than noise' if noisy else 'All slots match'}, and {consumed}. The accept length is "
        f"{acceptance.observed:.2f} (too low below {limit:.2f}), but "
        f"{few}: that shows no fault.",
        confidence=0.3,
        evidence={**_evidence(acceptance), "too_low_below": limit},
        remedy="Record a longer answer to a prompt like the draft's training data (--max-new-tokens 256), or give what the "
        "draft should reach on this text: --expected 0.75,0.71,0.68, or the result of drafttrace replay.",
        severity=NOTE,
        by_level=True,
    )


def _uncovered(acceptance: Acceptance) -> Iterator[Finding]:
    """Tokens of the answer that the draft could never say."""
    if acceptance.outside is not None and acceptance.outside > _UNCOVERED:
        yield finding(
            "vocab-coverage",
            f"{acceptance.outside:.0%} of the answer's tokens are outside the draft's vocabulary: it can never propose "
            "them.",
            confidence=0.9,
            evidence={"outside": acceptance.outside, "counted_rounds": acceptance.counted_rounds},
            remedy="Judge the draft on text like its training data, or choose its vocabulary by counting tokens of the "
            "served traffic.",
            severity=NOTE,
        )


def _alone(acceptance: Acceptance, consumed: str, low: bool) -> Finding:
    """One trace that agrees with itself: that says nothing about what training fed."""
    head, sure = "The trace agrees with itself", 0.95
    if acceptance.fc_in == "unknown":
        head, sure = "Nothing in the trace contradicts it", 0.5
    doubt = "; that is low, and only the training dump can say whether these are the states that it was trained on"
    return finding(
        "none",
        f"{head}: {consumed}{_observed(acceptance)}{doubt if low else ''}.",
        confidence=sure,
        evidence=_evidence(acceptance),
        remedy=f"{OFTEN_WIRING} {ONLY_A_DUMP} If that matches: {acceptance_hint(acceptance)}"
        if low
        else "Compare with the training dump: drafttrace diff TRACE DUMP.",
        severity=NOTE,
    )


def _observed(acceptance: Acceptance) -> str:
    if acceptance.observed is None or not np.isfinite(acceptance.observed):
        return ""
    expected = "no expected one is known"
    if acceptance.expected is not None:
        expected = f"expected {acceptance.expected:.2f}"
    unfit = " (after a finished text, where it says nothing)" if acceptance.after_the_end else ""
    return f"; observed accept length {acceptance.observed:.2f}, {expected}{unfit}"
