"""Layer ids as a user writes them: plain, in the numbering of some project, or with the letter that says which."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drafttrace.tracer.errors import DrafttraceError

_ID = re.compile(r"([BbOo]?)(-?\d{1,9})|(embed)", re.ASCII)


def parse_ids(text: str | None) -> tuple[tuple[int, ...] | None, str]:
    """``2,30,58`` as numbers, None for None; and the letter of ``B3,B31`` or ``O2,O30``, empty where there is none.

    ``embed`` is B0. Raises DrafttraceError for what is no id, and for two numberings in one list.
    """
    if text is None:
        return None, ""
    found = [_ID.fullmatch(part.strip()) for part in text.strip().strip("[]").split(",")]
    named = [("B", 0) if one[3] else (one[1].upper(), int(one[2])) for one in found if one is not None]
    if len(named) < len(found):
        raise DrafttraceError(
            f"The layer ids '{text}' are no numbers; write them like 2,30,58, or like B3,B31,B59 or O2,O30,O58."
        )
    if any(number < (0 if letter == "B" else -1) for letter, number in named):
        raise DrafttraceError(
            f"The layer ids '{text}' name a boundary below B0, which is the embedding; write B0, or count outputs as O-1."
        )
    letters = {letter for letter, _id in named}
    if len(letters) > 1:
        raise DrafttraceError(
            f"The layer ids '{text}' are numbered in two ways; write all of them plain, or all as B(id), or all as O(id)."
        )
    return tuple(number for _letter, number in named), letters.pop()


def refuse_below(ids: Sequence[int], letter: str, where: str) -> None:
    """Raise DrafttraceError for an id below the embedding, B0 = O(-1). letter: the numbering, "B" or "O". where: the
    dump, as an error names it."""
    below = [k for k in ids if k + (letter == "O") < 0]
    if below:
        raise DrafttraceError(
            f"--layer-ids names {below[0]}, and ids are {letter}(id) in {where}, in which the embedding, "
            f"{'O(-1)' if letter == 'O' else 'B0'}, is the lowest; write B0 for it, or count outputs, as O-1."
        )
