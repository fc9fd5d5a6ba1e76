"""What a terminal shows while something runs: bars of samples and spinners, in what it can show."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest

from drafttrace.tracer import output

ROOT = Path(__file__).resolve().parents[2]


class Terminal(io.TextIOWrapper):
    """A standard error that is a terminal of this encoding."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="backslashreplace", write_through=True)

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_bar_of_samples_counts_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`drafttrace reference` showed "3/8 bytes 5 bytes/s"."""
    terminal = Terminal("utf-8")
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.sample_progress() as update:
        assert update is not None
        update(3, 8)
        time.sleep(0.15)  # rich draws ten times in a second
    assert "samples" in terminal.shown() and "3/8" in terminal.shown() and "byte" not in terminal.shown()


def test_samples_are_counted_by_one_bar_in_every_command() -> None:
    for name in ("audit", "convert", "reference"):
        text = (ROOT / f"tracer/commands/{name}.py").read_text()
        assert "output.sample_progress(" in text and "byte_progress" not in text and "rich.progress" not in text


def test_a_bar_waits_for_the_first_sample_where_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal("utf-8")
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.sample_progress(at_once=False):
        time.sleep(0.15)
    assert "samples" not in terminal.shown()
    with output.sample_progress(quiet=True) as update:
        assert update is None


@pytest.mark.parametrize(("encoding", "frames"), [("ascii", "-\\|/"), ("latin-1", "-\\|/"), ("utf-8", "⠋⠙⠹⠸")])
def test_the_spinner_of_an_ascii_terminal_is_ascii(
    encoding: str, frames: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With LC_ALL=C it was the text \\u280b."""
    terminal = Terminal(encoding)
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.status("the draft runs"):
        time.sleep(0.2)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.shown())
    assert any(f"{frame} the draft runs" in shown for frame in frames)
    assert "\\u28" not in shown and (encoding == "utf-8" or shown.isascii())


def test_every_spinner_is_the_one_that_looks_at_the_encoding() -> None:
    for path in [*ROOT.glob("tracer/**/*.py"), *ROOT.glob("compare/**/*.py"), *ROOT.glob("drafttrace/**/*.py")]:
        if path != ROOT / "tracer/output.py":
            assert "rich.status" not in path.read_text() and "rich.spinner" not in path.read_text(), path
