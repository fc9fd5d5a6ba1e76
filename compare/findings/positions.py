"""E: slots that are right up to a position and wrong from there on: the target looks back, or turns, otherwise.

A window of W tokens changes nothing in the first W rows and every row behind them. Other rope parameters change nothing
at position 0, where there is one token to look at, and more and more the further a row looks back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.findings.part_rows import part_causes
from drafttrace.compare.findings.rows import placeholder_span
from drafttrace.compare.hypotheses import Doubles
from drafttrace.compare.judge import MISMATCH, NOISE
from drafttrace.compare.result import Finding, RowPart, SlotResult
from drafttrace.compare.taps import LAST
from drafttrace.compare.vocabulary import Entry, register
from drafttrace.tracer.capture import Capture, Ints

register(
    Entry(
        id="window-mismatch",
        kind="position",
        rank=400,
        listed=30,
        what="A sliding window on one side only.",
        signature="Equal below a length, different above it.",
        remedy="Set sliding_window and the layer types as in training.",
        cases=("vllm#40898",),
    ),
)

_BEFORE, _BEHIND = 8, 8  # rows on either side of an onset that say anything
_JUMP, _WRONG = 2.0, 0.9  # so far above all rows before it lies so large a part of the rows from an onset on
_GROWS, _ORDERED = 4.0, 0.5
_FEWEST = 24


@dataclass(frozen=True)
class Course:
    """How the distance of a slot's rows goes along the positions.

    onset: the first position whose row, and hardly any of those behind it, is no nearer than twice the worst row before
    it; None without such a jump. at_start, early, late: the largest relative L2 before the onset (at position 0 without
    one), and medians over the first and the last third of the rows. order: how far the distance follows the position, as
    a rank correlation. limit: what a row that is right stays below.
    """

    slot: int
    onset: int | None
    at_start: float
    early: float
    late: float
    order: float
    limit: float
    rows: int


def courses(facts: Facts) -> tuple[Course, ...]:
    """The slots that do not match and have no other cause at hand; none where no slot is clearly wrong."""
    told = {
        s.index for s in (*facts.left_streams, *facts.reference_streams) if s.explanation is not None or s.broken
    }
    told |= facts.copies.slots | {cause.fact.slot for cause in part_causes(facts)}
    told |= {slot.slot for slot in facts.slots if any(_ends(slot, part) for part in slot.parts)}
    if facts.reference is None or facts.moved or (facts.reading is not None and not facts.reading.same):
        return ()
    if any(placeholder_span(facts, rows) is not None for rows in facts.rows):
        return ()  # what stands behind a picture that only one side saw looks back at it
    # Rows that repeat each other share one rounding, which may grow along the prompt.
    wrong = [s for s in facts.slots if s.slot not in told and s.verdict in {MISMATCH, NOISE} and not s.kinds]
    if not any(slot.verdict == MISMATCH for slot in wrong):
        return ()
    if not _seen_in_attention(facts, [slot.slot for slot in wrong]):
        return ()
    return tuple(_course(slot) for slot in wrong if len(slot.series.position) >= _FEWEST)


def _seen_in_attention(facts: Facts, wrong: Sequence[int]) -> bool:
    """Whether the slots can be wrong by what the target's layers look at: the embedding looks at no other token, and what
    one layer does otherwise is handed on to every deeper one."""
    levels: dict[int, int] = {}
    for stream in (*facts.left_streams, *facts.reference_streams):
        level = stream.boundary if stream.boundary is not None else stream.declared
        if stream.index >= 0 and level is not None:
            levels.setdefault(stream.index, level)
    depths = [levels[slot] for slot in wrong if slot in levels]
    if 0 in depths:
        return False
    states = {state.slot: state for state in (*facts.slots, *facts.others)}
    deeper = {LAST, *(slot for slot, level in levels.items() if depths and level > min(depths))}
    return not any(_ends_right(states[slot]) for slot in deeper & set(states))


def _ends_right(state: SlotResult) -> bool:
    """Whether the last rows of a state are right, where everything that looks back too far would show."""
    order = np.argsort(np.asarray(state.series.position, np.int64), kind="stable")
    distance = np.nan_to_num(np.asarray(state.series.rel_l2, np.float64)[order], nan=np.inf)
    late = distance[-max(1, len(distance) // 3) :]
    return len(distance) >= _FEWEST and float(np.median(late)) <= state.judged.match_limit


def _ends(slot: SlotResult, part: RowPart) -> bool:
    """Whether only some rows are wrong, and not all of them from a position on: then nothing looks back too far."""
    if part.kind in {"phase", "every"}:
        return True
    return part.kind == "run" and part.last < max(slot.series.position) - 1


def _course(slot: SlotResult) -> Course:
    series = slot.series
    order = np.argsort(np.asarray(series.position, np.int64), kind="stable")
    position = np.asarray(series.position, np.int64)[order]
    distance = np.nan_to_num(np.asarray(series.rel_l2, np.float64)[order], nan=np.inf)
    first = _jump(distance, slot.judged.match_limit)
    # Where one kind of pass ends and another begins, it is the pass that is wrong.
    if first is not None and series.phase[int(order[first - 1])] != series.phase[int(order[first])]:
        first = None
    third = max(1, len(distance) // 3)
    return Course(
        slot.slot,
        None if first is None else int(position[first]),
        float(distance[: first or 1].max()),
        float(np.median(distance[:third])),
        float(np.median(distance[-third:])),
        _rank_correlation(position, distance),
        slot.judged.match_limit,
        len(distance),
    )


def _jump(distance: Doubles, limit: float) -> int | None:
    """The row from which on nearly all are far above every one before it, and those before it are right."""
    worst = np.maximum.accumulate(distance)
    for first in range(_BEFORE, len(distance) - _BEHIND + 1):
        if worst[first - 1] > limit:
            return None
        far = distance[first:] > _JUMP * worst[first - 1]
        if far[0] and far.mean() >= _WRONG and np.median(distance[first:]) > limit:
            return first
    return None


def _rank_correlation(position: Ints, distance: Doubles) -> float:
    """Spearman's, without ties' care: 1 where every row further back is further off."""
    first, second = (np.argsort(np.argsort(values, kind="stable")) for values in (position, distance))
    return float(np.corrcoef(first, second)[0, 1])


@finder(turn=80)
def find(facts: Facts) -> Iterator[Finding]:
    """``window-mismatch`` and ``rope-mismatch`` of the target, where the slots' rows show one."""
    found = courses(facts)
    windows, turned = _windows(found), _turned(found)
    if windows:
        yield _window(facts, windows)
    elif turned:
        yield _rope(facts, turned)


