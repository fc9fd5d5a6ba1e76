"""A result as one block of HTML for notebooks: verdict, causes and slots, without scripts or styles of the page.

Notebook viewers strip scripts, style elements and classes, so everything is written inline.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from drafttrace.compare.document_html import DIM, GREEN, RED, VIOLET, cause, head, table
from drafttrace.compare.result import Result
from drafttrace.compare.wording import (
    HEADERS,
    VERDICTS,
    acceptance_line,
    alignment_line,
    note_lines,
    remedies,
    slot_cells,
)

_COLOUR = {"match": GREEN, "noise": "#b26a00", "mismatch": RED, "incomparable": VIOLET}
_LEFT = frozenset({"left", "reference", "verdict"})


def render(result: Result) -> str:
    """The block."""
    return "<div>" + "".join(_parts(result)) + "</div>"


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
        yield _table(result)
    for line in (alignment_line(result), acceptance_line(result)):
        if line:
            yield f'<div style="{DIM}">{html.escape(line)}</div>'


def _table(result: Result) -> str:
    right = frozenset(i for i, header in enumerate(HEADERS) if header not in _LEFT)
    return table(HEADERS, [slot_cells(slot) for slot in (*result.slots, *result.others)], right)
