"""States that stand at their boundary but for a norm or a gain per channel too small to move them away from it."""

from __future__ import annotations

import numpy as np

from drafttrace.compare.facts import Explanation
from drafttrace.compare.hypotheses import PER_CHANNEL, near_fits
from drafttrace.tracer.rows import Floats

_MOST_LEFT = 0.12
_TAKEN_AWAY = 0.5
_FITS = PER_CHANNEL | {"rms"}


def small_fit(x: Floats, y: Floats, name: str, boundary: int | None, limit: float) -> Explanation | None:
    """``x`` as ``y`` (called ``name``) through a gain or a norm, where that takes away most of a distance beyond ``limit``.

    Rows ``[m, H]`` in pairs; None with fewer than eight, and where nothing fits.
    """
    fits = near_fits(x, y) if len(x) >= 8 else ()
    plain = next((fit.residual for fit in fits if fit.name == "identity"), np.nan)
    if not plain > limit:
        return None
    best = next((fit for fit in fits if fit.name in _FITS), None)
    if best is None or best.residual >= min(_TAKEN_AWAY * plain, _MOST_LEFT):
        return None
    return Explanation(best, name, boundary, plain)
