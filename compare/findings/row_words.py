"""Words for rows and slots in the findings about rows that stand in another row's place."""

from __future__ import annotations

from collections.abc import Sequence

from drafttrace.compare.findings.base import name_slots
from drafttrace.compare.repeats import LAST, RowAt


def called(slots: Sequence[int]) -> str:
    """``slot 1 and the last state``."""
    numbers = sorted({s for s in slots if s != LAST})
    names = [name_slots(numbers)] if numbers else []
    return " and ".join([*names, "the last state"] if LAST in slots else names)


def numbers(slots: Sequence[int]) -> list[int]:
    """The slots among them, in order."""
    return sorted({s for s in slots if s >= 0})


def pass_of(row: RowAt) -> str:
    """``the prompt`` or ``round 3``."""
    return "the prompt" if row.round < 0 else f"round {row.round}"


def row_place(row: RowAt) -> dict[str, int]:
    """Where a row stands, as evidence."""
    return {"position": row.position, "round": row.round, "frame": row.frame, "token_id": row.token_id}
