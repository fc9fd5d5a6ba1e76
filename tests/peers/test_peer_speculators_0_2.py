"""speculators 0.2: the release has no trainer yet, so no dump layout of ours is older than 0.3."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from peer_checks import Peer

from drafttrace.tracer.dumps.registry import layouts

pytestmark = pytest.mark.peers
SAMPLES = re.compile(r"loss_mask|data_config\.json|standardize_data_v[01]|\btorch\.save\(|\bsave_file\(")


def trainers(wheel: Path) -> set[str]:
    """The modules of a wheel that read or write samples of hidden states."""
    sources = (wheel / "speculators").rglob("*.py")
    return {path.relative_to(wheel).as_posix() for path in sources if SAMPLES.search(path.read_text("utf-8"))}


def test_no_samples_in_0_2_and_both_layouts_in_0_3(peer: Peer) -> None:
    assert trainers(peer("speculators", "0.2.0")) == set()
    data = peer("speculators", "0.3.0") / "speculators/train/data.py"
    assert {"standardize_data_v0", "standardize_data_v1"} <= set(SAMPLES.findall(data.read_text("utf-8")))
    assert layouts()["SPEC-V1"].title.startswith("speculators 0.3")
    assert layouts()["SPEC-V0"].title == "speculators before 0.3"
