"""Whether stored states lie on the grid of a coarse number format, by their values: a finer format may hold them.

A dump that was quantised and written back as bf16 says nothing of it. Values on a grid are whole multiples of one step
(int8, int4: a step per row or per group of channels), or have few mantissa bits beside one factor (fp8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from drafttrace.compare.hypotheses import Doubles
from drafttrace.compare.sample import Sample, Stream
from drafttrace.tracer.rows import DType

_ROWS, _CHANNELS = 8, 512
_GROUPS = (128, 64, 32)  # channels that share a step, after a whole row
_NEAR_STEPS = 32  # multiples up to which bf16 still shows whether a value is one
_OFF, _FEWEST = 0.06, 48  # mean distance from whole multiples (0.25 where there is no grid), and values to judge by
_TELLING = 8  # values of a group that are not 0: one massive channel among zeros shows no step
_FACTORS, _ON = 512, 0.95
_FP8 = (("fp8_e5m2", 4), ("fp8_e4m3", 8))
_COARSE = {DType.FP8_E4M3, DType.FP8_E5M2}


@dataclass(frozen=True)
class Grid:
    """The number format whose values one slot of a side holds. stored: it is the file's own format."""

    side: str
    slot: int
    format: str
    stored: bool


def find_grids(sample: Sample, streams: Iterable[Stream]) -> Iterator[Grid]:
    """The slots that are stored in a coarse format, or whose values lie on the grid of one."""
    for stream in streams:
        if stream.rows.dtype in _COARSE:
            yield Grid(stream.side, stream.slot, str(stream.rows.dtype), True)
        elif (found := grid_of(sample.read(stream)[:_ROWS, :_CHANNELS].astype(np.float64))) is not None:
            yield Grid(stream.side, stream.slot, found, False)


def grid_of(rows: Doubles) -> str | None:
    """``int4 in groups of 32``, ``int8``, ``fp8_e4m3``; None for values without a grid. rows: ``[m, H]``."""
    rows = rows[np.isfinite(rows).all(1) & rows.any(1)]
    if rows.size < _FEWEST:
        return None
    for size in (rows.shape[1], *(g for g in _GROUPS if g < rows.shape[1])):
        width = rows.shape[1] // size * size
        levels = _even(rows[:, :width].reshape(-1, size))
        if levels is not None:
            name = "int4" if levels <= 8 else "4 bits" if levels <= 16 else "int8"
            return name if size == rows.shape[1] else f"{name} in groups of {size}"
    return next((name for name, parts in _FP8 if _few_bits(rows, parts)), None)


def _even(groups: Doubles) -> int | None:
    """The largest multiple in groups ``[n, size]`` whose values are whole multiples of a step each; None without one."""
    size = np.abs(groups)
    least = np.where(size > 0, size, np.inf).min(1)
    most = size.max(1)
    steps = np.stack([least, least / 2, least / 3, most / 127, most / 7], axis=1)
    with np.errstate(all="ignore"):
        ratio = size[:, None, :] / steps[:, :, None]
    near = (ratio >= 0.5) & (ratio <= _NEAR_STEPS)
    off = np.where(near, np.abs(ratio - np.round(np.where(near, ratio, 0))), 0)
    count = near.sum(2)
    mean = np.where(count >= 4, off.sum(2) / np.maximum(count, 1), np.inf)
    # The coarsest step that fits: every part of a step fits as well.
    fits = (mean < _OFF) & (count >= 0.25 * (size > 0).sum(1)[:, None])
    chosen = np.where(fits, steps, 0).argmax(1)
    here = np.arange(len(groups))
    known, telling = fits.any(1), (size > 0).sum(1) >= _TELLING
    if not telling.any() or known[telling].mean() < 0.9 or count[here, chosen][known].sum() < _FEWEST:
        return None
    levels = np.round(most[known] / steps[here, chosen][known])
    return int(np.percentile(levels, 95)) if np.percentile(levels, 95) <= 128 else None


def _few_bits(rows: Doubles, parts: int) -> bool:
    """Whether each row, beside one factor, has mantissas of ``parts`` values only."""
    factors = 1 + np.arange(_FACTORS) / _FACTORS
    shares = []
    for row in np.abs(rows):
        mantissa = np.frexp(row[row > 0])[0] * 2
        scaled = mantissa[None] / factors[:, None]
        scaled = np.where(scaled < 1, scaled * 2, scaled)
        off = np.abs(scaled * parts - np.round(scaled * parts)) / parts
        shares.append(float((off < scaled * 2.0**-8).mean(1).max()))
    return float(np.median(shares)) >= _ON


def by_slot(grids: Iterable[Grid]) -> Mapping[int, Grid]:
    """The grid of each slot; of the reference's where both sides have one."""
    return {grid.slot: grid for grid in sorted(grids, key=lambda g: g.side)}
