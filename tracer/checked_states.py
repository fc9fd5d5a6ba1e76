"""A state of a capture that is checked by its values, an answer to one check, and the few numbers that checks share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from drafttrace.tracer.capture import Ints
from drafttrace.tracer.rows import Floats, Rows

if TYPE_CHECKING:  # inspect looks at most files without a target
    from drafttrace.tracer.target_weights import TargetWeights

SLOT_NORM = "slot-norm"
"""The check whether a slot that is declared B(n) stands after the final norm."""


@dataclass(frozen=True)
class Check:
    """One answer. verdict: ``confirmed``, ``consistent`` (not contradicted, not proven), ``refuted``, ``found`` or
    ``undecided``; summary is a whole sentence."""

    id: str
    subject: str
    verdict: str
    summary: str
    evidence: dict[str, Any]

    @property
    def is_problem(self) -> bool:
        """Whether the answer contradicts the file, or finds the embedding where none is declared."""
        return self.verdict == "refuted" or (self.verdict == "found" and self.id == "embedding")

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "subject": self.subject,
            "verdict": self.verdict,
            "summary": self.summary,
            "evidence": self.evidence,
        }


@dataclass(frozen=True)
class CheckedState:
    """at: the row of every token position, -1 where there is none."""

    name: str
    rows: Rows
    declared: int | None
    is_last: bool
    at: Ints

    def positions(self) -> Ints:
        """The positions that have a row."""
        return np.flatnonzero((self.at >= 0) & (self.at < len(self.rows)))

    def take(self, positions: Ints) -> Floats:
        """The states of these positions ``[n, H]``."""
        return self.rows.take(self.at[positions])


def loss_of_guessing(target: TargetWeights) -> float:
    """The next-token loss of guessing."""
    return math.log(target.shape.vocab_size)


def spread(rows: Ints, most: int) -> Ints:
    """At most ``most`` of the rows, evenly spread; the massive row 0 is left out where there are others."""
    if len(rows) > 1 and rows[0] == 0:
        rows = rows[1:]
    if len(rows) <= most:
        return rows
    return rows[np.unique(np.linspace(0, len(rows) - 1, most).round().astype(np.int64))]


def tokens_at(tokens: Ints, index: Ints) -> Ints:
    """``tokens[index]``, -1 outside."""
    inside = (index >= 0) & (index < len(tokens))
    found = np.full(len(index), -1, np.int64)
    found[inside] = tokens[index[inside]]
    return found


def column_means(losses: Floats) -> list[float]:
    """Mean over the rows of every column, of what is finite; infinite where nothing is."""
    means = []
    for column in losses.T:
        known = column[np.isfinite(column)]
        means.append(float(known.mean()) if len(known) else math.inf)
    return means


def number(value: float) -> float | None:
    """Five significant digits; None for what JSON cannot hold."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
