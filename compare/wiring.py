"""What two lists of boundaries say about each other. Pure integers: no tensors, no files.

Of all readings of the difference the one with the fewest separate faults is taken; a moved list (slot shift) plus
one boundary early everywhere is two faults, three unrelated boundaries would be three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Boundaries = Sequence[int | None]


@dataclass(frozen=True)
class Reading:
    """How the left wiring follows from the reference's.

    Left slot i holds entry ``order[i]`` of the reference list (its slots, then its last entry), moved by
    ``offsets[i]`` boundaries. order[i] is None where the left slot has no counterpart (an extra one).
    shift: k where order[i] = i + k for all slots, and, where permuted too, after both were put in ascending order.
    permuted: the order is another one. offset: d where one offset
    other than 0 holds for all. wrong: slots that hold an unrelated boundary. cost: separate faults.
    """

    order: tuple[int | None, ...]
    offsets: tuple[int | None, ...]
    shift: int
    permuted: bool
    offset: int
    moved: tuple[int, ...]
    wrong: tuple[int, ...]
    cost: float

    @property
    def same(self) -> bool:
        """Whether the two lists agree."""
        return not (self.shift or self.permuted or self.offset or self.moved or self.wrong)


def read(left: Boundaries, reference: Boundaries, tail: int | None = None) -> Reading:
    """The cheapest reading of ``left`` against ``reference``.

    tail: the boundary of the entry after the slots, where that was a boundary of the trainer's list. It is the partner
    of a left slot only where it fits the pattern of the others: no fault is told of a slot that training never fed.
    Unknown boundaries (None) agree with everything in their own place and prove nothing.
    """
    readings = [_shifted(left, reference, tail, k, d) for k in _shifts(left, reference) for d in (0, 1, -1, 2, -2)]
    for offset in (0, 1, -1):
        order = _matching(left, reference, offset)
        if order is not None:
            readings.append(_permuted(left, reference, order, offset))
    both = _shifted_and_permuted(left, reference)
    if both is not None:
        readings.append(both)
    return min(readings, key=lambda r: (r.cost, abs(r.shift), abs(r.offset), r.permuted))


def _shifts(left: Boundaries, reference: Boundaries) -> list[int]:
    most = max(len(left), len(reference))
    return sorted(range(-most + 1, most), key=lambda k: (abs(k), -k))


def _matching(left: Boundaries, reference: Boundaries, offset: int) -> tuple[int | None, ...] | None:
    """The order that pairs equal boundaries. A slot without a partner keeps its place where that is free, and is held
    against what is left over where both are known. An unknown one has no counterpart (None) then: it may be anything.

    None where fewer than two slots find a partner, or where nothing changes places.
    """
    if len(left) != len(reference):
        return None
    where = {k + offset: j for j, k in enumerate(reference) if k is not None}
    order = [where.pop(k, None) if k is not None else None for k in left]
    if sum(j is not None for j in order) < 2:
        return None
    order = [i if j is None and i not in order else j for i, j in enumerate(order)]
    free = [j for j, k in enumerate(reference) if j not in order and k is not None]
    full = tuple(free.pop(0) if j is None and free and left[i] is not None else j for i, j in enumerate(order))
    return None if full == tuple(range(len(left))) else full


def _shifted_and_permuted(left: Boundaries, reference: Boundaries) -> Reading | None:
    """The lists as two faults: in ascending order the one is the other's moved by k, and the order is another one too.

    What the left list lacks are then the reference's first k boundaries, and what it has beyond them lies above all of its
    others (or the other way round). None where that does not hold, or an entry is not known by its number.
    """
    if len(left) != len(reference) or any(k is None or k < 0 for k in (*left, *reference)):
        return None
    ours, theirs = (sorted(k for k in wiring if k is not None) for wiring in (left, reference))
    if len(set(ours)) < len(ours) or len(set(theirs)) < len(theirs):
        return None
    count = len(ours)
    for k in range(1, count - 1):  # two agree at least
        for shift, moved in ((k, ours[: count - k] == theirs[k:]), (-k, ours[k:] == theirs[: count - k])):
            where = {b: j for j, b in enumerate(reference)}
            order = tuple(where.get(b) for b in left)
            if moved and any(j is not None and j != i + shift for i, j in enumerate(order)):
                offsets = tuple(None if j is None else 0 for j in order)
                return Reading(order, offsets, shift, True, 0, (), (), 2.1)
    return None


def _shifted(left: Boundaries, reference: Boundaries, tail: int | None, shift: int, offset: int) -> Reading:
    entries = [*reference, tail] if tail is not None else list(reference)
    order = tuple(i + shift if 0 <= i + shift < len(entries) else None for i in range(len(left)))
    return _reading(left, entries, len(reference), order, shift, False, offset)


def _permuted(left: Boundaries, reference: Boundaries, order: Sequence[int | None], offset: int) -> Reading:
    return _reading(left, list(reference), len(reference), tuple(order), 0, True, offset)


def _reading(
    left: Boundaries,
    entries: list[int | None],
    slots: int,
    order: tuple[int | None, ...],
    shift: int,
    permuted: bool,
    offset: int,
) -> Reading:
    offsets: list[int | None] = []
    moved, wrong, proven, free = [], [], 0, 0
    for i, (mine, entry) in enumerate(zip(left, order, strict=True)):
        theirs = None if entry is None else entries[entry]
        if entry is None:
            free += 1
        if mine is None or theirs is None:
            offsets.append(None)
            continue
        rest = mine - theirs - offset
        if rest and entry is not None and entry >= slots:  # the entry after the slots, and not by this pattern
            free += 1
            order = (*order[:i], None, *order[i + 1 :])
            offsets.append(None)
            continue
        offsets.append(mine - theirs)
        if rest == 0:
            proven += 1
        elif abs(rest) == 1:
            moved.append(i)
        else:
            wrong.append(i)
    cost = (shift != 0) + 1.1 * permuted + (offset != 0) * (1 + 0.6 * (abs(offset) > 1))
    cost += 1.0 * len(moved) + 1.1 * len(wrong) + 0.6 * free
    if (shift or permuted or offset) and proven < 2:
        cost += 2.0  # one agreeing slot proves no pattern
    return Reading(order, tuple(offsets), shift, permuted, offset, tuple(moved), tuple(wrong), cost)
