"""Rows that hold, bit for bit, another row of the same token, where the other side's two rows differ.

Rows of one token may be alike wherever it stands (an embedding, a prompt that repeats itself), so that equal bits alone say
nothing. The other side shows what the model makes of the two positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.kernels.blocks import hash_rows
from drafttrace.compare.measure import BLOCK_BYTES, median
from drafttrace.compare.measured import MeasuredSlot
from drafttrace.compare.repeats import Places, Repeat
from drafttrace.compare.result import SlotResult
from drafttrace.compare.sample import Stream
from drafttrace.tracer.capture import Capture, Ints

_DIFFER, _TIMES = (
    0.02,
    4.0,
)  # relative L2 of the other side's rows; times what the slot's rows differ by between the sides
_MOST = 64  # groups of a slot


@dataclass(frozen=True)
class SameToken:
    """Such rows of both sides, those of a group in the order of how near they are to their partners."""

    left: tuple[Repeat, ...] = ()
    reference: tuple[Repeat, ...] = ()


NO_COPIES = SameToken()


def find_same_token(
    measured: Sequence[MeasuredSlot], judged: Sequence[SlotResult], left: Capture, reference: Capture
) -> SameToken:
    """The rows that were copied. A slot whose rows repeat each other anyway is left out."""
    found: dict[str, list[Repeat]] = {"left": [], "reference": []}
    for slot, told in zip(measured, judged, strict=True):
        if told.kinds or slot.index < 0:
            continue
        rows = {"left": slot.pairs.left_rows, "reference": slot.pairs.reference_rows}
        for mine, other, capture in ((slot.left, slot.reference, left), (slot.reference, slot.left, reference)):
            if len(rows[mine.side]) and int(rows[mine.side].max()) < len(capture.table):
                found[mine.side] += _copies(slot, mine, other, rows, Places(capture.table, capture.padded))
    return SameToken(tuple(found["left"]), tuple(found["reference"]))


def _copies(
    slot: MeasuredSlot, mine: Stream, other: Stream, rows: dict[str, Ints], places: Places
) -> Iterator[Repeat]:
    measures, own = slot.measures, slot.measures.rel_l2
    # What can be no state is no copy of one.
    states = np.isfinite(own) & (measures.norm_left > 0) & (measures.norm_reference > 0)
    tokens = np.where(states, slot.ids.token_id, -1)
    least = max(_DIFFER, _TIMES * median(slot.measures.rel_l2))
    groups = _groups(hash_rows(mine.rows, rows[mine.side], BLOCK_BYTES), tokens)
    if 2 * sum(map(len, groups)) > len(tokens):
        return  # a state that depends on its token alone
    for group in groups[:_MOST]:
        here = group[np.argsort(own[group], kind="stable")]
        theirs = other.rows.take(rows[other.side][here]).astype(np.float64)
        with np.errstate(all="ignore"):
            apart = np.linalg.norm(theirs - theirs[:1], axis=1) / np.linalg.norm(theirs[0])
        copied = here[(apart > least) & (own[here] > least)]
        if len(copied) and np.isfinite(theirs).all():
            at = tuple(places.at(int(rows[mine.side][i])) for i in (here[0], *copied))
            yield Repeat(slot.index, at, len(at), len(tokens))


def _groups(keys: np.ndarray, tokens: Ints) -> list[Ints]:
    """The pairs with equal rows and one known token, two and more each."""
    order = np.lexsort((tokens, keys))
    same = (
        (keys[order[1:]] == keys[order[:-1]]) & (tokens[order[1:]] == tokens[order[:-1]]) & (tokens[order[1:]] >= 0)
    )
    parts = np.split(order, np.flatnonzero(~same) + 1)
    return [part.astype(np.int64) for part in parts if len(part) > 1]
