"""The demo says in one sentence what stands in its way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(out: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


def test_a_folder_that_cannot_be_made_or_is_somebody_elses(tmp_path: Path) -> None:
    """It ended in a traceback, and with 1, which means that the story does not hold."""
    (tmp_path / "precious.txt").write_text("mine")
    for out, words in ((tmp_path, "not made by the demo"), ("/proc/x", "cannot be made")):
        done = demo(out)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.live
def test_a_server_that_cannot_start_is_told_with_its_log(tmp_path: Path) -> None:
    done = demo(tmp_path / "out", SGLANG_PLUGINS="none")
    assert done.returncode == 2 and done.stderr.startswith("demo: the server did not come up"), done.stderr[-2000:]
    assert "demo/story.py" not in done.stderr  # no traceback of ours
    assert (tmp_path / "out/server-before.log").stat().st_size > 0
