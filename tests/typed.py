"""The commands as a user types them, for tests that hold a server: run, and read what came back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def drafttrace(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def recorded(url: str, dump: str | Path, out: Path, *more: str | Path) -> Path:
    """``record --from-dump``; a trace that is not complete fails the test."""
    done = drafttrace("record", "--url", url, "--from-dump", dump, "-o", out, *(more or ("--max-new-tokens", "24")))
    assert done.returncode == 0, done.stderr
    return out


def compared(left: Path, reference: str | Path, *more: str | Path) -> tuple[dict[str, Any], int]:
    """``diff --json``: the result and the exit code, which must be 0 or 1."""
    done = drafttrace("diff", left, reference, "--json", "-", *more)
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["exit_code"] == done.returncode
    return result, done.returncode


def faults(result: Mapping[str, Any]) -> list[str]:
    """Ids of the findings that are faults, in their order."""
    return [finding["id"] for finding in result["findings"] if finding["severity"] == "fault"]
