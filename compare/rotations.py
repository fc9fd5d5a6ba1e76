"""Rows that are other rows under one orthogonal map, found without fitting the map.

Such a map keeps every norm and every inner product: the Gram matrices of the unit rows agree. Rows in which something
else is wrong, too, disagree with most of the others, and are left out.
"""

from __future__ import annotations

import numpy as np

from drafttrace.compare.measure import Bools, Doubles

_MOST = 0.6  # share of the rows that one map has to explain
_OFF = 0.3  # of the usual spread of inner products: a row further off is another one's
_TIMES = 4.0  # the usual disagreement of a row: one that disagrees more is left out, too
_FAINT = 0.1  # singular values below which rounding decides


def agreeing(x: Doubles, y: Doubles) -> Bools:
    """The rows, of ``[m, H]`` each, whose inner products with most others are the same on both sides, as nearly as those of
    the others are. All of them where less than six of ten are: then there is no such map."""
    ours, theirs = gram(x), gram(y)
    apart = np.abs(ours - theirs)
    np.fill_diagonal(apart, np.nan)
    np.fill_diagonal(theirs, np.nan)
    spread = float(np.nanmedian(np.abs(theirs - np.nanmedian(theirs))))
    off = np.nanmedian(apart, axis=1)
    good: Bools = off <= _OFF * spread + 1e-3
    enough = max(4, _MOST * len(good))
    if good.sum() < enough:
        return np.ones(len(x), np.bool_)
    # A row with a little noise in it would blur the map for all the others.
    clear: Bools = good & (off <= _TIMES * np.median(off[good]))
    return clear if clear.sum() >= enough else good


def apart(x: Doubles, y: Doubles) -> float:
    """How much the inner products of the unit rows differ, relative to their size; or to their spread, where all rows lie
    in one direction anyway and the size says little."""
    ours, theirs = gram(x), gram(y)
    off = ~np.eye(len(x), dtype=bool)
    difference = float(np.linalg.norm((ours - theirs)[off]))
    centred = theirs[off] - theirs[off].mean()
    size, spread = float(np.linalg.norm(theirs[off])), float(np.linalg.norm(centred))
    return max(difference / max(1e-12, size), 0.3 * difference / max(1e-12, spread))


def gram(rows: Doubles) -> Doubles:
    """Inner products of all pairs of unit rows."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    product: Doubles = unit @ unit.T
    return product


def frames(x: Doubles, y: Doubles) -> tuple[Doubles, Doubles]:
    """Orthonormal columns, ``[H, r]`` for each side, in which rows have the same coordinates on both.

    What rounding leaves of that is spread over all of them: the columns of x are the nearest orthonormal ones.

    x, y: rows that one map leads to each other. The columns span what these rows span; rounding leaves out the faintest
    directions.
    """
    ours = x / np.linalg.norm(x, axis=1, keepdims=True)
    theirs = y / np.linalg.norm(y, axis=1, keepdims=True)
    left, sizes, right = np.linalg.svd(theirs, full_matrices=False)
    kept = sizes > _FAINT
    mix = left[:, kept] / sizes[kept]
    before, _, behind = np.linalg.svd(ours.T @ mix, full_matrices=False)
    return before @ behind, right[kept].T


def coordinates(rows: Doubles, frame: Doubles) -> Doubles:
    """Rows ``[m, H]`` in the directions of a frame, and how much of each lies in none of them, ``[m, r + 1]``: one map
    leaves that as it is, too."""
    inside = rows @ frame
    rest = np.einsum("rh,rh->r", rows, rows) - np.einsum("rk,rk->r", inside, inside)
    return np.concatenate([inside, np.sqrt(np.maximum(rest, 0.0))[:, None]], axis=1)
