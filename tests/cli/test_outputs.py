"""Where commands write: what is there already, and names that a terminal or a file cannot hold."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "traces/tiny-kimi/fixed.h5"
DUMP = ROOT / "traces/tiny-kimi/dump/data_0.pt"


def run(*arguments: str | bytes | Path) -> subprocess.CompletedProcess[bytes]:
    """The command line as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", *arguments],
        capture_output=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
    )


def says(done: subprocess.CompletedProcess[bytes], *words: str) -> None:
    """Exit 2 and one sentence on stderr that holds all the words."""
    told = done.stderr.decode(errors="replace")
    assert done.returncode == 2, (done.returncode, done.stdout, told)
    assert told.startswith("drafttrace: ") and len(told.strip().splitlines()) == 1, told
    for word in words:
        assert word in told, (word, told)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Stands for /dev/null, which a test that fails must not break."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("record", "--url", "http://127.0.0.1:9", "--prompt", "x", "--force", "-o"),
        ("convert", DUMP, "--to", "trace", "--force"),
        ("reference", "--target", ROOT / "pairs/tiny-kimi/target", "--prompt", "x", "--force", "-o"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_device_is_never_replaced_by_a_file(arguments: tuple[str | Path, ...], pipe: Path) -> None:
    """``record -o /dev/null --force``, run by root, made /dev/null a trace."""
    says(run(*arguments, pipe), str(pipe), "device or pipe")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_is_no_reference_of_itself(tmp_path: Path) -> None:
    """It was a MATCH with exit code 0, whatever the server had done."""
    (tmp_path / "link.h5").symlink_to(TRACE)
    says(run("diff", TRACE, tmp_path / "link.h5"), "the same file", "REFERENCE")


def test_a_device_is_no_missing_file(pipe: Path) -> None:
    says(run("diff", TRACE, pipe), str(pipe), "device or pipe")


@pytest.mark.parametrize("option", ["--json", "--md", "--html"])
def test_a_report_never_replaces_a_trace(option: str, tmp_path: Path) -> None:
    """``record -o t.h5 --json t.h5`` left 228 bytes of JSON in the trace's place."""
    trace = tmp_path / "t.h5"
    shutil.copy(TRACE, trace)
    says(run("diff", trace, DUMP, option, trace), str(trace), "no report replaces")
    assert trace.read_bytes() == TRACE.read_bytes()


def test_a_report_replaces_a_report(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    for _ in range(2):
        assert run("diff", TRACE, DUMP, "--json", report).returncode == 0
    assert json.loads(report.read_text())["verdict"] == "match"


def test_a_path_that_is_not_utf_8_goes_into_reports(tmp_path: Path) -> None:
    """Half characters cannot be encoded: ``diff --json`` ended in a traceback."""
    name = os.fsencode(tmp_path) + b"/b\xff.h5"
    try:
        shutil.copy(TRACE, name)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    result, report, page = (tmp_path / f"r.{kind}" for kind in ("json", "md", "html"))
    done = run("diff", name, DUMP, "--json", result, "--md", report, "--html", page)
    assert done.returncode == 0, done.stderr
    assert os.fsencode(json.loads(result.read_text())["left"]["path"]) == name
    assert "b\\udcff.h5" in report.read_text() and "b\\udcff.h5" in page.read_text()
    assert json.loads(run("diff", name, DUMP, "--json", "-").stdout)["verdict"] == "match"
    assert run("inspect", name, "--json", "-").returncode == 0


@pytest.mark.parametrize("name", ["[red].h5", "[/red].h5"])
def test_a_path_that_looks_like_markup_is_printed_as_it_is(name: str, tmp_path: Path) -> None:
    trace = tmp_path / name
    trace.parent.mkdir(exist_ok=True)
    shutil.copy(TRACE, trace)
    for command in (("inspect", trace), ("diff", trace, DUMP)):
        done = run(*command)
        assert done.returncode == 0, done.stderr
        assert name in done.stdout.decode().replace("\n", "")
