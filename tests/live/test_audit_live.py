"""An audit against a real server: every sample's own tokens are sent, and what comes back is compared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sglang_cpu import cpu_args

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]


def audit(*arguments: str | Path, code: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "drafttrace.tracer.cli", "audit", *map(str, arguments), "--json", "-"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, (done.stdout[-2000:], done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_healthy_server_matches_sample_by_sample(
    start_server: Callable[..., Any], pairs: Mapping[str, Any], tmp_path: Path
) -> None:
    pair = pairs["tiny-llama"]
    url = str(start_server(cpu_args(pair.target, pair.draft, steps=5, num_draft_tokens=6)).url)
    dump, table, traces = ROOT / "pairs/tiny-llama/dump", tmp_path / "audit.sqlite", tmp_path / "traces"
    order = (dump, "--against", url, "-o", table, "--limit", "3", "--workers", "2")
    found = audit(*order, "--keep-traces", traces, code=0)
    assert found["compared"] == 3 and set(found["verdicts"]) <= {"match", "noise"}
    assert found["rows_compared"] > 100
    kept = sorted(traces.glob("*.h5"))
    assert len(kept) == 3
    again = audit(dump, "--against", traces, "-o", tmp_path / "kept.sqlite", "--limit", "3", code=0)
    assert again["compared"] == 3 and again["rows_compared"] == found["rows_compared"]


def test_a_server_that_is_not_there_fails_every_sample(tmp_path: Path) -> None:
    dump = ROOT / "pairs/tiny-llama/dump"
    found = audit(dump, "--against", "http://127.0.0.1:9", "-o", tmp_path / "a.sqlite", "--limit", "2", code=2)
    assert found["failed"] == 2 and "127.0.0.1:9" in found["problems"][0]["reason"]
