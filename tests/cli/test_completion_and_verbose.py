"""What a shell is offered, and what --verbose says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_command import run

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"


@pytest.mark.parametrize("line", ["diff --", "record --bou", "watch --"])
def test_fish_is_offered_options_alone(line: str) -> None:
    """A help text of two lines was two completions: `target).`, `Repeatable.`, `a list like B3,B31.`"""
    asked = {
        "_DRAFTTRACE_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": f"drafttrace {line}",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    script = Path(sys.executable).with_name("drafttrace")  # completion goes by the name of the program
    done = subprocess.run([script], capture_output=True, text=True, env={**os.environ, **asked}, timeout=60)
    offered = done.stdout.splitlines()
    assert offered and all(text.startswith("--") for text in offered), offered


def test_report_and_check_and_doctor_say_what_they_read(tmp_path: Path) -> None:
    """--verbose was empty for these."""
    run("diff", KIMI / "fixed.h5", KIMI / "dump/data_0.pt", "--json", tmp_path / "r.json")
    assert "r.json: match" in run("report", tmp_path / "r.json", "--verbose").stderr
    (tmp_path / "config.json").write_text("{}")
    said = run("check", "--target", tmp_path, "--draft", tmp_path, "--verbose").stderr
    assert f"target {tmp_path}, draft {tmp_path}" in said and "config.json: read" in said
    assert "hooks, plugin" in run("doctor", "--verbose").stderr
