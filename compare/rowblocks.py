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
    is known.
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
        found = _best(place, source, rules, number)
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
        found = _best(place, first, rules, number)
        if found is not None:
            return found
    return None


def _numbers(place: Ints, count: int, ranks: int) -> Iterable[int]:
    """The numbers of ranks to try."""
    if len(place) < 3:
        return ()
    return (ranks,) if ranks > 1 else range(2, min(MOST_RANKS, count // 2) + 1)


def _rule(formula: Callable[[Ints, int, int], Ints], ranks: int, block: int) -> Rule:
    return lambda place: formula(place, ranks, block)


def _best(place: Ints, source: Ints, rules: Iterable[tuple[str, Rule]], ranks: int) -> Blocks | None:
    for kind, rule in rules:
        share = float((rule(place) == source).mean())
        if share >= _FITS:
            return Blocks(kind, ranks, share)
    return None


def _permuted_blocks(place: Ints, source: Ints, block: int) -> float:
    """The share of rows that whole blocks in another order explain."""
    fits = 0
    taken: set[int] = set()
    for number in np.unique(place // block):
        here = place // block == number
        inside = source[here] % block == place[here] % block
        blocks, counts = np.unique((source[here] // block)[inside], return_counts=True)
        if len(blocks) == 0:
            continue
        best = int(blocks[counts.argmax()])
        if best not in taken:
            taken.add(best)
            fits += int(counts.max())
    return fits / len(place)
