"""What the entries of a loss mask must be to weight tokens: finite numbers, and no more of them than there are tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drafttrace.tracer.capture import Ints
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import UnreadableFile
from drafttrace.tracer.rows import Floats


def finite(mask: Tensor, name: str, path: Path) -> Floats:
    """The entries of a mask of floats. Raises UnreadableFile where one is NaN or infinite: the loss of the sample was NaN
    then, and nobody knows whether such a token counts."""
    values = mask.floats()
    odd = np.flatnonzero(~np.isfinite(values))
    if len(odd):
        entries = "1 entry is" if len(odd) == 1 else f"{len(odd):,} entries are"
        raise UnreadableFile(
            f"The field '{name}' of '{path}' holds {values[odd[0]]} as entry {int(odd[0])} ({entries} not finite, of "
            f"{len(values):,}), which says of no token whether it counts; write the dump again with 0 and 1."
        )
    return values


def of_tokens(mask: Ints, count: int, path: Path, notes: list[str]) -> Ints:
    """The mask without entries beyond ``count`` tokens; what is to be said of its length is added to ``notes``.

    Raises UnreadableFile where such an entry weights a token that is not there: nobody knows then which entry is whose.
    """
    if len(mask) == count:
        return mask
    beyond = np.flatnonzero(mask[count:])
    if len(beyond):
        entries = "1 entry" if len(beyond) == 1 else f"{len(beyond):,} entries"
        raise UnreadableFile(
            f"The loss mask of '{path}' has {len(mask):,} entries for {count:,} tokens, and {entries} of those beyond, the "
            f"first at {count + int(beyond[0]):,}, would weight tokens that are not there; dump the sample again."
        )
    more = f"; those from {count:,} on are 0, and left out" if len(mask) > count else ""
    notes.append(f"the loss mask has {len(mask)} entries for {count} tokens{more}")
    return mask[:count]
