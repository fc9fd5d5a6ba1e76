"""The table of the fault lab: every fault, what was expected, what was found. Printed at the end of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from fault_rows import HEADER, Row, markdown, ordered, summary, without_a_row

_TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(_TESTS / "unit"), str(_TESTS / "live")]  # faults, captures and recordings that other tests share

PROPERTY = "fault_row"


@pytest.fixture
def fault_row(record_property: Callable[[str, object], None]) -> Callable[[Row], None]:
    """``fault_row(row)`` keeps a line for the table. It travels with the test's report, from whichever process ran it."""
    return lambda row: record_property(PROPERTY, asdict(row))


def _rows(reporter: pytest.TerminalReporter) -> list[Row]:
    """The lines of all tests that were run."""
    reports = [report for several in reporter.stats.values() for report in several]
    kept = [
        value
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    return [
        Row(**{**row, "expected": tuple(row["expected"]), "found": tuple(map(tuple, row["found"]))}) for row in kept
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-table", metavar="FILE", help="Write the fault lab's table as Markdown.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = _rows(terminalreporter)
    if not rows:
        return
    terminalreporter.section("fault lab")
    lines = [HEADER, *(row.cells for row in ordered(rows))]
    widths = [min(60, max(len(line[i]) for line in lines)) for i in range(len(HEADER))]
    for line in lines:
        terminalreporter.write_line("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())
    terminalreporter.write_line(summary(rows))
    terminalreporter.write_line(f"ids of the vocabulary without a line: {', '.join(without_a_row(rows)) or 'none'}")
    path = config.getoption("--fault-table")
    if path:
        Path(path).write_text(markdown(rows), encoding="utf-8")
        terminalreporter.write_line(f"the table is in {path}")
