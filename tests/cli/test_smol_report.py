"""The real model's committed trace: its report as a picture, and the noise that a healthy pair of engines has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import browse
from typed import drafttrace

from drafttrace.compare.thresholds import DEFAULT

ROOT = Path(__file__).resolve().parents[2]
TRACE, DUMP = ROOT / "traces/smol/as-trained.h5", ROOT / "traces/smol/dump/data_0.pt"

pytestmark = pytest.mark.real


def test_the_report_of_a_real_trace_is_a_picture(smol: Any, tmp_path: Path) -> None:
    page, shot = tmp_path / "report.html", tmp_path / "report.png"
    done = drafttrace("diff", TRACE, DUMP, "--html", page, "--tokenizer", smol.target)
    assert done.returncode == 1, done.stderr
    drawn = browse(page, tmp_path / "profile", "--dump-dom")
    assert 'data-drawn="yes"' in drawn.stdout and "CONSOLE" not in drawn.stderr, drawn.stderr
    dom = drawn.stdout
    assert "slot-shift" in dom and "B28" in dom and "[-1, 15, 27]" in dom
    assert dom.count("<path d=") >= 3 and 'class="tile"' in dom
    assert "massive" in dom
    browse(page, tmp_path / "profile", f"--screenshot={shot}", "--window-size=1240,2600")
    assert shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 60_000


def test_the_noise_of_a_healthy_pair_is_what_the_page_says(
    smol: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's rows against transformers', and bf16 against fp32: below the default limits, and as in bench/noise.json."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import noise

    found = noise.measure("smol", noise.SETTINGS["smol"], tmp_path)
    committed = {
        one["boundary"]: one
        for one in json.loads((ROOT / "bench/noise.json").read_text("utf-8"))
        if one["pair"] == "smol"
    }
    assert [one.boundary for one in found] == list(committed) and len(found) == 7
    for one in found:
        said = committed[one.boundary]
        # Another processor adds in another order: the same size of noise, not the same digits.
        assert one.served == pytest.approx(said["served"], rel=0.3)
        assert one.dtype == pytest.approx(said["dtype"], rel=0.3)
        assert max(one.served, one.dtype) < DEFAULT.match
        assert one.served < DEFAULT.neighbour_match * one.neighbour_distance / 5
    low, full = tmp_path / "smol-bf16.safetensors", tmp_path / "smol-fp32.safetensors"
    done = drafttrace("diff", low, full, "--noise", low, full, "--json", "-")
    assert done.returncode == 0, done.stderr
    floor = json.loads(done.stdout)["noise"]["rel_l2"]
    assert len(floor) == 3 and floor[0] < 0.01
    for slot, boundary in ((1, 16), (2, 28)):
        assert floor[slot] == pytest.approx(committed[boundary]["dtype"], rel=0.3)
