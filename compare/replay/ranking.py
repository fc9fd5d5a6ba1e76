"""Which of the scored wirings stands first, and whether one is better than another by more than chance.

The measure is one: the share of right proposals at the first step (``WiringScore.top1``), ties by the loss of the next
token. What somebody named - the server, the file, the user, the config - keeps the first place unless another wiring
is better beyond chance, and so does, after those, what a usual mistake makes of the config. The loss alone never
takes a place from a named wiring: a search keeps the lowest of hundreds of losses, and some wirings that blur what
the draft sees have low losses without one right proposal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drafttrace.compare.replay.score import WiringScore
from drafttrace.compare.replay.texts import Key

LEAST_GAIN = 0.02
_SIGMAS = 3.0
_WORKS = 0.2
_CHANCE = 0.01
FEWEST = 8
"""Rows without which nothing is called better: three of three against none of three is what three rows can say."""

Wiring = tuple[Key, ...]
Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scored:
    """A wiring's counts, and row by row over the counted rows ``[R]``: losses of step 0, right proposals of all steps."""

    score: WiringScore
    losses: Numbers
    hits: Numbers


def significant(better: float, worse: float, rows: int) -> bool:
    """Whether a difference of two shares over ``rows`` rows is more than chance and more than two points."""
    if not (math.isfinite(better) and math.isfinite(worse)) or rows < FEWEST:
        return False
    return better - worse > LEAST_GAIN and _apart(better, worse, rows) > _SIGMAS


def confidence(better: float, worse: float, rows: int) -> float:
    """Between 0.5 and 0.99, by how many standard errors lie between two shares."""
    return min(0.99, max(0.5, 1 - math.exp(-_apart(better, worse, rows) / 3)))


def _apart(better: float, worse: float, rows: int) -> float:
    """Standard errors between two shares, each with one hit and one miss more than were seen (Agresti and Caffo): of few
    rows all of which are right nobody knows that the next one is."""
    one, other = ((share * rows + 1) / (rows + 2) for share in (better, worse))
    return (one - other) / math.sqrt((one * (1 - one) + other * (1 - other)) / (rows + 2))


def sigmas(one: Numbers, other: Numbers) -> float:
    """How many standard errors the first numbers lie above the second, row by row; 0 where they cannot be compared, which
    fewer than :data:`FEWEST` rows cannot."""
    difference = (one - other)[np.isfinite(one) & np.isfinite(other)].astype(np.float64)
    if len(difference) < FEWEST:
        return 0.0
    spread = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return float(difference.mean()) / max(spread, 1e-12)


def better(one: Scored, other: Scored) -> bool:
    """Whether the first has more right proposals at the first step, by more than chance there or over all steps."""
    if not one.score.top1 > other.score.top1:
        return False
    if significant(one.score.top1, other.score.top1, one.score.rows):
        return True
    return one.score.top1 - other.score.top1 > LEAST_GAIN and sigmas(one.hits, other.hits) > _SIGMAS


def alike(first: Scored, other: Scored) -> bool:
    """Whether these rows cannot tell another wiring from the first: neither its proposals nor its losses are worse."""
    return not better(first, other) and sigmas(other.losses, first.losses) <= 2.0


def works(score: WiringScore) -> bool:
    """Whether a draft that works could have so few hits by chance: one in a hundred times or more often.

    A draft that works names a fifth of the tokens that it can say at the least. Nothing is claimed of those it cannot.
    """
    rows, hits = _counted(score)
    if rows == 0 or hits >= _WORKS * rows:
        return True
    chance = sum(
        math.exp(
            math.lgamma(rows + 1) - math.lgamma(k + 1) - math.lgamma(rows - k + 1)
            + k * math.log(_WORKS) + (rows - k) * math.log1p(-_WORKS)
        )
        for k in range(hits + 1)
    )  # fmt: skip
    return chance >= _CHANCE


def too_few(score: WiringScore) -> bool:
    """Whether the rows show neither that the draft works nor that it does not."""
    rows, hits = _counted(score)
    return works(score) and (rows == 0 or hits < _WORKS * rows)


def _counted(score: WiringScore) -> tuple[int, int]:
    """Rows of step 0 whose token the draft can say, and how many it says; 0 rows where that is not known."""
    if not (math.isfinite(score.steps[0].coverage) and math.isfinite(score.top1)):
        return 0, 0
    return round(score.rows * score.steps[0].coverage), round(score.top1 * score.rows)


def order(scored: Mapping[Wiring, Scored], named: Sequence[Wiring], likely: Sequence[Wiring]) -> list[Wiring]:
    """Best first; see the module. named and likely: the wirings that keep the first place, the most entitled first."""
    known = [w for w in scored if np.isfinite(scored[w].score.top1)]
    ranked = sorted(known, key=lambda w: (-scored[w].score.top1, scored[w].score.loss))
    for first in (*named, *likely):
        if first in known and not any(better(scored[w], scored[first]) for w in ranked):
            return [first, *(w for w in ranked if w != first)]
    return ranked
