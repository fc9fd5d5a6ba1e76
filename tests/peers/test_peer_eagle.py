"""EAGLE-1/2: its trainer's dataset takes our file, and what its data generator writes loads in our reader."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import pytest
from peer_checks import WRITERS, Peer, run, same
from peer_truth import holds

from drafttrace.tracer.capture import Norm
from drafttrace.tracer.open import open_capture

pytestmark = pytest.mark.peers
VERSION = "1.2.1"


def test_eagle_takes_a_sample_as_we_do(peer: Peer, tmp_path: Path) -> None:
    """Its fc takes the last state itself; ids are shifted left by one in its loader, the mask is not."""
    path = made.write_eagle12(tmp_path)
    run("eagle", peer("eagle-llm", VERSION), path, tmp_path / "out.npz")
    same(open_capture(str(path)), tmp_path / "out.npz", shift=1, mask_shift=0, last_mask=False)


def test_sample_that_eagle_writes(peer: Peer, tmp_path: Path) -> None:
    root, folder = peer("eagle-llm", VERSION), tmp_path / "sharegpt_0_1_mufp16/0"
    run("eagle", root, folder, tmp_path / "truth.npz", program=WRITERS)
    path = folder / "data_0.ckpt"
    capture = open_capture(str(path))
    assert capture.format == "EAGLE12-CKPT"
    assert capture.last is not None
    assert capture.last.norm is Norm.POST
    holds(capture, tmp_path / "truth.npz", (), "post")
    run("eagle", root, path, tmp_path / "out.npz")
    same(capture, tmp_path / "out.npz", shift=1, mask_shift=0, last_mask=False)
