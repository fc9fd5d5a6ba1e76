"""``drafttrace check --dump``: a folder of samples needs no number."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "pairs/tiny-kimi"


def check(dump: str) -> dict[str, Any]:
    folders = ("--target", str(PAIR / "target"), "--draft", str(PAIR / "draft"))
    done = subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", "check", *folders, "--dump", dump, "--json", "-"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_folder_of_samples_is_read_here_and_there() -> None:
    """It was exit code 2: "holds 8 samples; name one"."""
    found = check(str(PAIR / "dump"))
    assert found["wanted"] == [0, 3, 31]
    assert found["wanted_by"] == "samples data_0.pt, data_3.pt, data_7.pt of the dump"


def test_a_numbered_sample_is_read_alone() -> None:
    found = check(f"{PAIR / 'dump'}#5")
    assert found["wanted"] == [0, 3, 31] and found["wanted_by"] == "the dump data_5.pt" and not found["notes"]
