"""What the entries of a loss mask must be to weight tokens: finite numbers, and no more of them than there are tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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


def counted(values: npt.NDArray[Any]) -> Ints:
    """What a capture keeps of finite entries: whole numbers as they are; of weights between them, as of a loss that is
    scaled, only which tokens count, 1 for each that is not 0."""
    kept: Ints = (values if _fractions(values) is None else values != 0).astype(np.int64)
    return kept


def weights_told(values: npt.NDArray[Any]) -> list[str]:
    """A note on weights that :func:`counted` does not keep; none where it keeps all."""
    odd = _fractions(values)
    if odd is None:
        return []
    entries = "1 entry is no whole number" if len(odd) == 1 else f"{len(odd):,} entries are no whole numbers"
    return [
        f"the loss mask holds weights: {entries}, of {len(values):,}, the first {float(values[odd[0]]):.6g} as entry "
        f"{int(odd[0]):,}; only which tokens count is read, 1 for each that is not 0"
    ]


def _fractions(values: npt.NDArray[Any]) -> Ints | None:
    """The places of the entries that are no whole numbers; None where all are."""
    if values.dtype.kind != "f":
        return None
    odd: Ints = np.flatnonzero(values != np.rint(values))
    return odd if len(odd) else None


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
