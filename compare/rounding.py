"""What two healthy runs of one model may differ by: the rounding of their number formats, carried through the layers.

Every layer adds twice to the residual stream (attention, MLP), and each sum is rounded. Steps that do not depend on one
another add up like a random walk: at B(k) two runs are about ``u * sqrt(1 + 2k)`` apart, u being the relative rounding of
the coarser format (half its largest, 2**-9 for bf16). Measured, served against transformers in bf16 and bf16 against fp32,
84 boundaries of three models lie at 0.4 to 2.1 times that (bench/noise.json). Where boundaries are nearer to each other, no
distance tells which of them a slot is.
"""

from __future__ import annotations

import numpy as np

from drafttrace.compare.measure import massive_channels
from drafttrace.compare.sample import MIN_ROWS, Sample, Stream
from drafttrace.compare.thresholds import REACHED
from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Floats

FEWEST_KINDS = 4
"""Different rows of a state below which a fit of them proves nothing: one row repeated is explained by any gain."""
_FEW_TOKENS, _REPEATED = 8, 2
_ONE_KIND = (
    0.1  # chord between unit rows without massive channels: one token repeated lies below it, any two others above
)
_COARSEST = 2.0**-9  # nobody adds up a residual stream in fewer bits than bf16's
_TENTH = 0.1


def walk(boundary: int | None, *streams: Stream) -> float:
    """The relative L2 that rounding alone leaves between two states at B(boundary); unknown boundaries count as B0."""
    stored = max(2.0 ** -(s.rows.dtype.mantissa_bits + 2) for s in streams)
    added = min(stored, _COARSEST)
    return float(np.sqrt(stored**2 + 2 * max(0, boundary or 0) * added**2))


def kinds(rows: Floats, most: int | None = None) -> Ints:
    """The numbers of rows ``[m, H]`` that are unlike each other (and of ``most`` at the utmost): of rows that repeat each
    other, whatever their size, the first. Broken and zero rows are none."""
    good = np.flatnonzero(np.isfinite(rows).all(1) & rows.any(1))
    if len(good) < 2:
        return good
    kept = np.delete(rows[good], massive_channels(rows[good]), axis=1).astype(np.float64)
    sizes = np.linalg.norm(kept, axis=1, keepdims=True)
    unit = kept / np.maximum(sizes, 1e-300)
    near = unit @ unit.T > 1 - _ONE_KIND**2 / 2
    found: list[int] = []
    for i in range(len(good)):
        if not near[i, found].any():
            found.append(i)
            if len(found) == most:
                break
    return good[found]


def few_kinds(sample: Sample, stream: Stream, tokens: Ints) -> int:
    """How many different rows a state has, where that is too few to tell boundaries apart; else 0.

    tokens: of all compared rows, -1 where one is not known. A prompt that repeats a few tokens gives few rows, many times:
    their rounding is one number, repeated as well, and not spread evenly as a median over many rows supposes.
    """
    different = len(kinds(sample.read(stream), FEWEST_KINDS)) if len(sample) else FEWEST_KINDS
    if 0 < len(tokens) < MIN_ROWS:  # of which no boundary is located, either
        return max(1, different)
    named = len(np.unique(tokens)) if (tokens >= 0).all() else len(tokens)
    if named < _FEW_TOKENS and _REPEATED * named <= len(tokens):
        return max(1, min(named, different))
    repeats = named < len(tokens) and _REPEATED * different <= len(tokens)
    return different if 0 < different < FEWEST_KINDS and repeats else 0


def told_apart(step: float, boundary: int, stream: Stream, other: Stream, different: int) -> bool:
    """Whether two runs can be told apart by boundaries that lie ``step`` (relative L2) from each other. different: how many
    kinds of rows there are. Two states of one run always can."""
    if stream.side == other.side:
        return True
    least = REACHED * walk(boundary, stream, other)
    return step > (max(least, _TENTH) if different < FEWEST_KINDS else least)
