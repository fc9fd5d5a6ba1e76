"""The trained pairs: the replay of their dump reproduces what the trainer itself measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drafttrace.compare.replay.run import replay
from drafttrace.tracer.dumps.registry import Request
from drafttrace.tracer.open import open_capture

PAIRS = Path(__file__).resolve().parents[2] / "pairs"
SAMPLES = 8
LAYERS = {"tiny-llama": 16, "tiny-kimi": 61}
WITHOUT_LAST = {"tiny-kimi"}
"""Dumps whose last entry is no last state (the incident's B59): the target's own choices do not follow from them."""


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_the_trainers_own_accuracy(name: str) -> None:
    folder = PAIRS / name
    log = json.loads((folder / "training_log.json").read_text())
    captures = [
        open_capture(f"{folder / 'dump'}#{i}", request=Request(layers=LAYERS[name])) for i in range(SAMPLES)
    ]
    measured = log["steps_on_dump"]
    assert len(measured) >= 3  # all steps that the trainer measured
    result = replay(captures, folder / "draft", folder / "target", steps=len(measured), switches=False)
    row = next(row for row in result.wirings if any(source.startswith("file") for source in row.sources))
    assert row.score is not None
    for theirs, mine in zip(measured, row.score.steps, strict=True):
        assert mine.rows == theirs["rows"]
        assert mine.token_top1 == pytest.approx(theirs["token"], abs=0.005)
        assert mine.coverage == pytest.approx(theirs["coverage"], abs=0.005)
        assert mine.token_covered == pytest.approx(theirs["token_covered"], abs=0.005)
        if name in WITHOUT_LAST:
            assert mine.target_top1 is None and mine.target_covered is None
            continue
        assert mine.target_top1 == pytest.approx(theirs["target"], abs=0.005)
        assert mine.target_covered == pytest.approx(theirs["target_covered"], abs=0.005)


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_the_trained_order_of_slots_wins(name: str) -> None:
    folder = PAIRS / name
    captures = [open_capture(f"{folder / 'dump'}#{i}") for i in range(SAMPLES)]
    result = replay(captures, folder / "draft", folder / "target", steps=1, search_wirings=True, switches=True)
    assert result.search is not None and result.search.margin > 0.02
    row = next(row for row in result.wirings if row.wiring == result.search.winner)
    assert any(source.startswith("file") for source in row.sources), result.search
    assert all(variant.gain < 0.02 for variant in result.variants), result.variants