def placed(facts: Facts) -> frozenset[int]:
    """The slots of which :func:`find` tells."""
    found = courses(facts)
    return frozenset(course.slot for course in _windows(found) or _turned(found))


def _windows(found: Sequence[Course]) -> Sequence[Course]:
    """All of them, where they begin to be wrong at one position."""
    onsets = {course.onset for course in found}
    return found if len(onsets) == 1 and None not in onsets else ()


def _turned(found: Sequence[Course]) -> Sequence[Course]:
    """All of them, where each is right at the beginning only and the more wrong the further back a row looks."""
    grown = [
        c
        for c in found
        if c.at_start <= c.limit and c.late > _GROWS * max(c.at_start, 0.2 * c.limit) and c.order > _ORDERED
    ]
    return found if len(grown) == len(found) else ()


def _window(facts: Facts, found: Sequence[Course]) -> Finding:
    onset = found[0].onset or 0
    slots = [course.slot for course in found]
    said = [_config(capture, "sliding_window") for capture in (facts.left, facts.reference)]
    known = onset in said
    return finding(
        "window-mismatch",
        f"{name_slots(slots).capitalize()} {'is' if len(slots) == 1 else 'are'} right up to position {onset - 1} and wrong "
        f"from position {onset} on: one side's target sees {onset} tokens where the other sees all.",
        slots=slots,
        confidence=0.9 if known else 0.7,
        evidence={"onset": onset, "sliding_window": said, **_evidence(found)},
        remedy="Compare sliding_window, use_sliding_window and layer_types of the target that is served with those of the "
        "target that made the dump. If they are alike, look at what begins at that position: a chunk of the prefill "
        "(--chunked-prefill-size), a page of the cache.",
    )


def _rope(facts: Facts, found: Sequence[Course]) -> Finding:
    first = found[0]
    slots = [course.slot for course in found]
    said = [_config(capture, "rope_theta") for capture in (facts.left, facts.reference)]
    differ = None not in said and said[0] != said[1]
    return finding(
        "rope-mismatch",
        f"{name_slots(slots).capitalize()} {'is' if len(slots) == 1 else 'are'} right at position 0 and further off the "
        f"further a row looks back (relative L2 {first.at_start:.2g} there, {first.early:.2g} in the first third of the "
        f"rows and {first.late:.2g} in the last): the two targets turn positions differently.",
        slots=slots,
        confidence=0.9 if differ else 0.6,
        evidence={"rope_theta": said, **_evidence(found)},
        remedy="Give the served target the rope parameters (rope_theta, rope_scaling) of the target that made the dump; "
        "--json-model-override-args and a changed config.json are where they get lost.",
    )


def _evidence(found: Sequence[Course]) -> dict[str, object]:
    return {
        str(course.slot): {
            "onset": course.onset,
            "rel_l2_at_the_start": course.at_start,
            "rel_l2_first_third": course.early,
            "rel_l2_last_third": course.late,
            "rank_correlation": course.order,
            "rows": course.rows,
        }
        for course in found
    }


def _config(capture: Capture | None, key: str) -> float | None:
    """A number of the target's config, as the capture keeps it."""
    config = capture.about.get("target_config") if capture is not None else None
    if not isinstance(config, Mapping):
        return None
    text = config.get("text_config")
    for block in (config, text if isinstance(text, Mapping) else {}):
        value = block.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return None
