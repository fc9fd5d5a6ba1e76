"""How reports write numbers, verdicts and tables: shared by the terminal, Markdown and HTML forms."""

from __future__ import annotations

import math
from collections.abc import Iterator

from drafttrace.compare.acceptance import low_limit
from drafttrace.compare.part_words import part_level, part_name
from drafttrace.compare.plurals import plural
from drafttrace.compare.result import Group, Result, SlotResult
from drafttrace.tracer.grammar import in_number
from drafttrace.tracer.printable import printable

HEADERS = (
    "slot",
    "left",
    "reference",
    "cosine",
    "trimmed",
    "rel L2",
    "limits",
    "norm L",
    "norm R",
    "ratio",
    "verdict",
)
_MOST_NOTES, _MOST_NOTE = 6, 240
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
    return (
        slot_name(slot),
        where(slot.left, slot.left_boundary, slot.left_by),
        where(slot.reference, slot.reference_boundary, slot.reference_by),
        cosine(slot.cosine.p50),
        cosine(slot.cosine_trimmed.p50),
        number(slot.rel_l2.p50),
        f"{_limit(slot.judged.match_limit)}/{_limit(slot.judged.noise_limit)}",
        number(slot.norm_left.p50),
        number(slot.norm_reference.p50),
        number(slot.norm_ratio.p50),
        VERDICTS.get(slot.verdict, slot.verdict),
    )


