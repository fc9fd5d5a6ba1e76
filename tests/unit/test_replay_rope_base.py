"""A draft whose config lost its rope base: the replay tries the target's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from drafttrace.compare.replay.run import replay
from drafttrace.tracer.open import open_capture

PAIR = Path(__file__).resolve().parents[2] / "pairs" / "tiny-llama"


@pytest.mark.parametrize(("base", "told"), [(1000000.0, True), (10000.0, False)])
def test_the_rope_base_of_the_target_is_tried(base: float, told: bool, tmp_path: Path) -> None:
    """Only diff did: a draft at 58.2 % in the place of 75.1 % was called fine."""
    draft = tmp_path / "draft"
    shutil.copytree(PAIR / "draft", draft)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "rope_theta": base}))
    captures = [open_capture(f"{PAIR / 'dump'}#{i}") for i in range(4)]
    result = replay(captures, draft, PAIR / "target")
    assert [f.id for f in result.faults] == (["rope-mismatch"] if told else [])
    assert all('"rope_theta": 10000' in f.remedy for f in result.faults)
    assert any(v.switch == "rope_base" for v in result.variants) is told
