"""Errors name the value and the file that they are about."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_command import run

KIMI = Path(__file__).resolve().parents[2] / "traces/tiny-kimi"


@pytest.mark.parametrize("option", ["--max-new-tokens", "--timeout", "--temperature"])
def test_a_number_out_of_range_is_shown(option: str) -> None:
    done = run("record", "--prompt", "x", option, "-3", env={"COLUMNS": "200"})
    assert done.returncode == 2 and f", which {option} needs; give one." in done.stderr, done.stderr
    assert "'-3' is no " in done.stderr


@pytest.mark.parametrize("text", ["{}", "[1]", "{", '{"schema": "drafttrace.result/1"}'])
def test_a_file_that_is_no_result_is_named(text: str, tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    place.write_text(text)
    done = run("report", place)
    assert done.returncode == 2 and f"'{place}'" in done.stderr and "None" not in done.stderr, done.stderr
    piped = run("report", "-", input=text)
    assert piped.returncode == 2 and "standard input" in piped.stderr


def test_a_folder_without_a_trace_is_named(tmp_path: Path) -> None:
    whole = (KIMI / "fixed.h5").read_bytes()
    served = tmp_path / "served"
    served.mkdir()
    (served / "a.h5").write_bytes(whole[: len(whole) // 2])
    done = run("audit", KIMI / "dump", "--against", served, "-o", tmp_path / "a.sqlite")
    assert done.returncode == 2 and "'" in done.stderr and "served" in done.stderr, done.stderr
