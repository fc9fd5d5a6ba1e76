"""The report on a terminal: verdict, causes and remedies first, then the numbers. Plain text when piped."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from drafttrace.compare.result import FAULT, Finding, Matrix, Result
from drafttrace.compare.wording import (
    HEADERS,
    VERDICTS,
    acceptance_line,
    alignment_line,
    group_line,
    limits_line,
    measure_line,
    note_lines,
    number,
    oddities,
    remedies,
    slot_cells,
    slot_name,
    where,
    worst_line,
)
from drafttrace.tracer.fitted import Fitted

_STYLE = {"match": "bold green", "noise": "bold yellow", "mismatch": "bold red", "incomparable": "bold magenta"}
_NARROW = 98


def render(result: Result, console: Console) -> None:
    """Print the report."""
    for part in parts(result, console.width):
        console.print(part)


def as_text(result: Result, width: int = 110) -> str:
    """The report as plain text of ``width`` columns."""
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        render(result, console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def parts(result: Result, width: int) -> Iterator[RenderableType]:
    """The report's pieces, laid out for a terminal of ``width`` columns."""
    yield Text.assemble((VERDICTS[result.verdict].upper(), _STYLE[result.verdict]), "  ", Text(result.summary))
    yield from _sides(result)
    yield from (Padding(Text(f"note, {line}", style="dim"), (0, 0, 0, 2)) for line in note_lines(result))
    for place, (finding, remedy) in enumerate(zip(result.findings, remedies(result), strict=True), 1):
        yield from _finding(place, finding, remedy)
    if result.slots or result.others:
        yield Text()
        yield _slots(result) if width >= _NARROW else _narrow_slots(result)
        yield from (Padding(Text(line, style="dim"), (0, 2)) for line in _below_the_table(result))
    if result.matrix is not None and len(result.slots):
        yield Text()
        yield _matrix(result.matrix)
    if result.sweep is not None:
        yield Text()
        yield from _places(result)
    yield Text()
    yield Text(alignment_line(result), style="dim")
    acceptance = acceptance_line(result)
    if acceptance is not None:
        yield Text(acceptance, style="dim")
    yield Text(f"noise floor: {result.noise.source}", style="dim")


def _below_the_table(result: Result) -> Iterator[str]:
    """What the numbers were judged by, and what medians hide."""
    yield from (line for slot in (*result.slots, *result.others) if (line := measure_line(slot)) is not None)
    limits = limits_line(result)
    if limits is not None:
        yield limits
    yield from oddities(result)
    for slot in result.slots:
        if (slot.verdict == "match" and not slot.outlier_rows) or 2 * slot.outlier_rows > slot.rows:
            continue  # nothing to see, or a slot that is another state altogether
        yield from (line for line in (group_line(slot), worst_line(slot)) if line is not None)


def _sides(result: Result) -> Iterator[RenderableType]:
    for name, side in (("left", result.left), ("reference", result.reference)):
        if side is None:
            continue
        wiring = "[" + ", ".join(k or "?" for k in side.wiring) + "]" if side.wiring else "not declared"
        yield Text(f"  {name:<9} {side.path} ({side.format}), {side.tokens} tokens, wiring {wiring}", style="dim")


def _finding(place: int, finding: Finding, remedy: str) -> Iterator[RenderableType]:
    style = "bold red" if finding.severity == FAULT else "bold cyan"
    yield Text()
    yield Text.assemble(
        (f"{place}. {finding.id}", style),
        (f"  ({finding.severity}, confidence {finding.confidence:.2f})", "dim"),
    )
    yield Padding(Text(finding.summary), (0, 0, 0, 3))
    if remedy:
        yield Padding(Text.assemble(("→ ", "bold green"), remedy), (0, 0, 0, 3))


def _slots(result: Result) -> Fitted:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in HEADERS:
        table.add_column(header, justify="left" if header in {"left", "reference", "verdict"} else "right")
    for slot in (*result.slots, *result.others):
        cells = [Text(cell) for cell in slot_cells(slot)]
        cells[-1].stylize(_STYLE.get(slot.verdict, ""))
        table.add_row(*cells)
    return Fitted(table)


def _narrow_slots(result: Result) -> Fitted:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("slot", "left", "ref", "cos", "rel L2", "limits", "verdict"):
        table.add_column(header, overflow="fold")
    for slot in (*result.slots, *result.others):
        cells = slot_cells(slot)
        table.add_row(
            slot_name(slot),
            slot.left_boundary or "?",
            slot.reference_boundary or "?",
            cells[3],
            cells[5],
            cells[6],
            cells[-1],
        )
    return Fitted(table)


def _matrix(matrix: Matrix) -> Fitted:
    """Relative L2 of every left state against every reference state; the smallest of a row in bold."""
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="relative L2, left by reference", title_justify="left"
    )
    table.add_column("")
    for column in matrix.columns:
        table.add_column(Text(column), justify="right", overflow="fold")
    for name, line in zip(matrix.rows, matrix.rel_l2, strict=True):
        known = [v for v in line if math.isfinite(v)]
        best = min(known, default=math.nan)
        table.add_row(Text(name), *(Text(number(v), style="bold green" if v == best else "") for v in line))
    return Fitted(table)


def _places(result: Result) -> Iterator[RenderableType]:
    """One line per slot: which boundary it is, and how clearly."""
    for slot in result.slots:
        match = slot.best_match
        if match is None:
            continue
        text = f"slot {slot.slot}: {where(slot.left, slot.left_boundary, slot.left_by)}"
        if match.boundary is not None and match.by == "value":
            margin = "exact" if match.margin >= 1e6 else f"{match.margin:.1f}x"
            text += f" (margin {margin}, {1 / max(result.thresholds.located, 1e-9):.1f}x proves it)"
        yield Text(
            f"{text}; nearest reference state: {match.reference} (relative L2 {number(match.rel_l2)})", style="dim"
        )
