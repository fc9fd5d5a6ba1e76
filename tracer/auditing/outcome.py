"""What became of one job: the rows that the table keeps. Plain values only: they cross processes and machines."""

from __future__ import annotations

from dataclasses import dataclass

COMPARED, INCOMPARABLE, UNMATCHED, FAILED = "compared", "incomparable", "unmatched", "failed"
FINAL = frozenset({COMPARED, INCOMPARABLE})


@dataclass(frozen=True)
class FoundRow:
    """One finding of one sample."""

    id: str
    severity: str
    confidence: float
    slots: str
    summary: str
    remedy: str


@dataclass(frozen=True)
class SlotRow:
    """One slot of one sample; percentiles over its rows. None where a value is not finite."""

    slot: int
    left: str
    reference: str
    verdict: str
    rows: int
    cosine_p50: float | None
    cosine_trimmed_p50: float | None
    norm_ratio_p50: float | None
    rel_l2_p50: float | None
    rel_l2_p99: float | None
    max_abs: float | None
    nan_rows: int
    zero_rows: int
    outlier_rows: int
    left_boundary: str | None
    reference_boundary: str | None


@dataclass(frozen=True)
class Outcome:
    """One sample. status: compared, incomparable, unmatched (nothing to compare it with), failed (error says why)."""

    reference: str
    left: str | None
    stamp: str
    status: str
    verdict: str | None = None
    summary: str | None = None
    rows_compared: int = 0
    coverage: float = 0.0
    seconds: float = 0.0
    error: str | None = None
    findings: tuple[FoundRow, ...] = ()
    slots: tuple[SlotRow, ...] = ()
