"""Which rounds of a request a draft could win at all: those whose next token is in its vocabulary."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

LEAST_UNSEEN = 3.0
"""Rule of three: what was not seen in n tries happens, by 95 % certainty, in less than 3/n of them."""
_SIGMAS = 1.645  # one-sided 95 %


@dataclass(frozen=True)
class Rounds:
    """Rounds that count as evidence about a draft: how many, their mean accept length and its standard deviation."""

    count: int
    length: float
    spread: float

    @property
    def at_most(self) -> float:
        """The accept length that lies, by 95 % certainty, not below the draft's own; infinite without rounds."""
        if not self.count:
            return math.inf
        return self.length + _SIGMAS * self.spread / math.sqrt(self.count) + LEAST_UNSEEN / self.count


def rounds_of(counts: Sequence[float]) -> Rounds:
    """counts: accepted tokens of every round, the target's own one included."""
    if not counts:
        return Rounds(0, math.nan, math.nan)
    mean = sum(counts) / len(counts)
    return Rounds(len(counts), mean, math.sqrt(sum((c - mean) ** 2 for c in counts) / len(counts)))


def sayable(counts: Sequence[float], answer: Sequence[int], said: Collection[int]) -> tuple[float, ...] | None:
    """The counts of the rounds whose first drafted token could be right: the target's next token is in ``said``.

    answer: the target's tokens; the first one comes from the prefill, every round appends its count of further ones.
    None where the counts do not add up to the answer (a retracted request, a text that was cut elsewhere).
    """
    most = max(counts, default=0)
    if not counts or not 0 <= 1 + sum(counts) - len(answer) <= most:
        return None
    kept, place = [], 1
    for count in counts:
        if place < len(answer) and answer[place] in said:
            kept.append(count)
        place += int(count)
    return tuple(kept)


def outside(answer: Sequence[int], said: Collection[int]) -> float:
    """The share of the answer's tokens that the draft can never say; NaN for an empty answer."""
    return sum(token not in said for token in answer) / len(answer) if answer else math.nan
