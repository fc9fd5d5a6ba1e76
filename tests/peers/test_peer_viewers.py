"""Viewers: silx finds the plot of a trace where it opens one on a double click, and h5glance lists what is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.peers
ROOT = Path(__file__).resolve().parents[2]
TRACES = sorted((ROOT / "traces").rglob("*.h5"))
Peer = Callable[[str, str], Path]
SILX = """
import json, sys
import silx.io
from silx.io import nxdata
with silx.io.open(sys.argv[1]) as file:
    found = nxdata.get_default(file)
    signals = [found.signal, *found.auxiliary_signals]
    print(json.dumps({
        "group": found.group.name, "valid": found.is_valid, "curve": found.is_curve, "issues": found.issues,
        "title": found.title, "axis": found.axes_names, "points": len(found.axes[0]),
        "names": [found.signal_name, *found.auxiliary_signals_names], "lengths": [len(one) for one in signals],
    }, default=repr))
"""


def run(*arguments: str | Path, path: list[Path]) -> str:
    """A program of theirs, with their packages on the path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "NO_COLOR": "1"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_silx_plots_a_recorded_trace(trace: Path, peer: Peer) -> None:
    """Bytes of fixed length as a title or a label were shown as Python prints them, b'...'."""
    found: dict[str, Any] = json.loads(run("-c", SILX, trace, path=[peer("silx", "3.1.3")]))
    assert found["group"] == "/summary/row_norms" and found["valid"] and found["curve"] and not found["issues"]
    assert found["title"] == "row norms over token position" and found["axis"] == ["position (tokens)"]
    assert found["names"] == ["norm of aux/0", "aux_1", "aux_2", "embed", "last"]
    assert found["points"] >= 40 and set(found["lengths"]) == {found["points"]}


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_h5glance_lists_a_recorded_trace(trace: Path, peer: Peer) -> None:
    path = [peer("h5glance", "0.9.0"), peer("htmlgen", "2.0.0")]
    listed = run("-m", "h5glance", trace, path=path)
    for name in ("target", "draft", "about", "summary", "row_norms", "tokens"):
        assert name in listed
    assert "float32" in run("-m", "h5glance", trace, "summary/row_norms/aux_0", path=path)
