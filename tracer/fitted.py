"""Tables that stand on a narrow terminal, too: no number is broken in two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Column, Table

_GAP = 2  # columns between two cells of a table without a box


class Fitted:
    """A rich table without a box, whose cells are text. Where even its longest words do not fit beside each other,
    every row becomes a paragraph: the first cell, then every other with its header."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        columns = self._table.columns
        sizes = [_measure(console, options, column) for column in columns]
        room = options.max_width - _GAP * (len(columns) - 1)
        if sum(size.minimum for size in sizes) > room:
            yield from self._paragraphs()
            return
        if sum(size.maximum for size in sizes) > room:
            for column, width in zip(columns, widths(sizes, room), strict=True):
                column.width = width
        yield self._table

    def _paragraphs(self) -> Iterator[RenderableType]:
        if self._table.title:
            yield _text(self._table.title)
        headers = [_text(column.header).plain for column in self._table.columns]
        for cells in zip(*(column.cells for column in self._table.columns), strict=True):
            first, *others = map(_text, cells)
            line = Text.assemble((f"{headers[0]} " if headers[0] else "", "bold"), first, ":")
            shown = [(header, cell) for header, cell in zip(headers[1:], others, strict=True) if cell.plain]
            for place, (header, cell) in enumerate(shown):
                line.append(", " if place else " ").append(f"{header} ", "dim").append_text(cell)
            yield line


def widths(sizes: Sequence[Measurement], room: int) -> list[int]:
    """The widths of columns that fit into ``room`` when their text is wrapped between words: what is left over goes to
    the narrowest that still wraps."""
    found = [size.minimum for size in sizes]
    for _ in range(room - sum(found)):
        wanting = [place for place, size in enumerate(sizes) if found[place] < size.maximum]
        if not wanting:
            break
        found[min(wanting, key=lambda place: found[place])] += 1
    return found


def _measure(console: Console, options: ConsoleOptions, column: Column) -> Measurement:
    wide = options.update(max_width=10_000)
    each = [Measurement.get(console, wide, _text(text)) for text in (column.header, *column.cells)]
    return Measurement(max(one.minimum for one in each), max(one.maximum for one in each))


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))
