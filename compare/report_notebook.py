"""A result as one block of HTML for notebooks: verdict, causes and slots, without scripts or styles of the page.

Notebook viewers strip scripts, style elements and classes, so everything is written inline.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from drafttrace.compare.result import FAULT, Finding, Result
from drafttrace.compare.wording import (
    HEADERS,
    VERDICTS,
    acceptance_line,
    alignment_line,
    note_lines,
    remedies,
    slot_cells,
)

_COLOUR = {"match": "#18794e", "noise": "#b26a00", "mismatch": "#c4312d", "incomparable": "#6b4fbb"}
_LEFT = frozenset({"left", "reference", "verdict"})
_DIM = "color:#667085"


def render(result: Result) -> str:
    """The block."""
    return "<div>" + "".join(_parts(result)) + "</div>"


def _parts(result: Result) -> Iterator[str]:
    verdict = html.escape(VERDICTS[result.verdict])
    yield f'<div style="font-size:1.4em;font-weight:700;color:{_COLOUR[result.verdict]}">{verdict}</div>'
    yield f"<div>{html.escape(result.summary)}</div>"
    for name, side in (("left", result.left), ("reference", result.reference)):
        if side is not None:
            wiring = "[" + ", ".join(k or "?" for k in side.wiring) + "]" if side.wiring else "not declared"
            text = f"{name}: {side.path} ({side.format}), {side.tokens} tokens, declared wiring {wiring}"
            yield f'<div style="{_DIM}">{html.escape(text)}</div>'
    yield from (f'<div style="{_DIM}">{html.escape(f"note, {line}")}</div>' for line in note_lines(result))
    for place, (finding, remedy) in enumerate(zip(result.findings, remedies(result), strict=True), 1):
        yield _finding(place, finding, remedy)
    if result.slots:
        yield _table(result)
    for line in (alignment_line(result), acceptance_line(result)):
        if line:
            yield f'<div style="{_DIM}">{html.escape(line)}</div>'


def _finding(place: int, finding: Finding, remedy: str) -> str:
    colour = _COLOUR["mismatch"] if finding.severity == FAULT else "#2257c5"
    fix = f'<div style="margin-top:3px">→ {html.escape(remedy)}</div>' if remedy else ""
    return (
        f'<div style="border-left:4px solid {colour};padding-left:10px;margin:8px 0">'
        f"<b>{place}. <code>{html.escape(finding.id)}</code></b> "
        f'<span style="{_DIM}">{html.escape(finding.severity)}, confidence {finding.confidence:.2f}</span>'
        f"<div>{html.escape(finding.summary)}</div>{fix}</div>"
    )


def _table(result: Result) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{"left" if header in _LEFT else "right"}">{html.escape(cell)}</{tag}>'
            for header, cell in zip(HEADERS, cells, strict=True)
        )

    lines = [f"<tr>{row(slot_cells(slot), 'td')}</tr>" for slot in (*result.slots, *result.others)]
    return f"<table><thead><tr>{row(HEADERS, 'th')}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
