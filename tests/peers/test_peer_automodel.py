"""NeMo Automodel: our caches load in its datasets, and what its capture and writer store loads in our reader."""

from __future__ import annotations

from pathlib import Path

import dump_layouts as made
import pytest
from peer_checks import WRITERS, Peer, run, same
from peer_truth import holds

from drafttrace.tracer.open import open_capture

pytestmark = pytest.mark.peers
VERSION = "0.7.0"


def test_automodel_reads_an_eagle3_cache_as_we_do(peer: Peer, tmp_path: Path) -> None:
    """It keeps ids and mask shifted left by one, and so does the cache; we shift them back."""
    cache = made.write_am_eagle3(tmp_path)
    run("automodel", peer("nemo-automodel", VERSION), cache, tmp_path / "out.npz", "eagle3")
    same(open_capture(str(cache)), tmp_path / "out.npz", shift=1)


def test_automodel_reads_a_dspark_cache_as_we_do(peer: Peer, tmp_path: Path) -> None:
    cache = made.write_am_dspark(tmp_path)
    run("automodel", peer("nemo-automodel", VERSION), cache, tmp_path / "out.npz", "dspark")
    same(open_capture(str(cache)), tmp_path / "out.npz")


def test_eagle3_cache_that_automodel_writes(peer: Peer, tmp_path: Path) -> None:
    """Its default layers 1, n//2 - 1, n - 4 are counted by output: B(2), B(4), B(5) of a target of 8 layers."""
    root, cache = peer("nemo-automodel", VERSION), tmp_path / "cache"
    run("automodel_eagle3", root, cache, tmp_path / "truth.npz", program=WRITERS)
    capture = open_capture(str(cache))
    assert capture.format == "AM-EAGLE3"
    assert [slot.boundary for slot in capture.slots] == [2, 4, 5]
    holds(capture, tmp_path / "truth.npz", (2, 4, 5), None, first=1)
    run("automodel", root, cache, tmp_path / "out.npz", "eagle3")
    same(capture, tmp_path / "out.npz", shift=1)


def test_dspark_cache_that_automodel_writes(peer: Peer, tmp_path: Path) -> None:
    root, cache = peer("nemo-automodel", VERSION), tmp_path / "cache"
    run("automodel_dspark", root, cache, tmp_path / "truth.npz", program=WRITERS)
    capture = open_capture(str(cache))
    assert capture.format == "AM-DSPARK"
    assert [slot.boundary for slot in capture.slots] == [0, 2, 4, 5]
    holds(capture, tmp_path / "truth.npz", (0, 2, 4, 5), "post")
    run("automodel", root, cache, tmp_path / "out.npz", "dspark")
    same(capture, tmp_path / "out.npz")
