"""The table of the fault lab: every fault, what was expected, what was found. Printed at the end of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_rows import Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))  # faults and captures that unit tests share

TABLE = pytest.StashKey[list[Row]]()


@pytest.fixture
def fault_row(request: pytest.FixtureRequest) -> Callable[[Row], None]:
    """``fault_row(row)`` keeps a line for the table."""
    return request.config.stash.setdefault(TABLE, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(TABLE, [])
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("fault lab")
    write(f"{'fault':<44} {'where':<12} {'expected':<34} {'found (confidence)':<60} {'s':>5}")
    for row in sorted(rows, key=lambda r: (r.where, len(r.expected), r.fault)):
        found = ", ".join(f"{name} {confidence:.2f}" for name, confidence in row.found) or "nothing"
        mark = "" if row.reached else "   NOT REACHED"
        expected = " + ".join(row.expected) or "nothing"
        write(f"{row.fault:<44} {row.where:<12} {expected:<34} {found:<60} {row.seconds:5.1f}{mark}")
    healthy = [r for r in rows if not r.expected]
    faulty = [r for r in rows if r.expected]
    alarms = sum(not r.reached for r in healthy)
    reached = sum(r.reached for r in faulty)
    write(f"{reached} of {len(faulty)} faults named, {alarms} false alarms in {len(healthy)} healthy comparisons")
