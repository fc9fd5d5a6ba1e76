"""What a shell is offered, and what --verbose says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer.main
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


def offered(shell: str, line: str) -> list[str]:
    """The values that a shell is offered at the end of a line, without the words on them."""
    words = line.split(" ")
    asked = {
        "_DRAFTTRACE_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    script = Path(sys.executable).with_name("drafttrace")
    done = subprocess.run([script], capture_output=True, text=True, env={**os.environ, **asked}, timeout=60)
    assert done.stderr == "", done.stderr
    if shell == "zsh":
        return re.findall(r'^(?:_arguments.*\(\()?"([^"]*)"', done.stdout, re.MULTILINE)
    return [text.partition("\t")[0] for text in done.stdout.splitlines() if text]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("inspect x --format SPEC-V", ["SPEC-V0", "SPEC-V1"]),
        (f"replay {KIMI / 'as-trained.h5'} --wiring B2", ["B2,B30,B58"]),
        (f"check --trace {KIMI / 'fixed.h5'} --trained B0,B3", ["B0,B3,B31"]),
    ],
)
def test_the_values_of_an_option_complete(shell: str, line: str, values: list[str]) -> None:
    assert offered(shell, f"drafttrace {line}") == values


def test_values_come_from_where_the_command_takes_them(tmp_path: Path) -> None:
    from drafttrace.hooks.sglang_engine.versions import NEWEST

    assert offered("bash", "drafttrace check --sglang-version 0.5.2")[0] == ".".join(map(str, NEWEST))
    assert offered("bash", "drafttrace diff a b --threshold match") == ["match=0.05"]
    assert offered("bash", "drafttrace record --boundaries ") == ["auto", "all", "none"]
    np.savez(tmp_path / "mine.npz", state_a=np.zeros((2, 4)), state_b=np.zeros((2, 4)), ids=np.arange(2))
    named = offered("bash", f"drafttrace inspect {tmp_path / 'mine.npz'} --slots state_a,")
    assert named == ["state_a,ids", "state_a,state_b"]
    (tmp_path / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    assert offered("bash", f"drafttrace replay {tmp_path / 'bad.h5'} --wiring ") == []


def test_every_option_that_completes_is_an_option() -> None:
    from drafttrace.tracer.cli import app
    from drafttrace.tracer.completing import complete_values, options

    command = complete_values(typer.main.get_command(app))
    there = {name for one in command.commands.values() for option in one.params for name in option.opts}
    assert options() <= there


def test_report_and_check_and_doctor_say_what_they_read(tmp_path: Path) -> None:
    """--verbose was empty for these."""
    run("diff", KIMI / "fixed.h5", KIMI / "dump/data_0.pt", "--json", tmp_path / "r.json")
    assert "r.json: match" in run("report", tmp_path / "r.json", "--verbose").stderr
    (tmp_path / "config.json").write_text("{}")
    said = run("check", "--target", tmp_path, "--draft", tmp_path, "--verbose").stderr
    assert f"target {tmp_path}, draft {tmp_path}" in said and "config.json: read" in said
    assert "hooks, plugin" in run("doctor", "--verbose").stderr
