"""Output that nobody can keep: a full device takes nothing, and one sentence says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from run_command import run

from drafttrace.tracer.usage_errors import near_options

ROOT = Path(__file__).resolve().parents[2]
TRACE = str(ROOT / "traces/tiny-kimi/fixed.h5")
FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("--version", "--verbose"),
        ("diff", "--help"),
        ("inspect", TRACE),
        ("inspect", TRACE, "--json", "-"),
    ],
)
def test_a_full_device_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    """'A file cannot be used', after a traceback with --verbose."""
    with FULL.open("w") as stream:
        command = [sys.executable, "-m", "drafttrace.tracer.cli", *arguments]
        done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == (
        "drafttrace: Standard output cannot be written (No space left on device); make room, or send it elsewhere.\n"
    )


def test_an_error_that_nobody_can_be_told_keeps_its_exit_code() -> None:
    with FULL.open("w") as stream:
        command = [sys.executable, "-m", "drafttrace.tracer.cli", "inspect", "nosuch.h5"]
        assert subprocess.run(command, stderr=stream, timeout=120).returncode == 2


def test_only_near_names_are_suggested() -> None:
    """diff --foo suggested --format: the dashes were most of what the two shared."""
    options = ["--format", "--tokenizer", "--tokens", "--threshold", "--md", "-o"]
    assert near_options("--foo", options) == []
    assert near_options("--refernce", options) == []
    assert near_options("--tokeniser", options)[0] == "--tokenizer"
    assert near_options("--treshold", options) == ["--threshold"]
    assert near_options("--dir", ["--trace-dir", "--max-dir-mib", "--token"])[0] == "--trace-dir"


def test_a_server_that_does_not_start_leaves_no_trace_folder(tmp_path: Path) -> None:
    """The folder was made before anybody knew whether SGLang is there."""
    start = "import sys\nsys.modules['sglang'] = None\nfrom drafttrace.tracer.cli import main\nmain()\n"
    options = ["serve", "--trace-dir", "a/b", "--", "--model-path", "x"]
    done = subprocess.run(
        [sys.executable, "-c", start, *options], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    done = run("serve", "--trace-dir", "file/b", "--", "--model-path", "x", cwd=tmp_path)
    assert done.returncode == 2 and "'file/b' cannot be made" in done.stderr
