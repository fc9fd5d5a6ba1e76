"""Ranks against each other: row hashes of what every rank should hold alike, and sums over the ranks' own traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from drafttrace.compare.locate import distance
from drafttrace.compare.rowblocks import Blocks, fit_blocks
from drafttrace.compare.sample import Sample, slot_streams
from drafttrace.tracer.capture import Capture, Ints


class RankRows(Protocol):
    """What a trace keeps of one rank: R ``rows`` (fields frame, position, step, round, phase), ``hashes [R, names]``."""

    @property
    def rank(self) -> int: ...
    @property
    def rows(self) -> npt.NDArray[np.void]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def hashes(self) -> npt.NDArray[np.uint64]: ...


@dataclass(frozen=True)
class Divergence:
    """A tensor in which a rank differs from the first: rows compared and differing, and the first such row.

    moved: differing rows that the first rank holds too, at another place of the same pass. blocks: what the ranks did
    to the rows, where that explains those places.
    """

    rank: int
    name: str
    rows: int
    differing: int
    frame: int
    position: int
    moved: int = 0
    blocks: Blocks | None = None


@dataclass(frozen=True)
class PartialSum:
    """A slot that only the ranks' sum makes right: distances to the reference, alone and summed, per slot."""

    slots: tuple[int, ...]
    alone: tuple[float, ...]
    summed: tuple[float, ...]


@dataclass(frozen=True)
class RankFacts:
    """What was found between ranks. compared: rows whose hashes were compared."""

    compared: int = 0
    divergences: tuple[Divergence, ...] = ()
    partial: PartialSum | None = None


def compare_hashes(ranks: Sequence[RankRows]) -> RankFacts:
    """Rows compared, and tensors that differ, of every rank against the lowest one. A hash of 0 means: no such row."""
    ordered = sorted(ranks, key=lambda r: r.rank)
    if len(ordered) < 2:
        return RankFacts()
    first, found, compared = ordered[0], [], 0
    where = {key: row for row, key in enumerate(_keys(first.rows))}
    for other in ordered[1:]:
        pairs = [(where[key], row) for row, key in enumerate(_keys(other.rows)) if key in where]
        if not pairs:
            continue
        ours, theirs = np.array(pairs, np.int64).T
        compared += len(pairs)
        names = (name for name in first.names if name in other.names)
        made = (_divergence(first, other, name, ours, theirs, len(ordered)) for name in names)
        found += [one for one in made if one is not None]
    return RankFacts(compared, tuple(sorted(found, key=lambda d: (d.frame, d.position))))


def _divergence(
    first: RankRows, other: RankRows, name: str, ours: Ints, theirs: Ints, ranks: int
) -> Divergence | None:
    """How one tensor of a rank differs from the first rank's; None where it does not. ours, theirs: paired rows."""
    a = first.hashes[ours, first.names.index(name)]
    b = other.hashes[theirs, other.names.index(name)]
    both = (a != 0) & (b != 0)
    differing = np.flatnonzero(both & (a != b))
    if len(differing) == 0:
        return None
    row = first.rows[ours[differing[0]]]
    frames = first.rows["frame"][ours]
    start = {int(f): int(np.flatnonzero(frames == f)[0]) for f in np.unique(frames)}
    there = {(int(f), int(h)): i for i, (f, h) in enumerate(zip(frames, a, strict=True)) if h != 0}
    moved: dict[int, list[tuple[int, int]]] = {}
    for i in differing:
        source = there.get((int(frames[i]), int(b[i])))
        if source is not None:
            at = start[int(frames[i])]
            moved.setdefault(int(frames[i]), []).append((int(i) - at, source - at))
    blocks = None
    if moved:
        frame, most = max(moved.items(), key=lambda one: len(one[1]))
        place, source_at = np.array(most, np.int64).T
        blocks = fit_blocks(place, source_at, int((frames == frame).sum()), ranks)
    total = sum(len(pairs) for pairs in moved.values())
    at_row = int(row["frame"]), int(row["position"])
    return Divergence(other.rank, name, int(both.sum()), len(differing), *at_row, total, blocks)


def _keys(rows: npt.NDArray[np.void]) -> list[tuple[int, int, int, int]]:
    """A key per row: frame, position, step, and how often these occurred before (branches of a tree)."""
    seen: Counter[tuple[int, int, int]] = Counter()
    keys = []
    for row in rows:
        key = int(row["frame"]), int(row["position"]), int(row["step"])
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys


# Relative L2 of a row that lacks something: much of it, else a little of a state that many layers made; and how many such
# rows are asked at least.
_FAR, _FEWEST = (0.1, 0.015), 4


def find_partial_sum(
    left: Capture, others: Sequence[Capture], reference: Capture, sample: Sample
) -> PartialSum | None:
    """Slots that are far from the reference alone and near it once the other ranks' rows are added.

    Only rows that are far are asked: of an expert or a head that lives on one rank, that rank has the whole.
    """
    if not others or len(sample) == 0 or any(len(o.table) != len(left.table) for o in others):
        return None
    slots, alone, summed = [], [], []
    theirs = slot_streams("reference", reference)
    for mine, target in zip(slot_streams("left", left), theirs, strict=False):
        y, x = sample.read(target), sample.read(mine)
        total = x + sum(sample.read(slot_streams("left", o)[mine.slot]) for o in others)
        norms = np.linalg.norm(y, axis=1)
        for limit in _FAR:
            far = np.linalg.norm(x - y, axis=1) > limit * np.where(norms > 0, norms, 1.0)
            if far.sum() < min(_FEWEST, len(far)):
                continue
            before, after = distance(x[far], y[far]).rel_l2, distance(total[far].astype(np.float32), y[far]).rel_l2
            if after < 0.1 and after < 0.3 * before:
                slots.append(mine.slot)
                alone.append(before)
                summed.append(after)
                break
    return PartialSum(tuple(slots), tuple(alone), tuple(summed)) if slots else None
