"""Sums over paired rows that are in memory already: the sample that location and hypotheses work on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drafttrace.compare.kernels import blocks, native
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import DType, Floats

Doubles = npt.NDArray[np.float64]
_NO_CHANNELS = np.empty(0, np.int64)
_WORTH_A_THREAD = 1 << 22  # multiplications


@dataclass(frozen=True)
class RowSums:
    """Per pair of rows ``[m]``: x.x, y.y, x.y, |x - y|^2, and the first three without the massive channels.

    A row that holds a NaN or an infinity has it in its sums.
    """

    xx: Doubles
    yy: Doubles
    xy: Doubles
    dd: Doubles
    trimmed_xx: Doubles
    trimmed_yy: Doubles
    trimmed_xy: Doubles


def row_sums(x: Floats, y: Floats, massive: Ints | None = None) -> RowSums:
    """Float64 sums over the channels of ``[m, H]`` rows."""
    channels = _NO_CHANNELS if massive is None else np.asarray(massive, np.int64)
    if not native.available() or x.size == 0:
        return _plain_sums(x, y, channels)
    index = np.arange(len(x))
    out = native.Output.empty(len(x))
    left, right = (native.Block(np.ascontiguousarray(rows, np.float32), DType.FP32) for rows in (x, y))
    native.measure(left, index, right, index, channels, out, ulp=False, hashes=False)
    return RowSums(*(out.sums[:, k] for k in range(7)))


def _plain_sums(x: Floats, y: Floats, massive: Ints) -> RowSums:
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        sums = _dots(a, a), _dots(b, b), _dots(a, b), _dots(a - b, a - b)
        if len(massive) == 0:
            return RowSums(*sums, sums[0], sums[1], sums[2])
        keep = np.ones(x.shape[1], np.bool_)
        keep[massive] = False
        a, b = a[:, keep], b[:, keep]
        return RowSums(*sums, _dots(a, a), _dots(b, b), _dots(a, b))


def _dots(x: Doubles, y: Doubles) -> Doubles:
    dots: Doubles = np.einsum("rh,rh->r", x, y)
    return dots


def cross_dots(xs: Sequence[native.Block], ys: Sequence[native.Block]) -> Doubles:
    """Inner products ``[len(xs), len(ys), m]`` of row r of every x with row r of every y, all ``[m, H]`` as they are
    stored.

    One small matrix product per row; rows of different numbers are never multiplied. Products are summed in float32
    over blocks of channels and in float64 over the blocks.
    """
    rows, width = xs[0].raw.shape
    if not native.available() or width == 0:
        left, right = (np.stack([block.floats() for block in blocks_], axis=1) for blocks_ in (xs, ys))
        with np.errstate(all="ignore"):
            found: Doubles = np.matmul(left, right.transpose(0, 2, 1)).astype(np.float64)
        return found.transpose(1, 2, 0)
    work = len(xs) * len(ys) * rows * width
    parts = min(blocks.threads(), max(1, work // _WORTH_A_THREAD), max(1, rows))
    cuts = [rows * k // parts for k in range(parts + 1)]
    products = native.Products(xs, ys)
    if parts == 1:
        return products.of(0, rows).transpose(1, 2, 0)
    pool = blocks.beside(blocks.threads() - 1)
    others = [pool.submit(products.of, *cut) for cut in itertools.pairwise(cuts[1:])]
    try:
        own = products.of(0, cuts[1])
    finally:
        wait(others)
    done: Doubles = np.concatenate([own, *(other.result() for other in others)])
    return done.transpose(1, 2, 0)
