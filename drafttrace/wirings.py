"""Wirings as Python gives them: numbers k of B(k), names like "B3" and "O2", or one text of names."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from drafttrace.tracer.commands.wirings import boundaries_of
from drafttrace.tracer.errors import DrafttraceError

Wiring = str | Sequence[int | str]


def wiring_of(given: Any, name: str) -> tuple[int, ...]:
    """The boundaries of a wiring. name: of the argument. Raises DrafttraceError for what is none."""
    if isinstance(given, str):
        return boundaries_of(given, name)
    try:
        return tuple(_boundary(one, name) for one in given)
    except TypeError:
        raise DrafttraceError(
            f"The {name} {given!r:.60} is no wiring; give boundaries, as [0, 3, 31] or 'B0,B3,B31'."
        ) from None


def wirings_of(given: Any, name: str) -> list[tuple[int, ...]]:
    """Several wirings; one alone is taken as such. Raises as :func:`wiring_of`."""
    if isinstance(given, str):
        return [wiring_of(given, name)]
    try:
        items = list(given)
    except TypeError:
        raise DrafttraceError(
            f"The {name} {given!r:.60} are no wirings; give a list of them, as [[0, 3, 31], 'B2,B30,B58']."
        ) from None
    single = all(not isinstance(item, Sequence) or (isinstance(item, str) and "," not in item) for item in items)
    return [wiring_of(items, name)] if single and items else [wiring_of(item, name) for item in items]


def _boundary(one: Any, name: str) -> int:
    if isinstance(one, str):
        (found,) = boundaries_of(one, name) if "," not in one else (None,)
        if found is None:
            raise TypeError(one)
        return found
    return int(operator.index(one))
