"""SpecForge DFlash: its offline normaliser takes our file, and the record that its capture layout makes loads in ours."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import pytest
from peer_checks import WRITERS, Peer, run, same
from peer_truth import holds

from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.open import open_capture

pytestmark = pytest.mark.peers
VERSION = "0.2.0"
REQUEST = Request(hidden_size=made.H, layers=made.LAYERS, layer_ids=(1, 2, 3, 4))


def test_specforge_takes_a_dflash_sample_as_we_do(peer: Peer, tmp_path: Path) -> None:
    path = made.write_sf_dflash(tmp_path)
    run("specforge_offline", peer("specforge", VERSION), path, tmp_path / "out.npz", "dflash")
    same(open_capture(str(path), request=REQUEST), tmp_path / "out.npz")


def test_dflash_record_that_specforge_makes(peer: Peer, tmp_path: Path) -> None:
    root, path = peer("specforge", VERSION), tmp_path / "rows_0-2000/data_0.ckpt"
    path.parent.mkdir()
    run("specforge_dflash", root, path, tmp_path / "truth.npz", program=WRITERS)
    capture = open_capture(str(path), request=REQUEST)
    assert capture.format == "SF-DFLASH"
    assert [slot.boundary for slot in capture.slots] == [2, 3, 4, 5]
    holds(capture, tmp_path / "truth.npz", (2, 3, 4, 5), None)
    run("specforge_offline", root, path, tmp_path / "out.npz", "dflash")
    same(capture, tmp_path / "out.npz")