def _limit(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "-"


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
    text = f"{plural(a.rows_compared, 'row')} compared ({a.rows_left} left, {a.rows_reference} reference"
    text += f", coverage {100 * a.coverage:.0f} %)" if a.rows_compared else ")"
    if a.token_shift:
        text += f", reference rows moved by {a.token_shift:+d}"
    if a.skipped:
        text += "; left out: " + ", ".join(f"{s.count} {s.reason}" for s in a.skipped)
    return in_number(text)


def note_lines(result: Result) -> Iterator[str]:
    """What is odd about the files themselves, as their readers tell it: some lines per side, none of them long."""
    for name, side in (("left", result.left), ("reference", result.reference)):
        if side is None:
            continue
        for note in side.notes[:_MOST_NOTES]:
            yield f"{name}: {shorten(in_number(printable(note)), _MOST_NOTE)}"
        if (more := len(side.notes) - _MOST_NOTES) > 0:
            yield f"{name}: {more} more note{'s' if more > 1 else ''}; --json tells all"


def limits_line(result: Result) -> str | None:
    """What the limits rest on: told once where all slots have the same; None without slots."""
    reasons: dict[str, list[str]] = {}
    for slot in (*result.slots, *result.others):
        reasons.setdefault(slot.judged.against, []).append(_titled(slot))
    told = [reason if len(reasons) == 1 else f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return f"limits of rel L2 (match/noise): {'; '.join(told)}" if told else None


def oddities(result: Result) -> Iterator[str]:
    """Counts that a table of medians hides, one line per slot that has any."""
    bounds = result.thresholds
    rule = f"relative L2 above {bounds.row:g} with a cosine below {bounds.row_cosine:g}, or a trimmed one below "
    rule += f"{bounds.row_hidden:g}"
    for slot in (*result.slots, *result.others):
        counts = (
            (slot.nan_rows, "not finite"),
            (slot.zero_rows, "all zero"),
            (slot.constant_rows, "of one value"),
            (slot.duplicate_rows, "repeating the row before"),
            (slot.outlier_rows if 2 * slot.outlier_rows <= slot.rows else 0, f"holding something else ({rule})"),
            (slot.massive_rows, "massive (kept out of medians)"),
        )
        shown = [f"{count} {what}" for count, what in counts if count]
        if shown:
            yield in_number(f"{_titled(slot)}: {', '.join(shown)} of {slot.rows} rows")
        for part in slot.parts:
            if part.level in {"noise", "match"}:
                beyond = {"noise": "beyond noise", "match": "beyond equal"}[part.level]
                yield f"{_titled(slot)}: {part_name(part)} are {beyond} ({part_level(part)})"


def _titled(slot: SlotResult) -> str:
    return f"slot {slot.slot}" if slot.slot >= 0 else slot_name(slot)


MEASURES = (
    "slot",
    "rows",
    "cosine p01",
    "cosine min",
    "trimmed p01",
    "left out",
    "rel L2 p99",
    "rel L2 max",
    "ratio p01..p99",
    "max abs",
    "ulp p50",
    "ulp p99",
)


def measure_cells(slot: SlotResult) -> tuple[str, ...]:
    """One row of the table of further measures, in the order of MEASURES.

    "left out": massive channels that the trimmed cosine leaves out. ulp: distance in bf16 steps, median over channels.
    """
    return (
        slot_name(slot),
        str(slot.rows),
        cosine(slot.cosine.p01),
        cosine(slot.cosine.min),
        cosine(slot.cosine_trimmed.p01),
        in_number(f"{slot.trimmed_channels} channels"),
        number(slot.rel_l2.p99),
        number(slot.rel_l2.max),
        f"{number(slot.norm_ratio.p01)}..{number(slot.norm_ratio.p99)}",
        number(slot.max_abs),
        number(slot.ulp_p50, 2),
        number(slot.ulp_p99, 2),
    )


def measure_line(slot: SlotResult) -> str | None:
    """The measures that the table of medians leaves out; None for a slot without rows."""
    if slot.rows == 0:
        return None
    cells = dict(zip(MEASURES, measure_cells(slot), strict=True))
    return in_number(
        f"{_titled(slot)}, {slot.rows} rows: rel L2 p99 {cells['rel L2 p99']}, max {cells['rel L2 max']}; cosine p01 "
        f"{cells['cosine p01']}, trimmed {cells['trimmed p01']} (without {cells['left out']}); max abs {cells['max abs']}; "
        f"{cells['ulp p50']} bf16 steps, p99 {cells['ulp p99']}"
    )


GROUPS = ("slot", "rows of", "count", "cosine", "trimmed", "rel L2", "p99", "ratio")


def group_rows(result: Result) -> Iterator[tuple[str, ...]]:
    """The rows of the table by phase, acceptance, position and round, in the order of GROUPS."""
    for slot in (*result.slots, *result.others):
        for group in slot.groups:
            yield (
                slot_name(slot),
                group.name,
                str(group.rows),
                cosine(group.cosine_p50),
                cosine(group.cosine_trimmed_p50),
                number(group.rel_l2_p50),
                number(group.rel_l2_p99),
                number(group.norm_ratio_p50),
            )


def group_line(slot: SlotResult) -> str | None:
    """Relative L2 by phase and acceptance, and where by position and round it is worst; None where all is one."""
    parts = [f"{g.name.removeprefix('phase ')} {number(g.rel_l2_p50)}" for g in slot.groups if _is_kind(g)]
    for kind in ("position", "round"):
        those = [g for g in slot.groups if g.name.startswith(kind) and math.isfinite(g.rel_l2_p50)]
        if len(those) > 1:
            worst = max(those, key=lambda g: g.rel_l2_p50)
            parts.append(f"worst {worst.name} {number(worst.rel_l2_p50)}")
    return f"{_titled(slot)}, rel L2: {'; '.join(parts)}" if len(parts) > 1 else None


def _is_kind(group: Group) -> bool:
    return group.name.startswith("phase ") or not group.name.startswith(("position", "round"))


def worst_line(slot: SlotResult, most: int = 3) -> str | None:
    """The worst tokens of a slot; None where no row differs."""
    if not slot.worst:
        return None
    rows = []
    for row in slot.worst[:most]:
        token = f"id {row.token_id}" if row.token is None else f"“{shorten(printable(row.token), 24)}”"
        when = row.phase if row.round < 0 else f"{row.phase}, round {row.round}"
        rows.append(f"{row.position} {token} ({when}; cosine {cosine(row.cosine)}, rel L2 {number(row.rel_l2)})")
    return f"{_titled(slot)}, worst tokens: {'; '.join(rows)}"


def acceptance_line(result: Result) -> str | None:
    """Observed and expected accept length, and below what it is too low; None where neither is known."""
    a = result.acceptance
    if a.observed is None and a.expected is None:
        return None
    expected = "not known" if a.expected is None else f"{a.expected:.2f} ({a.expected_source})"
    observed = "not recorded" if a.observed is None else f"{a.observed:.2f} over {a.rounds} rounds"
    text = f"accept length: observed {observed}, expected {expected}, too low below {low_limit(a, result.thresholds):.2f}"
    if a.curve:
        text += "; accepted by draft position: " + ", ".join(f"{100 * share:.0f} %" for share in a.curve)
    return in_number(text)


def shorten(text: str, most: int) -> str:
    """The text, cut to ``most`` characters with an ellipsis."""
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"
