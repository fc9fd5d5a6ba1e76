"""Two states of a dump that hold the same numbers and are said to be different boundaries: one of the two is another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.capture import Capture, LastState, Norm, Slot
from drafttrace.tracer.checked_states import Check
from drafttrace.tracer.dumps.build import ASSUMED, assumed_wiring
from drafttrace.tracer.rows import Rows

ID = "same-values"
_ROWS, _FEWEST = 64, 4
_BELOW = ("n-3", "n-4")  # where the deepest slot of the defaults of three stands, which is not the last boundary


def same_value_checks(capture: Capture, n: int | None) -> Iterator[Check]:
    """An answer for every pair, and for the assumed defaults that such a pair refutes. n: layers of the target, where
    somebody tells. Two states that are declared one boundary are none of these."""
    pairs: list[tuple[Slot, Slot | LastState]] = [*itertools.combinations(capture.slots, 2)]
    if capture.last is not None:
        pairs += [(slot, capture.last) for slot in capture.slots]
    gone: dict[str, str] = {}
    for slot, other in pairs:
        if not _may_differ(slot, other, n) or not _is_copy(slot.rows, other.rows):
            continue
        sources = [one.source for one in (slot, other) if isinstance(one, Slot) and one.boundary is None]
        against = [source for source in sources if _is_against(source, other, n)]
        verdict = "refuted" if against or not sources else "found"
        names = f"{slot.name} and {other.name}"
        summary = (
            f"{names} hold the same values, and {_called(slot)} and {_called(other)} are two things: one is not it."
        )
        if verdict == "found":
            summary = f"{names} hold the same values."
        evidence = {"other": other.name, "boundary": slot.boundary}
        yield Check(ID, slot.name, verdict, summary, evidence)
        for source in against:
            gone.setdefault(source, f"{names} hold the same values")
    for source, why in gone.items():
        summary = f"The assumed default is not what was stored: {why}, and its boundaries are different ones."
        told = {"source": source, "default": list(assumed_wiring(source) or ()), "embeddings": [], "why": why}
        yield Check("assumed-default", "slots", "refuted", summary, told)


def _may_differ(slot: Slot, other: Slot | LastState, n: int | None) -> bool:
    """Whether what is said of two states makes them two things."""
    if isinstance(other, Slot):
        return slot.boundary is None or other.boundary is None or slot.boundary != other.boundary
    if slot.boundary is None or other.norm is Norm.POST:
        return slot.rows is not other.rows
    last = n if other.boundary is None else other.boundary
    return last is not None and slot.boundary != last


def _is_against(source: str, other: Slot | LastState, n: int | None) -> bool:
    """Whether a default that a source names cannot have such a pair: two of its slots, or a slot and the last state."""
    if not source.startswith(ASSUMED):
        return False
    default = assumed_wiring(source)
    if isinstance(other, Slot):
        return True
    return n not in default if default is not None and n is not None else any(k in source for k in _BELOW)


def _called(state: Slot | LastState) -> str:
    if isinstance(state, Slot):
        return "a slot of the default" if state.boundary is None else boundary_name(state.boundary)
    return "the last state" + (" after the final norm" if state.norm is Norm.POST else "")


def _is_copy(one: Rows, two: Rows) -> bool:
    """Whether the rows are equal, and rows that tell anything: not zeros, and not one row repeated."""
    if one is two or one.width != two.width or len(one) != len(two):
        return False
    at = np.arange(
        min(1, len(one) - 1), len(one), max(1, len(one) // _ROWS), dtype=np.int64
    )  # np.unique takes 20 ms
    first = at[:: max(1, len(at) // _FEWEST)]  # what differs mostly does at once
    if not np.array_equal(one.take(first), two.take(first)):
        return False
    left = one.take(at)
    told = left.any(-1) & np.isfinite(left).all(-1)
    different = bool((left[told] != left[told][:1]).any()) if told.any() else False
    return bool(told.sum() >= _FEWEST and different and np.array_equal(left, two.take(at), equal_nan=True))
