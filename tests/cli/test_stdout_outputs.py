"""``-`` is standard output for every report: it alone stands there, so that a program can read it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_command import run

ROOT = Path(__file__).resolve().parents[2]
TRACE, DUMP = ROOT / "traces/tiny-kimi/fixed.h5", ROOT / "traces/tiny-kimi/dump/data_0.pt"
MODELS = ("--target", ROOT / "pairs/tiny-kimi/target", "--draft", ROOT / "pairs/tiny-kimi/draft")
REPLAY = ("replay", DUMP, *MODELS, "--no-switches", "--steps", "2")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("result") / "r.json"
    assert run("diff", TRACE, DUMP, "--json", path, "--quiet").returncode == 0
    return path


def commands(result: Path) -> dict[str, tuple[str | Path, ...]]:
    return {
        "diff": ("diff", TRACE, DUMP),
        "report": ("report", result),
        "check": ("check", *MODELS),
        "replay": REPLAY,
    }


@pytest.mark.parametrize("command", ["diff", "report", "check", "replay"])
def test_markdown_on_standard_output_is_all_that_stands_there(command: str, result: Path, tmp_path: Path) -> None:
    """``--md -`` made a file of the name '-', and the terminal's report stood on standard output."""
    given = commands(result)[command]
    file = run(*given, "--md", tmp_path / "r.md", "--quiet", cwd=tmp_path)
    done = run(*given, "--md", "-", "--json", tmp_path / "r.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (file.returncode, "")
    told, stored = (
        re.sub(r"\d+\.\d+ s\b", "some time", text) for text in (done.stdout, (tmp_path / "r.md").read_text())
    )
    assert told == stored and told.startswith("#")
    assert json.loads((tmp_path / "r.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "r.md"]


@pytest.mark.parametrize("command", ["diff", "report", "check", "replay"])
def test_json_on_standard_output_is_all_that_stands_there(command: str, result: Path, tmp_path: Path) -> None:
    done = run(*commands(result)[command], "--json", "-", "--md", tmp_path / "r.md", cwd=tmp_path)
    assert done.stderr == "" and json.loads(done.stdout)["schema"].startswith("drafttrace.")
    assert (tmp_path / "r.md").read_text().startswith("#")
    assert [path.name for path in tmp_path.iterdir()] == ["r.md"]


@pytest.mark.parametrize("command", ["diff", "report"])
def test_a_page_on_standard_output_is_all_that_stands_there(command: str, result: Path, tmp_path: Path) -> None:
    done = run(*commands(result)[command], "--html", "-", cwd=tmp_path)
    assert done.stdout.lstrip().lower().startswith("<!doctype html") and done.stdout.rstrip().endswith("</html>")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_goes_into_a_pipe(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "drafttrace.tracer.cli", "diff", str(TRACE), str(DUMP), "--png", "-"]
    done = subprocess.run(command, capture_output=True, timeout=240, cwd=tmp_path)
    assert done.stdout.startswith(b"\x89PNG") and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["diff", "report", "check", "replay"])
def test_two_reports_do_not_both_go_to_standard_output(command: str, result: Path, tmp_path: Path) -> None:
    done = run(*commands(result)[command], "--md", "-", "--json", "-", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("drafttrace: Two outputs go to standard output ('-'); give ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", DUMP, "-", "--to", "safetensors"),
        ("redact", TRACE, "-"),
        ("reference", "-o", "-", "--from", DUMP, "--target", ROOT / "pairs/tiny-kimi/target"),
        ("audit", DUMP.parent, "--against", TRACE, "-o", "-"),
        ("view", TRACE, DUMP, "-o", "-"),
        ("record", "--url", "http://127.0.0.1:9", "--prompt", "x", "-o", "-"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_is_no_text_is_not_written_to_standard_output(
    arguments: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """``convert FILE -`` made a file of the name '-'."""
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "cannot be written to standard output ('-'); give a file name." in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_corrected_copy_is_not_told_between_the_lines_of_a_report(tmp_path: Path) -> None:
    done = run("check", *MODELS, "--md", "-", "--fix-to", tmp_path / "fixed", cwd=tmp_path)
    assert "corrected copy" not in done.stdout and "nothing in the config" not in done.stdout


def test_a_result_is_read_from_a_pipe(result: Path, tmp_path: Path) -> None:
    """``diff --json - | report -``: '-' was a file that is not there."""
    text = result.read_text()
    done = run("report", "-", "--json", "-", input=text, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout) == json.loads(text)
    broken = run("report", "-", input=text[:100], cwd=tmp_path)
    assert broken.returncode == 2 and len(broken.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("width", ["0", "00", ""])
@pytest.mark.parametrize("asked", [("--help",), ("diff", "--help"), ("inspect", DUMP)])
def test_a_width_of_0_is_no_width(asked: tuple[str | Path, ...], width: str) -> None:
    """COLUMNS=0, as some job runners set it, printed nothing at all."""
    done = run(*asked, env={"COLUMNS": width})
    assert (done.stdout, done.returncode) == (run(*asked).stdout, 0) and len(done.stdout) > 500
