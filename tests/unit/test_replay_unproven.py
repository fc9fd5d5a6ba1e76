"""A trace served with another wiring than its config asks for, and a draft that is not seen to work with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from drafttrace.compare.replay.ranking import too_few
from drafttrace.compare.replay.run import replay
from drafttrace.tracer.capture import Capture
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.rows import ArrayRows, DType

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "pairs" / "tiny-llama"


def overridden(noise: float, boundaries: tuple[int, ...]) -> Capture:
    """The healthy trace as one of these boundaries, blurred by so much noise, without what its draft computed."""
    capture = open_capture(str(ROOT / "traces" / "tiny-llama" / "healthy.h5"))
    assert capture.draft is not None
    random, slots = np.random.default_rng(1), []
    for slot, boundary in zip(capture.slots, boundaries, strict=True):
        rows = slot.rows.take(np.arange(len(slot.rows)))
        rows = rows + noise * rows.std() * random.normal(size=rows.shape).astype(np.float32)
        slots.append(dataclasses.replace(slot, rows=ArrayRows(rows, DType.FP32), boundary=boundary))
    draft = dataclasses.replace(capture.draft, tensors={}, ids={}, present={})
    about = {**capture.about, "request": {**capture.about["request"], "accept_counts": []}}
    return dataclasses.replace(capture, slots=tuple(slots), draft=draft, about=about)


@pytest.mark.parametrize("swept", [True, False])
def test_few_hits_with_another_wiring_than_the_config_asks_for_are_no_clean_bill(swept: bool) -> None:
    """[B13, B0, B2] served, 17.5 % over 63 rows: "NO FAULT FOUND, too few rows to say", exit code 0."""
    capture = overridden(4.0, (2, 7, 13))
    if not swept:
        capture = dataclasses.replace(capture, boundaries={})
    result = replay(capture, PAIR / "draft", PAIR / "target", switches=False, sglang_version="0.5.23")
    assert result.best is not None and result.best.score is not None and too_few(result.best.score)  # the trap
    (found,) = result.faults
    assert found.id == "unexplained" and result.exit_code == 1
    assert "handed over [B2, B7, B13]" in found.summary and "asks for [B2, B8, B13]" in found.summary
    assert ("the layer sweep holds both" in found.remedy) == swept
    assert ("--boundaries all" in found.remedy) != swept


@pytest.mark.parametrize(("noise", "boundaries"), [(4.0, (2, 8, 13)), (1.5, (2, 7, 13))], ids=["as-asked", "works"])
def test_a_wiring_as_asked_or_one_that_works_is_no_such_fault(noise: float, boundaries: tuple[int, ...]) -> None:
    capture = overridden(noise, boundaries)
    result = replay(capture, PAIR / "draft", PAIR / "target", switches=False, sglang_version="0.5.23")
    assert not result.faults
