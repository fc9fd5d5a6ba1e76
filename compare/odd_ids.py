"""Layer ids in a config that are no whole numbers: what stands there, entry by entry, and what to write instead."""

from __future__ import annotations

import json
import re

MOST_ID = 2**40
"""No layer has a larger number; whatever has comes from a damaged file."""
_MOST_NAMED = 4
_ANY = "write the whole number of a layer"


def problem_of(where: str, value: object) -> str | None:
    """What is wrong with the ids in the field ``where``, every odd entry by its value; None for a list of integers."""
    if not isinstance(value, list) or not value:
        meant = written_for(value)
        write = f"write {list(meant)}" if meant else "write one whole number per slot, such as [1, 15, 28]"
        return f"{where} is {short_value(value)}, not a list of integers ({write})"
    odd = [
        f"entry {place}, {_json(item)}: {_instead(item)}" for place, item in enumerate(value) if not _integer(item)
    ]
    if not odd:
        return None
    more = f"; and {len(odd) - _MOST_NAMED} more" if len(odd) > _MOST_NAMED else ""
    return f"{where} is {short_value(value)}, not a list of integers ({'; '.join(odd[:_MOST_NAMED])}{more})"


def meant_by(value: object) -> tuple[int, ...] | None:
    """The ids that somebody surely meant: 3.0, true and "3" name one each; None where an entry names none."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*\[?\s*(-?\d{1,9}(?:\s*,\s*-?\d{1,9})*)\s*\]?\s*", value)
        return tuple(int(part) for part in found.group(1).split(",")) if found else None
    if not isinstance(value, list) or not value:
        return None
    read = [_read(item) for item in value]
    known = tuple(k for k in read if k is not None)
    return known if len(known) == len(read) else None


def written_for(value: object) -> tuple[int, ...] | None:
    """What :func:`meant_by` finds, where it can be written down: an id that stands there twice is no list of slots."""
    meant = meant_by(value)
    return meant if meant is not None and len(set(meant)) == len(meant) else None


def taken_for(value: object) -> tuple[int, ...] | None:
    """The integers that a server which adds one to the ids and compares them takes 3.0 and true for; None where an entry is
    text or a fraction, which it cannot use."""
    return meant_by(value) if numbers_only(value) else None


def numbers_only(value: object) -> bool:
    """Whether a list holds nothing but numbers, so that no reader stops at it with an error."""
    return isinstance(value, list) and all(isinstance(item, (int, float)) for item in value)


def short_value(value: object) -> str:
    """A value of a config for a sentence, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _integer(item: object) -> bool:
    return type(item) is int and abs(item) < MOST_ID


def _read(item: object) -> int | None:
    if isinstance(item, str):
        return int(item) if re.fullmatch(r"\s*-?\d{1,9}\s*", item) else None
    if isinstance(item, float):
        return int(item) if abs(item) < MOST_ID and item.is_integer() else None
    return int(item) if isinstance(item, int) and abs(item) < MOST_ID else None


def _instead(item: object) -> str:
    read = _read(item)
    return _ANY if read is None else f"write {read}"


def _json(item: object) -> str:
    text = json.dumps(item)
    return text if len(text) <= 40 else text[:37] + "..."
