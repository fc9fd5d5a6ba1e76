"""Two token lists that are no two sides of one prompt: what they share in front proves nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drafttrace.tracer.capture import Ints

MIN_RUN = 4  # tokens in a row that hardly agree by chance


@dataclass(frozen=True)
class Unrelated:
    """Why nothing is compared. foreign: index of the first reference token beyond the served vocabulary, which proves
    another tokenizer; None where the two lists only share a header."""

    foreign: int | None
    vocabulary: int | None


def unrelated(ours: Ints, theirs: Ints, start: int, vocabulary: int | None) -> Unrelated | None:
    """Judge two lists that differ from token ``start`` on. vocabulary: tokens that the served target has, if known.

    A header: they part within the first quarter, and no few tokens in a row are the same after that.
    """
    if vocabulary is not None:
        beyond = np.flatnonzero(theirs >= vocabulary)
        if len(beyond) and beyond[0] >= start:
            return Unrelated(int(beyond[0]), vocabulary)
    if 4 * start < min(len(ours), len(theirs)) and not _runs(ours[start:]) & _runs(theirs[start:]):
        return Unrelated(None, vocabulary)
    return None


def _runs(tokens: Ints) -> set[tuple[int, ...]]:
    """Every few known tokens in a row."""
    listed = tokens.tolist()
    runs = (tuple(listed[i : i + MIN_RUN]) for i in range(len(listed) - MIN_RUN + 1))
    return {run for run in runs if min(run) >= 0}
