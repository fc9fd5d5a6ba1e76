"""How reports write numbers, verdicts and tables: shared by the terminal, Markdown and HTML forms."""

from __future__ import annotations

import math
from collections.abc import Iterator

from drafttrace.compare.result import Result, SlotResult

HEADERS = (
    "slot",
    "left",
    "reference",
    "cosine",
    "trimmed",
    "rel L2",
    "limit",
    "norm L",
    "norm R",
    "ratio",
    "verdict",
)
VERDICTS = {
    "match": "match",
    "noise": "noise",
    "mismatch": "MISMATCH",
    "incomparable": "could not compare",
}


def number(value: float | None, digits: int = 4) -> str:
    """A short number: ``0.9987``, ``12.3``, ``2.5e+04``; ``-`` where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10000 or size < 0.001:
        return f"{value:.1e}"
    return f"{value:.{digits}f}" if size < 10 else f"{value:.4g}"


def cosine(value: float) -> str:
    """A cosine with the digits that tell 0.9999 from 1."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.6f}" if 0.9995 <= value < 0.9999995 else f"{value:.4f}"


def where(name: str, boundary: str | None, by: str | None) -> str:
    """``aux/0 = B2`` where the boundary was measured, ``aux/0 (says B2)`` where a file declares it."""
    if boundary is None:
        return f"{name} = ?"
    return f"{name} = {boundary}" if by == "value" else f"{name} (says {boundary})"


def slot_name(slot: SlotResult) -> str:
    """``0``, ``embed`` or ``last``."""
    return {-2: "embed", -1: "last"}.get(slot.slot, str(slot.slot))


def slot_cells(slot: SlotResult) -> tuple[str, ...]:
    """One row of the slot table, in the order of HEADERS."""
    verdict = slot.verdict if slot.slot >= 0 else ""
    return (
        slot_name(slot),
        where(slot.left, slot.left_boundary, slot.left_by),
        where(slot.reference, slot.reference_boundary, slot.reference_by),
        cosine(slot.cosine.p50),
        cosine(slot.cosine_trimmed.p50),
        number(slot.rel_l2.p50),
        number(slot.judged.match_limit),
        number(slot.norm_left.p50),
        number(slot.norm_reference.p50),
        number(slot.norm_ratio.p50),
        VERDICTS.get(verdict, verdict),
    )


def remedies(result: Result) -> list[str]:
    """The remedy of every finding; one that was given before is told once."""
    told: dict[str, int] = {}
    shown = []
    for place, finding in enumerate(result.findings, 1):
        before = told.setdefault(finding.remedy, place)
        shown.append(finding.remedy if before == place else f"The same change as for {before}.")
    return shown


def alignment_line(result: Result) -> str:
    """How many rows were compared, how they were paired, and what was left out."""
    a = result.alignment
    text = f"{a.rows_compared} rows compared ({a.rows_left} left, {a.rows_reference} reference"
    text += f", coverage {100 * a.coverage:.0f} %)" if a.rows_compared else ")"
    if a.token_shift:
        text += f", reference rows moved by {a.token_shift:+d}"
    if a.skipped:
        text += "; left out: " + ", ".join(f"{s.count} {s.reason}" for s in a.skipped)
    return text


def oddities(result: Result) -> Iterator[str]:
    """Counts that a table of medians hides, one line per slot that has any."""
    for slot in result.slots:
        counts = (
            (slot.nan_rows, "not finite"),
            (slot.zero_rows, "all zero"),
            (slot.constant_rows, "of one value"),
            (slot.duplicate_rows, "repeating the row before"),
            (slot.outlier_rows if 2 * slot.outlier_rows <= slot.rows else 0, "holding something else"),
            (slot.massive_rows, "massive (kept out of medians)"),
        )
        shown = [f"{count} {what}" for count, what in counts if count]
        if shown:
            yield f"slot {slot.slot}: {', '.join(shown)}"


def acceptance_line(result: Result) -> str | None:
    """Observed and expected accept length; None where neither is known."""
    a = result.acceptance
    if a.observed is None and a.expected is None:
        return None
    expected = "not known" if a.expected is None else f"{a.expected:.2f} ({a.expected_source})"
    observed = "not recorded" if a.observed is None else f"{a.observed:.2f} over {a.rounds} rounds"
    return f"accept length: observed {observed}, expected {expected}"


def shorten(text: str, most: int) -> str:
    """The text, cut to ``most`` characters with an ellipsis."""
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"
