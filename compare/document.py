"""Reports as plain blocks, printed on a terminal or written as Markdown: what ``check`` and ``replay`` say.

File names, token texts and config values come from strangers: everything is escaped in Markdown and printed without
markup on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drafttrace.compare.report_markdown import code, prose
from drafttrace.compare.result import FAULT, Finding

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


@dataclass(frozen=True)
class Head:
    """The verdict and one sentence. style: a rich style for the verdict."""

    verdict: str
    style: str
    sentence: str


@dataclass(frozen=True)
class Lines:
    """Loose lines, dim on a terminal. title: a heading above them, or nothing."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """A table. right: columns set to the right. bold: rows that stand out. codes: columns that are code spans."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    bold: frozenset[int] = frozenset()
    codes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Causes:
    """Findings with their remedies, in order."""

    findings: tuple[Finding, ...]


Block = Head | Lines | Grid | Causes
_LARGE = 1e6


def to_markdown(blocks: Iterable[Block]) -> str:
    """The blocks as Markdown."""
    return "\n".join(line for block in blocks for line in _markdown(block)).rstrip() + "\n"


def _markdown(block: Block) -> Iterator[str]:
    if isinstance(block, Head):
        yield from (f"## {prose(block.verdict)}", "", f"**{prose(block.sentence)}**", "")
    elif isinstance(block, Lines):
        if block.title:
            yield from (f"### {prose(block.title)}", "")
        yield from (f"- {prose(line)}" for line in block.lines)
        yield ""
    elif isinstance(block, Grid):
        yield from (f"### {prose(block.title)}", "")
        yield "| " + " | ".join(block.headers) + " |"
        yield "|" + "|".join(" ---: " if i in block.right else " --- " for i in range(len(block.headers))) + "|"
        for number, row in enumerate(block.rows):
            cells = [code(cell) if i in block.codes else prose(cell) for i, cell in enumerate(row)]
            cells = [
                f"**{cell}**" if number in block.bold and cell and i not in block.codes else cell
                for i, cell in enumerate(cells)
            ]
            yield "| " + " | ".join(cells) + " |"
        yield ""
    else:
        for place, finding in enumerate(block.findings, 1):
            tail = f"({finding.severity}, confidence {finding.confidence:.2f})"
            yield f"{place}. **{finding.id}** {tail}: {prose(finding.summary)}"
            if finding.remedy:
                yield f"   - Remedy: {prose(finding.remedy)}"
        yield ""


def to_terminal(blocks: Iterable[Block], console: Console) -> None:
    """Print the blocks."""
    for block in blocks:
        for part in _terminal(block):
            console.print(part)


def to_text(blocks: Iterable[Block], width: int = 110) -> str:
    """The blocks as plain text of ``width`` columns."""
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        to_terminal(blocks, console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _terminal(block: Block) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from drafttrace.tracer.fitted import Fitted

    if isinstance(block, Head):
        yield Text.assemble((block.verdict, block.style), "  ", block.sentence)
    elif isinstance(block, Lines):
        yield Text()
        if block.title:
            yield Text(block.title, style="bold")
        yield from (Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in block.lines)
    elif isinstance(block, Grid):
        yield Text()
        table = Table(box=None, pad_edge=False, header_style="bold", title=Text(block.title), title_justify="left")
        for i, header in enumerate(block.headers):
            table.add_column(Text(header), justify="right" if i in block.right else "left", overflow="fold")
        for number, row in enumerate(block.rows):
            table.add_row(*(Text(cell, style="bold" if number in block.bold else "") for cell in row))
        yield Fitted(table)
    else:
        for place, finding in enumerate(block.findings, 1):
            style = "bold red" if finding.severity == FAULT else "bold cyan"
            yield Text()
            tail = f"  ({finding.severity}, confidence {finding.confidence:.2f})"
            yield Text.assemble((f"{place}. {finding.id}", style), (tail, "dim"))
            yield Padding(Text(finding.summary), (0, 0, 0, 3))
            if finding.remedy:
                yield Padding(Text.assemble(("→ ", "bold green"), finding.remedy), (0, 0, 0, 3))


def percent(value: float | None) -> str:
    """``74.7%``; a dash for nothing or NaN."""
    return "–" if value is None or value != value else f"{value:.1%}"


def plain(value: float | None, digits: int = 2) -> str:
    """A number with fixed digits, or as a power of ten where it is beyond a million; a dash for nothing or NaN."""
    if value is None or value != value:
        return "–"
    if abs(value) == float("inf"):
        return "infinite"
    return f"{value:.{digits}f}" if abs(value) < _LARGE else f"{value:.1e}"


def join(values: Sequence[str], most: int = 8) -> str:
    """The first few values and how many more there are."""
    shown = ", ".join(values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"
