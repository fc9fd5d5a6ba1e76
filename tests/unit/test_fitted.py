"""Tables on narrow terminals: no word and no number of a cell is broken in two."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from drafttrace.tracer.fitted import Fitted, widths

HEADERS = ("slot", "norm of a row", "limits", "what it is")
ROWS = [
    ("aux/0", "3622 ± 1.3e+03 (row 0: 1.134e+04)", "0.041/0.049", "MISMATCH"),
    ("boundary/59", "5.13", "", "the embedding, [bold]B0[/bold]"),
]


def table() -> Table:
    made = Table(box=None, pad_edge=False)
    for header in HEADERS:
        made.add_column(header, overflow="fold")
    for row in ROWS:
        made.add_row(*map(Text, row))
    return made


def shown(width: int, made: Table) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(Fitted(made))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [28, 40, 50, 60, 75, 90, 200])
def test_no_number_is_broken_on_a_narrow_terminal(width: int) -> None:
    """At 40 columns a cosine of 0.999947 stood as 0.99 above 9947."""
    lines = shown(width, table())
    assert max(map(len, lines)) <= width
    words = " ".join(lines).replace(",", " ").replace(":", " ").split()
    for cell in (cell for row in ROWS for cell in row):
        for word in cell.replace(",", " ").replace(":", " ").split():
            assert word in words, (word, lines)


def test_a_table_that_fits_is_left_as_it_is() -> None:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    with console.capture() as captured:
        console.print(table())
    assert shown(200, table()) == captured.get().splitlines()


def test_a_row_without_room_is_a_paragraph_without_its_empty_cells() -> None:
    assert " ".join(line.strip() for line in shown(30, table())) == (
        "slot aux/0: norm of a row 3622 ± 1.3e+03 (row 0: 1.134e+04), limits 0.041/0.049, what it is MISMATCH "
        "slot boundary/59: norm of a row 5.13, what it is the embedding, [bold]B0[/bold]"
    )


def test_a_paragraph_keeps_styles_and_the_title() -> None:
    made = Table(title="relative L2", box=None)
    made.add_column("")
    made.add_column("hidden_states[0]")
    made.add_row("aux/0", Text("0.9975", style="bold"))
    console = Console(file=io.StringIO(), width=20, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(Fitted(made))
    text = captured.get()
    assert text.startswith("relative L2") and "\x1b[1m0.9975" in text and "slot" not in text


@pytest.mark.parametrize("room", [10, 12, 17, 31, 40])
def test_columns_share_what_is_left_over(room: int) -> None:
    sizes = [Measurement(3, 20), Measurement(5, 5), Measurement(2, 6)]
    found = widths(sizes, room)
    assert sum(found) == min(room, 31)
    assert all(size.minimum <= width <= size.maximum for size, width in zip(sizes, found, strict=True))


def test_a_table_without_rows_prints() -> None:
    made = Table(box=None)
    made.add_column("a header without room")
    assert shown(10, made) != []
