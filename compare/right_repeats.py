"""Equal rows of different tokens that are what the model gives.

The first tokens of a text whose embeddings are equal have equal states, and rounding makes those of nearly equal ones so.
The embeddings show it where a capture holds them, else the other side: its rows are as good as equal there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from drafttrace.compare.align import Alignment
from drafttrace.compare.measure import Doubles, massive_channels
from drafttrace.compare.repeats import LAST, Repeat
from drafttrace.compare.result import SlotResult
from drafttrace.compare.sample import spread
from drafttrace.tracer.capture import Accepted, Capture, Ints
from drafttrace.tracer.rows import Rows

_ROUNDED, _TIMES = 0.02, 4.0  # relative L2 of rows that rounding makes equal; times what a healthy slot differs by
_SAMPLE = 64  # rows that show which channels are massive
_ONE_VECTOR = 2.0**-8  # relative L2 of embeddings that bf16 does not tell apart


@dataclass(frozen=True)
class OtherSide:
    """The rows that a side's repeats are held against. rows: of every row of this side's table its partner's number on the
    other side, where the two were paired. levels: by slot, the relative L2 at which the sides agree, 0 where they do not.
    flat: the slots in which one row stands for most of the other side's, which tells nothing of single ones.
    """

    capture: Capture
    rows: Mapping[int, int]
    levels: Mapping[int, float]

    flat: frozenset[int]

    def limit(self, slot: int) -> float:
        """Up to which relative L2 two rows of a slot are one state."""
        return max(_ROUNDED, _TIMES * self.levels.get(slot, 0.0))

    def held(self, slot: int) -> Rows | None:
        """The state in the same place."""
        if slot == LAST:
            return self.capture.last.rows if self.capture.last is not None else None
        return self.capture.slots[slot].rows if 0 <= slot < len(self.capture.slots) else None


@dataclass(frozen=True)
class Compared:
    """Which rows of two captures belong together, and what came out."""

    left: Capture
    reference: Capture
    alignment: Alignment
    judged: tuple[SlotResult, ...]


def right_left_out(
    ours: Sequence[Repeat], theirs: Sequence[Repeat], compared: Compared
) -> tuple[tuple[Repeat, ...], tuple[Repeat, ...]]:
    """The repeats of the left side and those of the reference, without the rows that are right."""
    left, reference, alignment = compared.left, compared.reference, compared.alignment
    judged = compared.judged
    levels = {s.slot: s.rel_l2.p50 for s in judged if s.rel_l2.p50 <= s.judged.noise_limit}
    ids = alignment.left_rows.tolist(), alignment.reference_rows.tolist()
    ahead, back = dict(zip(*ids, strict=True)), dict(zip(*reversed(ids), strict=True))
    return (
        tuple(_without_right(ours, left, OtherSide(reference, ahead, levels, _flat(theirs)))),
        tuple(_without_right(theirs, reference, OtherSide(left, back, levels, _flat(ours)))),
    )


def without_start(repeats: Sequence[Repeat], capture: Capture) -> tuple[Repeat, ...]:
    """The repeats of a capture without the first positions of the text where all their embeddings are one vector."""
    start = _start_of_one_vector(capture) if repeats else 0
    return tuple(_fewer(repeats, lambda r: [i for i, row in enumerate(r.rows) if i == 0 or row.position >= start]))


def _fewer(repeats: Sequence[Repeat], keep: Callable[[Repeat], list[int]]) -> Iterator[Repeat]:
    """The repeats with those of their rows that are kept, where that leaves a copy. Of those whose rows are not all listed
    nothing is left out."""
    for repeat in repeats:
        kept = keep(repeat) if repeat.count == len(repeat.rows) else None
        if kept is None or len(kept) == repeat.count:
            yield repeat
        elif len(kept) > 1:
            fewer = replace(repeat, rows=tuple(repeat.rows[i] for i in kept), count=len(kept))
            if fewer.copies:
                yield fewer


def _flat(repeats: Sequence[Repeat]) -> frozenset[int]:
    return frozenset(repeat.slot for repeat in repeats if 2 * repeat.count > repeat.of)


def _embeddings(capture: Capture) -> Rows | None:
    """The embedding's rows, from wherever a capture holds them."""
    if capture.embed is not None:
        return capture.embed.rows
    if 0 in capture.boundaries:
        return capture.boundaries[0]
    return next((slot.rows for slot in capture.slots if slot.boundary == 0), None)


def _start_of_one_vector(capture: Capture) -> int:
    """How many of the first positions of the text have one embedding; 0 where nothing tells."""
    rows, table = _embeddings(capture), capture.table
    if rows is None:
        return 0
    count, first = 0, None
    for i in np.flatnonzero((table.accepted == Accepted.ACCEPTED) & capture.in_text(len(table))):
        position = int(table.position[i])
        if position < count:
            continue
        if position > count or i >= len(rows):
            break
        state = _row(rows, int(i))
        first = state if first is None else first
        if not _apart(first, state) <= _ONE_VECTOR:
            break
        count += 1
    return count


def _without_right(repeats: Sequence[Repeat], mine: Capture, other: OtherSide) -> Iterator[Repeat]:
    """The repeats without the rows that the other side makes no difference between either."""

    embeddings = _embeddings(mine)

    def kept(repeat: Repeat) -> list[int]:
        rows, at = other.held(repeat.slot), [row.row for row in repeat.rows]
        if rows is None or repeat.slot in other.flat:
            return list(range(len(at)))
        theirs = [_row(rows, other.rows.get(i, -1)) for i in at]
        vectors = [_row(embeddings, i) for i in at]
        plain, limit = _plain(rows, other.rows.values()), other.limit(repeat.slot)
        chosen: list[int] = []
        for i, (state, vector) in enumerate(zip(theirs, vectors, strict=True)):
            before = ((theirs[k], vectors[k]) for k in chosen)
            if not any(_is_one(x, state, plain, limit) and not _both(x, state, v, vector) for x, v in before):
                chosen.append(i)
        return chosen

    return _fewer(repeats, kept)


def _is_one(x: Doubles | None, y: Doubles | None, plain: Ints, limit: float) -> bool:
    return x is not None and y is not None and _apart(x, y) <= limit and _apart(x[plain], y[plain]) <= limit


def _both(x: Doubles | None, y: Doubles | None, one: Doubles | None, two: Doubles | None) -> bool:
    """Whether the other side holds the very same copy: equal in all bits, of tokens whose embeddings are not."""
    return _apart(x, y) == 0 and one is not None and two is not None and _apart(one, two) > _ONE_VECTOR


def _row(rows: Rows | None, index: int) -> Doubles | None:
    """One row; None where there is none."""
    if rows is None or not 0 <= index < len(rows):
        return None
    held: Doubles = rows.take(np.array([index]))[0].astype(np.float64)
    return held


def _plain(rows: Rows, numbers: Collection[int]) -> Ints:
    """The channels that are not massive: those make unlike rows look alike."""
    index = np.fromiter(numbers, np.int64)
    some = rows.take(spread(np.sort(index[(index >= 0) & (index < len(rows))]), _SAMPLE))
    return np.setdiff1d(np.arange(rows.width), massive_channels(some))


def _apart(x: Doubles | None, y: Doubles | None) -> float:
    """|x - y| / |x|; infinite for what is no state."""
    if x is None or y is None or len(x) != len(y):
        return np.inf
    with np.errstate(all="ignore"):
        apart = float(np.linalg.norm(x - y) / np.linalg.norm(x))
    return apart if np.isfinite(apart) else np.inf
