"""Boundaries and wirings as options take them: a bare number is refused, because projects mean two things by it."""

from __future__ import annotations

import re

from drafttrace.tracer.errors import DrafttraceError

_ID = re.compile(r"([BbOo]?)(\d{1,9})|(embed|embedding)", re.ASCII | re.IGNORECASE)


def boundaries_of(text: str, what: str) -> tuple[int, ...]:
    """The boundaries that ``B0,B3,B31``, ``embed,B3`` or ``O2,O30`` (= ``B3,B31``) name. what: as an error calls them.

    Raises DrafttraceError for what is no boundary, and for a bare number: 2 is B(2) in some projects and O(2) = B(3) in
    others, and a wrong guess is a wrong verdict.
    """
    found = []
    for part in text.strip().strip("[]").split(","):
        match = _ID.fullmatch(part.strip())
        if match is None:
            raise DrafttraceError(
                f"The {what} '{text}' cannot be read: '{part.strip()}' is no boundary; write B0, B3, ... or embed."
            )
        found.append(("B", 0) if match[3] else (match[1].upper(), int(match[2])))
    if any(not letter for letter, _number in found):
        one, two = (",".join(f"{letter or new}{number}" for letter, number in found) for new in "BO")
        same = ",".join(f"B{number + (letter != 'B')}" for letter, number in found)
        raise DrafttraceError(
            f"The {what} '{text}' can be read in two ways, as projects number boundaries or layer outputs; write {one} "
            f"for boundaries, or {two} for layer outputs (SpecForge and AngelSlim), which are {same}."
        )
    return tuple(number + (letter == "O") for letter, number in found)
