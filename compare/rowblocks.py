"""Rows that stand in another row's place, and whether ranks explain it.

Ranks that split the rows of a pass between them hand back blocks. Put together in a wrong order, or taken once per
rank, the rows are all there, at places that follow from the number of ranks alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from drafttrace.tracer.capture import Ints

MOST_RANKS = 64
_FITS = 0.9
# Of the rows that a rule moves at least this share has to be seen; of moved rows a sample is looked up, and so many are
# enough. Repeats are all known.
_COVERED, _ENOUGH = 0.5, 20
_REPEATED = 0.75


@dataclass(frozen=True)
class Blocks:
    """How the places follow from the number of ranks. kind: what was done to the rows, in words."""

    kind: str
    ranks: int
    share: float


@dataclass(frozen=True)
class RowMap:
    """Rows of one slot that are the reference's state of another position: pairs (position, position of the state).

    rel_l2: median distance to those states; looked_at: how many deviating rows were looked up. blocks: the ranks'
    part in it.
    """

    slot: int
    pairs: tuple[tuple[int, int], ...]
    looked_at: int
    rel_l2: float
    blocks: Blocks | None


_ONE_BLOCK = "the first rank's block stands in the place of every rank's"
_ONCE_PER_RANK = "every row stands there once per rank"
Rule = Callable[[Ints], Ints]


def fit_blocks(place: Ints, source: Ints, count: int, ranks: int = 0) -> Blocks | None:
    """What the ranks did so that row ``place[i]`` of a pass of ``count`` rows holds the state of row ``source[i]``.

    The smallest number of ranks that explains nine of ten rows is told; only the server's own number counts, where it
    is known: one rank mixes nothing up. A rule that would have moved many more rows than these explains none of them.
    """
    for number in _numbers(place, count, ranks):
        block = -(-count // number)
        rules = (
            (_ONE_BLOCK, _rule(lambda i, r, b: i % b, number, block)),
            (_ONCE_PER_RANK, _rule(lambda i, r, b: i // r, number, block)),
            ("the ranks' rows are interleaved", _rule(lambda i, r, b: (i % r) * b + i // r, number, block)),
            (
                "rows that belong to the ranks in turn were put one block after another",
                _rule(lambda i, r, b: (i % b) * r + i // b, number, block),
            ),
        )
        found = _best(place, source, rules, number, count, _sampled)
        if found is not None:
            return found
        share = _permuted_blocks(place, source, block)
        if share >= _FITS:
            return Blocks("the ranks' blocks stand in another order", number, share)
    return None


def fit_repeated(place: Ints, first: Ints, count: int, ranks: int = 0) -> Blocks | None:
    """As :func:`fit_blocks`, where only this is known: row ``place[i]`` equals row ``first[i]``, the first of its kind."""
    for number in _numbers(place, count, ranks):
        block = -(-count // number)
        rules = (
            (_ONE_BLOCK, _rule(lambda i, r, b: i % b, number, block)),
            (_ONCE_PER_RANK, _rule(lambda i, r, b: i // r * r, number, block)),
        )
        found = _best(place, first, rules, number, count, _all_known)
        if found is not None:
            return found
    return None


def _numbers(place: Ints, count: int, ranks: int) -> Iterable[int]:
    """The numbers of ranks to try."""
    if len(place) < 3 or ranks == 1:
        return ()
    return (ranks,) if ranks > 1 else range(2, min(MOST_RANKS, count // 2) + 1)


def _rule(formula: Callable[[Ints, int, int], Ints], ranks: int, block: int) -> Rule:
    return lambda place: formula(place, ranks, block)


def _best(
    place: Ints,
    source: Ints,
    rules: Iterable[tuple[str, Rule]],
    ranks: int,
    count: int,
    seen: Callable[[Ints, int], bool],
) -> Blocks | None:
    everywhere = np.arange(count)
    for kind, rule in rules:
        share = float((rule(place) == source).mean())
        if share >= _FITS and seen(place, int((rule(everywhere) != everywhere).sum())):
            return Blocks(kind, ranks, share)
    return None


def _sampled(place: Ints, moved: int) -> bool:
    """Whether enough of the rows that a rule moves were seen to be moved."""
    return len(np.unique(place)) >= _COVERED * min(moved, _ENOUGH)


def _all_known(place: Ints, moved: int) -> bool:
    return len(np.unique(place)) >= _REPEATED * moved


def _permuted_blocks(place: Ints, source: Ints, block: int) -> float:
    """The share of rows that whole blocks in another order explain: those that moved away stand in each other's place."""
    fits = 0
    taken: set[int] = set()
    homes = np.unique(place // block)
    if not _sampled(place, len(homes) * block):
        return 0.0
    for number in homes:
        here = place // block == number
        inside = source[here] % block == place[here] % block
        blocks, counts = np.unique((source[here] // block)[inside], return_counts=True)
        if len(blocks) == 0:
            continue
        best = int(blocks[counts.argmax()])
        if best not in taken:
            taken.add(best)
            fits += int(counts.max())
    exchanged = len(taken & set(homes.tolist())) >= _COVERED * len(taken)
    return fits / len(place) if exchanged else 0.0
