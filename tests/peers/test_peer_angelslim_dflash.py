"""AngelSlim DFlash: its offline trainer takes our file, and what its target wrapper captures loads in our reader."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import pytest
from peer_checks import WRITERS, Peer, run, same
from peer_truth import holds

from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.open import open_capture

pytestmark = pytest.mark.peers
VERSION = "0.5.0"
REQUEST = Request(hidden_size=made.H, layers=made.LAYERS, layer_ids=(1, 2, 3, 4))


def test_angelslim_takes_a_dflash_sample_as_we_do(peer: Peer, tmp_path: Path) -> None:
    path = made.write_as_dflash(tmp_path)
    run("angelslim_dflash", peer("angelslim", VERSION), path, tmp_path / "out.npz")
    same(open_capture(str(path), request=REQUEST), tmp_path / "out.npz")


def test_dflash_states_that_angelslim_captures(peer: Peer, tmp_path: Path) -> None:
    """Its ids 1, 2, 3, 4 are counted by output: B(2) to B(5)."""
    root, path = peer("angelslim", VERSION), tmp_path / "sample_00000000_rank0.ckpt"
    run("angelslim_dflash", root, path, tmp_path / "truth.npz", program=WRITERS)
    capture = open_capture(str(path), request=REQUEST)
    assert capture.format == "AS-DFLASH"
    assert [slot.boundary for slot in capture.slots] == [2, 3, 4, 5]
    holds(capture, tmp_path / "truth.npz", (2, 3, 4, 5), None)
    run("angelslim_dflash", root, path, tmp_path / "out.npz")
    same(capture, tmp_path / "out.npz")
