"""J, ``quantization-noise``: small differences without a structure, from a coarse number format or from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drafttrace.compare.facts import Facts
from drafttrace.compare.findings.base import finder, finding, name_slots
from drafttrace.compare.grids import by_slot
from drafttrace.compare.part_words import part_level, part_name
from drafttrace.compare.result import NOTE, Finding, SlotResult
from drafttrace.compare.thresholds import BLURRED, ROUNDED
from drafttrace.compare.vocabulary import Entry, register

register(
    Entry(
        id="quantization-noise",
        kind="number-format",
        rank=470,
        listed=40,
        what="A small, unstructured, even difference. Not a wiring fault.",
        signature=(
            "Above the limit for equal, below the limit for wrong; the right boundary is still the only one that fits. One "
            "side's values may lie on the grid of int8, int4 or fp8, which the finding names."
        ),
        remedy="Record the same prompt twice and give both to --noise to measure the floor.",
        cases=("speculators#461",),
    ),
)

_WORTH_A_WORD = 0.01
_MOST = 0.35
REPEATS = "the compared rows are of a few tokens that repeat, and do not tell boundaries apart"
ORDINARY = "Compare a prompt of ordinary text, of some fifty tokens: it tells boundaries apart."
_NAMES = {-1: "last state", -2: "embedding"}


@finder(turn=25)
def find(facts: Facts) -> Iterator[Finding]:
    """A coarse number format, stored as such or seen in the values: small, unstructured differences everywhere."""
    if facts.reference is None:
        return
    grids = by_slot(facts.grids)
    told: dict[tuple[str, str, bool], list[tuple[SlotResult, float]]] = {}
    for result in facts.slots:
        grid = grids.get(result.slot)
        distance = _plain_distance(facts, grid.side, result.slot) if grid is not None else 0.0
        if grid is not None and distance > _WORTH_A_WORD:
            told.setdefault((grid.side, grid.format, grid.stored), []).append((result, distance))
    for (side, kind, stored), slots in told.items():
        names = name_slots([slot.slot for slot, _ in slots])
        each = f" ({_distances(slots)})"
        values = "are what storing in" if stored else f"come from values of the {side} side that lie on the grid of"
        yield finding(
            "quantization-noise",
            f"The small, unstructured differences in {names}{each} {values} {kind}{' costs' if stored else ''}.",
            slots=[slot.slot for slot, _ in slots],
            confidence=0.9 if stored else 0.8,
            evidence={"dtype": kind, "side": side, "stored": stored, "rel_l2": {str(s.slot): d for s, d in slots}},
            remedy="Nothing to fix. Store the dump in bf16 to compare more closely.",
            severity=NOTE,
        )


def _distances(slots: Sequence[tuple[SlotResult, float]]) -> str:
    """Every slot's relative L2 beside its limits."""
    told = []
    for slot, distance in slots:
        where = f" in slot {slot.slot}" if len(slots) > 1 else ""
        told.append(f"{distance:.3g}{where}, {_limits(slot)}")
    return "relative L2 " + "; ".join(told)


def _limits(slot: SlotResult) -> str:
    return f"equal up to {slot.judged.match_limit:.3g}, wrong above {slot.judged.noise_limit:.3g}"


def worth_a_look(level: float) -> bool:
    """Whether a slot's median relative L2 is one that a coarse number format could make."""
    return _WORTH_A_WORD < level < _MOST


def _plain_distance(facts: Facts, side: str, index: int) -> float:
    """How far a slot of one side that is no transformed state is from where it belongs; 0 where that is not known."""
    streams = [s for s in (*facts.left_streams, *facts.reference_streams) if s.index == index]
    if any(s.explanation is not None or s.broken for s in streams):
        return 0.0
    places = [
        s.located.by_value.distance
        for s in streams
        if s.side == side and s.located is not None and s.located.by_value.found
    ]
    level = max(places, default=facts.slots[index].rel_l2.p50)
    return level if level < _MOST else 0.0


def unstructured(slots: Sequence[SlotResult], others: str) -> Finding:
    """Slots between the two limits, of which nothing else is known. others: what fc consumed, and the accept length."""
    noisy = [slot for slot in slots if slot.verdict == "noise"]
    told = [f"{_called(slot)}: {_level(slot)}" for slot in noisy]
    rest = "" if len(noisy) == len(slots) else "; the other slots match"
    return finding(
        "quantization-noise",
        f"No fault is shown, and no match either: the states differ by unstructured noise ({'; '.join(told)}{rest})"
        f"{blurred(slots)}; {others}.",
        slots=[slot.slot for slot in noisy if slot.slot >= 0],
        confidence=0.5,
        evidence={
            _called(slot): {
                "rel_l2_p50": slot.rel_l2.p50,
                "match_limit": slot.judged.match_limit,
                "noise_limit": slot.judged.noise_limit,
                "against": slot.judged.against,
            }
            for slot in noisy
        },
        remedy=(f"{ORDINARY} " if any(slot.kinds for slot in slots) else "")
        + "What makes it, typically: weights or a KV cache that are quantised on one side only, another number format "
        "(float16 for bfloat16), or other kernels. Record the same prompt twice on this server and give both to --noise: a "
        "floor as large as this makes it a match. Else compare with a reference in the served number format: drafttrace "
        "reference --dtype.",
        severity=NOTE,
        by_level=True,
    )


def blurred(slots: Sequence[SlotResult]) -> str:
    """What a recorded floor, or the prompt, cannot tell of these slots; empty where it can."""
    if any(s.kinds for s in slots):
        return f"; {REPEATS}"
    rounded = [s for s in slots if s.verdict == "noise" and s.judged.against.endswith(ROUNDED)]
    if rounded:
        both = [f"{_called(s)}: {s.rounding:.2g} by rounding, neighbour {s.neighbour_rel_l2:.2g}" for s in rounded]
        return (
            f"; the neighbouring boundary is as near as rounding leaves two healthy runs ({'; '.join(both)}): a slot that "
            "is one boundary off may look like this, too"
        )
    near = [s for s in slots if s.verdict == "noise" and s.judged.against.endswith(BLURRED)]
    each = [f"{_called(s)}: floor {s.noise_rel_l2:.3g}, neighbour {s.neighbour_rel_l2:.3g}" for s in near]
    return (
        f"; the recorded noise floor reaches so near to the neighbouring boundary ({'; '.join(each)}) that it tells neither"
        " from the other: a slot that is one boundary off may look like this, too"
        if near
        else ""
    )


def _called(slot: SlotResult) -> str:
    return f"slot {slot.slot}" if slot.slot >= 0 else _NAMES[slot.slot]


def _level(slot: SlotResult) -> str:
    """The numbers of a slot that is noise, beside its limits."""
    judged = slot.judged
    if judged.rel_l2 <= judged.match_limit and slot.parts:
        part = slot.parts[0]
        return f"{part_name(part)}, {part_level(part)}, wrong above {judged.noise_limit:.3g}"
    return f"median relative L2 {slot.rel_l2.p50:.3g}, {_limits(slot)}"
