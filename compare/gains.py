"""What a fitted gain per channel means: the norm weights of a target that it could come from, and the mistakes with one.

A gain is read, not guessed: every known weight w is tried with every mistake, and a reading counts only where it takes
nearly everything of the gain's own pattern over the channels. Flat weights fit any flat gain, so they prove nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_MOST_LEFT = 0.15  # of the gain
_MOST_PATTERN_LEFT = 0.35  # of the gain's deviation from one number for all channels
_SMALL = 1e-3  # weights below it are not divided by

MISSING_ONE, ONE_TOO_MUCH, SQUARED, LEFT_OUT, ONCE = "w-1", "w+1", "w*w", "1", "w"


@dataclass(frozen=True)
class GainReading:
    """What stands in the place of w: ``w-1``, ``w+1``, ``w*w``, ``1`` (no weight) or ``w`` (on a state without a norm).

    weight: the name of w. left: the share of the gain (relative L2) that the reading leaves over. others: the share that
    every other mistake with the same weight leaves. tried: how many weights were.
    """

    kind: str
    weight: str
    left: float
    others: Mapping[str, float]
    tried: int

    @property
    def evidence(self) -> dict[str, object]:
        """The reading as part of a finding's evidence."""
        return {
            "in_place_of_w": self.kind,
            "w": self.weight,
            "left_over": self.left,
            "left_over_by_others": dict(self.others),
            "weights_tried": self.tried,
        }


def read_gain(gain: Doubles, weights: Mapping[str, Doubles], *, normed: bool) -> GainReading | None:
    """The best reading of a gain ``[H]`` of x over y; None where no known weight explains it.

    normed: y went through the norm of w already, so that w - 1 in its place shows as (w - 1) / w, and w twice as w.
    Else y is a state without a norm, and what was multiplied shows as it is.
    """
    fitting = {name: w.astype(np.float64) for name, w in weights.items() if w.shape == gain.shape}
    best: GainReading | None = None
    for name, weight in fitting.items():
        shares, explained = _left_over(gain, weight, normed)
        if not explained:
            continue
        kind = min(explained, key=lambda k: shares[k])
        if best is None or shares[kind] < best.left:
            others = {other: share for other, share in shares.items() if other != kind}
            best = GainReading(kind, name, shares[kind], others, len(fitting))
    return best


def _left_over(gain: Doubles, weight: Doubles, normed: bool) -> tuple[dict[str, float], list[str]]:
    """Per mistake with w the share of the gain that it leaves over, and the mistakes that explain the gain."""
    usable = np.isfinite(gain) & np.isfinite(weight) & (np.abs(weight) > _SMALL)
    if usable.sum() < 4 or not gain[usable].any():
        return {}, []
    g, w = gain[usable], weight[usable]
    made = {MISSING_ONE: w - 1, ONE_TOO_MUCH: w + 1, SQUARED: w * w}
    made |= {LEFT_OUT: np.ones_like(w)} if normed else {ONCE: w}
    size, pattern = float(np.linalg.norm(g)), float(np.linalg.norm(g - g.mean()))
    left = {kind: float(np.linalg.norm(g - (x / w if normed else x))) for kind, x in made.items()}
    explained = [kind for kind, n in left.items() if n < _MOST_LEFT * size and n < _MOST_PATTERN_LEFT * pattern]
    return {kind: n / size for kind, n in left.items()}, explained
