"""A whole dump that convert wrote, read by the projects' own readers: sample i is what it was in the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert_dumps import KNOWN, specforge, v1
from peer_checks import Peer, run, same

from drafttrace.tracer.convert import convert
from drafttrace.tracer.open import open_capture

pytestmark = pytest.mark.peers


def test_the_last_row_of_the_arrow_table_is_the_last_sample_to_speculators(peer: Peer, tmp_path: Path) -> None:
    """Their reader takes hs_{i} for row i of the table: a table in another order would train on other tokens' states."""
    source = v1(tmp_path / "dump", range(12))
    convert(str(source), tmp_path / "out", "speculators", request=KNOWN)
    run("speculators_arrow", peer("speculators", "0.9.0"), peer("hs-connectors", "0.9.0"), tmp_path / "out",
        tmp_path / "out.npz")  # fmt: skip
    same(open_capture(f"{source}#11"), tmp_path / "out.npz")


def test_every_sample_of_a_v1_folder_is_one_to_speculators(peer: Peer, tmp_path: Path) -> None:
    source = v1(tmp_path / "dump", range(3))
    convert(str(source), tmp_path / "out", "speculators-v1")
    for i in range(3):
        sample = tmp_path / f"out/data_{i}.pt"
        run("speculators_sample", peer("speculators", "0.4.0"), sample, tmp_path / "out.npz", "v1")
        same(open_capture(f"{source}#{i}"), tmp_path / "out.npz")


def test_a_sample_of_the_second_group_is_one_to_specforge(peer: Peer, tmp_path: Path) -> None:
    source = specforge(tmp_path / "dump", [0, 2001])
    convert(str(source), tmp_path / "out", "specforge")
    sample = tmp_path / "out/rows_2000-4000/data_2001.ckpt"
    run("specforge_offline", peer("specforge", "0.2.0"), sample, tmp_path / "out.npz", "eagle3")
    same(open_capture(f"{source}#2001"), tmp_path / "out.npz", last_mask=False)
