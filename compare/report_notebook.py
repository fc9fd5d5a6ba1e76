"""A result, a finding or a slot as one block of HTML for notebooks, without scripts or styles of the page.

Notebook viewers strip scripts, style elements and classes, so everything is written inline.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

from drafttrace.compare.document_html import DIM, GREEN, RED, VIOLET, cause, head, table
from drafttrace.compare.result import Finding, Result, SlotResult
from drafttrace.compare.wording import (
    HEADERS,
    VERDICTS,
    acceptance_line,
    alignment_line,
    group_line,
    measure_line,
    note_lines,
    remedies,
    slot_cells,
    worst_line,
)

_COLOUR = {"match": GREEN, "noise": "#b26a00", "mismatch": RED, "incomparable": VIOLET}
_LEFT = frozenset({"left", "reference", "verdict"})
_MOST_VALUE = 400


def render(result: Result) -> str:
    """The block."""
    return "<div>" + "".join(_parts(result)) + "</div>"


def render_finding(finding: Finding) -> str:
    """One finding alone, with the numbers that it rests on."""
    return f"<div>{cause(None, finding, finding.remedy)}{_evidence(finding)}</div>"


def _evidence(finding: Finding) -> str:
    numbers = [(name, _value(value)) for name, value in finding.evidence.items()]
    return f"<details><summary>evidence</summary>{table(('what', 'value'), numbers)}</details>" if numbers else ""


def render_slot(slot: SlotResult) -> str:
    """One slot alone: its line of the table, and which rows differ most."""
    lines = (measure_line(slot), group_line(slot), worst_line(slot))
    told = "".join(f'<div style="{DIM}">{html.escape(line)}</div>' for line in lines if line is not None)
    return f"<div>{_slots((slot,))}{told}</div>"


def render_findings(findings: Sequence[Finding]) -> str:
    """All findings, as the report lists them."""
    told = "".join(cause(place, one, one.remedy) + _evidence(one) for place, one in enumerate(findings, 1))
    return f"<div>{told or 'no findings'}</div>"


def render_slots(slots: Sequence[SlotResult]) -> str:
    """All slots as one table."""
    return f"<div>{_slots(slots) if slots else 'no slots'}</div>"


def _value(value: Any) -> str:
    """A number of the evidence, or whatever else it is, in a cell's length."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]} ..."


def _parts(result: Result) -> Iterator[str]:
    yield head(VERDICTS[result.verdict], _COLOUR[result.verdict], result.summary)
    for name, side in (("left", result.left), ("reference", result.reference)):
        if side is not None:
            wiring = "[" + ", ".join(k or "?" for k in side.wiring) + "]" if side.wiring else "not declared"
            text = f"{name}: {side.path} ({side.format}), {side.tokens} tokens, declared wiring {wiring}"
            yield f'<div style="{DIM}">{html.escape(text)}</div>'
    yield from (f'<div style="{DIM}">{html.escape(f"note, {line}")}</div>' for line in note_lines(result))
    for place, (finding, remedy) in enumerate(zip(result.findings, remedies(result), strict=True), 1):
        yield cause(place, finding, remedy)
    if result.slots:
        yield _slots((*result.slots, *result.others))
    for line in (alignment_line(result), acceptance_line(result)):
        if line:
            yield f'<div style="{DIM}">{html.escape(line)}</div>'


def _slots(slots: Sequence[SlotResult]) -> str:
    right = frozenset(i for i, header in enumerate(HEADERS) if header not in _LEFT)
    return table(HEADERS, [slot_cells(slot) for slot in slots], right)
