"""Blocks as HTML for notebooks: no scripts, style elements or classes, which notebook viewers strip. Everything that was
written by strangers is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

from drafttrace.compare.document import Block, Grid, Head, Lines
from drafttrace.compare.result import FAULT, Finding

RED, GREEN, VIOLET, BLUE = "#c4312d", "#18794e", "#6b4fbb", "#2257c5"
DIM = "color:#667085"
_OF_STYLE = {"red": RED, "green": GREEN, "magenta": VIOLET}


def to_html(blocks: Iterable[Block]) -> str:
    """The blocks as one element."""
    return "<div>" + "".join(map(_block, blocks)) + "</div>"


def head(word: str, colour: str, sentence: str) -> str:
    """The verdict, large, and one sentence."""
    big = f"font-size:1.4em;font-weight:700;color:{colour}"
    return f'<div style="{big}">{html.escape(word)}</div><div>{html.escape(sentence)}</div>'


def cause(place: int | None, finding: Finding, remedy: str) -> str:
    """A finding with what to do about it. place: its number among several."""
    number = "" if place is None else f"{place}. "
    colour = RED if finding.severity == FAULT else BLUE
    fix = f'<div style="margin-top:3px">→ {html.escape(remedy)}</div>' if remedy else ""
    return (
        f'<div style="border-left:4px solid {colour};padding-left:10px;margin:8px 0">'
        f"<b>{number}<code>{html.escape(finding.id)}</code></b> "
        f'<span style="{DIM}">{html.escape(finding.severity)}, confidence {finding.confidence:.2f}</span>'
        f"<div>{html.escape(finding.summary)}</div>{fix}</div>"
    )


def table(headers: Iterable[str], rows: Iterable[Iterable[str]], right: frozenset[int] = frozenset()) -> str:
    """Text cells below headers. right: columns set to the right."""

    def line(cells: Iterable[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{"right" if i in right else "left"}">{html.escape(cell)}</{tag}>'
            for i, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(headers, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _block(block: Block) -> str:
    if isinstance(block, Head):
        return head(block.verdict, _OF_STYLE.get(block.style.split()[-1], BLUE), block.sentence)
    if isinstance(block, Lines):
        return _title(block.title) + "".join(
            f'<div style="{DIM}">{html.escape(line)}</div>' for line in block.lines
        )
    if isinstance(block, Grid):
        return _title(block.title) + table(block.headers, block.rows, block.right)
    return "".join(cause(place, finding, finding.remedy) for place, finding in enumerate(block.findings, 1))


def _title(text: str) -> str:
    return f'<div style="margin-top:8px"><b>{html.escape(text)}</b></div>' if text else ""
